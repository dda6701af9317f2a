#include "relay/circuit.h"

#include "unit.h"

#define BASE (200 * US_PER_MS)
#define CAP (5 * US_PER_SEC)

START_TEST(a_closed_circuit_lets_everything_through)
{
	struct circuit c;

	circuit_init(&c, BASE, CAP);
	ck_assert(circuit_may_try(&c, 0));
	ck_assert(!c.open);
}
END_TEST

START_TEST(a_failure_opens_it_until_its_probe_is_due)
{
	struct rng rng = { 1 };
	struct circuit c;

	circuit_init(&c, BASE, CAP);
	circuit_fail(&c, 100 * US_PER_SEC, false, &rng);
	ck_assert(c.open);
	ck_assert(!circuit_may_try(&c, 100 * US_PER_SEC));
	ck_assert(!circuit_may_try(&c, c.retry_us - 1));
	ck_assert(circuit_may_try(&c, c.retry_us));
	ck_assert_int_eq(c.opened_us, 100 * US_PER_SEC);
	circuit_succeed(&c, c.retry_us);
	ck_assert(!c.open);
}
END_TEST

START_TEST(probes_are_drawn_from_the_upper_half_of_a_delay_that_grows_to_the_cap)
{
	struct rng rng = { 2 };
	struct circuit c;
	int64_t now = 100 * US_PER_SEC, full = BASE;

	circuit_init(&c, BASE, CAP);
	for (int i = 0; i < 200; i++) {
		circuit_fail(&c, now, false, &rng);
		ck_assert_int_ge(c.retry_us - now, full / 2);
		ck_assert_int_le(c.retry_us - now, full);
		now = c.retry_us;
		full = full * 2 < CAP ? full * 2 : CAP;
	}
	ck_assert_int_eq(c.opened_us, 100 * US_PER_SEC);
}
END_TEST

START_TEST(what_dies_right_after_each_success_gets_no_quick_try)
{
	struct rng rng = { 3 };
	struct circuit c;
	int64_t now = 100 * US_PER_SEC;

	circuit_init(&c, BASE, CAP);
	for (int i = 0; i < 10; i++) {
		circuit_fail(&c, now, false, &rng);
		now = c.retry_us;
		circuit_succeed(&c, now);
		now += US_PER_MS;
	}
	circuit_fail(&c, now, false, &rng);
	ck_assert_int_ge(c.retry_us - now, CAP / 2);
	circuit_succeed(&c, c.retry_us);
	now = c.retry_us + CIRCUIT_STABLE_US;
	circuit_fail(&c, now, false, &rng);
	ck_assert_int_le(c.retry_us - now, BASE);
}
END_TEST

START_TEST(a_fault_that_time_alone_does_not_mend_is_probed_slowly)
{
	struct rng rng = { 4 };
	struct circuit c;
	int64_t now = 100 * US_PER_SEC;

	circuit_init(&c, BASE, CAP);
	circuit_fail(&c, now, true, &rng);
	ck_assert_int_ge(c.retry_us - now, CAP / 20);
	for (int i = 0; i < 20; i++)
		circuit_fail(&c, now, true, &rng);
	ck_assert_int_ge(c.retry_us - now, CAP * 3 / 2);
	ck_assert_int_le(c.retry_us - now, CAP * 3);
}
END_TEST

START_TEST(a_herd_of_relays_spreads_out)
{
	struct rng rng = { 5 };
	unsigned slot[10] = { 0 };

	for (int i = 0; i < 1000; i++) {
		struct circuit c;

		circuit_init(&c, US_PER_SEC, CAP);
		circuit_fail(&c, 100 * US_PER_SEC, false, &rng);
		slot[(c.retry_us - 100 * US_PER_SEC - US_PER_SEC / 2) * 10 /
			(US_PER_SEC / 2 + 1)]++;
	}
	for (int i = 0; i < 10; i++)
		ck_assert_uint_ge(slot[i], 60);
}
END_TEST

UNIT_MAIN("circuit", a_closed_circuit_lets_everything_through,
	a_failure_opens_it_until_its_probe_is_due,
	probes_are_drawn_from_the_upper_half_of_a_delay_that_grows_to_the_cap,
	what_dies_right_after_each_success_gets_no_quick_try,
	a_fault_that_time_alone_does_not_mend_is_probed_slowly, a_herd_of_relays_spreads_out)

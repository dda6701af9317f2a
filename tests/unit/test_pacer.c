#include "relay/pacer.h"

#include "unit.h"

START_TEST(an_idle_source_is_polled_once_an_interval_in_the_long_run)
{
	struct pacer p;
	int64_t now = 0;
	unsigned polls = 0;

	pacer_init(&p, US_PER_SEC, 0);
	while (now < 1000 * US_PER_SEC) {
		now = p.next_us;
		pacer_idle(&p, now, TIME_NEVER);
		polls++;
	}
	ck_assert_uint_le(polls, 1010);
	ck_assert_uint_ge(polls, 1000);
}
END_TEST

START_TEST(something_found_keeps_the_polls_close_for_a_while_then_they_spread)
{
	struct pacer p;
	int64_t now = 0, last = 0;

	pacer_init(&p, US_PER_SEC, 0);
	pacer_claimed(&p, now, 1, 500);
	ck_assert(!p.hot);
	ck_assert_int_eq(p.next_us, PACER_FLOW_US);
	while (now < PACER_LINGER_US - PACER_FLOW_US) {
		now = p.next_us;
		pacer_idle(&p, now, TIME_NEVER);
		ck_assert_int_eq(p.next_us - now, PACER_FLOW_US);
	}
	for (int i = 0; i < 20; i++) {
		now = p.next_us;
		pacer_idle(&p, now, TIME_NEVER);
		ck_assert_int_ge(p.next_us - now, last);
		ck_assert_int_le(p.next_us - now, US_PER_SEC);
		last = p.next_us - now;
	}
	ck_assert_int_eq(last, US_PER_SEC);
}
END_TEST

START_TEST(a_full_batch_is_followed_at_once)
{
	struct pacer p;

	pacer_init(&p, US_PER_SEC, 0);
	pacer_claimed(&p, 5, 500, 500);
	ck_assert(p.hot);
	ck_assert_int_eq(p.next_us, 5);
}
END_TEST

START_TEST(a_producer_that_rings_has_its_rows_claimed_without_a_look)
{
	struct pacer p;

	pacer_init(&p, US_PER_SEC, 0);
	pacer_claimed(&p, 5, 0, 500);
	ck_assert_int_gt(p.next_us, 7);
	pacer_ring(&p, 7);
	ck_assert(p.hot);
	ck_assert_int_eq(p.next_us, 7);
	pacer_claimed(&p, 8, 1, 500);
	ck_assert(!p.hot);
	pacer_ring(&p, 9);
	pacer_claimed(&p, 10, 0, 500); /* then a look follows */
	ck_assert(!p.hot);
	ck_assert_int_eq(p.next_us, 10);
	pacer_idle(&p, 11, TIME_NEVER);
	ck_assert_int_gt(p.next_us, 11);
}
END_TEST

START_TEST(full_batches_that_only_fail_slow_down_and_one_success_mends_it)
{
	struct pacer p;
	int64_t now = 0, last = 0;

	pacer_init(&p, US_PER_SEC, 0);
	for (int i = 0; i < 10; i++) {
		for (int k = 0; k < 100; k++)
			pacer_outcome(&p, false);
		pacer_claimed(&p, now, 100, 100);
		ck_assert(!p.hot);
		ck_assert_int_gt(p.next_us, now);
		ck_assert_int_ge(p.next_us - now, last);
		last = p.next_us - now;
		now = p.next_us;
	}
	ck_assert_int_eq(last, US_PER_SEC);
	pacer_outcome(&p, true);
	pacer_claimed(&p, now, 100, 100);
	ck_assert(p.hot);
}
END_TEST

START_TEST(a_delayed_row_is_met_when_it_falls_due)
{
	struct pacer p;

	pacer_init(&p, US_PER_SEC, 0);
	for (int i = 0; i < 20; i++)
		pacer_idle(&p, 0, TIME_NEVER);
	pacer_idle(&p, 0, 300 * US_PER_MS);
	ck_assert_int_eq(p.next_us, 300 * US_PER_MS);
	pacer_idle(&p, 0, 3600 * US_PER_SEC);
	ck_assert_int_eq(p.next_us, US_PER_SEC);
}
END_TEST

START_TEST(a_poke_polls_now)
{
	struct pacer p;

	pacer_init(&p, 60 * US_PER_SEC, 0);
	for (int i = 0; i < 20; i++)
		pacer_idle(&p, 0, TIME_NEVER);
	pacer_poke(&p, 7);
	ck_assert_int_eq(p.next_us, 7);
}
END_TEST

START_TEST(a_poll_interval_below_the_flow_interval_holds)
{
	struct pacer p;

	pacer_init(&p, 5 * US_PER_MS, 0);
	pacer_claimed(&p, 0, 1, 500);
	ck_assert_int_eq(p.next_us, 5 * US_PER_MS);
}
END_TEST

UNIT_MAIN("pacer", an_idle_source_is_polled_once_an_interval_in_the_long_run,
	something_found_keeps_the_polls_close_for_a_while_then_they_spread,
	a_full_batch_is_followed_at_once, a_producer_that_rings_has_its_rows_claimed_without_a_look,
	full_batches_that_only_fail_slow_down_and_one_success_mends_it,
	a_delayed_row_is_met_when_it_falls_due, a_poke_polls_now,
	a_poll_interval_below_the_flow_interval_holds)

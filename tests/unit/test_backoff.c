#include "relay/backoff.h"

#include "base/rng.h"
#include "unit.h"

START_TEST(the_delay_doubles_from_base_to_cap)
{
	ck_assert_int_eq(backoff_us(2 * US_PER_SEC, 300 * US_PER_SEC, 1, 0.0, 0.5), 2 * US_PER_SEC);
	ck_assert_int_eq(backoff_us(2 * US_PER_SEC, 300 * US_PER_SEC, 2, 0.0, 0.5), 4 * US_PER_SEC);
	ck_assert_int_eq(
		backoff_us(2 * US_PER_SEC, 300 * US_PER_SEC, 8, 0.0, 0.5), 256 * US_PER_SEC);
	ck_assert_int_eq(
		backoff_us(2 * US_PER_SEC, 300 * US_PER_SEC, 9, 0.0, 0.5), 300 * US_PER_SEC);
}
END_TEST

START_TEST(the_delay_never_exceeds_its_cap_and_never_overflows)
{
	static const unsigned attempts[] = { 0, 1, 2, 31, 32, 33, 62, 63, 64, 65, 1000,
		UINT32_MAX };
	static const int64_t lengths[] = { 1, 1000, 2 * US_PER_SEC, INT64_C(1) << 40,
		INT64_MAX / 4 };
	struct rng rng = { 7 };

	for (size_t a = 0; a < ARRAY_LEN(attempts); a++)
		for (size_t b = 0; b < ARRAY_LEN(lengths); b++)
			for (size_t c = 0; c < ARRAY_LEN(lengths); c++)
				for (int i = 0; i < 20; i++) {
					int64_t us = backoff_us(lengths[b], lengths[c], attempts[a],
						rng_unit(&rng), rng_unit(&rng));

					ck_assert_int_ge(us, 0);
					ck_assert_int_le(us, lengths[c]);
				}
}
END_TEST

START_TEST(a_base_above_the_cap_is_the_cap)
{
	ck_assert_int_eq(backoff_us(10 * US_PER_SEC, US_PER_SEC, 1, 0.0, 0.0), US_PER_SEC);
}
END_TEST

START_TEST(jitter_spreads_evenly_around_the_delay)
{
	struct rng rng = { 11 };
	int64_t low = INT64_MAX, high = 0, sum = 0;

	for (int i = 0; i < 10000; i++) {
		int64_t us = backoff_us(US_PER_SEC, 300 * US_PER_SEC, 3, 0.2, rng_unit(&rng));

		low = us < low ? us : low;
		high = us > high ? us : high;
		sum += us;
	}
	ck_assert_int_ge(low, 3200 * US_PER_MS);
	ck_assert_int_lt(low, 3210 * US_PER_MS);
	ck_assert_int_le(high, 4800 * US_PER_MS);
	ck_assert_int_gt(high, 4790 * US_PER_MS);
	ck_assert_int_lt(llabs(sum / 10000 - 4 * US_PER_SEC), 20 * US_PER_MS);
}
END_TEST

UNIT_MAIN("backoff", the_delay_doubles_from_base_to_cap,
	the_delay_never_exceeds_its_cap_and_never_overflows, a_base_above_the_cap_is_the_cap,
	jitter_spreads_evenly_around_the_delay)

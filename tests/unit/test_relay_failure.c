#include "relay/failure.h"

#include "unit.h"

#include <limits.h>

START_TEST(every_class_has_a_name_of_its_own)
{
	for (int a = 0; a < FAILURES; a++)
		for (int b = 0; b < a; b++)
			ck_assert_str_ne(
				failure_name((enum failure)a), failure_name((enum failure)b));
	ck_assert_str_eq(failure_name(FAIL_UNROUTABLE), "UNROUTABLE");
	ck_assert_str_eq(failure_name(FAIL_LEASE_EXPIRED), "LEASE_EXPIRED");
	ck_assert_str_eq(failure_name(FAILURES), "UNKNOWN");
}
END_TEST

START_TEST(the_class_is_the_whole_first_word)
{
	ck_assert(failure_is(FAIL_NACKED, SLICE_LIT("NACKED: by x")));
	ck_assert(failure_is(FAIL_NACKED, SLICE_LIT("NACKED:")));
	ck_assert(!failure_is(FAIL_NACKED, SLICE_LIT("NACKED")));
	ck_assert(!failure_is(FAIL_NACKED, SLICE_LIT("NACKEDX: by x")));
	ck_assert(!failure_is(FAIL_NACKED, SLICE_LIT("")));
	ck_assert(!failure_is(FAIL_NACKED, (struct slice){ NULL, 0 }));
}
END_TEST

START_TEST(takeovers_are_read_back_from_what_was_written)
{
	ck_assert_uint_eq(
		failure_takeovers(SLICE_LIT("LEASE_EXPIRED: taken over 1 time in a row")), 1);
	ck_assert_uint_eq(failure_takeovers(SLICE_LIT("LEASE_EXPIRED: taken over 12 times")), 12);
	ck_assert_uint_eq(failure_takeovers(SLICE_LIT("LEASE_EXPIRED: taken over ")), 0);
	ck_assert_uint_eq(failure_takeovers(SLICE_LIT("LEASE_EXPIRED: taken over x")), 0);
	ck_assert_uint_eq(failure_takeovers(SLICE_LIT("NACKED: taken over 3 times")), 0);
	ck_assert_uint_eq(failure_takeovers((struct slice){ NULL, 0 }), 0);
	ck_assert_uint_le(failure_takeovers(SLICE_LIT(
				  "LEASE_EXPIRED: taken over 99999999999999999999 times")),
		UINT_MAX);
}
END_TEST

UNIT_MAIN("failure", every_class_has_a_name_of_its_own, the_class_is_the_whole_first_word,
	takeovers_are_read_back_from_what_was_written)

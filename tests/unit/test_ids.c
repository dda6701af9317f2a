#include "base/ids.h"
#include "base/place.h"

#include "unit.h"

START_TEST(ids_are_ascending_afterwards_also_those_beyond_the_signed_range)
{
	uint64_t ids[] = { 3, UINT64_MAX, 1, (uint64_t)INT64_MAX + 1, 2 };

	ids_sort(ids, 5);
	ck_assert_uint_eq(ids[0], 1);
	ck_assert_uint_eq(ids[1], 2);
	ck_assert_uint_eq(ids[2], 3);
	ck_assert_uint_eq(ids[3], (uint64_t)INT64_MAX + 1);
	ck_assert_uint_eq(ids[4], UINT64_MAX);
	ids_sort(ids, 5);
	ck_assert_uint_eq(ids[0], 1);
	ids_sort(ids, 0);
}
END_TEST

START_TEST(an_earlier_row_comes_first_and_of_one_microsecond_the_smaller_id)
{
	struct place early = { 5, 9 }, late = { 6, 1 }, beside = { 5, 10 };

	ck_assert(place_before(early, late));
	ck_assert(!place_before(late, early));
	ck_assert(place_before(early, beside));
	ck_assert(!place_before(early, early));
}
END_TEST

UNIT_MAIN("ids", ids_are_ascending_afterwards_also_those_beyond_the_signed_range,
	an_earlier_row_comes_first_and_of_one_microsecond_the_smaller_id)

#include "relay/scan.h"

#include "unit.h"

#define MS US_PER_MS
#define GAIN_US (10 * MS)

/* Scans one after the other for so long; returns how many were parts. */
static unsigned scans(struct scan *s, int64_t *now_us, int64_t for_us, int64_t whole_us,
	int64_t part_us, int64_t *longest_us)
{
	int64_t until_us = *now_us + for_us, last_us = *now_us;
	unsigned parts = 0;

	while (*now_us < until_us) {
		int64_t since_us = scan_begin(s, *now_us, false);
		int64_t took_us = since_us != 0 ? part_us : whole_us;

		*now_us += took_us;
		if (since_us == 0)
			last_us = *now_us;
		else
			parts++;
		if (longest_us != NULL && *now_us - last_us > *longest_us)
			*longest_us = *now_us - last_us;
		scan_claimed(s, *now_us);
		scan_took(s, *now_us, took_us);
	}
	return parts;
}

START_TEST(where_parts_are_no_faster_they_are_tried_once)
{
	struct scan s;
	int64_t now_us = 1;

	scan_init(&s, GAIN_US);
	ck_assert_uint_eq(scans(&s, &now_us, 100 * US_PER_SEC, 70 * MS, 68 * MS, NULL), 1);
}
END_TEST

START_TEST(one_that_was_tried_is_followed_by_a_whole_one_however_long_they_take)
{
	struct scan s;
	int64_t now_us = 1, longest_us = 0;

	scan_init(&s, GAIN_US);
	ck_assert_uint_eq(
		scans(&s, &now_us, 100 * US_PER_SEC, 3000 * MS, 3000 * MS, &longest_us), 1);
	ck_assert_int_le(longest_us, SCAN_WHOLE_US);
}
END_TEST

START_TEST(where_whole_scans_become_slow_parts_take_over_and_a_whole_one_comes_every_ten_seconds)
{
	struct scan s;
	int64_t now_us = 1, longest_us = 0;

	scan_init(&s, GAIN_US);
	scans(&s, &now_us, 20 * US_PER_SEC, 50 * MS, 50 * MS, NULL);
	scans(&s, &now_us, 20 * US_PER_SEC, 1000 * MS, 50 * MS, NULL);
	ck_assert_uint_gt(
		scans(&s, &now_us, 100 * US_PER_SEC, 1000 * MS, 50 * MS, &longest_us), 1500);
	ck_assert_int_le(longest_us, SCAN_WHOLE_US + US_PER_SEC);
}
END_TEST

START_TEST(once_the_heap_is_gone_whole_scans_are_back)
{
	struct scan s;
	int64_t now_us = 1;

	scan_init(&s, GAIN_US);
	scans(&s, &now_us, 20 * US_PER_SEC, 1000 * MS, 50 * MS, NULL);
	scans(&s, &now_us, 30 * US_PER_SEC, 50 * MS, 50 * MS, NULL);
	ck_assert_uint_eq(scans(&s, &now_us, 50 * US_PER_SEC, 50 * MS, 50 * MS, NULL), 0);
}
END_TEST

START_TEST(a_look_a_restart_and_a_row_that_is_back_decide_where_a_scan_begins)
{
	struct scan s;
	int64_t now_us = 1, claimed_us;

	scan_init(&s, GAIN_US);
	ck_assert_int_eq(scan_begin(&s, now_us, false), 0);
	scans(&s, &now_us, 20 * US_PER_SEC, 1000 * MS, 50 * MS, NULL);
	now_us = s.next_whole_us - 1;
	claimed_us = s.from_us;
	ck_assert_int_eq(scan_begin(&s, now_us, true), 0);
	ck_assert_int_eq(scan_begin(&s, now_us, false), s.from_us - SCAN_OVERLAP_US);
	scan_released(&s, s.from_us - US_PER_SEC);
	scan_released(&s, s.from_us + US_PER_SEC);
	ck_assert_int_eq(s.from_us, claimed_us - US_PER_SEC);
	scan_restart(&s);
	ck_assert_int_eq(scan_begin(&s, now_us, false), 0);
}
END_TEST

UNIT_MAIN("scan", where_parts_are_no_faster_they_are_tried_once,
	one_that_was_tried_is_followed_by_a_whole_one_however_long_they_take,
	where_whole_scans_become_slow_parts_take_over_and_a_whole_one_comes_every_ten_seconds,
	once_the_heap_is_gone_whole_scans_are_back,
	a_look_a_restart_and_a_row_that_is_back_decide_where_a_scan_begins)

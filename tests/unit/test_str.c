#include "base/str.h"

#include "unit.h"

static bool duration(const char *text, int64_t *us)
{
	return str_to_duration_us(slice_str(text), us);
}

START_TEST(a_duration_needs_a_unit_and_nothing_else)
{
	int64_t us = 0;

	ck_assert(duration("250ms", &us));
	ck_assert_int_eq(us, 250000);
	ck_assert(duration("7d", &us));
	ck_assert_int_eq(us, INT64_C(604800000000));
	ck_assert(duration("0s", &us));
	ck_assert_int_eq(us, 0);
	ck_assert(!duration("5", &us));
	ck_assert(!duration("s", &us));
	ck_assert(!duration("", &us));
	ck_assert(!duration("05s", &us));
	ck_assert(!duration("5 s", &us));
	ck_assert(!duration("1.5s", &us));
	ck_assert(!duration("-1s", &us));
	ck_assert(!duration("5S", &us));
	ck_assert(!duration("1h30m", &us));
	ck_assert(!duration("99999999999999d", &us));
}
END_TEST

START_TEST(an_integer_is_decimal_without_leading_zeros_and_never_wraps)
{
	uint64_t v = 0;

	ck_assert(str_to_u64(slice_str("18446744073709551615"), &v));
	ck_assert_uint_eq(v, UINT64_MAX);
	ck_assert(!str_to_u64(slice_str("18446744073709551616"), &v));
	ck_assert(!str_to_u64(slice_str("0123"), &v));
	ck_assert(!str_to_u64(slice_str("0x10"), &v));
	ck_assert(!str_to_u64(slice_str("+1"), &v));
	ck_assert(str_to_u64(slice_str("0"), &v));
	ck_assert_uint_eq(v, 0);
}
END_TEST

START_TEST(a_duration_is_printed_with_the_largest_unit_that_fits)
{
	char out[STR_DURATION_MAX];

	str_duration(90 * US_PER_SEC, out);
	ck_assert_str_eq(out, "90s");
	str_duration(300 * US_PER_SEC, out);
	ck_assert_str_eq(out, "5m");
	str_duration(250 * US_PER_MS, out);
	ck_assert_str_eq(out, "250ms");
	str_duration(0, out);
	ck_assert_str_eq(out, "0s");
}
END_TEST

START_TEST(utf8_is_checked_to_the_letter_of_rfc_3629)
{
	ck_assert(utf8_valid(slice_str("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80")));
	ck_assert(!utf8_valid(slice_str("\xC0\x80")));         /* overlong */
	ck_assert(!utf8_valid(slice_str("\xED\xA0\x80")));     /* surrogate */
	ck_assert(!utf8_valid(slice_str("\xF4\x90\x80\x80"))); /* above U+10FFFF */
	ck_assert(!utf8_valid(slice_str("\xE2\x82")));         /* cut */
	ck_assert_uint_eq(utf8_prefix(slice_str("a\xE2\x82\xAC"), 3), 1);
	ck_assert_uint_eq(utf8_prefix(slice_str("a\xE2\x82\xAC"), 4), 4);
}
END_TEST

START_TEST(a_time_is_rfc_3339_with_its_zone_and_a_date_that_exists)
{
	static const struct {
		const char *text;
		int64_t us;
	} good[] = {
		{ "1970-01-01T00:00:00Z", 0 },
		{ "2026-01-02T03:04:05.678901Z", INT64_C(1767323045678901) },
		{ "2026-01-02t04:34:05.6789019+01:30", INT64_C(1767323045678901) },
		{ "2026-01-01T22:04:05.5-05:00", INT64_C(1767323045500000) },
		{ "2024-02-29T00:00:00Z", INT64_C(1709164800000000) },
		{ "1969-12-31T23:59:59.9Z", -100000 },
	};
	static const char *const bad[] = { "", "2026-01-02", "2026-01-02T03:04:05",
		"2026-02-29T00:00:00Z", "2026-13-01T00:00:00Z", "2026-00-10T00:00:00Z",
		"2026-01-00T00:00:00Z", "2026-01-02T24:00:00Z", "2026-01-02T03:04:60Z",
		"2026-01-02T03:04:05.Z", "2026-01-02T03:04:05Zx", "2026-01-02T03:04:05+1:00",
		"2026-01-02T03:04:05+01:60", "26-01-02T03:04:05Z", " 2026-01-02T03:04:05Z" };
	int64_t us;

	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		ck_assert_msg(str_to_time_us(slice_str(good[i].text), &us), "%s", good[i].text);
		ck_assert_int_eq(us, good[i].us);
	}
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		ck_assert_msg(!str_to_time_us(slice_str(bad[i]), &us), "%s", bad[i]);
}
END_TEST

UNIT_MAIN("str", a_time_is_rfc_3339_with_its_zone_and_a_date_that_exists,
	a_duration_needs_a_unit_and_nothing_else,
	an_integer_is_decimal_without_leading_zeros_and_never_wraps,
	a_duration_is_printed_with_the_largest_unit_that_fits,
	utf8_is_checked_to_the_letter_of_rfc_3629)

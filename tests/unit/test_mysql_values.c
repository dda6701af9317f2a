#include "mysql/errors.h"
#include "mysql/sha1.h"
#include "mysql/values.h"

#include "unit.h"

START_TEST(times_are_read_to_the_microsecond)
{
	ck_assert_int_eq(value_time_us(SLICE_LIT("1970-01-01 00:00:00")), 0);
	ck_assert_int_eq(value_time_us(SLICE_LIT("1970-01-01 00:00:01.5")), 1500000);
	ck_assert_int_eq(
		value_time_us(SLICE_LIT("2026-02-28 23:59:59.000001")), INT64_C(1772323199000001));
	ck_assert_int_eq(
		value_time_us(SLICE_LIT("2024-02-29 12:00:00")), INT64_C(1709208000000000));
	ck_assert_int_eq(value_time_us(SLICE_LIT("2000-03-01 00:00:00")), INT64_C(951868800000000));
	ck_assert_int_eq(value_time_us(SLICE_LIT("1969-12-31 23:59:59.999999")), -1);
	ck_assert_int_eq(value_time_us(SLICE_LIT("9999-12-31 23:59:59.999999")),
		INT64_C(253402300799999999));
}
END_TEST

START_TEST(what_is_no_time_counts_as_zero)
{
	static const char *const bad[] = { "", "0000-00-00 00:00:00", "2026-00-10 00:00:00",
		"2026-01-01", "2026-01-01T00:00:00.", "2026-01-01 00:00:0x", "2026/01/01 00:00:00",
		"2026-01-01 00:00:00.x" };

	ck_assert_int_eq(value_time_us((struct slice){ 0 }), 0);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		if (i != 4)
			ck_assert_msg(value_time_us(slice_str(bad[i])) == 0, "%s", bad[i]);
}
END_TEST

START_TEST(ids_of_any_sign_are_read)
{
	uint64_t id = 0;

	ck_assert(value_id(SLICE_LIT("18446744073709551615"), &id));
	ck_assert_uint_eq(id, UINT64_MAX);
	ck_assert(value_id(SLICE_LIT("-1"), &id));
	ck_assert_int_eq((int64_t)id, -1);
	ck_assert(value_id(SLICE_LIT("-9223372036854775808"), &id));
	ck_assert_int_eq((int64_t)id, INT64_MIN);
	ck_assert(!value_id(SLICE_LIT("-9223372036854775809"), &id));
	ck_assert(!value_id(SLICE_LIT("18446744073709551616"), &id));
	ck_assert(!value_id(SLICE_LIT("1.0"), &id));
	ck_assert(!value_id(SLICE_LIT("-"), &id));
	ck_assert(!value_id(SLICE_LIT(""), &id));
	ck_assert(!value_id((struct slice){ 0 }, &id));
}
END_TEST

START_TEST(counts_never_wrap)
{
	ck_assert_uint_eq(value_count(SLICE_LIT("7")), 7);
	ck_assert_uint_eq(value_count(SLICE_LIT("-7")), 0);
	ck_assert_uint_eq(value_count((struct slice){ 0 }), 0);
	ck_assert_uint_eq(value_count(SLICE_LIT("99999999999")), UINT32_MAX);
	ck_assert_int_eq(value_int(SLICE_LIT("-5"), 9), -5);
	ck_assert_int_eq(value_int((struct slice){ 0 }, 9), 9);
	ck_assert(value_true(SLICE_LIT("on")) && value_true(SLICE_LIT("1")));
	ck_assert(!value_true(SLICE_LIT("0")) && !value_true((struct slice){ 0 }));
	ck_assert(!value_is(SLICE_LIT("SENTX"), "SENT"));
}
END_TEST

START_TEST(takeovers_are_read_back_from_the_error)
{
	ck_assert_uint_eq(value_takeovers((struct slice){ 0 }), 0);
	ck_assert_uint_eq(value_takeovers(SLICE_LIT("NACKED: no")), 0);
	ck_assert_uint_eq(value_takeovers(SLICE_LIT("LEASE_EXPIRED: taken over ")), 0);
	ck_assert_uint_eq(value_takeovers(SLICE_LIT(
				  "LEASE_EXPIRED: taken over 12 times in a row, last from a/b/0")),
		12);
	ck_assert_uint_le(
		value_takeovers(SLICE_LIT("LEASE_EXPIRED: taken over 99999999999999 t")), 10000000);
}
END_TEST

START_TEST(errors_are_sorted_by_what_helps)
{
	ck_assert_int_eq(mysql_error_kind(1213, "40001"), ERR_RETRY);
	ck_assert_int_eq(mysql_error_kind(1205, "HY000"), ERR_RETRY);
	ck_assert_int_eq(mysql_error_kind(3572, "HY000"), ERR_RETRY);
	ck_assert_int_eq(mysql_error_kind(1412, "HY000"), ERR_RETRY);
	ck_assert_int_eq(mysql_error_kind(3024, "HY000"), ERR_RETRY);
	ck_assert_int_eq(mysql_error_kind(1146, "42S02"), ERR_CONFIG);
	ck_assert_int_eq(mysql_error_kind(1054, "42S22"), ERR_CONFIG);
	ck_assert_int_eq(mysql_error_kind(1064, "42000"), ERR_CONFIG);
	ck_assert_int_eq(mysql_error_kind(1142, "42000"), ERR_CONFIG);
	ck_assert_int_eq(mysql_error_kind(1045, "28000"), ERR_CONFIG);
	ck_assert_int_eq(mysql_error_kind(1406, "22001"), ERR_CONFIG);
	ck_assert_int_eq(mysql_error_kind(1290, "HY000"), ERR_LINK);
	ck_assert_int_eq(mysql_error_kind(1836, "HY000"), ERR_LINK);
	ck_assert_int_eq(mysql_error_kind(1792, "25006"), ERR_LINK);
	ck_assert_int_eq(mysql_error_kind(1053, "08S01"), ERR_LINK);
	ck_assert_int_eq(mysql_error_kind(2006, "HY000"), ERR_LINK);
	ck_assert_int_eq(mysql_error_kind(2013, "HY000"), ERR_LINK);
	ck_assert_int_eq(mysql_error_kind(2055, "HY000"), ERR_LINK);
	ck_assert_int_eq(mysql_error_kind(4031, "HY000"), ERR_LINK);
	ck_assert_int_eq(mysql_error_kind(1927, "70100"), ERR_LINK);
	ck_assert_int_eq(mysql_error_kind(1665, "HY000"), ERR_CONFIG);
	ck_assert_int_eq(mysql_error_kind(9999, "HY000"), ERR_RETRY);
	ck_assert_int_eq(mysql_error_kind(9999, NULL), ERR_RETRY);
	ck_assert(mysql_error_read_only(1290) && !mysql_error_read_only(1213));
	ck_assert(mysql_error_rolled_back(1213) && !mysql_error_rolled_back(2013));
}
END_TEST

START_TEST(sha1_gives_the_published_digests)
{
	char hex[SHA1_HEX], long_text[1000];

	sha1_hex(SLICE_LIT(""), hex);
	ck_assert_str_eq(hex, "da39a3ee5e6b4b0d3255bfef95601890afd80709");
	sha1_hex(SLICE_LIT("abc"), hex);
	ck_assert_str_eq(hex, "a9993e364706816aba3e25717850c26c9cd0d89d");
	sha1_hex(SLICE_LIT("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"), hex);
	ck_assert_str_eq(hex, "84983e441c3bd26ebaae4aa1f95129e5e54670f1");
	memset(long_text, 'a', sizeof(long_text));
	sha1_hex((struct slice){ long_text, sizeof(long_text) }, hex);
	ck_assert_str_eq(hex, "291e9a6c66994949b57ba5e650361e98fc36b1ba");
}
END_TEST

UNIT_MAIN("mysql values", times_are_read_to_the_microsecond, what_is_no_time_counts_as_zero,
	ids_of_any_sign_are_read, counts_never_wrap, takeovers_are_read_back_from_the_error,
	errors_are_sorted_by_what_helps, sha1_gives_the_published_digests)

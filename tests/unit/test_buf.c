#include "base/buf.h"

#include "unit.h"

#include <inttypes.h>
#include <stdio.h>

START_TEST(a_number_is_written_as_printf_would)
{
	static const uint64_t values[] = { 0, 9, 10, 12345, UINT64_C(18446744073709551615) };
	char expected[32];
	struct buf b = { 0 };

	for (size_t i = 0; i < ARRAY_LEN(values); i++) {
		buf_reset(&b);
		ck_assert_int_eq(buf_addu(&b, values[i]), 0);
		snprintf(expected, sizeof(expected), "%" PRIu64, values[i]);
		ck_assert_str_eq(b.data, expected);
	}
	buf_fini(&b);
}
END_TEST

START_TEST(json_text_is_escaped_and_bad_utf8_replaced)
{
	struct buf b = { 0 };

	buf_add_json(&b, (struct slice){ "a\"\\\n\x01\xC3\xA9\xFFz\0y", 11 });
	ck_assert_str_eq(b.data, "a\\\"\\\\\\u000a\\u0001\xC3\xA9\xEF\xBF\xBDz\\u0000y");
	buf_fini(&b);
}
END_TEST

START_TEST(an_empty_buffer_gives_memory_back_only_beyond_what_it_may_keep)
{
	struct buf b = { 0 };

	for (int i = 0; i < 1000; i++)
		buf_adds(&b, "0123456789");
	buf_shrink(&b, 100);
	ck_assert_uint_gt(b.cap, 100); /* not empty */
	buf_reset(&b);
	buf_shrink(&b, SIZE_MAX);
	ck_assert_ptr_nonnull(b.data);
	buf_shrink(&b, 100);
	ck_assert_ptr_null(b.data);
	ck_assert_str_eq(buf_slice(&b).ptr, "");
	buf_fini(&b);
}
END_TEST

UNIT_MAIN("buf", a_number_is_written_as_printf_would, json_text_is_escaped_and_bad_utf8_replaced,
	an_empty_buffer_gives_memory_back_only_beyond_what_it_may_keep)

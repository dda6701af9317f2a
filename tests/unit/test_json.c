#include "message/json.h"

#include "base/buf.h"
#include "base/rng.h"
#include "unit.h"

#include <json-c/json.h>
#include <math.h>

static bool accepts(struct slice text)
{
	struct json_reader j;
	enum json_token token;

	json_begin(&j, text, 100);
	do {
		token = json_next(&j);
	} while (token != JSON_END && token != JSON_ERROR);
	return token == JSON_END;
}

START_TEST(tokens_come_in_the_order_of_the_text)
{
	static const enum json_token expected[] = { JSON_OBJECT, JSON_NAME, JSON_ARRAY,
		JSON_INTEGER, JSON_FRACTION, JSON_TRUE, JSON_FALSE, JSON_NULL, JSON_ARRAY_END,
		JSON_NAME, JSON_STRING, JSON_OBJECT_END, JSON_END, JSON_END };
	struct json_reader j;

	json_begin(&j, slice_str(" {\"a\":[ 1,-2.5e1,true,false,null ],\"b\\n\":\"x\"} "), 2);
	for (size_t i = 0; i < ARRAY_LEN(expected); i++) {
		ck_assert_int_eq(json_next(&j), expected[i]);
		if (i == 1)
			ck_assert(slice_eq(j.text, SLICE_LIT("a")) && !j.escaped);
		if (i == 4)
			ck_assert(slice_eq(j.text, SLICE_LIT("-2.5e1")));
		if (i == 9)
			ck_assert(slice_eq(j.text, SLICE_LIT("b\\n")) && j.escaped);
		if (i == 10)
			ck_assert(slice_eq(j.text, SLICE_LIT("x")) && !j.escaped);
	}
}
END_TEST

START_TEST(an_error_stays)
{
	struct json_reader j;

	json_begin(&j, slice_str("[1,x,2]"), 2);
	ck_assert_int_eq(json_next(&j), JSON_ARRAY);
	ck_assert_int_eq(json_next(&j), JSON_INTEGER);
	ck_assert_int_eq(json_next(&j), JSON_ERROR);
	ck_assert_uint_eq(j.error_byte, 4);
	ck_assert_int_eq(json_next(&j), JSON_ERROR);
	ck_assert_uint_eq(j.error_byte, 4);
	ck_assert(!j.too_deep);
	json_begin(&j, slice_str("[[[]]]"), 2);
	ck_assert_int_eq(json_next(&j), JSON_ARRAY);
	ck_assert_int_eq(json_next(&j), JSON_ARRAY);
	ck_assert_int_eq(json_next(&j), JSON_ERROR);
	ck_assert(j.too_deep);
	ck_assert_uint_eq(j.error_byte, 3);
}
END_TEST

static bool json_c_accepts(struct slice text)
{
	struct json_tokener *tok = json_tokener_new_ex(101);
	bool ok;

	ck_assert_ptr_nonnull(tok);
	json_tokener_set_flags(tok, JSON_TOKENER_STRICT | JSON_TOKENER_VALIDATE_UTF8);
	json_object_put(json_tokener_parse_ex(tok, text.ptr, (int)text.len));
	/* A number at the very end: only the end of text tells that it is whole. */
	if (json_tokener_get_error(tok) == json_tokener_continue)
		json_object_put(json_tokener_parse_ex(tok, "", 1));
	ok = json_tokener_get_error(tok) == json_tokener_success;
	json_tokener_free(tok);
	return ok;
}

/* Where json-c is known to take more: its own words, "1.", "-01" and control characters in strings.
 */
static bool json_c_is_lax(struct slice text)
{
	for (size_t i = 0; i < text.len; i++) {
		unsigned char c = (unsigned char)text.ptr[i];

		if (c < 0x20 || c == 'N' || c == 'I' || c == '.' ||
			(c >= '0' && c <= '9' && i > 0 && text.ptr[i - 1] == '0'))
			return true;
	}
	return false;
}

START_TEST(another_reader_agrees_about_a_million_short_texts)
{
	static const char *const words[] = { "{", "}", "[", "]", ",", ":", "\"", "\"a\"",
		"\"b\":", "1", "-", "0", ".", "e", "E+", "true", "false", "null", " ", "\\",
		"\\u12aF", "\\n", "x", "\xC3\xA9", "\xC3", "\xF0\x9F\x98\x80", "\xFF", "[1]",
		"{\"k\":2}" };
	struct rng rng = { 99 };
	struct buf text = { 0 };
	int accepted = 0;

	for (int i = 0; i < 1000000; i++) {
		struct slice s;
		bool mine;

		buf_reset(&text);
		for (uint64_t n = 1 + rng_below(&rng, 7); n > 0; n--)
			buf_adds(&text, words[rng_below(&rng, ARRAY_LEN(words))]);
		s = buf_slice(&text);
		mine = accepts(s);
		accepted += mine;
		if (mine != json_c_accepts(s) && !(!mine && json_c_is_lax(s)))
			ck_abort_msg("%s: %s here", text.data, mine ? "accepted" : "refused");
	}
	ck_assert_int_gt(accepted, 10000);
	buf_fini(&text);
}
END_TEST

UNIT_MAIN("json", tokens_come_in_the_order_of_the_text, an_error_stays,
	another_reader_agrees_about_a_million_short_texts)

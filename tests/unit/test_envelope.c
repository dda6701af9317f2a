#include "message.h"

START_TEST(properties_come_from_the_row)
{
	struct route_conf conf = sample_conf();
	struct row row = sample_row();
	struct bench b;

	bench_init(&b, &conf);
	must_build(&b, &row);
	ck_assert(is(b.env.exchange, "domain-events"));
	ck_assert(is(b.env.routing_key, "order.paid"));
	ck_assert(is(b.env.message_id, "0197-e1"));
	ck_assert(is(b.env.type, "paid"));
	ck_assert(is(b.env.content_type, "application/json"));
	ck_assert(is(b.env.app_id, "outboxd"));
	ck_assert_uint_eq(b.env.timestamp, 1748781296);
	ck_assert_uint_eq(b.env.delivery_mode, 2);
	ck_assert(b.env.mandatory);
	/* The column's own bytes, not a copy. */
	ck_assert_ptr_eq(b.env.body.ptr, row.payload.ptr);
	ck_assert_uint_eq(b.env.body.len, row.payload.len);
	row.created_us = -5 * US_PER_SEC;
	must_build(&b, &row);
	ck_assert_uint_eq(b.env.timestamp, 0);
	bench_fini(&b);
	conf.mandatory = conf.persistent = false;
	bench_init(&b, &conf);
	must_build(&b, &row);
	ck_assert_uint_eq(b.env.delivery_mode, 1);
	ck_assert(!b.env.mandatory);
	bench_fini(&b);
}
END_TEST

START_TEST(short_properties_hold_255_bytes_and_no_nul)
{
	struct route_conf conf = sample_conf();
	struct row row = sample_row();
	char *fits = repeat("x", 255), *longer = repeat("x", 256);
	char *wide = repeat("\xF0\x9F\x98\x80", 64); /* 64 characters, 256 bytes */
	struct bench b;

	conf.routing_key = "k";
	bench_init(&b, &conf);
	row.event_id = slice_str(fits);
	row.event_type = slice_str(fits);
	must_build(&b, &row);
	ck_assert_uint_eq(b.env.message_id.len, 255);
	ck_assert_uint_eq(b.env.type.len, 255);
	row.event_type = slice_str(wide);
	must_refuse(&b, &row, "INVALID: type (event_type) is 256 bytes, limit 255");
	row.event_type = SLICE_LIT("a\0b");
	must_refuse(&b, &row, "INVALID: type (event_type) holds a NUL byte");
	row.event_type = SLICE_LIT("a\xFF");
	must_refuse(&b, &row, "INVALID: type (event_type) is not UTF-8");
	row.event_id = slice_str(longer);
	must_refuse(&b, &row, "INVALID: message_id (event_id) is 256 bytes, limit 255");
	row.event_id = SLICE_LIT("a\0");
	must_refuse(&b, &row, "INVALID: message_id (event_id) holds a NUL byte");
	row.event_id = SLICE_LIT("\xC3");
	must_refuse(&b, &row, "INVALID: message_id (event_id) is not UTF-8");
	bench_fini(&b);
	free(fits);
	free(longer);
	free(wide);
}
END_TEST

START_TEST(an_event_without_an_id_is_invalid_one_without_a_type_is_not)
{
	struct route_conf conf = sample_conf();
	struct row row = sample_row();
	struct bench b;

	conf.routing_key = "k";
	bench_init(&b, &conf);
	row.event_type = (struct slice){ 0 };
	must_build(&b, &row);
	ck_assert_ptr_null(b.env.type.ptr);
	row.event_id = SLICE_LIT("");
	must_refuse(&b, &row, "INVALID: message_id (event_id) is empty");
	row.event_id = (struct slice){ 0 };
	must_refuse(&b, &row, "INVALID: message_id (event_id) is NULL");
	bench_fini(&b);
}
END_TEST

START_TEST(a_later_attempt_is_the_same_message)
{
	struct route_conf conf = sample_conf();
	struct row row = sample_row();
	struct envelope first;
	struct bench b, again;

	conf.body = BODY_ENVELOPE;
	row.headers = SLICE_LIT("{\"a\":[1,{\"b\":\"x\\ny\"}]}");
	bench_init(&b, &conf);
	bench_init(&again, &conf);
	must_build(&b, &row);
	first = b.env;
	row.retry_count = 9;
	row.last_error = SLICE_LIT("NACKED: no");
	must_build(&again, &row);
	ck_assert(slice_eq(first.message_id, again.env.message_id));
	ck_assert(slice_eq(first.body, again.env.body));
	ck_assert_uint_eq(first.timestamp, again.env.timestamp);
	ck_assert_uint_eq(first.header_count, again.env.header_count);
	ck_assert_uint_eq(first.header_bytes, again.env.header_bytes);
	bench_fini(&b);
	bench_fini(&again);
}
END_TEST

START_TEST(a_body_over_the_limit_is_too_large_and_not_a_byte_less)
{
	struct route_conf conf = sample_conf();
	struct row row = sample_row();
	uint64_t size;
	struct bench b;
	char text[100];

	conf.max_message_size = row.payload.len;
	bench_init(&b, &conf);
	must_build(&b, &row);
	row.payload = SLICE_LIT("{\"n\": 1.00}");
	must_refuse(&b, &row, "TOO_LARGE: body of 11 bytes, limit 10");
	bench_fini(&b);
	/* The envelope counts as a whole. */
	conf = sample_conf();
	conf.body = BODY_ENVELOPE;
	bench_init(&b, &conf);
	must_build(&b, &row);
	size = b.env.body.len;
	bench_fini(&b);
	conf.max_message_size = size;
	bench_init(&b, &conf);
	must_build(&b, &row);
	bench_fini(&b);
	conf.max_message_size = size - 1;
	bench_init(&b, &conf);
	snprintf(text, sizeof(text), "TOO_LARGE: body of %zu bytes, limit %zu", (size_t)size,
		(size_t)size - 1);
	must_refuse(&b, &row, text);
	bench_fini(&b);
}
END_TEST

START_TEST(sql_null_empty_and_json_null_are_three_things)
{
	static const struct {
		struct slice payload;
		const char *plain, *wrapped; /* NULL: INVALID */
	} cases[] = { { { NULL, 0 }, "", "null}" }, { { "", 0 }, "", NULL },
		{ { "null", 4 }, "null", "null}" }, { { "{}", 2 }, "{}", "{}}" } };
	struct row row = sample_row();

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct route_conf conf = sample_conf();
		struct bench b;

		row.payload = cases[i].payload;
		bench_init(&b, &conf);
		must_build(&b, &row);
		ck_assert(is(b.env.body, cases[i].plain));
		bench_fini(&b);
		conf.body = BODY_CLOUDEVENTS;
		bench_init(&b, &conf);
		must_build(&b, &row);
		ck_assert(is(b.env.body, cases[i].plain));
		bench_fini(&b);
		conf.body = BODY_ENVELOPE;
		bench_init(&b, &conf);
		if (cases[i].wrapped == NULL) {
			must_refuse(&b, &row,
				"INVALID: payload is not JSON, which the envelope needs: byte 1: "
				"empty");
		} else {
			must_build(&b, &row);
			ck_assert_str_eq(
				strstr(b.env.body.ptr, "\"payload\":") + 10, cases[i].wrapped);
		}
		bench_fini(&b);
	}
}
END_TEST

START_TEST(a_payload_is_passed_on_whatever_its_bytes)
{
	static const struct slice payloads[] = { { "plain text", 10 }, { "a\0b\0", 4 },
		{ "\xFF\xFE{\0", 4 }, { "{\"cut", 5 } };
	struct route_conf conf = sample_conf();
	struct row row = sample_row();
	struct bench b;

	bench_init(&b, &conf);
	for (size_t i = 0; i < ARRAY_LEN(payloads); i++) {
		row.payload = payloads[i];
		must_build(&b, &row);
		ck_assert(slice_eq(b.env.body, payloads[i]));
	}
	bench_fini(&b);
}
END_TEST

START_TEST(the_envelope_has_its_keys_in_order_and_null_for_what_is_absent)
{
	struct route_conf conf = sample_conf();
	struct row row = sample_row();
	struct bench b;

	conf.body = BODY_ENVELOPE;
	conf.routing_key = "k";
	bench_init(&b, &conf);
	row.aggregate_version = SLICE_LIT("3");
	row.trace_id = SLICE_LIT("t1");
	must_build(&b, &row);
	ck_assert_str_eq(b.env.body.ptr,
		"{\"eventId\":\"0197-e1\",\"eventType\":\"paid\",\"aggregateType\":\"order\","
		"\"aggregateId\":\"42\",\"aggregateVersion\":3,"
		"\"occurredAt\":\"2025-06-01T12:34:56.000042Z\",\"traceId\":\"t1\","
		"\"payload\":{\"n\": 1.0}}");
	ck_assert_uint_eq(b.env.body.len, strlen(b.env.body.ptr));
	row = (struct row){ .event_id = SLICE_LIT("e") };
	must_build(&b, &row);
	ck_assert_str_eq(b.env.body.ptr,
		"{\"eventId\":\"e\",\"eventType\":null,\"aggregateType\":null,\"aggregateId\":null,"
		"\"aggregateVersion\":null,\"occurredAt\":\"1970-01-01T00:00:00.000000Z\","
		"\"traceId\":null,\"payload\":null}");
	bench_fini(&b);
}
END_TEST

START_TEST(text_in_the_envelope_is_escaped_and_must_be_utf8)
{
	struct route_conf conf = sample_conf();
	struct row row = sample_row();
	struct bench b;

	conf.body = BODY_ENVELOPE;
	bench_init(&b, &conf);
	row.aggregate_id = SLICE_LIT("a\"b\\c\n\0\xF0\x9F\x98\x80");
	must_build(&b, &row);
	ck_assert_ptr_nonnull(strstr(
		b.env.body.ptr, "\"aggregateId\":\"a\\\"b\\\\c\\u000a\\u0000\xF0\x9F\x98\x80\","));
	/* Two ids that differ must not become one. */
	row.aggregate_id = SLICE_LIT("\xE9");
	must_refuse(&b, &row, "INVALID: aggregate_id is not UTF-8, which the envelope must be");
	bench_fini(&b);
}
END_TEST

START_TEST(a_version_is_a_number_only_if_it_looks_like_one)
{
	static const struct {
		const char *text, *json;
		bool integer; /* as a header */
	} cases[] = { { "0", "0,", true }, { "-7", "-7,", true },
		{ "9223372036854775807", "9223372036854775807,", true },
		{ "-9223372036854775808", "-9223372036854775808,", true },
		{ "9223372036854775808", "9223372036854775808,", false },
		{ "18446744073709551615", "18446744073709551615,", false },
		{ "007", "\"007\",", false }, { "-0", "\"-0\",", false },
		{ "+1", "\"+1\",", false }, { "1.5", "\"1.5\",", false }, { "", "\"\",", false },
		{ "-", "\"-\",", false }, { " 1", "\" 1\",", false }, { "v2", "\"v2\",", false } };
	struct route_conf conf = sample_conf();
	struct row row = sample_row();
	struct bench b;

	conf.body = BODY_ENVELOPE;
	bench_init(&b, &conf);
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		const struct field *f;
		const char *at;

		row.aggregate_version = slice_str(cases[i].text);
		must_build(&b, &row);
		at = strstr(b.env.body.ptr, "\"aggregateVersion\":") + 19;
		ck_assert_msg(strncmp(at, cases[i].json, strlen(cases[i].json)) == 0, "%s",
			cases[i].text);
		f = header(&b, "aggregate_version");
		ck_assert_int_eq(f->type, cases[i].integer ? FIELD_INT : FIELD_STRING);
		if (cases[i].integer)
			ck_assert_int_eq(f->integer, strtoll(cases[i].text, NULL, 10));
		else
			ck_assert(is(f->string, cases[i].text));
	}
	bench_fini(&b);
}
END_TEST

START_TEST(occurred_at_is_rfc_3339_in_utc_with_six_digits)
{
	static const struct {
		int64_t us;
		const char *text;
	} cases[] = {
		{ 0, "1970-01-01T00:00:00.000000Z" },
		{ 1, "1970-01-01T00:00:00.000001Z" },
		{ -1, "1969-12-31T23:59:59.999999Z" },
		{ 951782400 * US_PER_SEC, "2000-02-29T00:00:00.000000Z" },
		{ 1709251199 * US_PER_SEC + 999999, "2024-02-29T23:59:59.999999Z" },
		{ 1735689599 * US_PER_SEC, "2024-12-31T23:59:59.000000Z" },
		{ INT64_C(4107542400) * US_PER_SEC, "2100-03-01T00:00:00.000000Z" },
		{ INT64_C(253402300799) * US_PER_SEC + 999999, "9999-12-31T23:59:59.999999Z" },
		{ INT64_C(-62167219200) * US_PER_SEC, "0000-01-01T00:00:00.000000Z" },
	};
	static const int64_t beyond[] = { INT64_C(253402300800) * US_PER_SEC,
		INT64_C(-62167219201) * US_PER_SEC, INT64_MAX, INT64_MIN };
	struct route_conf conf = sample_conf();
	struct row row = sample_row();
	struct bench b;

	conf.body = BODY_ENVELOPE;
	bench_init(&b, &conf);
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		row.created_us = cases[i].us;
		must_build(&b, &row);
		ck_assert_msg(strstr(b.env.body.ptr, cases[i].text) != NULL, "%s", cases[i].text);
	}
	for (size_t i = 0; i < ARRAY_LEN(beyond); i++) {
		row.created_us = beyond[i];
		must_refuse(&b, &row, "INVALID: created_at is outside the years 0000 to 9999");
	}
	/* Every day of 400 years follows the one before it. */
	for (int64_t day = 0, y = 2000, m = 1, d = 1; day < 146097; day++) {
		static const int days[] = { 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 };
		bool leap = y % 4 == 0 && (y % 100 != 0 || y % 400 == 0);
		char expected[40];

		row.created_us = (10957 + day) * 86400 * US_PER_SEC;
		must_build(&b, &row);
		snprintf(
			expected, sizeof(expected), "\"%04d-%02d-%02dT00:", (int)y, (int)m, (int)d);
		if (strstr(b.env.body.ptr, expected) == NULL)
			ck_abort_msg("%s not in %s", expected, b.env.body.ptr);
		if (++d > days[m - 1] + (m == 2 && leap)) {
			d = 1;
			if (++m > 12)
				m = 1, y++;
		}
	}
	bench_fini(&b);
}
END_TEST

START_TEST(an_embedded_payload_keeps_every_byte)
{
	static const char *const payloads[] = { "1.0", "1e400", "-0",
		"123456789012345678901234567890",
		" {\"b\" : 1,\n\t\"a\":[1.0, 1E+2 ,-0.0e-7], \"a\":\"\\u00e9\\/\\ud83d\\ude00\"} ",
		"\"\xF0\x9F\x98\x80 \xE2\x82\xAC\"", "\"\\u0000\"", "\"\\ud800\"", "true", "[]",
		"[[],{}]", "{\"n\":1.10000000000000000000000000000000000001}" };
	struct route_conf conf = sample_conf();
	struct row row = sample_row();
	struct bench b;

	conf.body = BODY_ENVELOPE;
	bench_init(&b, &conf);
	for (size_t i = 0; i < ARRAY_LEN(payloads); i++) {
		size_t len = strlen(payloads[i]);

		row.payload = slice_str(payloads[i]);
		must_build(&b, &row);
		ck_assert_int_eq(
			memcmp(b.env.body.ptr + b.env.body.len - 1 - len, payloads[i], len), 0);
	}
	bench_fini(&b);
}
END_TEST

START_TEST(a_payload_that_is_not_json_has_no_envelope)
{
	static const struct {
		struct slice payload;
		const char *why;
	} cases[] = {
#define BAD(s, why) { { s, sizeof(s) - 1 }, why }
		BAD("plain text", "byte 1: a value is missing"),
		BAD("{\"a\":1", "byte 7: it ends too soon"),
		BAD("{\"a\":1,}", "byte 8: a member's name is missing"),
		BAD("{\"a\" 1}", "byte 6: a ':' is missing"),
		BAD("{\"a\":1 \"b\":2}", "byte 8: a ',' or '}' is missing"),
		BAD("{a:1}", "byte 2: a member's name is missing"),
		BAD("[1 2]", "byte 4: a ',' or ']' is missing"),
		BAD("[1,]", "byte 4: a value is missing"),
		BAD("[1}", "byte 3: a ',' or ']' is missing"),
		BAD("{} x", "byte 4: something follows the value"),
		BAD("{}\0", "byte 3: something follows the value"),
		BAD("{\"a\0b\":1}", "byte 4: a control character in a string must be escaped"),
		BAD("\"a\tb\"", "byte 3: a control character in a string must be escaped"),
		BAD("\"abc", "byte 5: a string does not end"),
		BAD("\"\\x\"", "byte 3: not an escape"),
		BAD("\"\\u12G4\"", "byte 6: not an escape"),
		BAD("\"\\u123\"", "byte 7: not an escape"),
		BAD("\"\xE9t\xE9\"", "byte 2: not UTF-8"), /* latin1 */
		BAD("\xEF\xBB\xBF{}", "byte 1: a value is missing"),
		BAD("\xFF\xFE{\0}\0", "byte 1: a value is missing"), /* UTF-16 */
		BAD("NaN", "byte 1: a value is missing"),
		BAD("-Infinity", "byte 2: a digit is missing"),
		BAD("01", "byte 2: something follows the value"),
		BAD("1.", "byte 3: a digit is missing"),
		BAD("1e", "byte 3: a digit is missing"),
		BAD("+1", "byte 1: a value is missing"),
		BAD(".5", "byte 1: a value is missing"),
		BAD("tru", "byte 1: a value is missing"),
		BAD("'a'", "byte 1: a value is missing"),
		BAD("/**/1", "byte 1: a value is missing"),
		BAD("  ", "byte 3: it ends too soon"),
	};
	struct route_conf conf = sample_conf();
	struct row row = sample_row();
	struct bench b;

	conf.body = BODY_ENVELOPE;
	bench_init(&b, &conf);
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		char text[200];

		snprintf(text, sizeof(text),
			"INVALID: payload is not JSON, which the envelope needs: %s", cases[i].why);
		row.payload = cases[i].payload;
		must_refuse(&b, &row, text);
	}
	bench_fini(&b);
}
END_TEST

START_TEST(a_payload_may_be_nested_a_thousand_levels_deep)
{
	struct route_conf conf = sample_conf();
	struct row row = sample_row();
	char *deep = malloc(2 * 1001 + 1);
	struct bench b;

	ck_assert_ptr_nonnull(deep);
	conf.body = BODY_ENVELOPE;
	bench_init(&b, &conf);
	for (size_t levels = 1000; levels <= 1001; levels++) {
		memset(deep, '[', levels);
		memset(deep + levels, ']', levels);
		row.payload = (struct slice){ deep, 2 * levels };
		if (levels == 1000)
			must_build(&b, &row);
		else
			must_refuse(&b, &row,
				"INVALID: payload: byte 1001: objects and lists nested deeper than "
				"1000 "
				"levels");
	}
	bench_fini(&b);
	free(deep);
}
END_TEST

START_TEST(cloudevents_are_binary_mode_with_the_payload_as_data)
{
	struct route_conf conf = sample_conf();
	struct row row = sample_row();
	struct bench b;

	conf.body = BODY_CLOUDEVENTS;
	conf.source = "my shop/1";
	bench_init(&b, &conf);
	row.traceparent = SLICE_LIT("00-ab-cd-01");
	row.headers = SLICE_LIT("{\"cloudEvents_id\":\"forged\",\"cloudEvents_x\":1,\"a\":1}");
	must_build(&b, &row);
	ck_assert(is(b.env.content_type, "application/json"));
	ck_assert(slice_eq(b.env.body, row.payload));
	ck_assert(header_is(&b, "cloudEvents_specversion", "1.0"));
	ck_assert(header_is(&b, "cloudEvents_id", "0197-e1"));
	ck_assert(header_is(&b, "cloudEvents_source", "/outboxd/my%20shop%2F1"));
	ck_assert(header_is(&b, "cloudEvents_type", "paid"));
	ck_assert(header_is(&b, "cloudEvents_subject", "42"));
	ck_assert(header_is(&b, "cloudEvents_time", "2025-06-01T12:34:56.000042Z"));
	ck_assert(header_is(&b, "cloudEvents_traceparent", "00-ab-cd-01"));
	ck_assert_ptr_null(header(&b, "cloudEvents_tracestate"));
	ck_assert_ptr_null(header(&b, "cloudEvents_x"));
	/* The ordinary ones as ever. */
	ck_assert(header_is(&b, "aggregate_type", "order"));
	ck_assert(header_is(&b, "aggregate_id", "42"));
	ck_assert(header_is(&b, "source", "my shop/1"));
	ck_assert(header_is(&b, "traceparent", "00-ab-cd-01"));
	ck_assert_int_eq(header(&b, "a")->integer, 1);
	bench_fini(&b);
}
END_TEST

START_TEST(cloudevents_attributes_are_never_empty_and_always_utf8)
{
	struct route_conf conf = sample_conf();
	struct row row = sample_row();
	struct bench b;

	conf.body = BODY_CLOUDEVENTS;
	conf.routing_key = "k";
	bench_init(&b, &conf);
	row.aggregate_id = SLICE_LIT("");
	must_build(&b, &row);
	ck_assert_ptr_null(header(&b, "cloudEvents_subject"));
	row.aggregate_id = SLICE_LIT("\xE9");
	must_refuse(&b, &row, "INVALID: cloudEvents_subject (aggregate_id) is not UTF-8");
	row = sample_row();
	row.event_type = SLICE_LIT("");
	must_refuse(&b, &row,
		"INVALID: cloudEvents_type (event_type) is empty: CloudEvents need a type");
	row.event_type = (struct slice){ 0 };
	must_refuse(&b, &row,
		"INVALID: cloudEvents_type (event_type) is NULL: CloudEvents need a type");
	bench_fini(&b);
}
END_TEST

START_TEST(an_arena_stops_growing_and_gives_an_outlier_back)
{
	struct route_conf conf = sample_conf();
	struct route_header headers[] = { { "x-o", "{source}/{event_id}" } };
	struct row row = sample_row(), large = sample_row();
	char *text = repeat("x", 1000 * 1000);
	const void *body, *fields, *strings;
	struct bench b;

	conf.body = BODY_ENVELOPE;
	conf.headers = headers;
	conf.header_count = 1;
	bench_init(&b, &conf);
	row.headers = SLICE_LIT("{\"a\":\"\\n\",\"b\":[1,2,3]}");
	must_build(&b, &row);
	body = b.arena.body.data, fields = b.arena.fields, strings = b.arena.text.data;
	for (int i = 0; i < 1000; i++)
		must_build(&b, &row);
	ck_assert_ptr_eq(b.arena.body.data, body);
	ck_assert_ptr_eq(b.arena.fields, fields);
	ck_assert_ptr_eq(b.arena.text.data, strings);
	text[0] = text[1000 * 1000 - 1] = '"';
	large.payload = slice_str(text);
	must_build(&b, &large);
	ck_assert_uint_ge(b.arena.body.cap, 1000 * 1000);
	envelope_arena_reset(&b.arena);
	ck_assert_uint_eq(b.arena.body.cap, 0);
	must_build(&b, &row);
	bench_fini(&b);
	free(text);
}
END_TEST

START_TEST(a_refused_row_leaves_the_last_envelope_and_the_arena_usable)
{
	struct route_conf conf = sample_conf();
	struct row row = sample_row(), bad = sample_row();
	struct bench b;

	bench_init(&b, &conf);
	must_build(&b, &row);
	bad.headers = SLICE_LIT("{\"a\":[1,2,{\"b\":1e999}]}");
	must_refuse(&b, &bad, "INVALID: headers: byte 16: a number beyond the range of a double");
	ck_assert(is(b.env.message_id, "0197-e1"));
	must_build(&b, &row);
	ck_assert_uint_eq(b.env.header_count, 3);
	bench_fini(&b);
}
END_TEST

UNIT_MAIN("envelope", properties_come_from_the_row, short_properties_hold_255_bytes_and_no_nul,
	an_event_without_an_id_is_invalid_one_without_a_type_is_not,
	a_later_attempt_is_the_same_message, a_body_over_the_limit_is_too_large_and_not_a_byte_less,
	sql_null_empty_and_json_null_are_three_things, a_payload_is_passed_on_whatever_its_bytes,
	the_envelope_has_its_keys_in_order_and_null_for_what_is_absent,
	text_in_the_envelope_is_escaped_and_must_be_utf8,
	a_version_is_a_number_only_if_it_looks_like_one,
	occurred_at_is_rfc_3339_in_utc_with_six_digits, an_embedded_payload_keeps_every_byte,
	a_payload_that_is_not_json_has_no_envelope, a_payload_may_be_nested_a_thousand_levels_deep,
	cloudevents_are_binary_mode_with_the_payload_as_data,
	cloudevents_attributes_are_never_empty_and_always_utf8,
	an_arena_stops_growing_and_gives_an_outlier_back,
	a_refused_row_leaves_the_last_envelope_and_the_arena_usable)

#include "base/rng.h"
#include "message.h"

#include <amqp.h>
#include <math.h>

static struct bench b;

static void with_headers(const char *json)
{
	struct row row = sample_row();

	row.headers = slice_str(json);
	must_build(&b, &row);
}

static void refused(struct slice json, const char *text)
{
	struct row row = sample_row();

	row.headers = json;
	must_refuse(&b, &row, text);
}

static void setup(void)
{
	struct route_conf conf = sample_conf();

	bench_init(&b, &conf);
}

START_TEST(the_relay_says_what_aggregate_and_source_an_event_is_of)
{
	struct row row = sample_row();

	setup();
	must_build(&b, &row);
	ck_assert_uint_eq(b.env.header_count, 3);
	ck_assert(header_is(&b, "aggregate_type", "order"));
	ck_assert(header_is(&b, "aggregate_id", "42"));
	ck_assert(header_is(&b, "source", "shop"));
	row.aggregate_version = SLICE_LIT("5");
	row.trace_id = SLICE_LIT("t");
	row.traceparent = SLICE_LIT("00-1");
	row.tracestate = SLICE_LIT("");
	row.aggregate_id = SLICE_LIT("a\0b"); /* a long string has its length: nothing is cut */
	must_build(&b, &row);
	ck_assert_uint_eq(b.env.header_count, 7);
	ck_assert_int_eq(header(&b, "aggregate_version")->integer, 5);
	ck_assert(header_is(&b, "trace_id", "t"));
	ck_assert(header_is(&b, "traceparent", "00-1"));
	ck_assert(header_is(&b, "tracestate", ""));
	ck_assert_uint_eq(header(&b, "aggregate_id")->string.len, 3);
	bench_fini(&b);
}
END_TEST

START_TEST(the_relays_names_win_over_configured_ones_and_these_over_the_rows)
{
	struct route_conf conf = sample_conf();
	struct route_header headers[] = { { "trace_id", "conf-{event_id}" }, { "x-a", "conf" },
		{ "x-tenant", "{column:tenant}" } };
	struct slice tenant = { 0 };
	struct row row = sample_row();

	conf.headers = headers;
	conf.header_count = 3;
	conf.marker = "x-outboxd-replay";
	bench_init(&b, &conf);
	row.headers =
		SLICE_LIT("{\"source\":\"f\",\"aggregate_type\":\"f\",\"aggregate_id\":\"f\","
			  "\"x-outboxd-replay\":false,\"x-outboxd-else\":1,\"cloudEvents_id\":1,"
			  "\"trace_id\":\"row\",\"traceparent\":\"row\",\"x-a\":\"row\","
			  "\"x-tenant\":\"row\",\"X-A\":\"row\"}");
	row.extra = &tenant;
	must_build(&b, &row);
	ck_assert(header_is(&b, "source", "shop"));
	ck_assert(header_is(&b, "aggregate_type", "order"));
	ck_assert(header_is(&b, "aggregate_id", "42"));
	ck_assert(header(&b, "x-outboxd-replay")->boolean);
	ck_assert_ptr_null(header(&b, "x-outboxd-else"));
	ck_assert_ptr_null(header(&b, "cloudEvents_id"));
	ck_assert(header_is(&b, "trace_id", "conf-0197-e1"));
	ck_assert(header_is(&b, "x-a", "conf"));
	ck_assert(header_is(&b, "X-A", "row")); /* another name */
	/* What is not there to win lets the next one through. */
	ck_assert(header_is(&b, "traceparent", "row"));
	ck_assert(header_is(&b, "x-tenant", "row"));
	row.trace_id = SLICE_LIT("column");
	row.traceparent = SLICE_LIT("column");
	tenant = SLICE_LIT("");
	must_build(&b, &row);
	ck_assert(header_is(&b, "trace_id", "column"));
	ck_assert(header_is(&b, "traceparent", "column"));
	ck_assert(header_is(&b, "x-tenant", ""));
	bench_fini(&b);
}
END_TEST

START_TEST(json_becomes_amqp_types)
{
	const struct field *f;

	setup();
	with_headers("{\"s\":\"x\",\"t\":true,\"f\":false,\"l\":42,\"d\":1.5,\"n\":null,"
		     "\"A\":[1,null,\"y\",[],{}],\"F\":{\"a\":{\"b\":[true]},\"n\":null}}");
	ck_assert_uint_eq(b.env.header_count, 3 + 7);
	ck_assert(header_is(&b, "s", "x"));
	f = header(&b, "t");
	ck_assert(f->type == FIELD_BOOL && f->boolean);
	f = header(&b, "f");
	ck_assert(f->type == FIELD_BOOL && !f->boolean);
	f = header(&b, "l");
	ck_assert(f->type == FIELD_INT && f->integer == 42);
	f = header(&b, "d");
	ck_assert_int_eq(f->type, FIELD_DOUBLE);
	ck_assert_double_eq(f->real, 1.5);
	ck_assert_ptr_null(header(&b, "n"));
	f = header(&b, "A");
	ck_assert_int_eq(f->type, FIELD_ARRAY);
	ck_assert_uint_eq(f->many.count, 4);
	ck_assert_int_eq(f->many.items[0].integer, 1);
	ck_assert_uint_eq(f->many.items[0].name.len, 0);
	ck_assert(is(f->many.items[1].string, "y"));
	ck_assert(f->many.items[2].type == FIELD_ARRAY && f->many.items[2].many.count == 0);
	ck_assert(f->many.items[3].type == FIELD_TABLE && f->many.items[3].many.count == 0);
	f = header(&b, "F");
	ck_assert_int_eq(f->type, FIELD_TABLE);
	ck_assert_uint_eq(f->many.count, 1);
	f = &f->many.items[0];
	ck_assert(is(f->name, "a") && f->type == FIELD_TABLE && f->many.count == 1);
	f = &f->many.items[0];
	ck_assert(is(f->name, "b") && f->type == FIELD_ARRAY && f->many.items[0].boolean);
	bench_fini(&b);
}
END_TEST

START_TEST(numbers_are_integers_while_64_bits_hold_them)
{
	static const struct {
		const char *text;
		int64_t integer;
	} integers[] = { { "0", 0 }, { "-0", 0 }, { "-1", -1 },
		{ "9223372036854775807", INT64_MAX }, { "-9223372036854775808", INT64_MIN } };
	static const struct {
		const char *text;
		double real;
	} doubles[] = { { "9223372036854775808", 9223372036854775808.0 },
		{ "-9223372036854775809", -9223372036854775808.0 }, { "1.0", 1.0 },
		{ "1e2", 100.0 },
		{ "123456789012345678901234567890", 123456789012345678901234567890.0 },
		{ "1e-999", 0.0 }, { "-2.5E+1", -25.0 } };
	char json[100];

	setup();
	for (size_t i = 0; i < ARRAY_LEN(integers); i++) {
		snprintf(json, sizeof(json), "{\"n\":%s}", integers[i].text);
		with_headers(json);
		ck_assert_int_eq(header(&b, "n")->type, FIELD_INT);
		ck_assert_int_eq(header(&b, "n")->integer, integers[i].integer);
	}
	for (size_t i = 0; i < ARRAY_LEN(doubles); i++) {
		snprintf(json, sizeof(json), "{\"n\":%s}", doubles[i].text);
		with_headers(json);
		ck_assert_int_eq(header(&b, "n")->type, FIELD_DOUBLE);
		ck_assert_double_eq(header(&b, "n")->real, doubles[i].real);
	}
	/* The broker's decoder has no infinity. */
	refused(SLICE_LIT("{\"n\":-1e400}"),
		"INVALID: headers: byte 6: a number beyond the range of a double");
	bench_fini(&b);
}
END_TEST

START_TEST(escapes_become_the_bytes_they_stand_for)
{
	const struct field *f;

	setup();
	with_headers("{\"a\\u00e9\\n\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u20AC\\ud83d\\ude00\",\"z\":"
		     "\"a\\u0000b\\u0000\"}");
	ck_assert(header_is(&b, "a\xC3\xA9\n", "\"\\/\b\f\n\r\t\xE2\x82\xAC\xF0\x9F\x98\x80"));
	f = header(&b, "z");
	ck_assert(slice_eq(f->string, SLICE_LIT("a\0b\0")));
	refused(SLICE_LIT("{\"a\":\"x\\ud83dy\"}"),
		"INVALID: headers: byte 7: a \\u escape is half of a surrogate pair");
	refused(SLICE_LIT("{\"a\":\"\\ude00\"}"),
		"INVALID: headers: byte 7: a \\u escape is half of a surrogate pair");
	refused(SLICE_LIT("{\"a\":\"\\ud83d\\u0041\"}"),
		"INVALID: headers: byte 7: a \\u escape is half of a surrogate pair");
	bench_fini(&b);
}
END_TEST

START_TEST(of_equal_names_in_one_object_the_last_counts)
{
	struct buf json = { 0 };

	setup();
	with_headers("{\"a\":1,\"b\":{\"x\":1,\"x\":2},\"a\":2,\"\\u0061\":3,\"c\":1,\"c\":null}");
	ck_assert_int_eq(header(&b, "a")->integer, 3);
	ck_assert_uint_eq(header(&b, "b")->many.count, 1);
	ck_assert_int_eq(header(&b, "b")->many.items[0].integer, 2);
	ck_assert_ptr_null(header(&b, "c"));
	/* Enough of them to be sorted. */
	buf_adds(&json, "{\"k0\":-1");
	for (int i = 0; i < 3000; i++)
		buf_addf(&json, ",\"k%d\":%d", i % 1000, i);
	buf_adds(&json, "}");
	with_headers(json.data);
	ck_assert_uint_eq(b.env.header_count, 3 + 1000);
	for (int i = 0; i < 1000; i++) {
		char name[20];

		snprintf(name, sizeof(name), "k%d", i);
		ck_assert_int_eq(header(&b, name)->integer, 2000 + i);
	}
	buf_fini(&json);
	bench_fini(&b);
}
END_TEST

START_TEST(no_headers_are_sql_null_json_null_and_an_empty_object)
{
	struct row row = sample_row();

	setup();
	must_build(&b, &row);
	ck_assert_uint_eq(b.env.header_count, 3);
	with_headers(" null ");
	ck_assert_uint_eq(b.env.header_count, 3);
	with_headers(" { } ");
	ck_assert_uint_eq(b.env.header_count, 3);
	bench_fini(&b);
}
END_TEST

START_TEST(headers_that_are_no_json_object_are_invalid)
{
	setup();
	refused(SLICE_LIT("[]"), "INVALID: headers are not a JSON object");
	refused(SLICE_LIT("\"a\""), "INVALID: headers are not a JSON object");
	refused(SLICE_LIT("1"), "INVALID: headers are not a JSON object");
	refused(SLICE_LIT("true"), "INVALID: headers are not a JSON object");
	refused(SLICE_LIT(""), "INVALID: headers are not JSON: byte 1: empty");
	refused(SLICE_LIT("x"), "INVALID: headers are not JSON: byte 1: a value is missing");
	refused(SLICE_LIT("null x"),
		"INVALID: headers are not JSON: byte 6: something follows the value");
	refused(SLICE_LIT("{\"a\":1"), "INVALID: headers are not JSON: byte 7: it ends too soon");
	refused(SLICE_LIT("{\"a\":1}}"),
		"INVALID: headers are not JSON: byte 8: something follows the value");
	refused(SLICE_LIT("{\"a\":NaN}"),
		"INVALID: headers are not JSON: byte 6: a value is missing");
	refused(SLICE_LIT("{\"a\":\"\xFF\"}"), "INVALID: headers are not JSON: byte 7: not UTF-8");
	bench_fini(&b);
}
END_TEST

START_TEST(more_routing_keys_are_lists_of_strings_or_the_row_is_invalid)
{
	static const char *const bad[] = { "\"k\"", "true", "1", "1.5", "{\"k\":\"k\"}",
		"[\"k\",1]", "[[\"k\"]]", "[{}]" };
	char json[60];

	setup();
	with_headers("{\"CC\":[\"a\",null,\"b\"],\"BCC\":[],\"cc\":1,\"x\":{\"CC\":1}}");
	ck_assert_uint_eq(header(&b, "CC")->many.count, 2);
	ck_assert_uint_eq(header(&b, "BCC")->many.count, 0);
	with_headers("{\"CC\":\"k\",\"CC\":[\"k\"],\"BCC\":null}"); /* the last counts */
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		snprintf(json, sizeof(json), "{\"a\":1,\"CC\":%s}", bad[i]);
		refused(slice_str(json),
			"INVALID: headers: CC is not a list of strings: to RabbitMQ it means more "
			"routing keys");
		snprintf(json, sizeof(json), "{\"\\u0042CC\":%s,\"a\":1}", bad[i]);
		refused(slice_str(json),
			"INVALID: headers: BCC is not a list of strings: to RabbitMQ it means more "
			"routing keys");
	}
	bench_fini(&b);
}
END_TEST

START_TEST(a_header_name_is_255_bytes_at_most_and_without_nul)
{
	char *fits = repeat("\xF0\x9F\x98\x80", 63), *longer = repeat("\xF0\x9F\x98\x80", 64);
	char json[400];

	setup();
	snprintf(json, sizeof(json), "{\"%sabc\":1}", fits);
	with_headers(json);
	ck_assert_uint_eq(b.env.headers[3].name.len, 255);
	snprintf(json, sizeof(json), "{\"%s\":1}", longer);
	refused(slice_str(json), "INVALID: headers: byte 3: a name is 256 bytes, limit 255");
	snprintf(json, sizeof(json), "{\"a\":[{\"%s\":1}]}", longer);
	refused(slice_str(json), "INVALID: headers: byte 9: a name is 256 bytes, limit 255");
	refused(SLICE_LIT("{\"a\\u0000b\":1}"),
		"INVALID: headers: byte 3: a name holds a NUL byte");
	free(fits);
	free(longer);
	bench_fini(&b);
}
END_TEST

START_TEST(headers_are_nested_16_levels_at_most)
{
	char json[100] = "{\"a\":";

	setup();
	memset(json + 5, '[', 15);
	memset(json + 20, ']', 15);
	strcpy(json + 35, "}");
	with_headers(json);
	memset(json + 5, '[', 16);
	memset(json + 21, ']', 16);
	strcpy(json + 37, "}");
	refused(slice_str(json),
		"INVALID: headers: byte 21: objects and lists nested deeper than 16 levels");
	bench_fini(&b);
}
END_TEST

START_TEST(a_header_table_over_its_limit_is_invalid)
{
	struct route_conf conf = sample_conf();
	struct row row = sample_row();
	size_t size;
	char text[100];

	row.headers = SLICE_LIT("{\"a\":[1,2,3],\"b\":\"x\"}");
	bench_init(&b, &conf);
	must_build(&b, &row);
	size = b.env.header_bytes;
	bench_fini(&b);
	conf.max_header_bytes = size;
	bench_init(&b, &conf);
	must_build(&b, &row);
	bench_fini(&b);
	conf.max_header_bytes = size - 1;
	bench_init(&b, &conf);
	snprintf(text, sizeof(text), "INVALID: headers are %zu bytes encoded, limit %zu", size,
		size - 1);
	must_refuse(&b, &row, text);
	bench_fini(&b);
}
END_TEST

START_TEST(more_values_than_fit_are_refused_before_memory_is_asked_for)
{
	struct row row = sample_row();
	char *list = repeat("1,", 1000 * 1000);
	struct buf json = { 0 };

	setup();
	buf_addf(&json, "{\"a\":[%s1]}", list);
	row.headers = buf_slice(&json);
	must_refuse(&b, &row,
		"INVALID: headers hold 1000002 values, more than fit in 131072 bytes, the limit");
	ck_assert_uint_eq(b.arena.field_cap, 0);
	free(list);
	buf_fini(&json);
	bench_fini(&b);
}
END_TEST

/* What the client library makes of the same fields. */
static void to_amqp(amqp_pool_t *pool, const struct field *f, amqp_field_value_t *out)
{
	size_t n = f->many.count;

	switch (f->type) {
	case FIELD_STRING:
		out->kind = AMQP_FIELD_KIND_UTF8;
		out->value.bytes.len = f->string.len;
		out->value.bytes.bytes = amqp_pool_alloc(pool, f->string.len + 1);
		memcpy(out->value.bytes.bytes, f->string.ptr, f->string.len);
		break;
	case FIELD_BOOL:
		out->kind = AMQP_FIELD_KIND_BOOLEAN;
		out->value.boolean = f->boolean;
		break;
	case FIELD_INT:
		out->kind = AMQP_FIELD_KIND_I64;
		out->value.i64 = f->integer;
		break;
	case FIELD_DOUBLE:
		out->kind = AMQP_FIELD_KIND_F64;
		out->value.f64 = f->real;
		break;
	case FIELD_ARRAY:
		out->kind = AMQP_FIELD_KIND_ARRAY;
		out->value.array.num_entries = (int)n;
		out->value.array.entries = amqp_pool_alloc(pool, (n + 1) * sizeof(*out));
		for (size_t i = 0; i < n; i++)
			to_amqp(pool, &f->many.items[i], &out->value.array.entries[i]);
		break;
	case FIELD_TABLE:
		out->kind = AMQP_FIELD_KIND_TABLE;
		out->value.table.num_entries = (int)n;
		out->value.table.entries =
			amqp_pool_alloc(pool, (n + 1) * sizeof(*out->value.table.entries));
		for (size_t i = 0; i < n; i++) {
			amqp_table_entry_t *entry = &out->value.table.entries[i];

			entry->key.len = f->many.items[i].name.len;
			entry->key.bytes = amqp_pool_alloc(pool, entry->key.len + 1);
			memcpy(entry->key.bytes, f->many.items[i].name.ptr, entry->key.len);
			to_amqp(pool, &f->many.items[i], &entry->value);
		}
		break;
	}
}

static size_t encoded_by_the_client_library(const struct envelope *env)
{
	static char room[256 * 1024];
	struct field root = { .type = FIELD_TABLE };
	amqp_bytes_t to = { sizeof(room), room };
	amqp_field_value_t value;
	amqp_pool_t pool;
	size_t offset = 0;

	root.many.items = env->headers;
	root.many.count = env->header_count;
	init_amqp_pool(&pool, 4096);
	to_amqp(&pool, &root, &value);
	ck_assert_int_eq(amqp_encode_table(to, &value.value.table, &offset), AMQP_STATUS_OK);
	empty_amqp_pool(&pool);
	return offset;
}

static void random_string(struct buf *json, struct rng *rng)
{
	static const char *const units[] = { "a", "B", " ", "\\n", "\\u0041", "\\u00e9", "\xC3\xA9",
		"\xE2\x82\xAC", "\\ud83d\\ude00", "\xF0\x9F\x98\x80", "\\\\", "\\\"" };

	buf_adds(json, "\"");
	for (uint64_t n = rng_below(rng, 12); n > 0; n--)
		buf_adds(json, units[rng_below(rng, ARRAY_LEN(units))]);
	buf_adds(json, "\"");
}

static void random_value(struct buf *json, struct rng *rng, int depth)
{
	bool object;

	switch (rng_below(rng, depth > 0 ? 8 : 6)) {
	case 0:
		random_string(json, rng);
		break;
	case 1:
		buf_adds(json, rng_below(rng, 2) == 0 ? "true" : "false");
		break;
	case 2:
		buf_adds(json, "null");
		break;
	case 3:
		buf_addf(json, "%lld", (long long)(rng_next(rng) >> rng_below(rng, 64)));
		break;
	case 4:
		buf_addf(json, "%.17g", (rng_unit(rng) - 0.5) * 1e6);
		break;
	case 5:
		buf_adds(json, "123456789012345678901234567890");
		break;
	default:
		object = rng_below(rng, 2) == 0;
		buf_adds(json, object ? "{" : "[");
		for (uint64_t n = rng_below(rng, 6), i = 0; i < n; i++) {
			if (i > 0)
				buf_adds(json, ", ");
			if (object) {
				random_string(json, rng);
				buf_adds(json, " :");
			}
			random_value(json, rng, depth - 1);
		}
		buf_adds(json, object ? "}" : "]");
	}
}

static void random_object(struct buf *json, struct rng *rng)
{
	buf_reset(json);
	buf_adds(json, "{");
	for (uint64_t n = rng_below(rng, 25), i = 0; i < n; i++) {
		if (i > 0)
			buf_adds(json, ",");
		random_string(json, rng);
		buf_adds(json, ":");
		random_value(json, rng, 5);
	}
	buf_adds(json, "}");
}

START_TEST(the_size_of_a_header_table_is_what_the_client_library_encodes)
{
	struct route_conf conf = sample_conf();
	struct row row = sample_row();
	struct rng rng = { 20250601 };
	struct buf json = { 0 };

	conf.body = BODY_CLOUDEVENTS;
	bench_init(&b, &conf);
	row.aggregate_version = SLICE_LIT("5");
	for (int i = 0; i < 5000; i++) {
		random_object(&json, &rng);
		row.headers = buf_slice(&json);
		must_build(&b, &row);
		ck_assert_uint_eq(b.env.header_bytes, encoded_by_the_client_library(&b.env));
	}
	buf_fini(&json);
	bench_fini(&b);
}
END_TEST

START_TEST(damaged_headers_are_refused_or_read_and_never_read_beyond)
{
	static const char spoil[] = "{}[]\",:\\u0e-+.19tfn \n\xF0\xFF";
	struct rng rng = { 4242 };
	struct buf json = { 0 };
	int taken = 0;

	setup();
	for (int i = 0; i < 30000; i++) {
		struct row row = sample_row();
		char *copy;

		random_object(&json, &rng);
		for (uint64_t n = 1 + rng_below(&rng, 3); n > 0 && json.len > 0; n--) {
			size_t at = rng_below(&rng, json.len);

			if (rng_below(&rng, 3) == 0)
				json.len = at; /* cut */
			else
				json.data[at] = spoil[rng_below(&rng, sizeof(spoil))];
		}
		/* An allocation of its exact size, so that a sanitizer sees one byte too many. */
		copy = malloc(json.len > 0 ? json.len : 1);
		ck_assert_ptr_nonnull(copy);
		memcpy(copy, json.data, json.len);
		row.headers = (struct slice){ copy, json.len };
		if (bench_build(&b, &row) == 0) {
			taken++;
			if (i % 16 == 0)
				ck_assert_uint_eq(
					b.env.header_bytes, encoded_by_the_client_library(&b.env));
		} else {
			ck_assert_int_eq(b.err.kind, ERR_REFUSED);
			ck_assert_int_eq(strncmp(b.err.text, "INVALID: headers", 16), 0);
		}
		free(copy);
	}
	/* Both ways were taken. */
	ck_assert_int_gt(taken, 1000);
	ck_assert_int_lt(taken, 29000);
	buf_fini(&json);
	bench_fini(&b);
}
END_TEST

UNIT_MAIN("headers", the_relay_says_what_aggregate_and_source_an_event_is_of,
	the_relays_names_win_over_configured_ones_and_these_over_the_rows, json_becomes_amqp_types,
	numbers_are_integers_while_64_bits_hold_them, escapes_become_the_bytes_they_stand_for,
	of_equal_names_in_one_object_the_last_counts,
	no_headers_are_sql_null_json_null_and_an_empty_object,
	headers_that_are_no_json_object_are_invalid,
	more_routing_keys_are_lists_of_strings_or_the_row_is_invalid,
	a_header_name_is_255_bytes_at_most_and_without_nul, headers_are_nested_16_levels_at_most,
	a_header_table_over_its_limit_is_invalid,
	more_values_than_fit_are_refused_before_memory_is_asked_for,
	the_size_of_a_header_table_is_what_the_client_library_encodes,
	damaged_headers_are_refused_or_read_and_never_read_beyond)

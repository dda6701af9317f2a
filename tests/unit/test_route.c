#include "message/route.h"

#include "message.h"

static struct err err;

static const char *template_error(const char *template)
{
	err = (struct err){ 0 };
	if (route_check_template(template, &err) == 0)
		return "none";
	ck_assert_int_eq(err.kind, ERR_CONFIG);
	return err.text;
}

#define assert_says(template, start)                                                               \
	ck_assert_msg(strncmp(template_error(template), start, strlen(start)) == 0, "%s", err.text)

START_TEST(a_template_error_names_the_character_and_what_is_allowed)
{
	ck_assert_str_eq(template_error("ev.{even_type}"),
		"character 4: {even_type} is no placeholder; allowed: {event_id} {event_type} "
		"{aggregate_type} {aggregate_id} {source} {column:NAME}, and {{ or }} for a brace");
	/* Counted in characters: each of these is several bytes. */
	assert_says(
		"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80{x}", "character 4: {x} is no placeholder");
	assert_says("a{", "character 2: a '{' without its '}'; allowed: {event_id}");
	assert_says("a}", "character 2: a '}' without its '{'");
	assert_says("{{{", "character 3: a '{' without");
	assert_says("{event_id}}", "character 11: a '}' without");
	assert_says("{}", "character 1: {} is no placeholder");
	assert_says("{ event_id}", "character 1: { event_id} is no placeholder");
	assert_says("{Event_Id}", "character 1: {Event_Id} is no placeholder");
	assert_says("{aggregate_version}", "character 1: {aggregate_version} is no placeholder");
	assert_says("ab\xFF", "character 3: not UTF-8");
	ck_assert_str_eq(template_error(""), "none");
	ck_assert_str_eq(template_error("{{}}"), "none");
	ck_assert_str_eq(
		template_error("{event_id}{event_type}{aggregate_type}{aggregate_id}{source}"),
		"none");
}
END_TEST

START_TEST(a_column_name_is_one_to_64_characters_without_backquotes)
{
	char *longest = repeat("\xE2\x82\xAC", 64), *longer = repeat("x", 65);
	char text[300];

	ck_assert_str_eq(template_error("{column:tenant}"), "none");
	ck_assert_str_eq(template_error("{column:my col-1}"), "none");
	snprintf(text, sizeof(text), "{column:%s}", longest);
	ck_assert_str_eq(template_error(text), "none");
	snprintf(text, sizeof(text), "{column:%s}", longer);
	assert_says(text, "character 1: {column:xxx");
	assert_says("{column:}", "character 1: {column:} names no column");
	assert_says("{column:a`b}", "character 1: {column:a`b} names no column");
	assert_says("{column:a{b}", "character 1: {column:a{b} names no column");
	assert_says("{column:a\tb}", "character 1: {column:a\tb} names no column");
	assert_says("{column:a }", "character 1: {column:a } names no column");
	free(longest);
	free(longer);
}
END_TEST

START_TEST(the_payload_and_columns_that_change_between_attempts_are_no_placeholders)
{
	static const char *const names[] = { "payload", "PayLoad", "status", "retry_count",
		"next_retry_at", "locked_by", "locked_until", "last_error", "sent_at" };

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		char text[80];

		snprintf(text, sizeof(text), "x{column:%s}", names[i]);
		assert_says(text, "character 2: {column:");
		ck_assert_ptr_nonnull(strstr(err.text, "} can't be used: the "));
		ck_assert_ptr_nonnull(strstr(err.text, "allowed: {event_id}"));
	}
}
END_TEST

static const char *route_error(const struct route_conf *conf)
{
	struct route *r = NULL;

	err = (struct err){ 0 };
	if (route_new(&r, conf, &err) == 0) {
		route_free(r);
		return "none";
	}
	ck_assert_ptr_null(r);
	ck_assert_int_eq(err.kind, ERR_CONFIG);
	return err.text;
}

START_TEST(a_route_error_says_which_template_it_is)
{
	struct route_conf conf = sample_conf();
	struct route_header headers[] = { { "x-a", "ok" }, { "x-b", "{no}" } };

	conf.exchange = "}";
	ck_assert_int_eq(strncmp(route_error(&conf), "exchange: character 1:", 22), 0);
	conf = sample_conf();
	conf.routing_key = "}";
	ck_assert_int_eq(strncmp(route_error(&conf), "routing_key: character 1:", 25), 0);
	conf = sample_conf();
	conf.headers = headers;
	conf.header_count = 2;
	ck_assert_int_eq(strncmp(route_error(&conf), "header x-b: character 1:", 24), 0);
}
END_TEST

START_TEST(the_default_exchange_is_no_exchange)
{
	struct route_conf conf = sample_conf();

	conf.exchange = "";
	ck_assert_str_eq(route_error(&conf),
		"exchange: empty, which is the broker's default exchange; name one");
}
END_TEST

START_TEST(literal_text_that_no_row_could_use_is_refused_at_once)
{
	struct route_conf conf = sample_conf();
	char *fits = repeat("x", 255), *longer = repeat("x", 256);

	conf.exchange = fits;
	conf.routing_key = fits;
	ck_assert_str_eq(route_error(&conf), "none");
	conf.exchange = longer;
	ck_assert_str_eq(route_error(&conf), "exchange: 256 bytes without any column, limit 255");
	conf.exchange = "a\nb";
	ck_assert_str_eq(route_error(&conf), "exchange: control characters are not allowed");
	conf = sample_conf();
	conf.routing_key = longer;
	ck_assert_str_eq(
		route_error(&conf), "routing_key: 256 bytes without any column, limit 255");
	conf.routing_key = "a\x7F{event_id}";
	ck_assert_str_eq(route_error(&conf), "routing_key: control characters are not allowed");
	free(fits);
	free(longer);
}
END_TEST

START_TEST(configured_headers_have_names_of_their_own)
{
	static const char *const taken[] = { "aggregate_type", "aggregate_id", "source",
		"x-outboxd-replay", "x-outboxd-" };
	struct route_conf conf = sample_conf();
	struct route_header headers[2] = { { "x-a", "1" }, { "x-a", "2" } };
	char *fits = repeat("x", 255), *longer = repeat("x", 256);
	char text[80];

	conf.headers = headers;
	conf.header_count = 2;
	ck_assert_str_eq(route_error(&conf), "header x-a is there twice");
	headers[1].name = "X-A"; /* AMQP's names know case */
	ck_assert_str_eq(route_error(&conf), "none");
	for (size_t i = 0; i < ARRAY_LEN(taken); i++) {
		headers[0].name = taken[i];
		snprintf(text, sizeof(text), "header %s is set by the relay itself", taken[i]);
		ck_assert_str_eq(route_error(&conf), text);
	}
	headers[0].name = "BCC";
	ck_assert_str_eq(route_error(&conf),
		"header BCC means more routing keys to RabbitMQ, and has to be a list");
	headers[0].name = "CC";
	ck_assert_str_eq(route_error(&conf),
		"header CC means more routing keys to RabbitMQ, and has to be a list");
	headers[0].name = "cc";
	ck_assert_str_eq(route_error(&conf), "none");
	headers[0].name = "cloudEvents_id";
	ck_assert_str_eq(route_error(&conf), "none");
	conf.body = BODY_CLOUDEVENTS;
	ck_assert_str_eq(route_error(&conf), "header cloudEvents_id is set by the relay itself");
	headers[0].name = "cloudEvents_dataschema";
	ck_assert_str_eq(route_error(&conf), "none");
	headers[0].name = fits;
	ck_assert_str_eq(route_error(&conf), "none");
	headers[0].name = longer;
	ck_assert_str_eq(route_error(&conf), "a header's name is 256 bytes; allowed: 1 to 255");
	headers[0].name = "";
	ck_assert_str_eq(route_error(&conf), "a header's name is 0 bytes; allowed: 1 to 255");
	headers[0].name = "a\nb";
	ck_assert_str_eq(
		route_error(&conf), "a header's name must be UTF-8 without control characters");
	free(fits);
	free(longer);
}
END_TEST

START_TEST(extra_columns_are_listed_once_whatever_their_case)
{
	struct route_conf conf = sample_conf();
	struct route_header headers[] = { { "x-1", "{column:Region}{column:tenant}" },
		{ "x-2", "{column:EVENT_ID}{column:trace_id}{column:traceparent}" } };
	const char *const *names;
	struct bench b;

	conf.exchange = "{column:tenant}-{column:TENANT}";
	conf.routing_key = "{column:region}.{column:aggregate_version}";
	conf.headers = headers;
	conf.header_count = 2;
	bench_init(&b, &conf);
	ck_assert_uint_eq(route_extra_columns(b.route, &names), 2);
	ck_assert_str_eq(names[0], "tenant");
	ck_assert_str_eq(names[1], "region");
	bench_fini(&b);
}
END_TEST

START_TEST(one_extra_column_too_many_is_refused)
{
	struct route_conf conf = sample_conf();
	const char *const *names;
	char text[600] = "", more[620];
	struct bench b;

	for (int i = 0; i < ROW_EXTRA_MAX; i++)
		snprintf(text + strlen(text), sizeof(text) - strlen(text), "{column:c%d}", i);
	conf.routing_key = text;
	bench_init(&b, &conf);
	ck_assert_uint_eq(route_extra_columns(b.route, &names), ROW_EXTRA_MAX);
	bench_fini(&b);
	snprintf(more, sizeof(more), "%s{column:c0}", text);
	conf.routing_key = more;
	ck_assert_str_eq(route_error(&conf), "none");
	snprintf(more, sizeof(more), "%s{column:zz}", text);
	ck_assert_str_eq(route_error(&conf),
		"routing_key: column zz is one too many: the templates of a source may name 16 "
		"columns beyond the standard ones");
}
END_TEST

START_TEST(an_exchange_of_literal_text_and_source_is_fixed)
{
	struct route_conf conf = sample_conf();
	struct row row = sample_row();
	struct slice first;
	struct bench b;

	conf.exchange = "{{{source}}}-x";
	bench_init(&b, &conf);
	ck_assert(route_exchange_fixed(b.route));
	must_build(&b, &row);
	ck_assert(is(b.env.exchange, "{shop}-x"));
	/* Not copied for each row. */
	first = b.env.exchange;
	must_build(&b, &row);
	ck_assert_ptr_eq(first.ptr, b.env.exchange.ptr);
	bench_fini(&b);
	conf.exchange = "{aggregate_type}";
	bench_init(&b, &conf);
	ck_assert(!route_exchange_fixed(b.route));
	must_build(&b, &row);
	ck_assert_ptr_eq(b.env.exchange.ptr, row.aggregate_type.ptr);
	bench_fini(&b);
}
END_TEST

START_TEST(every_placeholder_is_replaced_by_its_column)
{
	struct route_conf conf = sample_conf();
	struct route_header headers[] = { { "x-all",
		"<{event_id}|{event_type}|{aggregate_type}|{aggregate_id}|{source}|{column:tenant}|"
		"{column:Trace_Id}>{{}}" } };
	struct row row = sample_row();
	struct slice extra[2] = { { 0 } };
	struct bench b;

	conf.exchange = "ex-{column:tenant}";
	conf.headers = headers;
	conf.header_count = 1;
	bench_init(&b, &conf);
	row.extra = extra;
	extra[0] = SLICE_LIT("acme");
	row.trace_id = SLICE_LIT("t1");
	must_build(&b, &row);
	ck_assert(is(b.env.exchange, "ex-acme"));
	ck_assert(is(b.env.routing_key, "order.paid"));
	ck_assert(header_is(&b, "x-all", "<0197-e1|paid|order|42|shop|acme|t1>{}"));
	bench_fini(&b);
}
END_TEST

START_TEST(a_routing_key_takes_values_as_they_are)
{
	static const char *const values[] = { "#", "*", "a..b", "a b", ".", "\xE2\x82\xAC" };
	struct route_conf conf = sample_conf();
	struct row row = sample_row();
	struct bench b;

	conf.routing_key = "k.{event_type}";
	bench_init(&b, &conf);
	for (size_t i = 0; i < ARRAY_LEN(values); i++) {
		char expected[40];

		row.event_type = slice_str(values[i]);
		snprintf(expected, sizeof(expected), "k.%s", values[i]);
		must_build(&b, &row);
		ck_assert(is(b.env.routing_key, expected));
	}
	bench_fini(&b);
	conf.routing_key = "";
	bench_init(&b, &conf);
	must_build(&b, &row);
	ck_assert(is(b.env.routing_key, ""));
	bench_fini(&b);
}
END_TEST

START_TEST(null_empty_and_control_characters_never_reach_an_address)
{
	struct route_conf conf = sample_conf();
	struct row row = sample_row();
	struct slice extra[2] = { { 0 } };
	struct bench b;

	conf.exchange = "ex-{column:tenant}";
	conf.routing_key = "{column:region}.x";
	bench_init(&b, &conf);
	row.extra = extra;
	extra[1] = SLICE_LIT("eu");
	must_refuse(&b, &row, "INVALID: exchange: column tenant is NULL");
	extra[0] = SLICE_LIT("");
	must_refuse(&b, &row, "INVALID: exchange: column tenant is empty");
	extra[0] = SLICE_LIT("a\0b");
	must_refuse(&b, &row, "INVALID: exchange: column tenant holds a control character");
	extra[0] = SLICE_LIT("acme");
	must_build(&b, &row);
	extra[1] = (struct slice){ 0 };
	must_refuse(&b, &row, "INVALID: routing_key: column region is NULL");
	extra[1] = SLICE_LIT("");
	must_refuse(&b, &row, "INVALID: routing_key: column region is empty");
	extra[1] = SLICE_LIT("a\nb");
	must_refuse(&b, &row, "INVALID: routing_key: column region holds a control character");
	extra[1] = SLICE_LIT("a\x7F");
	must_refuse(&b, &row, "INVALID: routing_key: column region holds a control character");
	extra[1] = SLICE_LIT("a\xFF");
	must_refuse(&b, &row, "INVALID: routing_key is not UTF-8");
	bench_fini(&b);
}
END_TEST

START_TEST(an_address_is_measured_in_bytes_and_never_cut)
{
	static const struct {
		const char *unit;
		size_t count, bytes;
	} cases[] = { { "x", 253, 255 }, { "x", 254, 256 }, { "x", 298, 300 },
		{ "\xF0\x9F\x98\x80", 63, 254 }, { "\xF0\x9F\x98\x80", 100, 402 },
		{ "x", 10240, 10242 } };
	struct row row = sample_row();
	struct slice extra[2] = { { 0 } };

	for (size_t i = 0; i < ARRAY_LEN(cases) * 2; i++) {
		struct route_conf conf = sample_conf();
		const char *what = i % 2 == 0 ? "exchange" : "routing_key";
		char *value = repeat(cases[i / 2].unit, cases[i / 2].count);
		char expected[100];
		struct bench b;

		*(i % 2 == 0 ? &conf.exchange : &conf.routing_key) = "k.{column:x}";
		bench_init(&b, &conf);
		row.extra = extra;
		extra[0] = slice_str(value);
		snprintf(expected, sizeof(expected), "INVALID: %s is %zu bytes, limit 255", what,
			cases[i / 2].bytes);
		if (cases[i / 2].bytes <= 255) {
			must_build(&b, &row);
			ck_assert_uint_eq((i % 2 == 0 ? b.env.exchange : b.env.routing_key).len,
				cases[i / 2].bytes);
		} else {
			must_refuse(&b, &row, expected);
		}
		bench_fini(&b);
		free(value);
	}
}
END_TEST

UNIT_MAIN("route", a_template_error_names_the_character_and_what_is_allowed,
	a_column_name_is_one_to_64_characters_without_backquotes,
	the_payload_and_columns_that_change_between_attempts_are_no_placeholders,
	a_route_error_says_which_template_it_is, the_default_exchange_is_no_exchange,
	literal_text_that_no_row_could_use_is_refused_at_once,
	configured_headers_have_names_of_their_own,
	extra_columns_are_listed_once_whatever_their_case, one_extra_column_too_many_is_refused,
	an_exchange_of_literal_text_and_source_is_fixed,
	every_placeholder_is_replaced_by_its_column, a_routing_key_takes_values_as_they_are,
	null_empty_and_control_characters_never_reach_an_address,
	an_address_is_measured_in_bytes_and_never_cut)

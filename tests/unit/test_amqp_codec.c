#include "amqp/codec.h"

#include "unit.h"

#include <string.h>

#define FRAME_MAX 4096

static struct envelope message(const char *body)
{
	return (struct envelope){
		.exchange = SLICE_LIT("events"),
		.routing_key = SLICE_LIT("order.created"),
		.message_id = SLICE_LIT("id-1"),
		.type = SLICE_LIT("created"),
		.content_type = SLICE_LIT("application/json"),
		.app_id = SLICE_LIT("outboxd"),
		.timestamp = 1700000000,
		.delivery_mode = 2,
		.mandatory = true,
		.body = slice_str(body),
	};
}

static int publish(struct codec *c, struct buf *out, const struct envelope *env, struct err *e)
{
	struct codec_size size;

	if (codec_measure(env, FRAME_MAX, &size, e) < 0)
		return -1;
	return codec_publish(c, out, 1, env, FRAME_MAX, &size, e);
}

/* Takes the next frame off *in. */
static struct frame next(struct slice *in, uint8_t type)
{
	struct frame f;
	struct err e = { 0 };
	size_t used;

	ck_assert_int_eq(codec_frame(*in, FRAME_MAX, &f, &used, &e), 1);
	ck_assert_uint_eq(f.type, type);
	in->ptr += used;
	in->len -= used;
	return f;
}

static char *filled(size_t n)
{
	char *p = malloc(n + 1);

	memset(p, 'x', n);
	p[n] = '\0';
	return p;
}

START_TEST(a_message_is_a_method_a_header_and_as_many_bodies_as_it_takes)
{
	struct codec c;
	struct buf out = { 0 };
	struct err e = { 0 };
	char *body = filled(3 * (FRAME_MAX - 8) + 1);
	struct envelope env = message(body);
	struct codec_size size;
	struct slice in;
	struct frame f;
	uint64_t body_size;
	struct slice id;
	uint32_t method_id;
	const amqp_basic_publish_t *m;

	codec_init(&c);
	ck_assert_int_eq(codec_measure(&env, FRAME_MAX, &size, &e), 0);
	ck_assert_int_eq(publish(&c, &out, &env, &e), 0);
	ck_assert_uint_eq(out.len, size.total);
	in = buf_slice(&out);
	f = next(&in, AMQP_FRAME_METHOD);
	m = codec_decode(&c, &f, &method_id, &e);
	ck_assert_ptr_nonnull(m);
	ck_assert_uint_eq(method_id, AMQP_BASIC_PUBLISH_METHOD);
	ck_assert(slice_eq(codec_slice(m->exchange), env.exchange));
	ck_assert(slice_eq(codec_slice(m->routing_key), env.routing_key));
	ck_assert(m->mandatory && !m->immediate);
	f = next(&in, AMQP_FRAME_HEADER);
	ck_assert_uint_eq(f.payload.len, size.header);
	ck_assert_int_eq(codec_content_header(&f, &body_size, &id, &e), 0);
	ck_assert_uint_eq(body_size, env.body.len);
	ck_assert(slice_eq(id, env.message_id));
	for (int i = 0; i < 3; i++)
		ck_assert_uint_eq(next(&in, AMQP_FRAME_BODY).payload.len, FRAME_MAX - 8);
	ck_assert_uint_eq(next(&in, AMQP_FRAME_BODY).payload.len, 1);
	ck_assert_uint_eq(in.len, 0);
	buf_fini(&out);
	codec_fini(&c);
	free(body);
}
END_TEST

START_TEST(an_empty_body_has_no_body_frame)
{
	struct codec c;
	struct buf out = { 0 };
	struct err e = { 0 };
	struct envelope env = message("");
	struct slice in;

	codec_init(&c);
	ck_assert_int_eq(publish(&c, &out, &env, &e), 0);
	in = buf_slice(&out);
	next(&in, AMQP_FRAME_METHOD);
	next(&in, AMQP_FRAME_HEADER);
	ck_assert_uint_eq(in.len, 0);
	buf_fini(&out);
	codec_fini(&c);
}
END_TEST

START_TEST(nested_headers_come_back_as_they_went)
{
	struct field inner[] = {
		{ .name = SLICE_LIT("yes"), .type = FIELD_BOOL, .boolean = true },
		{ .name = SLICE_LIT("pi"), .type = FIELD_DOUBLE, .real = 3.25 },
	};
	struct field items[] = {
		{ .type = FIELD_INT, .integer = INT64_MIN },
		{ .type = FIELD_TABLE, .many = { inner, 2 } },
		{ .type = FIELD_ARRAY, .many = { NULL, 0 } },
	};
	struct field headers[] = {
		{ .name = SLICE_LIT("s"), .type = FIELD_STRING, .string = SLICE_LIT("a\0b") },
		{ .name = SLICE_LIT("a"), .type = FIELD_ARRAY, .many = { items, 3 } },
		{ .name = SLICE_LIT("t"), .type = FIELD_TABLE, .many = { NULL, 0 } },
		{ .name = SLICE_LIT(""), .type = FIELD_STRING, .string = SLICE_LIT("") },
	};
	struct codec c;
	struct buf out = { 0 };
	struct err e = { 0 };
	struct envelope env = message("{}");
	struct slice in;
	struct frame f;
	void *decoded;
	amqp_pool_t pool;
	const amqp_basic_properties_t *p;
	const amqp_array_t *array;
	const amqp_table_t *table;

	env.headers = headers;
	env.header_count = ARRAY_LEN(headers);
	codec_init(&c);
	init_amqp_pool(&pool, 4096);
	ck_assert_int_eq(publish(&c, &out, &env, &e), 0);
	in = buf_slice(&out);
	next(&in, AMQP_FRAME_METHOD);
	f = next(&in, AMQP_FRAME_HEADER);
	in = (struct slice){ f.payload.ptr + 12, f.payload.len - 12 };
	ck_assert_int_eq(
		amqp_decode_properties(AMQP_BASIC_CLASS, &pool, codec_bytes(in), &decoded), 0);
	p = decoded;
	ck_assert_int_eq(p->headers.num_entries, 4);
	ck_assert_int_eq(p->headers.entries[0].value.kind, 'S');
	ck_assert(
		slice_eq(codec_slice(p->headers.entries[0].value.value.bytes), headers[0].string));
	ck_assert_int_eq(p->headers.entries[1].value.kind, 'A');
	array = &p->headers.entries[1].value.value.array;
	ck_assert_int_eq(array->num_entries, 3);
	ck_assert_int_eq(array->entries[0].kind, 'l');
	ck_assert_int_eq(array->entries[0].value.i64, INT64_MIN);
	ck_assert_int_eq(array->entries[1].kind, 'F');
	table = &array->entries[1].value.table;
	ck_assert_int_eq(table->entries[0].value.kind, 't');
	ck_assert_int_eq(table->entries[0].value.value.boolean, 1);
	ck_assert_int_eq(table->entries[1].value.kind, 'd');
	ck_assert(table->entries[1].value.value.f64 == 3.25);
	ck_assert_int_eq(array->entries[2].value.array.num_entries, 0);
	ck_assert_uint_eq(p->timestamp, 1700000000);
	ck_assert_uint_eq(p->delivery_mode, 2);
	empty_amqp_pool(&pool);
	buf_fini(&out);
	codec_fini(&c);
}
END_TEST

START_TEST(short_strings_take_255_bytes_and_longer_ones_are_refused_never_cut)
{
	char *ok = filled(255), *long_one = filled(256);
	struct codec c;
	struct buf out = { 0 };
	struct err e = { 0 };
	struct envelope good = message("{}");
	size_t at[] = {
		offsetof(struct envelope, exchange),
		offsetof(struct envelope, routing_key),
		offsetof(struct envelope, message_id),
		offsetof(struct envelope, type),
		offsetof(struct envelope, content_type),
		offsetof(struct envelope, app_id),
	};

	codec_init(&c);
	for (size_t i = 0; i < ARRAY_LEN(at); i++) {
		struct envelope env = good;
		struct slice *s = (struct slice *)(void *)((char *)&env + at[i]);

		*s = (struct slice){ ok, 255 };
		ck_assert_int_eq(publish(&c, &out, &env, &e), 0);
		buf_reset(&out);
		*s = (struct slice){ long_one, 256 };
		ck_assert_int_eq(publish(&c, &out, &env, &e), -1);
		ck_assert_int_eq(e.kind, ERR_REFUSED);
		ck_assert_int_eq(strncmp(e.text, "INVALID: ", 9), 0);
		ck_assert_uint_eq(out.len, 0);
	}
	buf_fini(&out);
	codec_fini(&c);
	free(ok);
	free(long_one);
}
END_TEST

START_TEST(a_header_name_of_256_bytes_or_33_levels_are_refused)
{
	char *name = filled(256);
	struct field levels[FIELD_DEPTH_MAX + 1];
	struct codec c;
	struct buf out = { 0 };
	struct err e = { 0 };
	struct envelope env = message("{}");
	struct field h = { .name = { name, 256 }, .type = FIELD_BOOL };

	codec_init(&c);
	env.headers = &h;
	env.header_count = 1;
	ck_assert_int_eq(publish(&c, &out, &env, &e), -1);
	ck_assert_int_eq(strncmp(e.text, "INVALID: ", 9), 0);
	h.name.len = 255;
	ck_assert_int_eq(publish(&c, &out, &env, &e), 0);

	for (int i = 0; i < FIELD_DEPTH_MAX; i++)
		levels[i] = (struct field){
			.name = SLICE_LIT("n"), .type = FIELD_TABLE, .many = { &levels[i + 1], 1 }
		};
	levels[FIELD_DEPTH_MAX] = (struct field){ .name = SLICE_LIT("n"), .type = FIELD_INT };
	env.headers = &levels[0];
	ck_assert_int_eq(publish(&c, &out, &env, &e), -1);
	ck_assert_int_eq(strncmp(e.text, "INVALID: ", 9), 0);
	env.headers = &levels[1];
	ck_assert_int_eq(publish(&c, &out, &env, &e), 0);
	buf_fini(&out);
	codec_fini(&c);
	free(name);
}
END_TEST

START_TEST(headers_fit_to_the_byte_or_are_too_large)
{
	char *text = filled(FRAME_MAX);
	struct codec c;
	struct buf out = { 0 };
	struct err e = { 0 };
	struct envelope env = message("{}");
	struct field h = { .name = SLICE_LIT("h"), .type = FIELD_STRING };
	size_t most = 0;
	char *longest = filled(255);

	codec_init(&c);
	env.headers = &h;
	env.header_count = 1;
	for (size_t n = 0; n < FRAME_MAX; n++) {
		h.string = (struct slice){ text, n };
		if (publish(&c, &out, &env, &e) == 0) {
			ck_assert_uint_eq(most, n);
			most = n + 1;
		}
		buf_reset(&out);
	}
	ck_assert_int_eq(strncmp(e.text, "TOO_LARGE: ", 11), 0);
	ck_assert_uint_gt(most, FRAME_MAX - 200);
	/* What codec_max_header_bytes() promises holds for the longest properties too. */
	env.message_id = env.type = env.content_type = env.app_id = (struct slice){ longest, 255 };
	h.string.len = codec_max_header_bytes(FRAME_MAX) - (4 + 2 + 1 + 4);
	ck_assert_int_eq(publish(&c, &out, &env, &e), 0);
	h.string.len++;
	ck_assert_int_eq(publish(&c, &out, &env, &e), -1);
	buf_fini(&out);
	codec_fini(&c);
	free(text);
	free(longest);
}
END_TEST

START_TEST(frames_are_taken_only_when_whole_and_within_limits)
{
	static const char ack[] = "\x01\x00\x01\x00\x00\x00\x0d\x00\x3c\x00\x50\x00\x00\x00\x00\x00"
				  "\x00\x01\x02\x01\xCE";
	struct frame f;
	struct err e = { 0 };
	size_t used;
	uint64_t tag;
	bool multiple, is_ack;
	char bad[sizeof(ack)];

	for (size_t n = 0; n < sizeof(ack) - 1; n++)
		ck_assert_int_eq(
			codec_frame((struct slice){ ack, n }, FRAME_MAX, &f, &used, &e), 0);
	ck_assert_int_eq(
		codec_frame((struct slice){ ack, sizeof(ack) - 1 }, FRAME_MAX, &f, &used, &e), 1);
	ck_assert(codec_is_confirm(&f, &tag, &multiple, &is_ack));
	ck_assert_uint_eq(tag, 258);
	ck_assert(multiple && is_ack);

	memcpy(bad, ack, sizeof(ack));
	bad[sizeof(ack) - 2] = 0;
	ck_assert_int_eq(
		codec_frame((struct slice){ bad, sizeof(ack) - 1 }, FRAME_MAX, &f, &used, &e), -1);
	memcpy(bad, ack, sizeof(ack));
	bad[0] = 'H';
	ck_assert_int_eq(codec_frame((struct slice){ bad, 7 }, FRAME_MAX, &f, &used, &e), -1);
	memcpy(bad, ack, sizeof(ack));
	bad[3] = (char)0xFF;
	ck_assert_int_eq(codec_frame((struct slice){ bad, 7 }, FRAME_MAX, &f, &used, &e), -1);
	ck_assert_int_eq(
		codec_frame(SLICE_LIT("\x01\0\1\0\0\0\3abc\xCE"), FRAME_MAX, &f, &used, &e), -1);
}
END_TEST

START_TEST(what_a_peer_cuts_short_or_nests_endlessly_is_malformed_not_fatal)
{
	struct frame f = { .type = AMQP_FRAME_HEADER, .channel = 1 };
	struct err e = { 0 };
	uint64_t size;
	struct slice id;
	struct server_start s;
	struct buf b = { 0 };
	char full[14 + 4];

	memset(full, 0xFF, sizeof(full));
	for (size_t n = 0; n <= sizeof(full); n++) {
		char *copy = malloc(n + 1); /* so that a sanitizer sees one byte too far */

		memcpy(copy, full, n);
		f.payload = (struct slice){ copy, n };
		ck_assert_int_eq(codec_content_header(&f, &size, &id, &e), -1);
		free(copy);
	}

	/* connection.start with 20,000 tables in each other: stepped over, not into. */
	buf_add(&b, "\0\x0a\0\x0a\0\x09", 6);
	for (int i = 0; i < 20000; i++) {
		uint32_t left = (uint32_t)(20000 - i) * 7 - 4;
		char head[] = { (char)(left >> 24), (char)(left >> 16), (char)(left >> 8),
			(char)left, 1, 'n', 'F' };

		buf_add(&b, head, i == 19999 ? 4 : 7);
	}
	f = (struct frame){ .type = AMQP_FRAME_METHOD, .payload = buf_slice(&b) };
	ck_assert_int_eq(codec_connection_start(&f, &s, &e), -1);
	for (size_t n = 4; n < 40; n++) {
		f.payload.len = n;
		ck_assert_int_eq(codec_connection_start(&f, &s, &e), -1);
	}
	buf_fini(&b);
}
END_TEST

START_TEST(the_login_mechanism_is_matched_as_a_whole_word)
{
	struct buf b = { 0 };
	struct frame f = { .type = AMQP_FRAME_METHOD };
	struct server_start s;
	struct err e = { 0 };

	buf_add(&b, "\0\x0a\0\x0a\0\x09", 6);
	buf_add(&b,
		"\0\0\0\x15\7productS\0\0\0\x08"
		"RabbitMQ",
		25);
	buf_add(&b,
		"\0\0\0\x0c"
		"PLAINER XPLA",
		16);
	buf_add(&b, "\0\0\0\0", 4);
	f.payload = buf_slice(&b);
	ck_assert_int_eq(codec_connection_start(&f, &s, &e), 0);
	ck_assert(!s.plain);
	ck_assert(slice_eq(s.product, SLICE_LIT("RabbitMQ")));
	ck_assert(s.version.ptr == NULL);
	memcpy(b.data + b.len - 4 - 12, "AMQPLA PLAIN", 12);
	ck_assert_int_eq(codec_connection_start(&f, &s, &e), 0);
	ck_assert(s.plain);
	buf_fini(&b);
}
END_TEST

UNIT_MAIN("amqp codec", a_message_is_a_method_a_header_and_as_many_bodies_as_it_takes,
	an_empty_body_has_no_body_frame, nested_headers_come_back_as_they_went,
	short_strings_take_255_bytes_and_longer_ones_are_refused_never_cut,
	a_header_name_of_256_bytes_or_33_levels_are_refused,
	headers_fit_to_the_byte_or_are_too_large,
	frames_are_taken_only_when_whole_and_within_limits,
	what_a_peer_cuts_short_or_nests_endlessly_is_malformed_not_fatal,
	the_login_mechanism_is_matched_as_a_whole_word)

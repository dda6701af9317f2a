/* message.h: rows and routes for the tests of lib/message. */
#ifndef OUTBOXD_TESTS_MESSAGE_H
#define OUTBOXD_TESTS_MESSAGE_H

#include "message/route.h"
#include "unit.h"

#include <stdio.h>
#include <string.h>

#define CREATED_US INT64_C(1748781296000042) /* 2025-06-01T12:34:56.000042Z */

static inline struct row sample_row(void)
{
	return (struct row){
		.id = 7,
		.created_us = CREATED_US,
		.event_id = SLICE_LIT("0197-e1"),
		.aggregate_type = SLICE_LIT("order"),
		.aggregate_id = SLICE_LIT("42"),
		.event_type = SLICE_LIT("paid"),
		.payload = SLICE_LIT("{\"n\": 1.0}"),
	};
}

static inline struct route_conf sample_conf(void)
{
	return (struct route_conf){
		.source = "shop",
		.exchange = "domain-events",
		.routing_key = "{aggregate_type}.{event_type}",
		.body = BODY_PAYLOAD,
		.mandatory = true,
		.persistent = true,
		.max_message_size = 1024 * 1024,
		.max_header_bytes = 128 * 1024,
	};
}

/* One route, one arena, one envelope: what a test works with. */
struct bench {
	struct route *route;
	struct envelope_arena arena;
	struct envelope env;
	struct err err;
};

static inline void bench_init(struct bench *b, const struct route_conf *conf)
{
	*b = (struct bench){ 0 };
	if (route_new(&b->route, conf, &b->err) < 0)
		ck_abort_msg("%s", b->err.text);
}

static inline void bench_fini(struct bench *b)
{
	envelope_arena_fini(&b->arena);
	route_free(b->route);
}

static inline int bench_build(struct bench *b, const struct row *row)
{
	b->err = (struct err){ 0 };
	return envelope_build(&b->env, &b->arena, b->route, row, &b->err);
}

static inline void must_build(struct bench *b, const struct row *row)
{
	if (bench_build(b, row) < 0)
		ck_abort_msg("%s", b->err.text);
}

static inline void must_refuse(struct bench *b, const struct row *row, const char *text)
{
	ck_assert_int_eq(bench_build(b, row), -1);
	ck_assert_int_eq(b->err.kind, ERR_REFUSED);
	ck_assert_str_eq(b->err.text, text);
}

static inline bool is(struct slice s, const char *text)
{
	return slice_eq(s, slice_str(text));
}

/* Also fails the test if the name is there twice. */
static inline const struct field *header(const struct bench *b, const char *name)
{
	const struct field *found = NULL;

	for (size_t i = 0; i < b->env.header_count; i++) {
		if (!is(b->env.headers[i].name, name))
			continue;
		ck_assert_msg(found == NULL, "header %s is there twice", name);
		found = &b->env.headers[i];
	}
	return found;
}

static inline bool header_is(const struct bench *b, const char *name, const char *text)
{
	const struct field *f = header(b, name);

	return f != NULL && f->type == FIELD_STRING && is(f->string, text);
}

/* `n` times `unit`; the caller frees it. */
static inline char *repeat(const char *unit, size_t n)
{
	size_t len = strlen(unit);
	char *s = malloc(n * len + 1);

	ck_assert_ptr_nonnull(s);
	for (size_t i = 0; i < n; i++)
		memcpy(s + i * len, unit, len);
	s[n * len] = '\0';
	return s;
}

#endif

/* test_store.c: lib/mysql against a real server (tests/servers env): MySQL, or MariaDB where
 * OUTBOXD_TEST_ON says so. Each test makes schemas of its own. */
#include "base/rng.h"
#include "base/str.h"
#include "mysql/ddl.h"
#include "mysql/schema.h"
#include "mysql/session.h"
#include "mysql/statements.h"
#include "mysql/store.h"
#include "mysql/values.h"
#include "support/env.h"
#include "sys/clock.h"
#include "sys/guard.h"

#include <check.h>

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

/* --- an administrator's session, and a schema ----------------------------------------------- */

static struct endpoint server;
static struct database_conf admin_conf;
static struct session *admin;
static char schema[40];
static bool mariadb;

static const char *env(const char *name)
{
	const char *v = getenv(name);

	return v != NULL && v[0] != '\0' ? v : NULL;
}

struct answer {
	char text[4000];
	int64_t number;
	unsigned rows;
};

static int row_answer(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	struct answer *a = arg;

	(void)statement, (void)e;
	a->rows++;
	a->number = value_int(v[0], INT64_MIN);
	for (unsigned i = 0; i < count; i++) {
		size_t n = strlen(a->text);

		snprintf(a->text + n, sizeof(a->text) - n, "%s%.*s", n > 0 ? "|" : "",
			v[i].ptr != NULL ? (int)v[i].len : 4, v[i].ptr != NULL ? v[i].ptr : "NULL");
	}
	return 0;
}

static int try_on(struct session *c, struct answer *a, struct err *e, const char *fmt, va_list ap)
	PRINTF(4, 0);
static int try_on(struct session *c, struct answer *a, struct err *e, const char *fmt, va_list ap)
{
	struct buf text = { 0 };
	struct reply r = { .row = row_answer, .arg = a };
	int rc;

	*a = (struct answer){ 0 };
	buf_addvf(&text, fmt, ap);
	session_begin(c);
	rc = session_run(c, buf_slice(&text), &r, e);
	buf_fini(&text);
	return rc;
}

/* Runs statements as the administrator; the rows' values joined by '|'. */
static struct answer sql(const char *fmt, ...) PRINTF(1, 2);
static struct answer sql(const char *fmt, ...)
{
	struct answer a;
	struct err e = { 0 };
	va_list ap;
	int rc;

	va_start(ap, fmt);
	rc = try_on(admin, &a, &e, fmt, ap);
	va_end(ap);
	ck_assert_msg(rc == 0, "%s: %s", fmt, e.text);
	return a;
}

static int64_t number(const char *fmt, ...) PRINTF(1, 2);
static int64_t number(const char *fmt, ...)
{
	struct answer a;
	struct err e = { 0 };
	va_list ap;
	int rc;

	va_start(ap, fmt);
	rc = try_on(admin, &a, &e, fmt, ap);
	va_end(ap);
	ck_assert_msg(rc == 0, "%s: %s", fmt, e.text);
	return a.number;
}

static struct session *session_as(const char *user, const char *database)
{
	static const struct session_options options = { .wait_timeout_s = 600, .examine = true };
	struct database_conf *conf = calloc(1, sizeof(*conf)); /* lives as long as the test */
	struct session *c;
	struct err e = { 0 };

	*conf = admin_conf;
	conf->username = strdup(user);
	conf->name = strdup(database);
	if (session_new(&c, conf, &options, NULL, &e) < 0 || session_open(c, &e) < 0)
		ck_abort_msg("%s", e.text);
	return c;
}

static unsigned made;

static void setup(void)
{
	uint64_t n = rng_os_seed();
	struct err e = { 0 };

	made = 0;
	signal(SIGPIPE, SIG_IGN);
	ck_assert_int_eq(mysql_global_init(&e), 0);
	server.host = strdup(env_get()->db_host);
	server.port = (uint16_t)env_get()->db_port;
	admin_conf = (struct database_conf){
		.hosts = &server,
		.host_count = 1,
		.name = strdup("information_schema"),
		.username = strdup(env_get()->db_user),
		.connect_timeout_us = 5 * US_PER_SEC,
		.query_timeout_us = 30 * US_PER_SEC,
	};
	if (env_get()->db_password[0] != '\0')
		admin_conf.password =
			(struct secret_conf){ SECRET_LITERAL, strdup(env_get()->db_password) };
	admin = session_as(admin_conf.username, "information_schema");
	mariadb = session_server(admin)->mariadb;
	snprintf(schema, sizeof(schema), "t_store_%08" PRIx32, (uint32_t)n);
	sql("CREATE DATABASE %s CHARACTER SET utf8mb4; USE %s", schema, schema);
}

static void teardown(void)
{
	sql("DROP DATABASE %s", schema);
	session_free(admin);
	mysql_global_fini();
}

/* --- a source and its store ----------------------------------------------------------------- */

static struct source_conf source_of(enum ordering ordering)
{
	static const struct broker_conf broker = { .max_message_size = 16 << 20 };
	struct source_conf s = {
		.name = strdup("test"),
		.broker = &broker,
		.database = admin_conf,
		.table = strdup("outbox_event"),
		.ordering = ordering,
		.batch = 500,
		.poll_interval_us = US_PER_SEC,
		.lease_us = 60 * US_PER_SEC,
		.retention = { .sent_us = AGE_NEVER, .dead_us = AGE_NEVER, .batch = 5000 },
	};

	s.database.name = schema;
	s.database.query_timeout_us = 10 * US_PER_SEC;
	return s;
}

static struct source_conf plain, ordered;

static struct store *store_as(const struct source_conf *conf, const char *owner)
{
	struct store *s;
	struct err e = { 0 };

	if (mysql_store_new(&s, conf, owner, NULL, 0, NULL, &e) < 0 || s->ops->connect(s, &e) < 0)
		ck_abort_msg("%s", e.text);
	return s;
}

static struct store *fresh_store(const char *ddl)
{
	sql("%s", ddl);
	plain = source_of(ORDERING_NONE);
	ordered = source_of(ORDERING_AGGREGATE);
	return store_as(&plain, "me/1/0");
}

/* n PENDING rows, a second apart, aggregates a0 to a9. */
static void add_rows(unsigned n)
{
	struct buf text = { 0 };

	buf_adds(&text, "INSERT INTO outbox_event (event_id,aggregate_type,aggregate_id,event_type,"
			"payload,created_at) VALUES ");
	for (unsigned i = 0; i < n; i++, made++)
		buf_addf(&text,
			"%s('e%u','order','a%u','created','{\"n\": %u}',"
			"'2026-01-01 00:00:00'+INTERVAL %u SECOND)",
			i > 0 ? "," : "", made, made % 10, made, made);
	sql("%s", text.data);
	buf_fini(&text);
}

#define SINK_MAX 3000
struct sunk {
	struct row_sink sink;
	unsigned count, skipped, room;
	bool fail;
	struct sunk_row {
		enum row_class class;
		uint64_t id;
		int64_t created_us;
		uint32_t retry_count;
		unsigned takeovers;
		char event_id[65], last_error[200];
	} row[SINK_MAX];
	struct buf payload; /* of the last one */
	uint64_t skipped_id[100];
	char trace_id[65], extra[65];
};

static void keep(char *out, size_t size, struct slice v)
{
	snprintf(out, size, "%.*s", v.ptr != NULL ? (int)v.len : 4, v.ptr != NULL ? v.ptr : "NULL");
}

static int on_row(void *arg, enum row_class class, const struct row *row, unsigned takeovers)
{
	struct sunk *k = arg;
	struct sunk_row *r = &k->row[k->count];

	if (k->fail)
		return -1;
	if (k->room > 0 && k->count == k->room)
		return 1;
	ck_assert_uint_lt(k->count, SINK_MAX);
	*r = (struct sunk_row){ class, row->id, row->created_us, row->retry_count, takeovers, "",
		"" };
	keep(r->event_id, sizeof(r->event_id), row->event_id);
	keep(r->last_error, sizeof(r->last_error), row->last_error);
	keep(k->trace_id, sizeof(k->trace_id), row->trace_id);
	if (row->extra != NULL)
		keep(k->extra, sizeof(k->extra), row->extra[0]);
	buf_reset(&k->payload);
	if (row->payload.ptr != NULL)
		buf_add_slice(&k->payload, row->payload);
	k->count++;
	return 0;
}

static int on_skipped(void *arg, const struct row *key)
{
	struct sunk *k = arg;

	ck_assert_ptr_nonnull(key->aggregate_id.ptr);
	k->skipped_id[k->skipped++] = key->id;
	return 0;
}

static struct sunk *sunk_new(void)
{
	struct sunk *k = calloc(1, sizeof(*k));

	k->sink = (struct row_sink){ .row = on_row, .skipped = on_skipped, .arg = k };
	return k;
}

#define ALL_CLASSES                                                                                \
	{                                                                                          \
		500, 500, 500, 500                                                                 \
	}
static const struct claim_spec everything = { ALL_CLASSES, 500, 60 * US_PER_SEC, 0, false };
static const struct claim_spec fresh_only = {
	.limit = { 500, 0, 0, 0 }, .total = 500, .lease_us = 60 * US_PER_SEC
};

static int try_claim(struct store *s, const struct claim_spec *spec, struct sunk *k, bool *unknown,
	struct err *e)
{
	k->count = k->skipped = 0;
	return s->ops->claim(s, spec, &k->sink, unknown, e);
}

static void claim(struct store *s, const struct claim_spec *spec, struct sunk *k)
{
	struct err e = { 0 };
	bool unknown = true;

	ck_assert_msg(try_claim(s, spec, k, &unknown, &e) == 0, "%s", e.text);
	ck_assert(!unknown);
}

static void settle(struct store *s, struct settle *list, size_t count)
{
	struct err e = { 0 };
	bool unknown = true;

	ck_assert_msg(s->ops->settle(s, list, count, &unknown, &e) == 0, "%s", e.text);
	ck_assert(!unknown);
}

static struct store_look look(struct store *s)
{
	struct store_look out;
	struct err e = { 0 };

	ck_assert_msg(s->ops->look(s, true, &out, &e) == 0, "%s", e.text);
	return out;
}

static void free_store(struct store *s)
{
	s->ops->free(s);
}

#define ck_status(id, want)                                                                        \
	ck_assert_str_eq(                                                                          \
		sql("SELECT status FROM outbox_event WHERE id=%" PRIu64, (uint64_t)(id)).text,     \
		want)

/* --- claims --------------------------------------------------------------------------------- */

START_TEST(a_claim_takes_fresh_rows_in_order_and_marks_them)
{
	struct store *s = fresh_store(ddl_outbox);
	struct sunk *k = sunk_new();

	add_rows(5);
	/* id 5 is the oldest now */
	sql("UPDATE outbox_event SET created_at='2025-12-31 23:59:59.123456',trace_id='t5' WHERE "
	    "id=5");
	claim(s, &everything, k);
	ck_assert_uint_eq(k->count, 5);
	ck_assert_uint_eq(k->row[0].id, 5);
	for (unsigned i = 1; i < 5; i++) {
		ck_assert_uint_eq(k->row[i].id, i);
		ck_assert_int_eq(k->row[i].class, ROW_FRESH);
		ck_assert_uint_eq(k->row[i].takeovers, 0);
	}
	ck_assert_int_eq(k->row[0].created_us, INT64_C(1767225599123456));
	ck_assert_str_eq(k->row[1].event_id, "e0");
	ck_assert_str_eq(k->row[1].last_error, "NULL");
	ck_assert_str_eq(k->payload.data, "{\"n\": 3}");
	ck_assert_int_eq(
		number("SELECT COUNT(*) FROM outbox_event WHERE status='PROCESSING' AND "
		       "locked_by='me/1/0' AND next_retry_at IS NULL AND retry_count=0 AND "
		       "locked_until BETWEEN NOW(6)+INTERVAL 55 SECOND AND NOW(6)+INTERVAL 60 "
		       "SECOND"),
		5);
	claim(s, &everything, k);
	ck_assert_uint_eq(k->count, 0);
	free_store(s);
}
END_TEST

/* one row each of: RETRY/NULL, RETRY due, RETRY not due, PENDING due, PENDING not due, expired,
 * leased, without owner, without lease, own and expired; then 3 fresh ones */
static void one_of_each(void)
{
	add_rows(13);
	sql("UPDATE outbox_event SET status='RETRY',retry_count=2 WHERE id=1;"
	    "UPDATE outbox_event SET status='RETRY',next_retry_at=NOW(6)-INTERVAL 1 MINUTE WHERE "
	    "id=2;"
	    "UPDATE outbox_event SET status='RETRY',next_retry_at=NOW(6)+INTERVAL 1 HOUR WHERE "
	    "id=3;"
	    "UPDATE outbox_event SET next_retry_at=NOW(6)-INTERVAL 1 MINUTE WHERE id=4;"
	    "UPDATE outbox_event SET next_retry_at=NOW(6)+INTERVAL 10 MINUTE WHERE id=5;"
	    "UPDATE outbox_event SET "
	    "status='PROCESSING',locked_by='dead',locked_until=NOW(6)-INTERVAL 1 HOUR WHERE id=6;"
	    "UPDATE outbox_event SET "
	    "status='PROCESSING',locked_by='alive',locked_until=NOW(6)+INTERVAL 1 HOUR WHERE id=7;"
	    "UPDATE outbox_event SET "
	    "status='PROCESSING',locked_by=NULL,locked_until=NOW(6)+INTERVAL 1 HOUR WHERE id=8;"
	    "UPDATE outbox_event SET status='PROCESSING',locked_by='half',locked_until=NULL WHERE "
	    "id=9;"
	    "UPDATE outbox_event SET "
	    "status='PROCESSING',locked_by='me/1/0',locked_until=NOW(6)-INTERVAL 1 HOUR WHERE "
	    "id=10");
}

START_TEST(each_class_is_found_and_nothing_else)
{
	struct store *s = fresh_store(ddl_outbox);
	struct sunk *k = sunk_new();
	static const uint64_t ids[] = { 1, 2, 4, 6, 8, 9, 11, 12, 13 };
	static const enum row_class classes[] = { ROW_RETRY, ROW_RETRY, ROW_DUE, ROW_EXPIRED,
		ROW_EXPIRED, ROW_EXPIRED, ROW_FRESH, ROW_FRESH, ROW_FRESH };

	one_of_each();
	claim(s, &everything, k);
	ck_assert_uint_eq(k->count, ARRAY_LEN(ids));
	for (unsigned i = 0; i < k->count; i++) {
		ck_assert_uint_eq(k->row[i].id, ids[i]);
		ck_assert_int_eq(k->row[i].class, classes[i]);
		ck_assert_uint_eq(k->row[i].takeovers, classes[i] == ROW_EXPIRED ? 1 : 0);
	}
	ck_assert_uint_eq(k->row[0].retry_count, 2);
	/* a claim leaves next_retry_at and retry_count alone */
	ck_assert_int_eq(
		number("SELECT COUNT(*) FROM outbox_event WHERE next_retry_at IS NOT NULL"), 4);
	ck_assert_str_eq(
		sql("SELECT last_error FROM outbox_event WHERE id IN (6,8,9) ORDER BY id").text,
		"LEASE_EXPIRED: taken over 1 time in a row, last from dead|"
		"LEASE_EXPIRED: taken over 1 time in a row, last from nobody|"
		"LEASE_EXPIRED: taken over 1 time in a row, last from half");
	free_store(s);
}
END_TEST

START_TEST(a_claim_keeps_to_its_limits)
{
	struct store *s = fresh_store(ddl_outbox);
	struct sunk *k = sunk_new();

	one_of_each();
	claim(s,
		&(struct claim_spec){
			.limit = { 500, 500, 500, 1 }, .total = 4, .lease_us = US_PER_SEC },
		k);
	ck_assert_uint_eq(k->count, 4);
	ck_assert_int_eq(k->row[0].class, ROW_RETRY);
	ck_assert_int_eq(k->row[1].class, ROW_RETRY);
	ck_assert_int_eq(k->row[2].class, ROW_DUE);
	ck_assert_int_eq(k->row[3].class, ROW_EXPIRED);
	ck_assert_uint_eq(k->row[3].id, 6);
	claim(s,
		&(struct claim_spec){
			.limit = { 2, 0, 0, 0 }, .total = 500, .lease_us = US_PER_SEC },
		k);
	ck_assert_uint_eq(k->count, 2);
	claim(s,
		&(struct claim_spec){
			.limit = { 500, 500, 500, 500 }, .total = 0, .lease_us = US_PER_SEC },
		k);
	ck_assert_uint_eq(k->count, 0);
	claim(s,
		&(struct claim_spec){
			.limit = { 0, 0, 0, 0 }, .total = 500, .lease_us = US_PER_SEC },
		k);
	ck_assert_uint_eq(k->count, 0);
	ck_assert_int_eq(
		number("SELECT COUNT(*) FROM outbox_event WHERE locked_by='me/1/0'"), 4 + 2 + 1);
	free_store(s);
}
END_TEST

START_TEST(what_the_sink_has_no_room_for_stays_as_it_is)
{
	struct store *s = fresh_store(ddl_outbox);
	struct sunk *k = sunk_new();
	struct err e = { 0 };
	bool unknown;

	add_rows(10);
	k->room = 3;
	claim(s, &everything, k);
	ck_assert_uint_eq(k->count, 3);
	ck_assert_int_eq(number("SELECT COUNT(*) FROM outbox_event WHERE status='PROCESSING'"), 3);
	k->fail = true;
	ck_assert_int_lt(try_claim(s, &everything, k, &unknown, &e), 0);
	ck_assert_int_eq(e.kind, ERR_NOMEM);
	ck_assert(!unknown);
	ck_assert_int_eq(number("SELECT COUNT(*) FROM outbox_event WHERE status='PROCESSING'"), 3);
	k->fail = false;
	k->room = 0;
	claim(s, &everything, k);
	ck_assert_uint_eq(k->count, 7);
	ck_assert_uint_eq(k->row[0].id, 4);
	free_store(s);
}
END_TEST

START_TEST(a_look_tells_what_there_is_and_when_more_is_due)
{
	struct store *s = fresh_store(ddl_outbox);
	struct store_look l = look(s);
	struct err e = { 0 };
	int64_t now;

	ck_assert(l.leads);
	for (unsigned c = 0; c < ROW_CLASSES; c++)
		ck_assert(!l.exists[c]);
	ck_assert_int_eq(l.next_due_us, TIME_NEVER);
	now = clock_wall_us();
	ck_assert_int_lt(llabs(now - l.now_us), 5 * US_PER_SEC);
	one_of_each();
	l = look(s);
	for (unsigned c = 0; c < ROW_CLASSES; c++)
		ck_assert(l.exists[c]);
	ck_assert_int_le(l.next_due_us, 600 * US_PER_SEC);
	ck_assert_int_gt(l.next_due_us, 590 * US_PER_SEC);
	ck_assert_int_eq(s->ops->look(s, false, &l, &e), 0);
	ck_assert(!l.exists[ROW_EXPIRED]);
	free_store(s);
}
END_TEST

struct racer {
	pthread_t thread;
	const struct source_conf *conf;
	char owner[32];
	unsigned taken;
	unsigned batch;
	enum row_class class;
	_Atomic unsigned char *seen;
	unsigned twice;
	char error[300];
};

static void *race(void *arg)
{
	struct racer *r = arg;
	struct sunk *k = sunk_new();
	struct claim_spec spec = { .total = r->batch, .lease_us = 60 * US_PER_SEC };
	struct store *s = NULL;
	struct err e = { 0 };
	unsigned empty = 0;

	mysql_thread_enter();
	spec.limit[r->class] = r->batch;
	if (mysql_store_new(&s, r->conf, r->owner, NULL, 0, NULL, &e) < 0 ||
		s->ops->connect(s, &e) < 0)
		goto out;
	while (empty < 3) {
		bool unknown;

		if (try_claim(s, &spec, k, &unknown, &e) < 0) {
			if (e.kind == ERR_RETRY)
				continue;
			goto out;
		}
		empty = k->count == 0 ? empty + 1 : 0;
		for (unsigned i = 0; i < k->count; i++)
			if (atomic_fetch_add(&r->seen[k->row[i].id], 1) > 0)
				r->twice++;
		r->taken += k->count;
		e.kind = ERR_NONE;
	}
out:
	if (e.kind != ERR_NONE)
		snprintf(r->error, sizeof(r->error), "%.290s", e.text);
	if (s != NULL)
		free_store(s);
	free(k);
	mysql_thread_leave();
	return NULL;
}

static void race_for(enum row_class class, unsigned rows, unsigned racers)
{
	static _Atomic unsigned char seen[20000];
	struct racer r[10];
	unsigned taken = 0;

	for (size_t i = 0; i < ARRAY_LEN(seen); i++)
		seen[i] = 0;
	for (unsigned i = 0; i < racers; i++) {
		r[i] = (struct racer){ .conf = &plain, .batch = 37, .class = class, .seen = seen };
		snprintf(r[i].owner, sizeof(r[i].owner), "racer/%u", i);
		ck_assert_int_eq(pthread_create(&r[i].thread, NULL, race, &r[i]), 0);
	}
	for (unsigned i = 0; i < racers; i++) {
		pthread_join(r[i].thread, NULL);
		ck_assert_str_eq(r[i].error, "");
		ck_assert_uint_eq(r[i].twice, 0);
		taken += r[i].taken;
	}
	ck_assert_uint_eq(taken, rows);
}

START_TEST(racing_stores_never_share_a_row)
{
	struct store *s = fresh_store(ddl_outbox);

	for (unsigned i = 0; i < 4; i++)
		add_rows(1000);
	race_for(ROW_FRESH, 4000, 4);
	free_store(s);
}
END_TEST

START_TEST(ten_stores_take_over_each_expired_row_once)
{
	struct store *s = fresh_store(ddl_outbox);

	add_rows(1000);
	sql("UPDATE outbox_event SET status='PROCESSING',locked_by='dead/1/0',"
	    "locked_until=NOW(6)-INTERVAL 1 SECOND,last_error='UNROUTABLE: earlier'");
	race_for(ROW_EXPIRED, 1000, 10);
	ck_assert_int_eq(
		number("SELECT COUNT(*) FROM outbox_event WHERE status='PROCESSING' AND locked_by "
		       "LIKE 'racer/%%' AND last_error='LEASE_EXPIRED: taken over 1 time in a "
		       "row, last from dead/1/0'"),
		1000);
	free_store(s);
}
END_TEST

START_TEST(takeovers_in_a_row_are_counted)
{
	struct store *s = fresh_store(ddl_outbox);
	struct sunk *k = sunk_new();

	add_rows(1);
	for (unsigned i = 1; i <= 3; i++) {
		sql("UPDATE outbox_event SET status='PROCESSING',locked_by='it''s \\\\ "
		    "%u',locked_until=NOW(6)-INTERVAL 1 SECOND",
			i);
		claim(s, &everything, k);
		ck_assert_uint_eq(k->count, 1);
		ck_assert_uint_eq(k->row[0].takeovers, i);
	}
	ck_assert_str_eq(sql("SELECT last_error FROM outbox_event").text,
		"LEASE_EXPIRED: taken over 3 times in a row, last from it's \\ 3");
	free_store(s);
}
END_TEST

/* --- settle, renew -------------------------------------------------------------------------- */

START_TEST(every_outcome_is_written_as_it_should_be)
{
	struct store *s = fresh_store(ddl_outbox);
	struct sunk *k = sunk_new();
	struct settle list[] = {
		{ .id = 1, .kind = SETTLE_SENT },
		{ .id = 2,
			.kind = SETTLE_RETRY,
			.retry_count = 1,
			.delay_us = 10 * US_PER_SEC,
			.error = "NACKED: no" },
		{ .id = 3,
			.kind = SETTLE_DEAD,
			.retry_count = 10,
			.error = "UNROUTABLE: 312 it's \\ \"no\" route \xF0\x9F\x98\x80" },
		{ .id = 4, .kind = SETTLE_RELEASE },
		{ .id = 5, .kind = SETTLE_RELEASE },
		{ .id = 6,
			.kind = SETTLE_HOLD,
			.delay_us = 5 * US_PER_SEC,
			.error = "WAITING: behind e1" },
		{ .id = 7,
			.kind = SETTLE_RETRY,
			.retry_count = 3,
			.delay_us = 20 * US_PER_SEC,
			.error = "NACKED: yes" },
		{ .id = 8, .kind = SETTLE_SENT },
	};

	add_rows(9);
	sql("UPDATE outbox_event SET status='RETRY',retry_count=4,next_retry_at=NOW(6)-INTERVAL 1 "
	    "SECOND,"
	    "last_error='NACKED: before' WHERE id IN (5,8)");
	claim(s, &everything, k);
	ck_assert_uint_eq(k->count, 9);
	settle(s, list, ARRAY_LEN(list));
	for (size_t i = 0; i < ARRAY_LEN(list); i++)
		ck_assert(!list[i].lost);
	ck_assert_str_eq(sql("SELECT "
			     "status,retry_count,ISNULL(next_retry_at),ISNULL(locked_by),ISNULL("
			     "locked_until),"
			     "sent_at>NOW(6)-INTERVAL 5 SECOND,sent_at<=NOW(6),last_error FROM "
			     "outbox_event WHERE id IN (1,8) ORDER BY id")
				 .text,
		"SENT|0|1|1|1|1|1|NULL|SENT|4|1|1|1|1|1|NULL");
	ck_assert_str_eq(sql("SELECT status,retry_count,next_retry_at>NOW(6)+INTERVAL 8 SECOND,"
			     "next_retry_at<=NOW(6)+INTERVAL 10 "
			     "SECOND,ISNULL(locked_by),ISNULL(locked_until),ISNULL(sent_at),"
			     "last_error FROM outbox_event WHERE id=2")
				 .text,
		"RETRY|1|1|1|1|1|1|NACKED: no");
	ck_assert_str_eq(sql("SELECT "
			     "status,retry_count,ISNULL(next_retry_at),ISNULL(locked_by),ISNULL("
			     "sent_at),last_error "
			     "FROM outbox_event WHERE id=3")
				 .text,
		"DEAD|10|1|1|1|UNROUTABLE: 312 it's \\ \"no\" route \xF0\x9F\x98\x80");
	ck_assert_str_eq(sql("SELECT "
			     "status,retry_count,ISNULL(next_retry_at),ISNULL(locked_by),ISNULL("
			     "locked_until),last_error "
			     "FROM outbox_event WHERE id IN (4,5) ORDER BY id")
				 .text,
		"PENDING|0|1|1|1|NULL|RETRY|4|0|1|1|NACKED: before");
	ck_assert_str_eq(sql("SELECT status,next_retry_at>NOW(6)+INTERVAL 3 "
			     "SECOND,ISNULL(locked_by),last_error "
			     "FROM outbox_event WHERE id=6")
				 .text,
		"PENDING|1|1|WAITING: behind e1");
	ck_assert_str_eq(
		sql("SELECT status,retry_count,next_retry_at>NOW(6)+INTERVAL 18 SECOND,last_error "
		    "FROM outbox_event WHERE id=7")
			.text,
		"RETRY|3|1|NACKED: yes");
	ck_status(9, "PROCESSING");
	free_store(s);
}
END_TEST

START_TEST(rows_that_others_took_are_lost_and_left_alone)
{
	struct store *s = fresh_store(ddl_outbox);
	struct sunk *k = sunk_new();
	struct settle list[6];
	uint64_t ids[6];
	enum lease_fate lost[6];
	struct err e = { 0 };

	add_rows(6);
	claim(s, &everything, k);
	/* an unfenced peer's SENT, another owner, an owner taken away, another case, a row deleted
	 */
	sql("UPDATE outbox_event SET status='SENT',locked_by=NULL WHERE id=1;"
	    "UPDATE outbox_event SET locked_by='other' WHERE id=2;"
	    "UPDATE outbox_event SET locked_by=NULL WHERE id=3;"
	    "UPDATE outbox_event SET locked_by='ME/1/0' WHERE id=4;"
	    "DELETE FROM outbox_event WHERE id=5");
	for (unsigned i = 0; i < 6; i++)
		ids[i] = i + 1;
	ck_assert_int_eq(s->ops->renew(s, ids, lost, 6, 120 * US_PER_SEC, &e), 0);
	for (unsigned i = 0; i < 6; i++)
		ck_assert_int_eq(lost[i], i != 5);
	for (unsigned kind = 0; kind <= SETTLE_HOLD; kind++) {
		for (unsigned i = 0; i < 6; i++)
			list[i] = (struct settle){ .id = i + 1,
				.kind = kind,
				.retry_count = 1,
				.error = "X: y",
				.delay_us = 1 };
		settle(s, list, 6);
		for (unsigned i = 0; i < 6; i++)
			ck_assert_int_eq(list[i].lost, i != 5);
		ck_assert_str_eq(
			sql("SELECT id,status,locked_by,retry_count,last_error FROM outbox_event "
			    "WHERE id<6 ORDER BY id")
				.text,
			"1|SENT|NULL|0|NULL|2|PROCESSING|other|0|NULL|3|PROCESSING|NULL|0|NULL|"
			"4|PROCESSING|ME/1/0|0|NULL");
		sql("UPDATE outbox_event SET "
		    "status='PROCESSING',locked_by='me/1/0',next_retry_at=NULL,retry_count=0,"
		    "last_error=NULL WHERE id=6");
	}
	free_store(s);
}
END_TEST

START_TEST(settling_again_takes_what_stands_for_done)
{
	struct store *s = fresh_store(ddl_outbox);
	struct sunk *k = sunk_new();
	struct settle list[] = {
		{ .id = 1, .kind = SETTLE_SENT, .again = true },
		{ .id = 2,
			.kind = SETTLE_RETRY,
			.retry_count = 1,
			.error = "NACKED: no",
			.again = true },
		{ .id = 3,
			.kind = SETTLE_DEAD,
			.retry_count = 1,
			.error = "NACKED: no",
			.again = true },
		{ .id = 4, .kind = SETTLE_RELEASE, .again = true },
		{ .id = 5, .kind = SETTLE_SENT, .again = true },
		{ .id = 6, .kind = SETTLE_SENT, .again = true },
		{ .id = 7, .kind = SETTLE_SENT, .again = true },
		{ .id = 8,
			.kind = SETTLE_RETRY,
			.retry_count = 1,
			.error = "NACKED: no",
			.again = true },
	};

	add_rows(8);
	claim(s, &everything, k);
	settle(s, list, 4);
	sql("UPDATE outbox_event SET status='PROCESSING',locked_by='other' WHERE id=5;"
	    "DELETE FROM outbox_event WHERE id=6;"
	    "UPDATE outbox_event SET status='DEAD' WHERE id=8");
	settle(s, list, 8);
	for (unsigned i = 0; i < 8; i++)
		ck_assert_msg(list[i].lost == (i == 4 || i == 7), "row %u", i + 1);
	ck_status(7, "SENT");
	ck_assert_int_eq(number("SELECT retry_count FROM outbox_event WHERE id=2"), 1);
	free_store(s);
}
END_TEST

START_TEST(more_rows_than_a_statement_takes_are_settled_in_one_go)
{
	struct store *s = fresh_store(ddl_outbox);
	struct sunk *k = sunk_new();
	struct settle *list = calloc(1200, sizeof(*list));
	uint64_t ids[1200];
	enum lease_fate lost[1200];
	struct err e = { 0 };

	add_rows(1200);
	claim(s, &(struct claim_spec){ ALL_CLASSES, 500, 1, 0, false }, k);
	claim(s,
		&(struct claim_spec){
			.limit = { 1200, 0, 0, 0 }, .total = 1200, .lease_us = US_PER_SEC },
		k);
	ck_assert_uint_eq(k->count, 700);
	for (unsigned i = 0; i < 1200; i++) {
		ids[i] = i + 1;
		list[i] = (struct settle){ .id = i + 1,
			.kind = i % 3 == 0 ? SETTLE_SENT : SETTLE_RETRY,
			.retry_count = i,
			.delay_us = i * US_PER_SEC,
			.error = i % 2 ? "NACKED: a" : "NACKED: b" };
	}
	ck_assert_int_eq(s->ops->renew(s, ids, lost, 1200, 500 * US_PER_SEC, &e), 0);
	ck_assert_int_eq(number("SELECT COUNT(*) FROM outbox_event WHERE "
				"locked_until>NOW(6)+INTERVAL 400 SECOND"),
		1200);
	sql("UPDATE outbox_event SET locked_by='other' WHERE id IN (1,1199)");
	settle(s, list, 1200);
	for (unsigned i = 0; i < 1200; i++)
		ck_assert_int_eq(list[i].lost, i == 0 || i == 1198);
	ck_assert_int_eq(number("SELECT COUNT(*) FROM outbox_event WHERE status='SENT'"), 399);
	ck_assert_int_eq(
		number("SELECT COUNT(*) FROM outbox_event WHERE status='RETRY' AND "
		       "retry_count=id-1 AND last_error="
		       "IF(id%%2=0,'NACKED: a','NACKED: b') AND "
		       "ABS(TIMESTAMPDIFF(SECOND,NOW(6),next_retry_at)-CAST(id-1 AS SIGNED))<10"),
		799);
	free(list);
	free_store(s);
}
END_TEST

START_TEST(a_reason_too_long_or_not_storable_never_fails_a_settle)
{
	struct store *s;
	struct sunk *k = sunk_new();
	char text[6000];
	struct settle one = { .id = 1, .kind = SETTLE_DEAD, .error = text };

	for (unsigned i = 0; i < 1400; i++)
		memcpy(text + i * 4, "\xF0\x9F\x98\x80", 5);
	s = fresh_store(ddl_outbox);
	add_rows(2);
	claim(s, &everything, k);
	settle(s, &one, 1);
	ck_assert_int_eq(
		number("SELECT CHAR_LENGTH(last_error) FROM outbox_event WHERE id=1"), 1024);
	sql("UPDATE outbox_event SET last_error=NULL; ALTER TABLE outbox_event MODIFY "
	    "last_error VARCHAR(100) CHARACTER SET latin1");
	free_store(s);
	s = store_as(&plain, "me/1/0");
	strcpy(text, "INVALID: \x80 \xC3\xA4 \xF0\x9F\x98\x80 \x01.");
	one.id = 2;
	settle(s, &one, 1);
	ck_assert_str_eq(
		sql("SELECT last_error FROM outbox_event WHERE id=2").text, "INVALID: ? ? ?  .");
	free_store(s);
}
END_TEST

/* --- other tables --------------------------------------------------------------------------- */

START_TEST(the_minimal_table_works_as_it_is)
{
	struct store *s = fresh_store(ddl_outbox_minimal);
	struct sunk *k = sunk_new();
	struct settle list[] = {
		{ .id = 1, .kind = SETTLE_SENT },
		{ .id = 2,
			.kind = SETTLE_RETRY,
			.retry_count = 1,
			.delay_us = 1300000,
			.error = "NACKED: a" },
		{ .id = 3, .kind = SETTLE_RELEASE },
	};

	add_rows(3);
	for (unsigned i = 0; i < 20; i++) {
		/* neither lease nor delay ends early, whatever part of a second it is */
		claim(s, &(struct claim_spec){ ALL_CLASSES, 500, 1500000, 0, false }, k);
		ck_assert_uint_eq(k->count, 3);
		ck_assert_str_eq(k->trace_id, "NULL");
		ck_assert_int_eq(number("SELECT COUNT(*) FROM outbox_event WHERE "
					"TIMESTAMPDIFF(MICROSECOND,NOW(6),locked_until) "
					"BETWEEN 1400000 AND 2500000"),
			3);
		settle(s, list, 3);
		ck_assert_int_eq(number("SELECT TIMESTAMPDIFF(MICROSECOND,NOW(6),next_retry_at) "
					"BETWEEN 1200000 AND 2300000 FROM "
					"outbox_event WHERE id=2"),
			1);
		ck_assert_int_eq(number("SELECT sent_at<=NOW(6) FROM outbox_event WHERE id=1"), 1);
		sql("UPDATE outbox_event SET status='PENDING',next_retry_at=NULL,retry_count=0");
		usleep(37000);
	}
	free_store(s);
}
END_TEST

START_TEST(columns_that_move_by_themselves_are_held_still)
{
	struct store *s = fresh_store(ddl_outbox_minimal);
	struct sunk *k = sunk_new();
	struct settle list[] = {
		{ .id = 1, .kind = SETTLE_SENT },
		{ .id = 2,
			.kind = SETTLE_RETRY,
			.retry_count = 1,
			.delay_us = 1300000,
			.error = "NACKED: a" },
		{ .id = 3, .kind = SETTLE_RELEASE },
		{ .id = 4, .kind = SETTLE_DEAD, .retry_count = 1, .error = "NACKED: a" },
		{ .id = 5, .kind = SETTLE_HOLD, .delay_us = 1, .error = "WAITING: a" },
	};
	uint64_t id = 6;
	struct err e = { 0 };
	enum lease_fate lost;

	sql("ALTER TABLE outbox_event MODIFY created_at TIMESTAMP NOT NULL DEFAULT "
	    "CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,"
	    "MODIFY sent_at TIMESTAMP NULL ON UPDATE CURRENT_TIMESTAMP,"
	    "MODIFY next_retry_at TIMESTAMP NULL ON UPDATE CURRENT_TIMESTAMP");
	free_store(s);
	s = store_as(&plain, "me/1/0");
	add_rows(6);
	claim(s, &everything, k);
	ck_assert_uint_eq(k->count, 6);
	ck_assert_int_eq(number("SELECT COUNT(*) FROM outbox_event WHERE next_retry_at IS NULL AND "
				"sent_at IS NULL AND created_at<'2026-01-02'"),
		6);
	ck_assert_int_eq(s->ops->renew(s, &id, &lost, 1, US_PER_SEC, &e), 0);
	settle(s, list, 5);
	ck_assert_int_eq(
		number("SELECT COUNT(*) FROM outbox_event WHERE created_at<'2026-01-02'"), 6);
	ck_assert_int_eq(number("SELECT COUNT(*) FROM outbox_event WHERE sent_at IS NOT NULL"), 1);
	ck_assert_int_eq(
		number("SELECT COUNT(*) FROM outbox_event WHERE next_retry_at IS NOT NULL"), 2);
	free_store(s);
}
END_TEST

START_TEST(payloads_arrive_byte_for_byte)
{
	static const char *const types[] = { "LONGTEXT CHARACTER SET utf8mb4", "LONGBLOB",
		"MEDIUMTEXT CHARACTER SET latin1" };
	struct store *s = fresh_store(ddl_outbox);
	struct sunk *k = sunk_new();
	char big[200];

	for (size_t i = 0; i < ARRAY_LEN(types); i++) {
		free_store(s);
		sql("TRUNCATE outbox_event; ALTER TABLE outbox_event MODIFY payload %s NULL",
			types[i]);
		s = store_as(&plain, "me/1/0");
		add_rows(1);
		sql("UPDATE outbox_event SET payload=CONCAT('a',CHAR(0),'b',CHAR(0))");
		claim(s, &everything, k);
		ck_assert_uint_eq(k->payload.len, 4);
		ck_assert_mem_eq(k->payload.data, "a\0b\0", 4);
		sql("UPDATE outbox_event SET status='PENDING',payload=''");
		claim(s, &everything, k);
		ck_assert_uint_eq(k->count, 1);
		ck_assert_uint_eq(k->payload.len, 0);
		sql("UPDATE outbox_event SET status='PENDING',payload=NULL");
		claim(s, &everything, k);
		ck_assert_uint_eq(k->count, 1);
	}
	sql("UPDATE outbox_event SET status='PENDING',payload='gr\xC3\xBC\xC3\x9F'");
	claim(s, &everything, k);
	ck_assert_str_eq(k->payload.data, "gr\xC3\xBC\xC3\x9F");
	free_store(s);
	sql("TRUNCATE outbox_event; ALTER TABLE outbox_event MODIFY payload JSON NOT NULL");
	s = store_as(&plain, "me/1/0");
	add_rows(1);
	sql("UPDATE outbox_event SET payload='{\"\xF0\x9F\x98\x80\": "
	    "\"\\\\u0000\"}',event_id='\xF0\x9F\x98\x80',event_type='\xF0\x9F\x98\x80'");
	claim(s, &everything, k);
	ck_assert_str_eq(k->payload.data, "{\"\xF0\x9F\x98\x80\": \"\\u0000\"}");
	ck_assert_str_eq(k->row[0].event_id, "\xF0\x9F\x98\x80");
	/* larger than any buffer so far */
	sql("UPDATE outbox_event SET status='PENDING',payload=JSON_QUOTE(REPEAT('x',5000000))");
	claim(s, &everything, k);
	ck_assert_uint_eq(k->payload.len, 5000002);
	snprintf(big, sizeof(big), "%.100s", k->payload.data);
	free_store(s);
}
END_TEST

START_TEST(hostile_server_defaults_change_nothing)
{
	const char *isolation = session_server(admin)->isolation;
	struct store *s = fresh_store(ddl_outbox);
	struct sunk *k = sunk_new();
	struct source_conf conf = plain;
	struct settle one = {
		.id = 1, .kind = SETTLE_DEAD, .error = "X: it's \\ \xF0\x9F\x98\x80"
	};
	struct answer saved = sql("SELECT @@GLOBAL.sql_mode,@@GLOBAL.character_set_server");
	char *mode = strdup(strtok(saved.text, "|"));
	char *charset = strdup(strtok(NULL, "|"));
	struct store_look l;
	struct err e = { 0 };
	bool unknown;
	int rc;

	free_store(s);
	add_rows(2);
	sql("CREATE USER '%s'@'%%' IDENTIFIED BY ''; GRANT ALL ON %s.* TO '%s'@'%%'", schema,
		schema, schema);
	conf.database.username = schema;
	ck_assert_int_eq(mysql_store_new(&s, &conf, "me/1/0", NULL, 0, NULL, &e), 0);
	sql("SET GLOBAL sql_mode='ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,NO_ZERO_DATE,"
	    "TRADITIONAL',GLOBAL character_set_server='latin1',GLOBAL time_zone='+05:30',"
	    "GLOBAL autocommit=0,GLOBAL init_connect='SET NAMES latin1, sql_select_limit=1',"
	    "GLOBAL wait_timeout=2,GLOBAL %s='SERIALIZABLE',GLOBAL completion_type=1,"
	    "GLOBAL sql_select_limit=1,GLOBAL max_sort_length=%u",
		isolation, mariadb ? 64 : 4);
	/* whatever happens, the server becomes what it was */
	rc = s->ops->connect(s, &e);
	if (rc == 0)
		rc = try_claim(s, &everything, k, &unknown, &e);
	if (rc == 0)
		rc = s->ops->settle(s, &one, 1, &unknown, &e);
	sleep(3);
	if (rc == 0)
		rc = s->ops->look(s, false, &l, &e);
	sql("SET GLOBAL sql_mode='%s',GLOBAL character_set_server='%s',GLOBAL time_zone='SYSTEM',"
	    "GLOBAL autocommit=1,GLOBAL init_connect='',GLOBAL wait_timeout=28800,"
	    "GLOBAL %s='REPEATABLE-READ',GLOBAL completion_type=0,"
	    "GLOBAL sql_select_limit=18446744073709551615,GLOBAL max_sort_length=1024",
		mode, charset, isolation);
	ck_assert_msg(rc == 0, "%s", e.text);
	ck_assert_uint_eq(k->count, 2);
	ck_assert_str_eq(sql("SELECT last_error FROM outbox_event WHERE id=1").text, one.error);
	sql("DROP USER '%s'@'%%'", schema);
	free_store(s);
}
END_TEST

START_TEST(an_idle_leader_keeps_its_session_from_one_poll_to_the_next_however_short_its_lease)
{
	struct store *s = fresh_store(ddl_outbox);
	struct source_conf conf = ordered;
	struct err e = { 0 };
	struct store_look l;

	free_store(s);
	conf.lease_us = 4 * US_PER_SEC;
	conf.poll_interval_us = 4 * US_PER_SEC;
	s = store_as(&conf, "me/1/0");
	for (int i = 0; i < 2; i++) {
		ck_assert_msg(s->ops->look(s, false, &l, &e) == 0, "%s", e.text);
		ck_assert(l.leads);
		usleep(conf.poll_interval_us);
	}
	ck_assert_msg(s->ops->look(s, false, &l, &e) == 0, "%s", e.text);
	ck_assert(l.leads);
	free_store(s);
}
END_TEST

START_TEST(time_zones_make_no_difference)
{
	static const char *const zones[] = { "+05:30", "-08:00", "SYSTEM", "+13:00", "+00:00" };
	struct sunk *k = sunk_new();

	setenv("TZ", "Pacific/Kiritimati", 1);
	for (unsigned datetime = 0; datetime < 2; datetime++) {
		struct store *s = fresh_store(ddl_outbox);
		struct session *producer = session_as(admin_conf.username, schema);
		struct err e = { 0 };

		if (datetime)
			sql("ALTER TABLE outbox_event MODIFY created_at DATETIME(6) NOT "
			    "NULL,MODIFY next_retry_at DATETIME(6) NULL,"
			    "MODIFY locked_until DATETIME(6) NULL,MODIFY sent_at DATETIME(6) NULL");
		for (size_t i = 0; i < ARRAY_LEN(zones); i++) {
			struct settle one = { .kind = SETTLE_RETRY,
				.retry_count = 1,
				.delay_us = 30 * US_PER_SEC,
				.error = "NACKED: a" };
			struct store_look l;
			char text[400];

			sql("SET GLOBAL time_zone='%s'", zones[i]);
			free_store(s);
			s = store_as(&plain, "me/1/0");
			sql("SET GLOBAL time_zone='SYSTEM'; TRUNCATE outbox_event");
			snprintf(text, sizeof(text),
				"SET time_zone='%s';INSERT INTO outbox_event "
				"(event_id,aggregate_type,aggregate_id,event_type,payload,created_"
				"at) "
				"VALUES ('e','o','1','c','{}',%s)",
				zones[(i + 1) % ARRAY_LEN(zones)],
				datetime ? "UTC_TIMESTAMP(6)" : "NOW(6)");
			session_begin(producer);
			ck_assert_msg(session_run_text(producer, text, &e) == 0, "%s", e.text);
			claim(s, &everything, k);
			ck_assert_uint_eq(k->count, 1);
			l = look(s);
			ck_assert_int_lt(llabs(l.now_us - k->row[0].created_us), 3 * US_PER_SEC);
			ck_assert(!l.exists[ROW_EXPIRED]);
			one.id = k->row[0].id;
			settle(s, &one, 1);
			l = look(s);
			ck_assert(!l.exists[ROW_RETRY]);
			ck_assert_int_gt(l.next_due_us, 25 * US_PER_SEC);
			ck_assert_int_le(l.next_due_us, 30 * US_PER_SEC);
		}
		sql("DROP TABLE outbox_event");
		session_free(producer);
		free_store(s);
	}
}
END_TEST

START_TEST(odd_dates_and_nulls_do_no_harm)
{
	struct store *s = fresh_store(ddl_outbox);
	struct sunk *k = sunk_new();
	struct settle one = { .id = 1, .kind = SETTLE_SENT };

	sql("ALTER TABLE outbox_event MODIFY created_at DATETIME(6) NULL,MODIFY retry_count INT "
	    "NULL,MODIFY next_retry_at DATETIME(6) NULL,"
	    "MODIFY aggregate_id VARCHAR(128) NULL,MODIFY event_id VARCHAR(64) NULL");
	free_store(s);
	s = store_as(&plain, "me/1/0");
	add_rows(4);
	sql("SET sql_mode='';UPDATE outbox_event SET "
	    "created_at=NULL,retry_count=NULL,aggregate_id=NULL,event_id=NULL WHERE id=1;"
	    "UPDATE outbox_event SET created_at='0000-00-00 00:00:00' WHERE id=2;"
	    "UPDATE outbox_event SET status='RETRY',next_retry_at='0000-00-00 00:00:00' WHERE id=3;"
	    "UPDATE outbox_event SET created_at='9999-12-31 23:59:59' WHERE id=4");
	ck_assert(look(s).exists[ROW_RETRY]);
	claim(s, &everything, k);
	ck_assert_uint_eq(k->count, 4);
	ck_assert_uint_eq(k->row[0].id, 3);
	ck_assert_int_eq(k->row[1].created_us, 0);
	ck_assert_int_eq(k->row[2].created_us, 0);
	ck_assert_str_eq(k->row[1].event_id, "NULL");
	ck_assert_int_eq(k->row[3].created_us, INT64_C(253402300799000000));
	settle(s, &one, 1);
	one = (struct settle){ .id = 2, .kind = SETTLE_RELEASE };
	settle(s, &one, 1);
	ck_status(2, "PENDING");
	free_store(s);
}
END_TEST

START_TEST(signed_unsigned_and_small_ids_work)
{
	static const char *const types[] = { "BIGINT", "BIGINT UNSIGNED", "INT", "INT UNSIGNED" };
	struct store *s = fresh_store(ddl_outbox);
	struct sunk *k = sunk_new();

	for (size_t i = 0; i < ARRAY_LEN(types); i++) {
		struct settle one = { .kind = SETTLE_SENT };

		free_store(s);
		sql("TRUNCATE outbox_event; ALTER TABLE outbox_event MODIFY id %s NOT NULL "
		    "AUTO_INCREMENT",
			types[i]);
		s = store_as(&plain, "me/1/0");
		add_rows(1);
		if (i == 1)
			sql("UPDATE outbox_event SET id=18446744073709551614");
		claim(s, &everything, k);
		ck_assert_uint_eq(k->count, 1);
		if (i == 1)
			ck_assert_uint_eq(k->row[0].id, UINT64_C(18446744073709551614));
		one.id = k->row[0].id;
		settle(s, &one, 1);
		ck_assert(!one.lost);
	}
	free_store(s);
}
END_TEST

START_TEST(extra_columns_are_read_in_the_order_asked_for)
{
	static const char *const extra[] = { "ten`ant", "status" };
	struct store *s = fresh_store(ddl_outbox);
	struct sunk *k = sunk_new();
	struct err e = { 0 };

	sql("ALTER TABLE outbox_event ADD `ten``ant` VARCHAR(20) NOT NULL DEFAULT 'acme'");
	add_rows(1);
	free_store(s);
	ck_assert_int_eq(mysql_store_new(&s, &plain, "me/1/0", extra, 2, NULL, &e), 0);
	ck_assert_msg(s->ops->connect(s, &e) == 0, "%s", e.text);
	claim(s, &everything, k);
	ck_assert_str_eq(k->extra, "acme");
	sql("ALTER TABLE outbox_event DROP `ten``ant`");
	s->ops->close(s);
	ck_assert_int_lt(s->ops->connect(s, &e), 0);
	ck_assert_int_eq(e.kind, ERR_CONFIG);
	ck_assert_ptr_nonnull(strstr(e.text, "ten`ant"));
	free_store(s);
}
END_TEST

/* --- faults of the table -------------------------------------------------------------------- */

START_TEST(a_table_that_does_not_do_is_refused_with_the_reason)
{
	static const struct {
		const char *change, *text;
	} faults[] = {
		{ "RENAME TABLE outbox_event TO other", "does not exist" },
		{ "ALTER TABLE outbox_event DROP locked_until",
			"locked_until: the column is missing" },
		{ "ALTER TABLE outbox_event DROP payload", "payload: the column is missing" },
		{ "ALTER TABLE outbox_event MODIFY status "
		  "ENUM('PENDING','PROCESSING','SENT','DEAD') NOT NULL DEFAULT 'PENDING'",
			"lacks the state RETRY" },
		{ "ALTER TABLE outbox_event MODIFY status VARCHAR(8) NOT NULL DEFAULT 'PENDING'",
			"too few for PROCESSING" },
		{ "ALTER TABLE outbox_event DROP INDEX idx_outbox_claim",
			"CREATE INDEX `idx_outbox_claim`" },
		{ "ALTER TABLE outbox_event DROP INDEX idx_outbox_claim, ADD INDEX i "
		  "(status,created_at,next_retry_at)",
			"CREATE INDEX `idx_outbox_claim`" },
		{ "ALTER TABLE outbox_event DROP INDEX idx_outbox_claim, ADD INDEX i "
		  "(status(5),next_retry_at,created_at)",
			"CREATE INDEX `idx_outbox_claim`" },
		{ "ALTER TABLE outbox_event MODIFY next_retry_at INT NULL",
			"neither TIMESTAMP nor DATETIME" },
		{ "ALTER TABLE outbox_event MODIFY locked_until TIMESTAMP(6) NOT NULL DEFAULT "
		  "CURRENT_TIMESTAMP(6)",
			"must allow NULL" },
		{ "ALTER TABLE outbox_event MODIFY locked_by VARCHAR(3) NULL",
			"too few for the owner" },
		{ "ALTER TABLE outbox_event MODIFY id BIGINT NOT NULL, DROP PRIMARY KEY, ADD "
		  "PRIMARY KEY (event_id)",
			"not the primary key" },
		{ "ALTER TABLE outbox_event MODIFY id VARCHAR(36) NOT NULL", "not an integer" },
		{ "ALTER TABLE outbox_event ENGINE=MyISAM", "not InnoDB" },
		{ "RENAME TABLE outbox_event TO base; CREATE VIEW outbox_event AS SELECT * FROM "
		  "base",
			"not a table" },
	};

	for (size_t i = 0; i < ARRAY_LEN(faults); i++) {
		struct store *s = fresh_store(ddl_outbox);
		struct err e = { 0 };

		s->ops->close(s);
		sql("%s", faults[i].change);
		ck_assert_msg(s->ops->connect(s, &e) < 0, "%s", faults[i].change);
		ck_assert_msg(e.kind == ERR_CONFIG, "%s: %s", faults[i].change, e.text);
		ck_assert_msg(
			strstr(e.text, faults[i].text) != NULL, "%s: %s", faults[i].change, e.text);
		free_store(s);
		sql("DROP DATABASE %s; CREATE DATABASE %s CHARACTER SET utf8mb4; USE %s", schema,
			schema, schema);
	}
}
END_TEST

START_TEST(an_index_of_another_name_and_an_enum_with_all_states_do)
{
	struct store *s = fresh_store(ddl_outbox);
	struct sunk *k = sunk_new();
	struct settle one = { .id = 1, .kind = SETTLE_SENT };

	sql("ALTER TABLE outbox_event DROP INDEX idx_outbox_claim, ADD INDEX `mein``index` "
	    "(status,next_retry_at,created_at,id),"
	    "MODIFY status ENUM('NEW','PENDING','PROCESSING','SENT','RETRY','DEAD') CHARACTER SET "
	    "latin1 NOT NULL DEFAULT 'PENDING',"
	    "ADD needed INT NOT NULL DEFAULT 0");
	free_store(s);
	s = store_as(&plain, "me/1/0");
	add_rows(1);
	ck_assert(look(s).exists[ROW_FRESH]);
	claim(s, &everything, k);
	ck_assert_uint_eq(k->count, 1);
	settle(s, &one, 1);
	ck_assert(!one.lost);
	free_store(s);
}
END_TEST

START_TEST(a_table_altered_meanwhile_is_read_again)
{
	struct store *s = fresh_store(ddl_outbox);
	struct sunk *k = sunk_new();
	struct store_look l;
	struct err e = { 0 };

	add_rows(2);
	look(s);
	sql("ALTER TABLE outbox_event RENAME INDEX idx_outbox_claim TO new_name, DROP trace_id");
	ck_assert_int_lt(s->ops->look(s, true, &l, &e), 0);
	ck_assert_int_eq(e.kind, ERR_CONFIG);
	look(s);
	claim(s, &everything, k);
	ck_assert_uint_eq(k->count, 2);
	free_store(s);
}
END_TEST

START_TEST(an_idle_store_does_not_block_alter_table)
{
	struct store *s = fresh_store(ddl_outbox);
	struct store *o = store_as(&ordered, "me/2/0");
	struct sunk *k = sunk_new();
	int64_t start;

	look(s);
	look(o);
	add_rows(1);
	claim(s, &everything, k);
	claim(s, &everything, k);
	look(o);
	start = clock_mono_us();
	sql("SET lock_wait_timeout=2; ALTER TABLE outbox_event ADD x INT NULL");
	ck_assert_int_lt(clock_mono_us() - start, 2 * US_PER_SEC);
	look(s);
	look(o);
	ck_assert_int_eq(number("SELECT COUNT(*) FROM information_schema.innodb_trx WHERE "
				"trx_state='LOCK WAIT'"),
		0);
	free_store(o);
	free_store(s);
}
END_TEST

/* --- faults of the database ----------------------------------------------------------------- */

START_TEST(a_killed_session_is_reported_and_replaced)
{
	struct store *s = fresh_store(ddl_outbox);
	struct sunk *k = sunk_new();
	struct err e = { 0 };
	bool unknown;

	add_rows(20);
	for (unsigned i = 0; i < 10; i++) {
		int64_t id = number("SELECT ID FROM information_schema.PROCESSLIST WHERE DB='%s' "
				    "AND ID<>CONNECTION_ID()",
			schema);

		sql("KILL %" PRId64, id);
		usleep(20000);
		ck_assert_int_lt(try_claim(s, &everything, k, &unknown, &e), 0);
		ck_assert_int_eq(e.kind, ERR_LINK);
		ck_assert(!unknown);
		ck_assert_int_lt(try_claim(s, &everything, k, &unknown, &e), 0);
		ck_assert_int_eq(e.kind, ERR_LINK);
		ck_assert_msg(s->ops->connect(s, &e) == 0, "%s", e.text);
		claim(s,
			&(struct claim_spec){
				.limit = { 1, 0, 0, 0 }, .total = 1, .lease_us = 60 * US_PER_SEC },
			k);
		ck_assert_uint_eq(k->count, 1);
	}
	free_store(s);
}
END_TEST

START_TEST(rows_locked_by_others_are_skipped_and_a_settle_waits_only_a_moment)
{
	struct store *s = fresh_store(ddl_outbox);
	struct store *o = store_as(&ordered, "me/2/0");
	struct sunk *k = sunk_new();
	struct settle list[4] = { { .id = 1 }, { .id = 2 }, { .id = 3 }, { .id = 4 } };
	const uint64_t ids[] = { 1, 2, 3, 4 };
	enum lease_fate leases[4];
	struct err e = { 0 };
	int64_t start;

	add_rows(8);
	claim(s,
		&(struct claim_spec){
			.limit = { 4, 0, 0, 0 }, .total = 4, .lease_us = 60 * US_PER_SEC },
		k);
	sql("START TRANSACTION; SELECT id FROM outbox_event FORCE INDEX (PRIMARY) WHERE id IN "
	    "(2,5,6) FOR UPDATE");
	start = clock_mono_us();
	settle(s, list, 4);
	ck_assert_int_lt(clock_mono_us() - start, 6 * US_PER_SEC);
	for (unsigned i = 0; i < 4; i++) {
		ck_assert_int_eq(list[i].left, i == 1);
		ck_assert(!list[i].lost);
	}
	ck_status(1, "SENT");
	ck_status(3, "SENT");
	/* the next ones do not wait for it at all */
	start = clock_mono_us();
	settle(s, &list[1], 1);
	ck_assert(list[1].left);
	ck_assert_int_eq(s->ops->renew(s, ids, leases, 4, 120 * US_PER_SEC, &e), 0);
	for (unsigned i = 0; i < 4; i++)
		ck_assert_int_eq(leases[i], i == 1 ? LEASE_LOCKED : LEASE_LOST);
	ck_assert_int_lt(clock_mono_us() - start, US_PER_SEC);
	look(o);
	start = clock_mono_us();
	claim(o, &fresh_only, k);
	ck_assert_int_lt(clock_mono_us() - start, US_PER_SEC);
	ck_assert_uint_eq(k->count, 2);
	ck_assert_uint_eq(k->row[0].id, 7);
	/* of an ordered source the relay must know whom it has passed */
	ck_assert_uint_eq(k->skipped, 2);
	ck_assert_uint_eq(k->skipped_id[0], 5);
	ck_assert_uint_eq(k->skipped_id[1], 6);
	sql("ROLLBACK");
	settle(s, &list[1], 1);
	ck_assert(!list[1].left);
	ck_status(2, "SENT");
	free_store(o);
	free_store(s);
}
END_TEST

START_TEST(a_row_that_cannot_be_written_is_left_and_the_others_are)
{
	struct store *s = fresh_store(ddl_outbox);
	struct sunk *k = sunk_new();
	struct settle list[40];
	struct err e = { 0 };
	bool unknown;

	add_rows(40);
	sql("CREATE TRIGGER no BEFORE UPDATE ON outbox_event FOR EACH ROW IF OLD.id IN (7,8,31) "
	    "AND NEW.status<>'PROCESSING' THEN SIGNAL SQLSTATE '45000' SET "
	    "MESSAGE_TEXT='not this one'; END IF");
	claim(s, &everything, k);
	for (unsigned i = 0; i < 40; i++)
		list[i] = (struct settle){ .id = i + 1,
			.kind = i % 4 == 0   ? SETTLE_RETRY
				: i % 4 == 1 ? SETTLE_RELEASE
					     : SETTLE_SENT,
			.retry_count = 1,
			.delay_us = US_PER_SEC,
			.error = "NACKED: x" };
	ck_assert_msg(s->ops->settle(s, list, 40, &unknown, &e) == 0, "%s", e.text);
	ck_assert_int_eq(e.kind, ERR_REFUSED);
	ck_assert_msg(strstr(e.text, "not this one") != NULL, "%s", e.text);
	ck_assert_msg(strstr(e.text, "row 31: ") != NULL, "%s", e.text);
	for (unsigned i = 0; i < 40; i++) {
		ck_assert_int_eq(list[i].left, i == 6 || i == 7 || i == 30);
		ck_assert(!list[i].lost);
	}
	ck_assert_int_eq(number("SELECT COUNT(*) FROM outbox_event WHERE status='PROCESSING'"), 3);
	sql("DROP TRIGGER no");
	free_store(s);
}
END_TEST

START_TEST(with_nowait_a_claim_skips_nobody_and_is_refused_where_it_would_have_to)
{
	static const struct claim_spec spec = {
		.limit = { 4, 0, 0, 0 }, .total = 4, .lease_us = 60 * US_PER_SEC, .nowait = true
	};
	struct store *any = fresh_store(ddl_outbox);
	struct store *s = store_as(&ordered, "me/2/0");
	struct sunk *k = sunk_new();
	struct err e = { 0 };
	int64_t start;
	bool unknown = true;

	add_rows(8);
	look(s);
	sql("START TRANSACTION; SELECT id FROM outbox_event FORCE INDEX (PRIMARY) WHERE id=2 FOR "
	    "UPDATE");
	start = clock_mono_us();
	ck_assert_int_lt(try_claim(s, &spec, k, &unknown, &e), 0);
	ck_assert_msg(e.kind == ERR_REFUSED, "%s", e.text);
	ck_assert(!unknown);
	ck_assert_int_lt(clock_mono_us() - start, US_PER_SEC);
	ck_status(1, "PENDING");
	claim(s, &fresh_only, k);
	ck_assert_uint_eq(k->count, 7);
	ck_assert_uint_eq(k->skipped, 1);
	sql("ROLLBACK");
	claim(s, &spec, k);
	ck_assert_uint_eq(k->count, 1);
	ck_assert_uint_eq(k->row[0].id, 2);
	free_store(s);
	free_store(any);
}
END_TEST

START_TEST(a_locked_table_delays_only_a_moment)
{
	struct store *s = fresh_store(ddl_outbox);
	struct sunk *k = sunk_new();
	struct store_look l;
	struct err e = { 0 };
	int64_t start = clock_mono_us();
	bool unknown;

	add_rows(1);
	sql("LOCK TABLES outbox_event WRITE");
	ck_assert_int_lt(s->ops->look(s, false, &l, &e), 0);
	ck_assert_msg(e.kind == ERR_RETRY, "%s", e.text);
	ck_assert_int_lt(try_claim(s, &everything, k, &unknown, &e), 0);
	ck_assert_msg(e.kind == ERR_RETRY, "%s", e.text);
	ck_assert_int_lt(clock_mono_us() - start, 10 * US_PER_SEC);
	sql("UNLOCK TABLES");
	claim(s, &everything, k);
	ck_assert_uint_eq(k->count, 1);
	free_store(s);
}
END_TEST

START_TEST(a_read_only_server_is_left)
{
	struct store *s = fresh_store(ddl_outbox);
	struct sunk *k = sunk_new();
	struct store_look l;
	struct source_conf conf = plain;
	struct store *u;
	struct err e = { 0 }, before = { 0 }, again = { 0 };
	bool unknown, unknown_claim = true;
	int looked, claimed, connected;

	add_rows(2);
	sql("CREATE USER '%s'@'%%' IDENTIFIED BY ''; GRANT SELECT,UPDATE ON %s.* TO '%s'@'%%'",
		schema, schema, schema);
	conf.database.username = schema;
	u = store_as(&conf, "me/3/0");
	sql("SET GLOBAL read_only=1");
	claimed = try_claim(u, &everything, k, &unknown_claim, &e);
	connected = u->ops->connect(u, &again);
	looked = s->ops->look(s, false, &l, &before);
	sql("SET GLOBAL read_only=0");
	ck_assert_int_lt(claimed, 0);
	ck_assert_msg(e.kind == ERR_LINK, "%s", e.text);
	ck_assert(!unknown_claim);
	ck_assert_int_lt(connected, 0);
	ck_assert_msg(again.kind == ERR_LINK, "%s", again.text);
	ck_assert_int_lt(looked, 0);
	ck_assert_msg(before.kind == ERR_LINK, "%s", before.text);
	ck_assert_int_eq(u->ops->connect(u, &e), 0);
	ck_assert_int_eq(try_claim(u, &everything, k, &unknown, &e), 0);
	ck_assert_uint_eq(k->count, 2);
	sql("DROP USER '%s'@'%%'", schema);
	free_store(u);
	free_store(s);
}
END_TEST

START_TEST(least_privileges_suffice_and_less_is_told)
{
	struct store *s = fresh_store(ddl_outbox);
	struct sunk *k = sunk_new();
	struct source_conf conf = plain;
	struct err e = { 0 };
	struct settle list[] = {
		{ .id = 1, .kind = SETTLE_SENT },
		{ .id = 2, .kind = SETTLE_DEAD, .retry_count = 1, .error = "X: y" },
		{ .id = 3, .kind = SETTLE_RETRY, .retry_count = 1, .error = "X: y", .delay_us = 1 }
	};
	bool unknown;

	free_store(s);
	sql("CREATE USER '%s'@'%%' IDENTIFIED BY '';"
	    "GRANT SELECT,UPDATE "
	    "(`status`,`retry_count`,`next_retry_at`,`locked_by`,`locked_until`,`sent_at`,`last_"
	    "error`) "
	    "ON %s.outbox_event TO '%s'@'%%'",
		schema, schema, schema);
	conf.database.username = schema;
	add_rows(3);
	conf.ordering = ORDERING_AGGREGATE;
	s = store_as(&conf, "me/3/0");
	ck_assert(look(s).leads);
	claim(s, &everything, k);
	ck_assert_uint_eq(k->count, 3);
	settle(s, list, 3);
	s->ops->close(s);
	sql("REVOKE UPDATE (`status`) ON %s.outbox_event FROM '%s'@'%%'", schema, schema);
	sql("UPDATE outbox_event SET status='PENDING',next_retry_at=NULL");
	ck_assert_int_eq(s->ops->connect(s, &e), 0);
	look(s);
	ck_assert_int_lt(try_claim(s, &everything, k, &unknown, &e), 0);
	ck_assert_int_eq(e.kind, ERR_CONFIG);
	ck_assert_int_eq(e.code, 1143);
	sql("REVOKE ALL PRIVILEGES,GRANT OPTION FROM '%s'@'%%'", schema);
	s->ops->close(s);
	ck_assert_int_lt(s->ops->connect(s, &e), 0);
	ck_assert_int_eq(e.kind, ERR_CONFIG);
	sql("DROP USER '%s'@'%%'", schema);
	ck_assert_int_lt(s->ops->connect(s, &e), 0);
	ck_assert_int_eq(e.kind, ERR_CONFIG);
	ck_assert_int_eq(e.code, mariadb ? 1045 : 1045);
	free_store(s);
}
END_TEST

/* --- the network: a proxy in between --------------------------------------------------------- */

enum proxy_mode {
	PROXY_PASS,
	PROXY_STALL,      /* neither direction, nothing closed: a black hole */
	PROXY_CUT_COMMIT, /* the server never sees COMMIT */
	PROXY_CUT_ANSWER, /* the server commits, the client never hears of it */
};

struct proxy {
	pthread_t thread;
	int listener;
	uint16_t port;
	_Atomic int mode;
	_Atomic bool stop;
};

static int connect_server(void)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(server.port) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	inet_pton(AF_INET, server.host, &to.sin_addr);
	ck_assert_int_eq(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
	return fd;
}

/* One connection at a time. */
static void *proxy_run(void *arg)
{
	struct proxy *p = arg;
	int a = -1, b = -1; /* client, server */
	char buffer[65536];

	while (!p->stop) {
		struct pollfd fds[3] = { { p->listener, POLLIN, 0 }, { a, POLLIN, 0 },
			{ b, POLLIN, 0 } };
		bool cut = false;
		ssize_t n;

		if (p->mode == PROXY_STALL)
			fds[1].fd = fds[2].fd = -1;
		if (poll(fds, 3, 20) <= 0)
			continue;
		if (fds[0].revents & POLLIN) {
			int c = accept(p->listener, NULL, NULL);

			if (a >= 0) {
				close(a);
				close(b);
			}
			a = c;
			b = connect_server();
			continue;
		}
		if (fds[1].revents) {
			n = read(a, buffer, sizeof(buffer));
			if (n <= 0)
				cut = true;
			else if (p->mode == PROXY_CUT_COMMIT &&
				 memmem(buffer, (size_t)n, "COMMIT", 6) != NULL)
				cut = true;
			else if (write(b, buffer, (size_t)n) != n)
				cut = true;
			else if (p->mode == PROXY_CUT_ANSWER &&
				 memmem(buffer, (size_t)n, "COMMIT", 6) != NULL) {
				n = read(b, buffer, sizeof(buffer));
				cut = true;
			}
		}
		if (fds[2].revents && !cut) {
			n = read(b, buffer, sizeof(buffer));
			if (n <= 0 || write(a, buffer, (size_t)n) != n)
				cut = true;
		}
		if (cut) {
			close(a);
			close(b);
			a = b = -1;
			if (p->mode != PROXY_STALL)
				p->mode = PROXY_PASS;
		}
	}
	if (a >= 0) {
		close(a);
		close(b);
	}
	close(p->listener);
	return NULL;
}

static void listen_on(int *fd, uint16_t *port)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(at);

	*fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(bind(*fd, (struct sockaddr *)&at, sizeof(at)), 0);
	ck_assert_int_eq(listen(*fd, 5), 0);
	ck_assert_int_eq(getsockname(*fd, (struct sockaddr *)&at, &len), 0);
	*port = ntohs(at.sin_port);
}

static void proxy_start(struct proxy *p)
{
	listen_on(&p->listener, &p->port);
	p->mode = PROXY_PASS;
	p->stop = false;
	ck_assert_int_eq(pthread_create(&p->thread, NULL, proxy_run, p), 0);
}

static void proxy_stop(struct proxy *p)
{
	p->stop = true;
	pthread_join(p->thread, NULL);
}

static struct source_conf through(const struct proxy *p)
{
	static struct endpoint to;
	struct source_conf conf = plain;

	to = (struct endpoint){ server.host, p->port };
	conf.database.hosts = &to;
	return conf;
}

START_TEST(a_commit_without_an_answer_is_unknown_and_can_be_repeated)
{
	struct store *s = fresh_store(ddl_outbox);
	struct sunk *k = sunk_new();
	struct proxy p;
	struct source_conf conf;
	struct err e = { 0 };
	struct settle list[2] = { { .id = 1 }, { .id = 2 } };
	bool unknown = false;

	free_store(s);
	add_rows(4);
	proxy_start(&p);
	conf = through(&p);
	s = store_as(&conf, "me/1/0");

	p.mode = PROXY_CUT_COMMIT;
	ck_assert_int_lt(try_claim(s, &fresh_only, k, &unknown, &e), 0);
	ck_assert_int_eq(e.kind, ERR_LINK);
	ck_assert(unknown);
	usleep(50000);
	ck_assert_int_eq(number("SELECT COUNT(*) FROM outbox_event WHERE status='PROCESSING'"), 0);
	ck_assert_int_eq(s->ops->connect(s, &e), 0);

	p.mode = PROXY_CUT_ANSWER;
	ck_assert_int_lt(try_claim(s, &fresh_only, k, &unknown, &e), 0);
	ck_assert(unknown);
	ck_assert_int_eq(number("SELECT COUNT(*) FROM outbox_event WHERE status='PROCESSING' AND "
				"locked_by='me/1/0'"),
		4);
	ck_assert_int_eq(s->ops->connect(s, &e), 0);

	p.mode = PROXY_CUT_ANSWER;
	unknown = false;
	ck_assert_int_lt(s->ops->settle(s, list, 2, &unknown, &e), 0);
	ck_assert(unknown);
	ck_status(1, "SENT");
	ck_assert_int_eq(s->ops->connect(s, &e), 0);
	list[0].again = list[1].again = true;
	settle(s, list, 2);
	ck_assert(!list[0].lost && !list[1].lost);
	proxy_stop(&p);
	free_store(s);
}
END_TEST

START_TEST(what_goes_as_it_is_sent_is_fenced_and_no_loss_after_a_commit_without_an_answer)
{
	struct store *s = fresh_store(ddl_outbox);
	struct sunk *k = sunk_new();
	struct proxy p;
	struct source_conf conf;
	struct err e = { 0 };
	struct settle list[3] = { { .id = 1 }, { .id = 2 }, { .id = 3 } };
	bool unknown = false;

	free_store(s);
	add_rows(4);
	proxy_start(&p);
	conf = through(&p);
	conf.retention.sent_us = 0;
	s = store_as(&conf, "me/1/0");
	claim(s, &everything, k);
	ck_assert_uint_eq(k->count, 4);
	/* somebody's open transaction on another row is waited for by nobody */
	sql("START TRANSACTION; SELECT id FROM outbox_event WHERE id=4 FOR UPDATE");
	p.mode = PROXY_CUT_ANSWER;
	ck_assert_int_lt(s->ops->settle(s, list, 2, &unknown, &e), 0);
	ck_assert(unknown);
	sql("ROLLBACK");
	ck_assert_int_eq(number("SELECT COUNT(*) FROM outbox_event WHERE id IN (1,2)"), 0);
	ck_assert_int_eq(s->ops->connect(s, &e), 0);
	list[0].again = list[1].again = true;
	settle(s, list, 3);
	ck_assert(!list[0].lost && !list[1].lost && !list[2].lost);
	ck_assert_int_eq(number("SELECT GROUP_CONCAT(id) FROM outbox_event"), 4);
	/* another relay's */
	sql("UPDATE outbox_event SET locked_by='you/1/0'");
	list[0] = (struct settle){ .id = 4 };
	settle(s, list, 1);
	ck_assert(list[0].lost);
	ck_assert_int_eq(number("SELECT COUNT(*) FROM outbox_event"), 1);
	/* gone, and not by us */
	sql("DELETE FROM outbox_event");
	settle(s, list, 1);
	ck_assert(list[0].lost);
	proxy_stop(&p);
	free_store(s);
}
END_TEST

/* --- the second session --------------------------------------------------------------------- */

/* As settle_end() once it has something to tell. */
static int ended(struct store *s, struct err *e)
{
	struct pollfd p = { .fd = s->ops->settle_fd(s), .events = POLLIN };
	int rc;

	*e = (struct err){ 0 };
	while ((rc = s->ops->settle_end(s, e)) == 1)
		ck_assert_int_eq(poll(&p, 1, 10000), 1);
	return rc;
}

static unsigned sessions_of_ours(void)
{
	return (unsigned)number("SELECT COUNT(*) FROM information_schema.processlist WHERE db='%s' "
				"AND id<>CONNECTION_ID()",
		schema);
}

/* Until ROLLBACK. */
static void lock_row(unsigned id)
{
	sql("START TRANSACTION; SELECT id FROM outbox_event FORCE INDEX (PRIMARY) WHERE id=%u FOR "
	    "UPDATE",
		id);
}

static void put_back(void)
{
	sql("UPDATE outbox_event SET status='PROCESSING',locked_by='me/1/0',sent_at=NULL");
}

START_TEST(sent_is_written_on_a_second_session_while_the_first_one_claims)
{
	struct store *s = fresh_store(ddl_outbox);
	struct sunk *k = sunk_new();
	const uint64_t ids[] = { 1, 2, 3, 4 };
	struct err e = { 0 };

	add_rows(8);
	claim(s,
		&(struct claim_spec){
			.limit = { 4, 0, 0, 0 }, .total = 4, .lease_us = 60 * US_PER_SEC },
		k);
	ck_assert_uint_eq(sessions_of_ours(), 1);
	/* its rows are locked: it cannot be done yet */
	lock_row(2);
	ck_assert_msg(s->ops->settle_begin(s, ids, 4, &e) == 0, "%s", e.text);
	ck_assert_uint_eq(sessions_of_ours(), 2);
	claim(s, &everything, k);
	ck_assert_uint_eq(k->count, 4);
	ck_assert_int_eq(s->ops->settle_end(s, &e), 1);
	sql("ROLLBACK");
	ck_assert_msg(ended(s, &e) == 0, "%s", e.text);
	ck_assert_int_eq(number("SELECT COUNT(*) FROM outbox_event WHERE status='SENT' AND "
				"locked_by IS NULL AND sent_at IS NOT NULL"),
		4);
	ck_assert_int_eq(s->ops->settle_begin(s, ids, 1, &e), 0);
	ck_assert_int_eq(ended(s, &e), -1); /* it is no more ours */
	ck_assert_int_eq(e.kind, ERR_RETRY);
	s->ops->close(s);
	for (unsigned i = 0; i < 100 && sessions_of_ours() > 0; i++)
		usleep(20000);
	ck_assert_uint_eq(sessions_of_ours(), 0);
	free_store(s);
}
END_TEST

START_TEST(what_went_wrong_on_the_second_session_is_done_on_the_first)
{
	struct store *s = fresh_store(ddl_outbox);
	struct sunk *k = sunk_new();
	struct source_conf conf = plain;
	struct settle list[3] = { { .id = 1, .again = true }, { .id = 2, .again = true },
		{ .id = 3, .again = true } };
	const uint64_t ids[] = { 1, 2, 3 };
	struct err e = { 0 };
	struct store_look l;
	int64_t id;

	free_store(s);
	add_rows(4);
	sql("CREATE USER '%s'@'%%' IDENTIFIED BY '' WITH MAX_USER_CONNECTIONS 2; GRANT ALL ON "
	    "%s.* TO '%s'@'%%'",
		schema, schema, schema);
	conf.database.username = schema;
	s = store_as(&conf, "me/1/0");
	claim(s, &everything, k);
	/* some are another relay's: the others are written */
	sql("UPDATE outbox_event SET locked_by='you/1/0' WHERE id=2");
	ck_assert_msg(s->ops->settle_begin(s, ids, 3, &e) == 0, "%s", e.text);
	ck_assert_int_eq(ended(s, &e), -1);
	settle(s, list, 3);
	ck_assert(!list[0].lost && list[1].lost && !list[2].lost);
	/* a row of them stays locked */
	put_back();
	lock_row(3);
	ck_assert_int_eq(s->ops->settle_begin(s, ids, 3, &e), 0);
	ck_assert_int_eq(ended(s, &e), -1);
	ck_assert_msg(e.kind == ERR_RETRY, "%s", e.text);
	sql("ROLLBACK");
	settle(s, list, 3);
	ck_assert(!list[0].lost && !list[1].lost && !list[2].lost);
	ck_assert_int_eq(number("SELECT COUNT(*) FROM outbox_event WHERE status='SENT'"), 3);
	/* the session is killed */
	put_back();
	lock_row(3);
	ck_assert_int_eq(s->ops->settle_begin(s, ids, 3, &e), 0);
	while ((id = number("SELECT id FROM information_schema.processlist WHERE user='%s' AND "
			    "info LIKE '%%SENT%%'",
			schema)) <= 0)
		usleep(1000); /* it has not come to the statement yet */
	sql("KILL %" PRId64, id);
	ck_assert_int_eq(ended(s, &e), -1);
	ck_assert_msg(e.kind == ERR_LINK, "%s", e.text);
	sql("ROLLBACK");
	ck_assert_int_eq(s->ops->look(s, false, &l, &e), 0);
	settle(s, list, 3);
	ck_assert_int_eq(number("SELECT COUNT(*) FROM outbox_event WHERE status='SENT'"), 3);
	/* none can be had */
	put_back();
	sql("ALTER USER '%s'@'%%' WITH MAX_USER_CONNECTIONS 1", schema);
	ck_assert_int_eq(s->ops->settle_begin(s, ids, 3, &e), -1);
	ck_assert_ptr_nonnull(strstr(e.text, "max_user_connections"));
	ck_assert_int_eq(s->ops->settle_fd(s), -1);
	settle(s, list, 3);
	ck_assert_int_eq(number("SELECT COUNT(*) FROM outbox_event WHERE status='SENT'"), 3);
	sql("DROP USER '%s'@'%%'", schema);
	free_store(s);
}
END_TEST

static void *cut_guard(void *arg)
{
	while (!guard_check(arg, TIME_NEVER))
		usleep(1000);
	return NULL;
}

/* A claim whose UPDATE is not answered before the caller has had its time thrice. */
struct waiting {
	struct sunk *sunk;
	struct proxy *proxy;
	unsigned times;
};

static int on_row_stall(void *arg, enum row_class class, const struct row *row, unsigned takeovers)
{
	struct waiting *w = arg;

	w->proxy->mode = PROXY_STALL;
	return on_row(w->sunk, class, row, takeovers);
}

static void on_meanwhile(void *arg)
{
	struct waiting *w = arg;

	if (w->proxy->mode == PROXY_STALL && ++w->times == 3)
		w->proxy->mode = PROXY_PASS;
}

START_TEST(while_a_claim_waits_for_the_server_the_time_is_the_callers)
{
	struct store *s = fresh_store(ddl_outbox);
	struct sunk *k = sunk_new();
	struct waiting waiting = { .sunk = k };
	const struct row_sink sink = {
		.row = on_row_stall, .meanwhile = on_meanwhile, .arg = &waiting
	};
	struct source_conf conf;
	struct guard guard;
	pthread_t cutter;
	struct proxy p;
	struct err e = { 0 };
	bool unknown;
	int64_t start;

	free_store(s);
	add_rows(4);
	proxy_start(&p);
	waiting.proxy = &p;
	conf = through(&p);
	conf.database.query_timeout_us = US_PER_SEC;
	s = store_as(&conf, "me/1/0");
	ck_assert_msg(s->ops->claim(s, &everything, &sink, &unknown, &e) == 0, "%s", e.text);
	ck_assert_uint_eq(k->count, 4);
	ck_assert_uint_eq(waiting.times, 3);

	/* as long as an operation may take, and no longer */
	sql("UPDATE outbox_event SET status='PENDING',locked_by=NULL,locked_until=NULL");
	p.mode = PROXY_STALL;
	start = clock_mono_us();
	ck_assert_int_eq(s->ops->claim(s, &everything, &sink, &unknown, &e), -1);
	ck_assert_msg(e.kind == ERR_LINK, "%s", e.text);
	ck_assert_int_ge(clock_mono_us() - start, US_PER_SEC);
	ck_assert_int_lt(clock_mono_us() - start, 2 * US_PER_SEC);
	free_store(s);

	/* unless it is cut off, at whatever moment */
	p.mode = PROXY_PASS;
	conf.database.query_timeout_us = 20 * US_PER_SEC;
	ck_assert_int_eq(guard_init(&guard, &e), 0);
	ck_assert_int_eq(mysql_store_new(&s, &conf, "me/1/0", NULL, 0, &guard, &e), 0);
	ck_assert_msg(s->ops->connect(s, &e) == 0, "%s", e.text);
	p.mode = PROXY_STALL;
	start = clock_mono_us();
	ck_assert_int_eq(pthread_create(&cutter, NULL, cut_guard, &guard), 0);
	ck_assert_int_eq(s->ops->claim(s, &everything, &sink, &unknown, &e), -1);
	ck_assert_msg(e.kind == ERR_LINK, "%s", e.text);
	ck_assert_int_lt(clock_mono_us() - start, 2 * US_PER_SEC);
	pthread_join(cutter, NULL);
	free_store(s);
	guard_fini(&guard);
	proxy_stop(&p);
	ck_assert_int_eq(number("SELECT COUNT(*) FROM outbox_event WHERE status='PENDING'"), 4);
}
END_TEST

struct settling {
	struct sunk *sunk;
	struct store *store;
	bool begun, done;
};

static int on_row_settling(
	void *arg, enum row_class class, const struct row *row, unsigned takeovers)
{
	return on_row(((struct settling *)arg)->sunk, class, row, takeovers);
}

static void settle_meanwhile(void *arg)
{
	static const uint64_t ids[] = { 1, 2 };
	struct settling *w = arg;
	struct err e = { 0 };
	int rc;

	if (!w->begun) {
		rc = w->store->ops->settle_begin(w->store, ids, 2, &e);
		ck_assert_msg(rc == 0, "%s", e.text);
		w->begun = true;
	} else if (!w->done) {
		rc = w->store->ops->settle_end(w->store, &e);
		ck_assert_msg(rc >= 0, "%s", e.text);
		w->done = rc == 0;
	}
}

START_TEST(while_a_claim_waits_for_the_server_the_second_session_settles)
{
	struct store *s = fresh_store(ddl_outbox);
	static const struct claim_spec twenty = {
		.limit = { 20, 0, 0, 0 }, .total = 20, .lease_us = 60 * US_PER_SEC
	};
	struct settling w = { .sunk = sunk_new(), .store = s };
	const struct row_sink sink = {
		.row = on_row_settling, .meanwhile = settle_meanwhile, .arg = &w
	};
	struct err e = { 0 };
	bool unknown;

	add_rows(2);
	claim(s, &everything, w.sunk);
	add_rows(1000); /* so many that two of them are worth an index */
	sql("ANALYZE TABLE outbox_event");
	sql("CREATE TRIGGER slow BEFORE UPDATE ON outbox_event FOR EACH ROW DO SLEEP(0.03)");
	w.sunk->count = 0;
	ck_assert_msg(s->ops->claim(s, &twenty, &sink, &unknown, &e) == 0, "%s", e.text);
	ck_assert_uint_eq(w.sunk->count, 20);
	ck_assert(w.done);
	ck_status(1, "SENT");
	ck_status(2, "SENT");
	ck_assert_int_eq(number("SELECT COUNT(*) FROM outbox_event WHERE status='PROCESSING'"), 20);
	sql("DROP TRIGGER slow");
	free_store(s);
}
END_TEST

static void *watch_guard(void *arg)
{
	struct guard *g = arg;

	for (unsigned i = 0; i < 1000; i++) {
		guard_check(g, clock_mono_us());
		usleep(10000);
	}
	return NULL;
}

START_TEST(a_black_hole_costs_no_more_than_the_query_timeout)
{
	struct store *s = fresh_store(ddl_outbox), *guarded;
	struct proxy p;
	struct source_conf conf;
	struct guard guard;
	pthread_t watcher;
	struct store_look l;
	struct err e = { 0 };
	int64_t start;

	free_store(s);
	proxy_start(&p);
	conf = through(&p);
	conf.database.query_timeout_us = 2 * US_PER_SEC;
	s = store_as(&conf, "me/1/0");
	p.mode = PROXY_STALL;
	start = clock_mono_us();
	ck_assert_int_lt(s->ops->look(s, false, &l, &e), 0);
	ck_assert_msg(e.kind == ERR_LINK, "%s", e.text);
	printf("black hole, library alone: %.2f s of 2 s\n",
		(double)(clock_mono_us() - start) / 1e6);
	ck_assert_int_lt(clock_mono_us() - start, 4 * US_PER_SEC);
	start = clock_mono_us();
	free_store(s);
	ck_assert_int_lt(clock_mono_us() - start, US_PER_SEC);

	/* closing a connection nobody answers on is quick as well */
	p.mode = PROXY_PASS;
	s = store_as(&conf, "me/1/0");
	p.mode = PROXY_STALL;
	start = clock_mono_us();
	s->ops->close(s);
	ck_assert_int_lt(clock_mono_us() - start, US_PER_SEC);
	free_store(s);

	p.mode = PROXY_PASS;
	ck_assert_int_eq(guard_init(&guard, &e), 0);
	conf.database.query_timeout_us = 1200000;
	ck_assert_int_eq(mysql_store_new(&guarded, &conf, "me/1/0", NULL, 0, &guard, &e), 0);
	ck_assert_msg(guarded->ops->connect(guarded, &e) == 0, "%s", e.text);
	ck_assert_int_eq(pthread_create(&watcher, NULL, watch_guard, &guard), 0);
	p.mode = PROXY_STALL;
	start = clock_mono_us();
	ck_assert_int_lt(guarded->ops->look(guarded, false, &l, &e), 0);
	ck_assert_msg(e.kind == ERR_LINK, "%s", e.text);
	printf("black hole, guarded: %.2f s of 1.2 s\n", (double)(clock_mono_us() - start) / 1e6);
	ck_assert_int_lt(clock_mono_us() - start, 1500000);
	free_store(guarded);
	pthread_cancel(watcher);
	pthread_join(watcher, NULL);
	guard_fini(&guard);
	proxy_stop(&p);
}
END_TEST

START_TEST(a_host_that_does_not_answer_does_not_bar_the_next)
{
	struct store *s = fresh_store(ddl_outbox);
	struct endpoint hosts[3];
	struct source_conf conf = plain;
	struct err e = { 0 };
	uint16_t mute_port, closed_port;
	int mute, closed;
	int64_t start = clock_mono_us();
	unsigned tries = 0;

	free_store(s);
	listen_on(&mute, &mute_port); /* accepts, never speaks */
	listen_on(&closed, &closed_port);
	close(closed);
	hosts[0] = (struct endpoint){ server.host, mute_port };
	hosts[1] = (struct endpoint){ server.host, closed_port };
	hosts[2] = server;
	conf.database.hosts = hosts;
	conf.database.host_count = 3;
	conf.database.connect_timeout_us = US_PER_SEC;
	conf.database.query_timeout_us = 2 * US_PER_SEC;
	ck_assert_int_eq(mysql_store_new(&s, &conf, "me/1/0", NULL, 0, NULL, &e), 0);
	while (s->ops->connect(s, &e) < 0) {
		ck_assert_int_eq(e.kind, ERR_LINK);
		ck_assert_uint_lt(++tries, 3);
	}
	printf("mute and closed host first: connected after %.2f s, %u failures\n",
		(double)(clock_mono_us() - start) / 1e6, tries);
	/* and stays with the one that works */
	start = clock_mono_us();
	ck_assert_int_eq(s->ops->connect(s, &e), 0);
	ck_assert_int_lt(clock_mono_us() - start, US_PER_SEC);
	ck_assert_ptr_nonnull(strstr(s->peer, session_server(admin)->name));
	free_store(s);
	close(mute);
}
END_TEST

/* --- encryption ------------------------------------------------------------------------------ */

START_TEST(tls_means_the_same_with_each_library)
{
	char *ca = env("OUTBOXD_TEST_CA_FILE") ? strdup(env("OUTBOXD_TEST_CA_FILE")) : NULL;
	char *other = env("OUTBOXD_TEST_OTHER_CA_FILE") ? strdup(env("OUTBOXD_TEST_OTHER_CA_FILE"))
							: NULL;
	const bool oracle = strncmp(mysql_library_name(), "libmysql", 8) == 0;
	struct {
		enum tls_mode mode;
		char *ca;
		bool works;
	} cases[] = {
		{ TLS_DISABLED, NULL, true }, { TLS_REQUIRED, NULL, true },
		{ TLS_REQUIRED, other, true }, /* asked for, not verified */
		{ TLS_VERIFY_CA, ca, oracle }, { TLS_VERIFY_CA, other, false },
		{ TLS_VERIFY_IDENTITY, ca, true }, { TLS_VERIFY_IDENTITY, other, false },
		{ TLS_VERIFY_IDENTITY, NULL, false }, /* the system's authorities do not know it */
	};
	struct store *s = fresh_store(ddl_outbox);
	bool offered = strcmp(sql(mariadb ? "SELECT @@have_ssl" : "SELECT 'YES'").text, "YES") == 0;

	free_store(s);
	if (ca == NULL || !offered)
		return;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct source_conf conf = plain;
		struct err e = { 0 };
		int rc;

		conf.database.tls = (struct tls_conf){ cases[i].mode, cases[i].ca, NULL, NULL };
		ck_assert_int_eq(mysql_store_new(&s, &conf, "me/1/0", NULL, 0, NULL, &e), 0);
		rc = s->ops->connect(s, &e);
		ck_assert_msg((rc == 0) == cases[i].works, "case %zu: %s", i, e.text);
		if (rc == 0)
			ck_assert_int_eq(
				strstr(s->peer, "TLS") != NULL, cases[i].mode != TLS_DISABLED);
		else
			ck_assert_msg(e.kind == ERR_CONFIG, "case %zu: %s", i, e.text);
		free_store(s);
	}
}
END_TEST

START_TEST(passwords_are_accepted_and_read_at_each_connect)
{
	struct store *s = fresh_store(ddl_outbox);
	struct source_conf conf = plain;
	struct err e = { 0 };

	free_store(s);
	sql("CREATE USER '%s'@'%%' IDENTIFIED BY 'p''w1'; GRANT ALL ON %s.* TO '%s'@'%%'", schema,
		schema, schema);
	conf.database.username = schema;
	conf.database.password = (struct secret_conf){ SECRET_LITERAL, strdup("p'w1") };
	s = store_as(&conf, "me/1/0");
	sql("ALTER USER '%s'@'%%' IDENTIFIED BY 'other'", schema);
	ck_assert_int_lt(s->ops->connect(s, &e), 0);
	ck_assert_int_eq(e.kind, ERR_CONFIG);
	ck_assert_ptr_null(strstr(e.text, "p'w1"));
	conf.database.password.value = strdup("other");
	ck_assert_msg(s->ops->connect(s, &e) == 0, "%s", e.text);
	sql("DROP USER '%s'@'%%'", schema);
	free_store(s);
}
END_TEST

/* --- plans ------------------------------------------------------------------------------------ */

struct plan {
	char text[2000];
	bool bad;
	unsigned columns;
};

static int row_plan(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	struct plan *p = arg;

	(void)statement, (void)e;
	for (unsigned i = 0; i < count; i++) {
		size_t n = strlen(p->text);

		snprintf(p->text + n, sizeof(p->text) - n, "%.*s ",
			v[i].ptr != NULL ? (int)v[i].len : 4, v[i].ptr != NULL ? v[i].ptr : "NULL");
		p->bad |= value_is(v[i], "ALL");
	}
	p->bad |= strstr(p->text, "filesort") != NULL || strstr(p->text, "temporary") != NULL;
	return 0;
}

static int row_reads(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	int64_t *reads = arg;

	(void)count, (void)statement, (void)e;
	if (v[0].len > 13 && strncasecmp(v[0].ptr, "Handler_read_", 13) == 0)
		*reads += value_int(v[1], 0);
	return 0;
}

START_TEST(statements_cost_what_they_return_whatever_the_table_holds)
{
	static const char *const names[] = { "fresh", "due", "retry", "expired", "keys", "look" };
	struct store *s = fresh_store(ddl_outbox);
	struct session *c = session_as(admin_conf.username, schema);
	struct outbox_table table = { .claim_index = "`idx_outbox_claim`" };

	sql_table_name(table.name, sizeof(table.name), schema, "outbox_event");
	add_rows(2000);
	for (unsigned i = 0; i < 4; i++) /* 32,000 */
		sql("INSERT INTO outbox_event "
		    "(event_id,aggregate_type,aggregate_id,event_type,payload,created_at) SELECT "
		    "CONCAT(event_id,'-%u'),aggregate_type,aggregate_id,event_type,payload,created_"
		    "at+INTERVAL 1 HOUR FROM outbox_event",
			i);
	sql("UPDATE outbox_event SET status='SENT',sent_at=NOW(6) WHERE id%%10<5;"
	    "UPDATE outbox_event SET status='RETRY',next_retry_at=NOW(6)+INTERVAL 1 HOUR WHERE "
	    "id%%10=5;"
	    "UPDATE outbox_event SET status='DEAD' WHERE id%%10=6;"
	    "UPDATE outbox_event SET next_retry_at=NOW(6)+INTERVAL 1 HOUR WHERE id%%10=7;"
	    "UPDATE outbox_event SET status='RETRY',next_retry_at=NOW(6)-INTERVAL 1 HOUR WHERE "
	    "id%%100=15;"
	    "UPDATE outbox_event SET status='RETRY',next_retry_at=NULL WHERE id%%100=25;"
	    "UPDATE outbox_event SET next_retry_at=NOW(6)-INTERVAL 1 HOUR WHERE id%%100=17;"
	    "UPDATE outbox_event SET "
	    "status='PROCESSING',locked_by='x',locked_until=NOW(6)-INTERVAL 1 HOUR WHERE "
	    "id%%1000=8;"
	    "ANALYZE TABLE outbox_event");
	usleep(1500000); /* purge */
	for (unsigned i = 0; i < ARRAY_LEN(names); i++) {
		struct buf text = { 0 }, explain = { 0 };
		struct plan plan = { 0 };
		struct reply r = { .row = row_plan, .arg = &plan };
		struct err e = { 0 };
		int64_t reads = 0;

		if (i < ROW_CLASSES) {
			sql_claim_select(&text, &table, "'me'", i, 20, 0);
			sql_lock_rows(&text, i % 2 == 0);
		} else if (i == 4)
			sql_fresh_keys(&text, &table, 20, INT64_C(1767225600000000));
		else
			sql_look(&text, &table, "'me'", session_server(c)->isolation, NULL, true);
		buf_addf(&explain, mariadb ? "EXPLAIN %s" : "EXPLAIN FORMAT=TRADITIONAL %s",
			text.data);
		session_begin(c);
		ck_assert_msg(session_run(c, buf_slice(&explain), &r, &e) == 0, "%s: %s", names[i],
			e.text);
		ck_assert_msg(!plan.bad, "%s: %s", names[i], plan.text);
		ck_assert_ptr_nonnull(strstr(plan.text, "idx_outbox_claim"));
		ck_assert_int_eq(session_run_text(c, "FLUSH STATUS", &e), 0);
		ck_assert_int_eq(session_run_text(c, text.data, &e), 0);
		r = (struct reply){ .row = row_reads, .arg = &reads };
		ck_assert_int_eq(
			session_run(
				c, SLICE_LIT("SHOW SESSION STATUS LIKE 'Handler_read%'"), &r, &e),
			0);
		printf("%s: %" PRId64 " handler reads\n", names[i], reads);
		ck_assert_msg(
			reads < 60, "%s reads %" PRId64 " rows: %s", names[i], reads, plan.text);
		buf_fini(&text);
		buf_fini(&explain);
	}
	session_free(c);
	free_store(s);
}
END_TEST

/* --- order ------------------------------------------------------------------------------------ */

START_TEST(one_store_leads_an_ordered_source)
{
	struct store *s = fresh_store(ddl_outbox), *a, *b;
	struct sunk *k = sunk_new();
	struct err e = { 0 };
	bool unknown;

	add_rows(2);
	a = store_as(&ordered, "a/1/0");
	b = store_as(&ordered, "b/1/0");
	ck_assert_int_lt(try_claim(a, &everything, k, &unknown, &e), 0); /* not asked for yet */
	ck_assert_int_eq(e.kind, ERR_AGAIN);
	ck_assert(look(a).leads);
	ck_assert(!look(b).leads);
	ck_assert(look(a).leads);
	ck_assert_int_lt(try_claim(b, &everything, k, &unknown, &e), 0);
	ck_assert_int_eq(e.kind, ERR_AGAIN);
	claim(a, &everything, k);
	ck_assert_uint_eq(k->count, 2);
	a->ops->close(a);
	for (unsigned i = 0; i < 50 && !look(b).leads; i++)
		usleep(20000);
	ck_assert(look(b).leads);
	ck_assert_int_eq(a->ops->connect(a, &e), 0);
	ck_assert(!look(a).leads);
	free_store(a);
	free_store(b);
	free_store(s);
}
END_TEST

START_TEST(a_leader_that_is_silent_loses_the_lock)
{
	struct store *s = fresh_store(ddl_outbox), *a, *b;
	struct store_look l;
	struct err e = { 0 };
	int64_t start;

	ordered.lease_us = 6 * US_PER_SEC;
	a = store_as(&ordered, "a/1/0");
	b = store_as(&ordered, "b/1/0");
	ck_assert(look(a).leads);
	start = clock_mono_us();
	while (!look(b).leads) {
		usleep(100000);
		ck_assert_int_lt(clock_mono_us() - start, 8 * US_PER_SEC);
	}
	ck_assert_int_lt(a->ops->look(a, false, &l, &e), 0);
	ck_assert_msg(e.kind == ERR_LINK, "%s", e.text);
	free_store(a);
	free_store(b);
	free_store(s);
}
END_TEST

static struct order_probe probe_of(uint64_t id, const char *aggregate)
{
	return (struct order_probe){ .at = { INT64_C(1767225600000000) + (int64_t)id * US_PER_SEC,
					     id },
		.aggregate_type = SLICE_LIT("order"),
		.aggregate_id = slice_str(aggregate),
		.look_behind = true };
}

START_TEST(the_nearest_unsent_predecessor_is_found)
{
	struct store *s = fresh_store(ddl_outbox);
	struct order_probe p[6];
	struct err e = { 0 };

	free_store(s);
	s = store_as(&ordered, "me/1/0");
	add_rows(40);
	sql("UPDATE outbox_event SET aggregate_id='a',created_at='2026-01-01 00:00:00'+INTERVAL id "
	    "SECOND;"
	    "UPDATE outbox_event SET aggregate_id='A' WHERE id=9;"
	    "UPDATE outbox_event SET status='SENT' WHERE id<5;"
	    "UPDATE outbox_event SET status='DEAD',last_error='NACKED: x' WHERE id=5;"
	    "UPDATE outbox_event SET status='DEAD',last_error='SKIPPED: x' WHERE id BETWEEN 6 AND "
	    "26 AND id<>9;"
	    "UPDATE outbox_event SET status='RETRY',next_retry_at=NOW(6)+INTERVAL 100 SECOND WHERE "
	    "id=28;"
	    "UPDATE outbox_event SET "
	    "status='PROCESSING',locked_by='me/1/0',locked_until=NOW(6)+INTERVAL 50 SECOND WHERE "
	    "id=30;"
	    "UPDATE outbox_event SET "
	    "status='PROCESSING',locked_by='other',locked_until=NOW(6)-INTERVAL 50 SECOND WHERE "
	    "id=32");
	p[0] = probe_of(3, "a");
	p[1] = probe_of(26, "a");
	p[2] = probe_of(29, "a");
	p[3] = probe_of(31, "a");
	p[4] = probe_of(33, "a");
	p[5] = probe_of(10, "none");
	ck_assert_msg(s->ops->predecessors(s, p, 6, false, &e) == 0, "%s", e.text);
	ck_assert_uint_eq(p[0].head_at.id, 0);
	ck_assert_uint_eq(p[1].head_at.id, 5); /* not 9: another aggregate, by its bytes */
	ck_assert_int_eq(p[1].head, HEAD_DEAD);
	ck_assert_str_eq(p[1].head_event_id, "e4");
	ck_assert_uint_eq(p[2].head_at.id, 28);
	ck_assert_int_eq(p[2].head, HEAD_RETRY);
	ck_assert_int_gt(p[2].head_due_us, 90 * US_PER_SEC);
	ck_assert_uint_eq(p[3].head_at.id, 30);
	ck_assert_int_eq(p[3].head, HEAD_OWNED);
	ck_assert_int_gt(p[3].head_due_us, 40 * US_PER_SEC);
	ck_assert_uint_eq(p[4].head_at.id, 32);
	ck_assert_int_eq(p[4].head, HEAD_PROCESSING);
	ck_assert_int_eq(p[4].head_due_us, 0);
	ck_assert_uint_eq(p[5].head_at.id, 0);
	ck_assert_int_eq(s->ops->predecessors(s, p, 6, true, &e), 0);
	ck_assert_uint_eq(p[1].head_at.id, 0);
	ck_assert_uint_eq(p[2].head_at.id, 28);
	free_store(s);
}
END_TEST

START_TEST(a_head_that_waits_itself_is_named_by_what_it_waits_for)
{
	struct store *s = fresh_store(ddl_outbox);
	struct order_probe p[3];
	struct err e = { 0 };

	free_store(s);
	s = store_as(&ordered, "me/1/0");
	add_rows(20);
	sql("UPDATE outbox_event SET aggregate_id='a',created_at='2026-01-01 00:00:00'+INTERVAL id "
	    "SECOND;"
	    "UPDATE outbox_event SET status='SENT' WHERE id IN (2,9);"
	    "UPDATE outbox_event SET next_retry_at=NOW(6)+INTERVAL 30 SECOND,"
	    "last_error='WAITING: behind the-head' WHERE id=4;"
	    "UPDATE outbox_event SET next_retry_at=NOW(6)+INTERVAL 30 SECOND WHERE id=11");
	p[0] = probe_of(5, "a");
	p[1] = probe_of(12, "a");
	p[2] = probe_of(14, "a");
	ck_assert_msg(s->ops->predecessors(s, p, 3, false, &e) == 0, "%s", e.text);
	ck_assert_uint_eq(p[0].head_at.id, 4);
	ck_assert_int_eq(p[0].head, HEAD_WAITING);
	ck_assert_str_eq(p[0].head_event_id, "the-head");
	ck_assert_int_gt(p[0].head_due_us, 25 * US_PER_SEC);
	ck_assert(p[0].overtaken); /* by 9 */
	ck_assert_uint_eq(p[1].head_at.id, 11);
	ck_assert_int_eq(p[1].head, HEAD_DELAYED);
	ck_assert_str_eq(p[1].head_event_id, "e10");
	ck_assert(!p[1].overtaken);
	ck_assert_uint_eq(p[2].head_at.id, 13);
	ck_assert_int_eq(p[2].head, HEAD_READY);
	free_store(s);
}
END_TEST

static int walk_on(struct store *s, struct order_walk *w, const char *aggregate, unsigned limit)
{
	struct err e = { 0 };

	w->aggregate_type = SLICE_LIT("order");
	w->aggregate_id = slice_str(aggregate);
	w->limit = limit;
	ck_assert_msg(s->ops->release_waiting(s, w, false, &e) == 0, "%s", e.text);
	return (int)w->released;
}

START_TEST(waiting_rows_are_released_in_their_order_up_to_what_bars_the_rest)
{
	struct store *s = fresh_store(ddl_outbox);
	struct order_walk w = { 0 }, other = { 0 };
	struct sunk *k = sunk_new();
	unsigned total;

	free_store(s);
	s = store_as(&ordered, "me/1/0");
	look(s);
	for (unsigned i = 0; i < 3; i++)
		add_rows(1000);
	sql("UPDATE outbox_event SET aggregate_id=IF(id%%3=0,'b','a'),"
	    "created_at='2026-01-01 00:00:00'+INTERVAL id DIV 10 SECOND;"
	    "UPDATE outbox_event SET status='SENT' WHERE id<=60;"
	    "UPDATE outbox_event SET next_retry_at=NOW(6)+INTERVAL 1 HOUR,last_error='WAITING: "
	    "behind e60' WHERE id>60;"
	    "UPDATE outbox_event SET status='RETRY' WHERE id=65;"
	    "UPDATE outbox_event SET last_error='NACKED: x' WHERE id=2564");
	w.at.created_us = US_PER_SEC; /* 1970: from the beginning */
	ck_assert_int_eq(walk_on(s, &w, "a", 10), 10);
	ck_assert_uint_eq(w.fresh, 9);
	ck_assert(!w.ended && !w.barred);
	claim(s, &everything, k);
	ck_assert_uint_eq(k->count, 10);
	ck_assert_uint_eq(k->row[0].id, 65); /* RETRY comes first */
	ck_assert_uint_eq(k->row[1].id, 61);
	ck_assert_uint_eq(k->row[2].id, 62);
	ck_assert_str_eq(k->row[1].last_error, "NULL");
	other.at.created_us = US_PER_SEC;
	ck_assert_int_eq(walk_on(s, &other, "A", 10), 0);
	ck_assert(other.ended);
	for (total = 10; !w.ended && !w.barred; total += w.released)
		(void)walk_on(s, &w, "a", 500);
	ck_assert(w.barred && !w.ended);
	ck_assert_int_eq(w.by, HEAD_DELAYED);
	ck_assert_int_gt(w.due_us, 3000 * US_PER_SEC);
	ck_assert_uint_eq(total, 2563 - 60 - (2563 / 3 - 60 / 3));
	sql("UPDATE outbox_event SET status='DEAD',last_error='SKIPPED: x',next_retry_at=NULL "
	    "WHERE id=2564");
	for (; !w.ended; total += w.released)
		(void)walk_on(s, &w, "a", 500);
	ck_assert_uint_eq(total, 1960 - 1);
	ck_assert_int_eq(number("SELECT COUNT(*) FROM outbox_event WHERE last_error LIKE "
				"'WAITING:%%' AND aggregate_id='b'"),
		980);
	free_store(s);
}
END_TEST

START_TEST(waiting_rows_are_released_up_to_one_that_somebody_has_locked)
{
	struct store *s = fresh_store(ddl_outbox);
	struct order_walk w = { 0 };
	int64_t start;

	free_store(s);
	s = store_as(&ordered, "me/1/0");
	look(s);
	add_rows(9);
	sql("UPDATE outbox_event SET aggregate_id='a',next_retry_at=NOW(6)+INTERVAL 1 HOUR,"
	    "last_error='WAITING: behind e0';"
	    "START TRANSACTION; SELECT id FROM outbox_event FORCE INDEX (PRIMARY) WHERE id=5 FOR "
	    "UPDATE");
	w.at.created_us = US_PER_SEC;
	ck_assert_int_eq(walk_on(s, &w, "a", 100), 4);
	ck_assert_uint_eq(w.fresh, 4);
	ck_assert(w.barred && !w.ended);
	ck_assert_int_eq(w.by, HEAD_PROCESSING);
	ck_assert_uint_eq(w.at.id, 4);
	start = clock_mono_us();
	ck_assert_int_eq(walk_on(s, &w, "a", 100), 0);
	ck_assert(w.barred && !w.ended);
	ck_assert_int_lt(clock_mono_us() - start, US_PER_SEC / 2); /* not waited for again */
	sql("ROLLBACK");
	ck_assert_int_eq(walk_on(s, &w, "a", 100), 5);
	ck_assert(w.ended && !w.barred);
	free_store(s);
}
END_TEST

START_TEST(the_last_row_sent_is_told_those_of_the_future_apart)
{
	struct store *s = fresh_store(ddl_outbox);
	struct err e = { 0 };
	struct place last = { 1, 1 };

	ck_assert_int_eq(s->ops->last_sent(s, &last, &e), 0);
	ck_assert_uint_eq(last.id, 0);
	add_rows(20);
	sql("UPDATE outbox_event SET created_at='2026-01-01 00:00:00'+INTERVAL (40-id) SECOND;"
	    "UPDATE outbox_event SET status='SENT' WHERE id BETWEEN 5 AND 9;"
	    "UPDATE outbox_event SET created_at=NOW(6)+INTERVAL 1 HOUR WHERE id=5");
	ck_assert_int_eq(s->ops->last_sent(s, &last, &e), 0);
	ck_assert_uint_eq(last.id, 6);
	ck_assert_int_eq(last.created_us % (60 * US_PER_SEC), 34 * US_PER_SEC);
	free_store(s);
}
END_TEST

struct barred {
	unsigned count, what[HEAD_DEAD + 1];
	_Atomic unsigned char seen[10000];
};

static void on_barred(void *arg, const struct row *key, enum order_head what)
{
	struct barred *b = arg;

	b->what[what]++;

	ck_assert_ptr_nonnull(key->aggregate_id.ptr);
	ck_assert_uint_eq(b->seen[key->id]++, 0);
	b->count++;
}

START_TEST(all_that_bars_an_aggregate_is_listed_page_by_page)
{
	struct store *s = fresh_store(ddl_outbox);

	free_store(s);
	s = store_as(&ordered, "me/1/0");
	for (unsigned i = 0; i < 7; i++)
		add_rows(1000);
	sql("UPDATE outbox_event SET status='SENT' WHERE id<=1000;"
	    "UPDATE outbox_event SET status='RETRY',next_retry_at='2026-05-01 00:00:00' WHERE id "
	    "BETWEEN 1001 AND 3500;"
	    "UPDATE outbox_event SET status='RETRY' WHERE id BETWEEN 3501 AND 3600;"
	    "UPDATE outbox_event SET next_retry_at='2026-05-01 00:00:00'+INTERVAL id "
	    "MICROSECOND,created_at='2026-05-01 00:00:00.5' WHERE id BETWEEN 3601 AND 5000;"
	    "UPDATE outbox_event SET status='PROCESSING',created_at='2026-05-01' WHERE id BETWEEN "
	    "5001 AND 6200;"
	    "UPDATE outbox_event SET status='DEAD' WHERE id BETWEEN 6201 AND 6300;"
	    "UPDATE outbox_event SET status='DEAD',last_error='SKIPPED: x' WHERE id BETWEEN 6301 "
	    "AND 6400;"
	    "UPDATE outbox_event SET last_error='WAITING: behind e1' WHERE id BETWEEN 4601 AND "
	    "5000");
	for (unsigned pass = 0; pass < 2; pass++) {
		struct barred *b = calloc(1, sizeof(*b));
		struct barred_cursor cursor = { 0 };
		struct err e = { 0 };
		unsigned calls = 0;
		bool more = true;

		for (; more; calls++)
			ck_assert_msg(
				s->ops->barred(s, pass, &cursor, &more, on_barred, b, &e) == 0,
				"%s", e.text);
		ck_assert_uint_eq(b->count, 2500 + 100 + 1400 + 1200 + (pass ? 0 : 100));
		ck_assert_uint_eq(b->what[HEAD_PROCESSING], 1200);
		ck_assert_uint_eq(b->what[HEAD_RETRY], 2600);
		ck_assert_uint_eq(b->what[HEAD_WAITING], 400);
		ck_assert_uint_eq(b->what[HEAD_DELAYED], 1000);
		ck_assert_uint_eq(b->what[HEAD_DEAD], pass ? 0 : 100);
		ck_assert_uint_le(calls, 12);
		free(b);
	}
	free_store(s);
}
END_TEST

/* --- check ------------------------------------------------------------------------------------ */

struct findings {
	unsigned count[3];
	char text[8000];
};

static void on_finding(void *arg, const struct finding *f)
{
	struct findings *all = arg;
	size_t n = strlen(all->text);

	all->count[f->severity]++;
	snprintf(all->text + n, sizeof(all->text) - n, "%s: %s: %s: %s\n",
		severity_name(f->severity), f->where, f->what, f->fix);
}

static struct findings check_source(const struct source_conf *conf)
{
	struct findings all = { 0 };
	const struct finding_sink sink = { on_finding, &all };
	struct err e = { 0 };

	mysql_check(conf, NULL, 0, &sink, &e);
	return all;
}

START_TEST(check_finds_nothing_wrong_with_our_table)
{
	struct store *s = fresh_store(ddl_outbox);
	struct findings all;

	all = check_source(&ordered);
	ck_assert_msg(
		all.count[SEVERITY_FAULT] == 0 && all.count[SEVERITY_WARNING] == 0, "%s", all.text);
	add_rows(1000);
	all = check_source(&plain);
	ck_assert_msg(
		all.count[SEVERITY_FAULT] == 0 && all.count[SEVERITY_WARNING] == 0, "%s", all.text);
	sql("DROP TABLE outbox_event; %s", ddl_outbox_minimal);
	all = check_source(&ordered);
	ck_assert_msg(
		all.count[SEVERITY_FAULT] == 0 && all.count[SEVERITY_WARNING] == 0, "%s", all.text);
	free_store(s);
}
END_TEST

START_TEST(check_tells_what_is_wrong_and_how_to_mend_it)
{
	struct store *s = fresh_store(ddl_outbox_minimal);
	struct source_conf conf = plain;
	struct findings all;

	sql("CREATE USER '%s'@'%%' IDENTIFIED BY ''; GRANT SELECT ON %s.* TO '%s'@'%%'", schema,
		schema, schema);
	sql("ALTER TABLE outbox_event MODIFY created_at TIMESTAMP NOT NULL DEFAULT "
	    "CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,"
	    "DROP INDEX uk_event_id, MODIFY sent_at DATETIME NULL, MODIFY last_error VARCHAR(200) "
	    "NULL");
	conf.database.username = schema;
	all = check_source(&conf);
	sql("DROP USER '%s'@'%%'", schema);
	ck_assert_ptr_nonnull(strstr(all.text, "ON UPDATE"));
	ck_assert_ptr_nonnull(strstr(all.text, "event_id is not unique"));
	ck_assert_ptr_nonnull(strstr(all.text, "DATETIME is taken as UTC"));
	ck_assert_msg(strstr(all.text, "GRANT UPDATE") != NULL, "%s", all.text);
	ck_assert_msg(all.count[SEVERITY_FAULT] >= 1, "%s", all.text);
	sql("INSERT INTO outbox_event "
	    "(event_id,aggregate_type,aggregate_id,event_type,payload,status,"
	    "locked_by,locked_until) VALUES ('e','o','1','c','{}','PROCESSING','gone/1/0',"
	    "'2037-01-01')");
	all = check_source(&plain);
	ck_assert_msg(strstr(all.text, "1 rows are held by leases longer") != NULL, "%s", all.text);
	sql("DROP TABLE outbox_event");
	all = check_source(&plain);
	ck_assert_msg(strstr(all.text, "does not exist") != NULL, "%s", all.text);
	conf.database.hosts = &(struct endpoint){ server.host, 1 };
	all = check_source(&conf);
	ck_assert_msg(all.count[SEVERITY_FAULT] == 1, "%s", all.text);
	free_store(s);
}
END_TEST

/* --- figures ---------------------------------------------------------------------------------- */

static int by_time(const void *a, const void *b)
{
	const int64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

/* CPU time of the server so far, 0 where it cannot be read: wall time says little on a busy
 * machine. */
static int64_t server_cpu_us(void)
{
	const char *pid = env(mariadb ? "OUTBOXD_TEST_MARIADB_PID" : "OUTBOXD_TEST_MYSQL_PID");
	char path[64];
	unsigned long user = 0, system = 0;
	FILE *f;

	if (pid == NULL)
		return 0;
	snprintf(path, sizeof(path), "/proc/%.20s/stat", pid);
	f = fopen(path, "r");
	if (f == NULL)
		return 0;
	if (fscanf(f, "%*d (%*[^)]) %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
		    &system) != 2)
		user = system = 0;
	fclose(f);
	return (int64_t)(user + system) * US_PER_SEC / sysconf(_SC_CLK_TCK);
}

START_TEST(claim_and_settle_of_500_rows_in_figures)
{
	enum { ROUNDS = 20, BATCH = 500 };
	static const char *const names[] = { "settle SENT", "settle RETRY", "settle DEAD",
		"settle RELEASE" };
	struct store *s = fresh_store(ddl_outbox);
	struct store *o;
	struct sunk *k = sunk_new();
	struct settle list[BATCH];
	int64_t claims[ROUNDS], settles[ROUNDS], cpu_claim, cpu_settle, cpu;
	char errors[BATCH][60];

	sql("ALTER TABLE outbox_event ADD tag INT NULL");
	for (unsigned i = 0; i < 20; i++)
		add_rows(500);
	free_store(s);
	for (unsigned pass = 0; pass < 5; pass++) {
		o = store_as(pass == 4 ? &ordered : &plain, "me/1/0");
		look(o);
		sql("UPDATE outbox_event SET "
		    "status='PENDING',next_retry_at=NULL,locked_by=NULL,retry_count=0,last_error="
		    "NULL");
		usleep(500000);
		cpu_claim = cpu_settle = 0;
		for (unsigned i = 0; i < ROUNDS; i++) {
			int64_t start = clock_mono_us();

			cpu = server_cpu_us();
			claim(o, &fresh_only, k);
			claims[i] = clock_mono_us() - start;
			cpu_claim += server_cpu_us() - cpu;
			ck_assert_uint_eq(k->count, BATCH);
			for (unsigned j = 0; j < BATCH; j++) {
				snprintf(errors[j], sizeof(errors[j]),
					"UNROUTABLE: 312 NO_ROUTE %u", j);
				list[j] = (struct settle){ .id = k->row[j].id,
					.kind = pass == 4 ? SETTLE_SENT : pass,
					.retry_count = 1,
					.delay_us = 3600 * US_PER_SEC + j * 1000,
					.error = errors[j] };
			}
			start = clock_mono_us();
			cpu = server_cpu_us();
			settle(o, list, BATCH);
			settles[i] = clock_mono_us() - start;
			cpu_settle += server_cpu_us() - cpu;
			if (pass == SETTLE_RELEASE)
				sql("UPDATE outbox_event SET status='SENT' WHERE id<=%" PRIu64,
					k->row[BATCH - 1].id);
		}
		qsort(claims, ROUNDS, sizeof(claims[0]), by_time);
		qsort(settles, ROUNDS, sizeof(settles[0]), by_time);
		printf("500 rows: claim p50 %.2f ms max %.2f ms, server %.1f us a row; %s p50 %.2f "
		       "ms max %.2f ms, server %.1f us a row%s\n",
			(double)claims[ROUNDS / 2] / 1e3, (double)claims[ROUNDS - 1] / 1e3,
			(double)cpu_claim / ROUNDS / BATCH, pass == 4 ? names[0] : names[pass],
			(double)settles[ROUNDS / 2] / 1e3, (double)settles[ROUNDS - 1] / 1e3,
			(double)cpu_settle / ROUNDS / BATCH, pass == 4 ? " (ordered)" : "");
		free_store(o);
	}
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		a_claim_takes_fresh_rows_in_order_and_marks_them,
		each_class_is_found_and_nothing_else,
		a_claim_keeps_to_its_limits,
		what_the_sink_has_no_room_for_stays_as_it_is,
		a_look_tells_what_there_is_and_when_more_is_due,
		racing_stores_never_share_a_row,
		ten_stores_take_over_each_expired_row_once,
		takeovers_in_a_row_are_counted,
		every_outcome_is_written_as_it_should_be,
		rows_that_others_took_are_lost_and_left_alone,
		settling_again_takes_what_stands_for_done,
		more_rows_than_a_statement_takes_are_settled_in_one_go,
		a_reason_too_long_or_not_storable_never_fails_a_settle,
		the_minimal_table_works_as_it_is,
		columns_that_move_by_themselves_are_held_still,
		payloads_arrive_byte_for_byte,
		hostile_server_defaults_change_nothing,
		an_idle_leader_keeps_its_session_from_one_poll_to_the_next_however_short_its_lease,
		time_zones_make_no_difference,
		sent_is_written_on_a_second_session_while_the_first_one_claims,
		what_went_wrong_on_the_second_session_is_done_on_the_first,
		while_a_claim_waits_for_the_server_the_time_is_the_callers,
		while_a_claim_waits_for_the_server_the_second_session_settles,
		odd_dates_and_nulls_do_no_harm,
		signed_unsigned_and_small_ids_work,
		extra_columns_are_read_in_the_order_asked_for,
		a_table_that_does_not_do_is_refused_with_the_reason,
		an_index_of_another_name_and_an_enum_with_all_states_do,
		a_table_altered_meanwhile_is_read_again,
		an_idle_store_does_not_block_alter_table,
		a_killed_session_is_reported_and_replaced,
		rows_locked_by_others_are_skipped_and_a_settle_waits_only_a_moment,
		a_row_that_cannot_be_written_is_left_and_the_others_are,
		with_nowait_a_claim_skips_nobody_and_is_refused_where_it_would_have_to,
		a_locked_table_delays_only_a_moment,
		a_read_only_server_is_left,
		least_privileges_suffice_and_less_is_told,
		a_commit_without_an_answer_is_unknown_and_can_be_repeated,
		what_goes_as_it_is_sent_is_fenced_and_no_loss_after_a_commit_without_an_answer,
		a_black_hole_costs_no_more_than_the_query_timeout,
		a_host_that_does_not_answer_does_not_bar_the_next,
		tls_means_the_same_with_each_library,
		passwords_are_accepted_and_read_at_each_connect,
		statements_cost_what_they_return_whatever_the_table_holds,
		one_store_leads_an_ordered_source,
		a_leader_that_is_silent_loses_the_lock,
		the_nearest_unsent_predecessor_is_found,
		a_head_that_waits_itself_is_named_by_what_it_waits_for,
		waiting_rows_are_released_in_their_order_up_to_what_bars_the_rest,
		waiting_rows_are_released_up_to_one_that_somebody_has_locked,
		the_last_row_sent_is_told_those_of_the_future_apart,
		all_that_bars_an_aggregate_is_listed_page_by_page,
		check_finds_nothing_wrong_with_our_table,
		check_tells_what_is_wrong_and_how_to_mend_it,
		claim_and_settle_of_500_rows_in_figures,
	};
	Suite *suite;
	TCase *tcase;
	SRunner *runner;
	int failed;

	if (env_missing() != NULL) {
		printf("SKIPPED: store: %s\n0 passed, 0 failed, 1 skipped\n", env_missing());
		return EXIT_SUCCESS;
	}
	suite = suite_create("store");
	tcase = tcase_create("store");
	tcase_set_timeout(tcase, 120);
	tcase_add_checked_fixture(tcase, setup, teardown);
	for (size_t i = 0; i < ARRAY_LEN(tests); i++)
		tcase_add_test(tcase, tests[i]);
	suite_add_tcase(suite, tcase);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

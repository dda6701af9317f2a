/* admin_sent.c: reads SENT rows again, for `outboxd replay`. */
#include "base/ids.h"
#include "mysql/admin.h"
#include "mysql/admin_impl.h"
#include "mysql/event_row.h"
#include "mysql/statements_order.h"
#include "mysql/values.h"

#include <assert.h>
#include <stdio.h>

enum { SENT_ID, SENT_CREATED, SENT_STATUS, SENT_AGE, SENT_MATCHES };

/* A command may pause longer between two reads than the server keeps a session. */
static int run(struct admin *a, struct reply *r, bool (*again)(void *arg), void *arg, struct err *e)
{
	struct buf text = { 0 };
	int rc;

	buf_add_slice(&text, buf_slice(&a->text));
	rc = admin_run(a, r, e);
	if (rc < 0 && e->kind == ERR_LINK && !text.failed && again(arg)) {
		struct err why = *e;

		if (session_open(a->session, e) == 0) {
			buf_add_slice(&a->text, buf_slice(&text));
			rc = admin_run(a, r, e);
		} else {
			*e = why;
		}
	}
	buf_fini(&text);
	return rc;
}

/* --- keys ----------------------------------------------------------------------------------- */

struct paging {
	struct sent_walk *walk;
	struct sent_key *out;
	size_t count, seen;
};

static void read_key(const struct slice *v, struct sent_key *out)
{
	*out = (struct sent_key){ .created_us = value_time_us(v[SENT_CREATED]),
		.age_us = value_int(v[SENT_AGE], INT64_MAX) };
	admin_copy(out->status, sizeof(out->status), v[SENT_STATUS]);
	if (!value_id(v[SENT_ID], &out->id))
		out->id = 0;
}

static int row_page(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	struct paging *p = arg;
	struct sent_key key;

	(void)statement, (void)count, (void)e;
	read_key(v, &key);
	p->seen++;
	p->walk->begun = true;
	p->walk->created_us = key.created_us;
	p->walk->id = key.id;
	if (value_true(v[SENT_MATCHES]))
		p->out[p->count++] = key;
	return 0;
}

static bool page_again(void *arg)
{
	struct paging *p = arg;

	return p->seen == 0; /* nothing of it was taken */
}

static void add_bytes_are(struct buf *b, const char *column, const char *value)
{
	buf_addf(b, " AND CAST(CONVERT(`%s` USING utf8mb4) AS BINARY)=_binary", column);
	sql_add_string(b, slice_str(value));
}

static void add_key_columns(struct buf *b)
{
	buf_adds(
		b, "SELECT `id`,`created_at`,`status`,TIMESTAMPDIFF(MICROSECOND,`sent_at`,NOW(6))");
}

/* Looked at in each row of the page, so that a page without a match costs no more than others. */
static void add_matches(struct buf *b, const struct sent_filter *f)
{
	buf_adds(b, ",(`status`='SENT'");
	if (f->since_us != INT64_MIN) {
		buf_adds(b, " AND `sent_at`>=");
		sql_add_time(b, f->since_us);
	}
	if (f->until_us != INT64_MAX) {
		buf_adds(b, " AND `sent_at`<");
		sql_add_time(b, f->until_us);
	}
	if (f->event_type != NULL)
		add_bytes_are(b, "event_type", f->event_type);
	buf_adds(b, ") IS TRUE");
}

static void add_page(struct buf *b, const struct outbox_table *t, const struct sent_filter *f,
	const struct sent_walk *walk, size_t limit)
{
	bool aggregate = f->aggregate_type.ptr != NULL && t->aggregate_index[0] != '\0';

	add_key_columns(b);
	add_matches(b, f);
	buf_addf(b, " FROM %s FORCE INDEX (%s) WHERE ", t->name,
		aggregate ? t->aggregate_index : t->claim_index);
	if (!aggregate)
		buf_adds(b, "`status`='SENT' AND `next_retry_at` IS NULL");
	if (f->aggregate_type.ptr != NULL) {
		if (!aggregate)
			buf_adds(b, " AND ");
		sql_add_aggregate(b, t, f->aggregate_type, f->aggregate_id);
	}
	if (walk->begun) {
		buf_adds(b, " AND `created_at`>=");
		sql_add_time(b, walk->created_us);
		buf_adds(b, " AND NOT (`created_at`=");
		sql_add_time(b, walk->created_us);
		buf_adds(b, " AND `id`<=");
		sql_add_id(b, t, walk->id);
		buf_addc(b, ')');
	}
	if (f->until_us < INT64_MAX - SENT_SLACK_US) {
		buf_adds(b, " AND `created_at`<");
		sql_add_time(b, f->until_us + SENT_SLACK_US);
	}
	buf_addf(b, " ORDER BY `created_at`,`id` LIMIT %zu", limit);
}

int admin_sent_page(struct admin *a, const struct sent_filter *f, struct sent_walk *walk,
	struct sent_key *out, size_t room, size_t *count, struct err *e)
{
	struct paging p = { .walk = walk, .out = out };
	struct reply r = { .row = row_page, .arg = &p };

	add_page(&a->text, &a->table, f, walk, room);
	if (run(a, &r, page_again, &p, e) < 0)
		return err_wrap(e, "sent events");
	walk->ended = p.seen < room;
	*count = p.count;
	return 0;
}

static int row_key(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	(void)statement, (void)count, (void)e;
	read_key(v, arg);
	return 0;
}

static bool key_again(void *arg)
{
	return ((struct sent_key *)arg)->id == 0;
}

static int one_key(struct admin *a, struct sent_key *out, struct err *e)
{
	struct reply r = { .row = row_key, .arg = out };

	*out = (struct sent_key){ 0 };
	return run(a, &r, key_again, out, e) < 0 ? err_wrap(e, "sent event") : 0;
}

int admin_sent_named(struct admin *a, const char *event_id, struct sent_key *out, struct err *e)
{
	add_key_columns(&a->text);
	buf_addf(&a->text, " FROM %s", a->table.name);
	admin_add_event_id(&a->text, event_id);
	return one_key(a, out, e);
}

int admin_sent_place(struct admin *a, uint64_t id, struct sent_key *out, struct err *e)
{
	add_key_columns(&a->text);
	buf_addf(&a->text, " FROM %s WHERE `id`=", a->table.name);
	sql_add_id(&a->text, &a->table, id);
	return one_key(a, out, e);
}

static int row_exists(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	(void)statement, (void)count, (void)e;
	*(bool *)arg = value_true(v[0]);
	return 0;
}

int admin_sent_strays(struct admin *a, bool *out, struct err *e)
{
	struct reply r = { .row = row_exists, .arg = out };

	*out = false;
	buf_addf(&a->text,
		"SELECT EXISTS(SELECT 1 FROM %s FORCE INDEX (%s) WHERE `status`='SENT' AND "
		"`next_retry_at` IS NOT NULL)",
		a->table.name, a->table.claim_index);
	return admin_run(a, &r, e) < 0 ? err_wrap(e, "sent events") : 0;
}

/* --- rows ----------------------------------------------------------------------------------- */

struct reading {
	const struct outbox_table *table;
	int (*row)(void *arg, const struct row *row, struct err *e);
	void *arg;
	size_t seen;
};

static int row_event(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	struct reading *r = arg;
	struct slice extra[ROW_EXTRA_MAX];
	struct row row;

	(void)statement, (void)count;
	r->seen++;
	if (event_row_read(r->table, v, &row, extra, e) < 0)
		return -1;
	return r->row(r->arg, &row, e);
}

static bool rows_again(void *arg)
{
	return ((struct reading *)arg)->seen == 0;
}

int admin_sent_rows(struct admin *a, const struct sent_key *keys, size_t count,
	int (*row)(void *arg, const struct row *row, struct err *e), void *arg, struct err *e)
{
	struct reading reading = { &a->table, row, arg, 0 };
	struct reply r = { .row = row_event, .arg = &reading };
	uint64_t ids[SQL_IDS_MAX];

	assert(count > 0 && count <= SQL_IDS_MAX);
	for (size_t i = 0; i < count; i++)
		ids[i] = keys[i].id;
	ids_sort(ids, count);
	sql_events(&a->text, &a->table, ids, count);
	return run(a, &r, rows_again, &reading, e) < 0 ? err_wrap(e, "sent events") : 0;
}

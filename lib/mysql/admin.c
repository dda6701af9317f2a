/* admin.c: the administrative commands look at a table. What they change is in admin_change.c. */
#include "mysql/admin.h"

#include "base/str.h"
#include "mysql/admin_impl.h"
#include "mysql/event_row.h"
#include "mysql/schema.h"
#include "mysql/statements_order.h"
#include "mysql/values.h"
#include "mysql/walk.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A command asks, thinks for a moment, prints, and asks again. */
#define WAIT_S 120
#define PAGE 1000
/* A claim locks what it reads for some milliseconds; what is locked each time is another's. */
#define LOCK_TRIES 4
#define LOCK_PAUSE_MS 100

/* --- connection ----------------------------------------------------------------------------- */

static void first_fault(void *arg, const struct finding *f)
{
	struct err *e = arg;

	if (f->severity == SEVERITY_FAULT && e->kind == ERR_NONE)
		err_set(e, ERR_CONFIG, 0, "%s: %s: %s", f->where, f->what, f->fix);
}

static int read_table(struct admin *a, const char *name, const char *const *extra,
	size_t extra_count, struct err *e)
{
	const struct schema_wish wish = { extra, extra_count,
		a->conf->ordering == ORDERING_AGGREGATE, NULL };
	struct err fault = { 0 };
	const struct finding_sink sink = { first_fault, &fault };
	struct schema schema;

	if (schema_read(a->session, a->conf->database.name, name, &schema, e) < 0)
		return -1;
	if (schema.kind[0] == '\0' && strcmp(name, a->conf->table) != 0)
		err_set(&fault, ERR_CONFIG, 0,
			"%s.%s: the archive table does not exist, or the account has no privilege "
			"on it: create it with what `outboxd schema --archive` prints",
			a->conf->database.name, name);
	else
		schema_judge(&schema, &wish, &sink, &a->table);
	schema_fini(&schema);
	if (fault.kind != ERR_NONE) {
		*e = fault;
		return -1;
	}
	return mysql_lock_name(a->conf, session_server(a->session), a->lock, e);
}

int admin_open(struct admin *a, const struct source_conf *conf, const char *const *extra,
	size_t extra_count, const char *program, struct err *e)
{
	return admin_open_table(a, conf, conf->table, extra, extra_count, program, e);
}

int admin_open_table(struct admin *a, const struct source_conf *conf, const char *table,
	const char *const *extra, size_t extra_count, const char *program, struct err *e)
{
	/* a server that is read-only can be looked at; changes fail by themselves */
	const struct session_options options = {
		.wait_timeout_s = WAIT_S, .examine = true, .program = program
	};

	*a = (struct admin){ .conf = conf };
	if (session_new(&a->session, &conf->database, &options, NULL, e) < 0 ||
		session_open(a->session, e) < 0)
		goto fail;
	session_begin(a->session);
	if (read_table(a, table, extra, extra_count, e) < 0)
		goto fail;
	return 0;
fail:
	admin_close(a);
	return err_wrap(e, "source %s", conf->name);
}

void admin_close(struct admin *a)
{
	session_free(a->session);
	buf_fini(&a->text);
	*a = (struct admin){ 0 };
}

int admin_run(struct admin *a, struct reply *r, struct err *e)
{
	int rc;

	session_begin(a->session);
	if (a->text.failed)
		rc = err_set(e, ERR_NOMEM, errno, "statement");
	else
		rc = session_run(a->session, buf_slice(&a->text), r, e);
	buf_reset(&a->text);
	return rc;
}

/* Passes rows on as they come. */
static int row_pass(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	const struct admin_sink *sink = arg;

	(void)statement;
	return sink->row(sink->arg, v, count, e);
}

static int pass(struct admin *a, const struct admin_sink *sink, struct err *e)
{
	struct admin_sink copy = *sink;
	struct reply r = { .row = row_pass, .arg = &copy };

	return admin_run(a, &r, e);
}

void admin_copy(char *out, size_t size, struct slice v)
{
	size_t n = v.ptr != NULL ? utf8_prefix(v, size - 1) : 0;

	if (n > 0)
		memcpy(out, v.ptr, n);
	out[n] = '\0';
}

/* --- status --------------------------------------------------------------------------------- */

int admin_sample(struct admin *a, struct table_sample *out, struct err *e)
{
	return gauges_read(a->session, &a->table, a->conf, out, e);
}

static int row_leader(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	struct admin_leader *l = arg;

	(void)statement, (void)count, (void)e;
	if (!value_id(v[0], &l->connection))
		l->connection = 0;
	return 0;
}

static int row_from(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	struct admin_leader *l = arg;

	(void)statement, (void)count, (void)e;
	admin_copy(l->from, sizeof(l->from), v[0]);
	return 0;
}

static int row_owner(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	struct admin_leader *l = arg;

	(void)statement, (void)count, (void)e;
	admin_copy(l->owner, sizeof(l->owner), v[0]);
	return 0;
}

int admin_leader(struct admin *a, struct admin_leader *out, struct err *e)
{
	struct reply r = { .row = row_leader, .arg = out }, from = { .row = row_from, .arg = out },
		     owner = { .row = row_owner, .arg = out };
	struct err ignored;

	*out = (struct admin_leader){ 0 };
	/* No lease tells its name: that of a leader that died outlives it. */
	buf_addf(&a->text, "SELECT IS_USED_LOCK('%s')", a->lock);
	if (admin_run(a, &r, e) < 0)
		return err_wrap(e, "who leads");
	if (out->connection == 0)
		return 0;
	/* accounts may see their own sessions, others with PROCESS */
	buf_addf(&a->text, "SELECT HOST FROM information_schema.PROCESSLIST WHERE ID=%" PRIu64,
		out->connection);
	(void)admin_run(a, &from, &ignored);
	/* of the sessions of this account; MariaDB mostly runs without */
	if (session_is_open(a->session)) {
		buf_addf(&a->text,
			"SELECT ATTR_VALUE FROM performance_schema.session_account_connect_attrs "
			"WHERE ATTR_NAME='" SESSION_OWNER_ATTR "' AND PROCESSLIST_ID=%" PRIu64,
			out->connection);
		(void)admin_run(a, &owner, &ignored);
	}
	if (!session_is_open(a->session)) {
		*e = ignored;
		return err_wrap(e, "who leads");
	}
	return 0;
}

int admin_holders(struct admin *a, unsigned limit, const struct admin_sink *sink, struct err *e)
{
	buf_addf(&a->text,
		"SELECT `locked_by`,COUNT(*),SUM(`locked_by` IS NULL OR `locked_until` IS NULL OR "
		"`locked_until`<NOW(6)),TIMESTAMPDIFF(MICROSECOND,NOW(6),MAX(`locked_until`)) FROM "
		"%s FORCE INDEX (%s) WHERE `status`='PROCESSING' GROUP BY `locked_by` ORDER BY "
		"COUNT(*) DESC LIMIT %u",
		a->table.name, a->table.claim_index, limit);
	return pass(a, sink, e) < 0 ? err_wrap(e, "who holds leases") : 0;
}

int admin_blocking(struct admin *a, unsigned limit, const struct admin_sink *sink, struct err *e)
{
	if (a->conf->ordering != ORDERING_AGGREGATE || a->conf->on_dead != ON_DEAD_BLOCK)
		return 0;
	buf_addf(&a->text,
		"SELECT `event_id`,`aggregate_type`,`aggregate_id`,`last_error`,`created_at` FROM "
		"%s FORCE INDEX (%s) WHERE `status`='DEAD' AND `next_retry_at` IS NULL AND "
		"(`last_error` IS NULL OR `last_error` NOT LIKE 'SKIPPED%%') ORDER BY "
		"`created_at`,`id` LIMIT %u",
		a->table.name, a->table.claim_index, limit);
	return pass(a, sink, e) < 0 ? err_wrap(e, "blocked aggregates") : 0;
}

/* --- events --------------------------------------------------------------------------------- */

unsigned admin_columns(
	const struct admin *a, bool payload, const char *names[static ADMIN_COLUMNS_MAX])
{
	static const char *const always[] = { "id", "event_id", "aggregate_type", "aggregate_id",
		"event_type", "status", "retry_count", "next_retry_at", "locked_by", "locked_until",
		"created_at", "sent_at", "last_error" };
	static const enum optional_column shown[] = { OPTIONAL_AGGREGATE_VERSION,
		OPTIONAL_TRACE_ID };
	unsigned n = 0;

	for (size_t i = 0; i < ARRAY_LEN(always); i++)
		names[n++] = always[i];
	for (size_t i = 0; i < ARRAY_LEN(shown); i++)
		if (a->table.has[shown[i]])
			names[n++] = optional_column_name[shown[i]];
	if (payload)
		names[n++] = "payload";
	return n;
}

static void add_text_is(struct buf *b, const char *column, const char *value)
{
	buf_addf(b, " AND `%s`=", column);
	sql_add_string(b, slice_str(value));
	buf_addf(b, " AND CAST(CONVERT(`%s` USING utf8mb4) AS BINARY)=_binary", column);
	sql_add_string(b, slice_str(value));
}

/* last_error starts with the class: by its colon, or, where somebody wrote no words, by itself. */
void admin_add_class(struct buf *b, const char *class)
{
	buf_adds(b, " AND SUBSTRING_INDEX(`last_error`,':',1)=");
	sql_add_string(b, slice_str(class));
}

struct limited {
	const struct admin_sink *sink;
	unsigned left;
};

static int row_limited(void *arg, const struct slice *v, unsigned count, struct err *e)
{
	struct limited *l = arg;

	l->left--;
	return l->sink->row(l->sink->arg, v, count, e);
}

/* `status` NULL: by the aggregate, or by nothing. */
static int list_some(struct admin *a, const struct admin_filter *f, const char *status,
	struct limited *l, struct err *e)
{
	const struct admin_sink counting = { row_limited, l };
	bool aggregate = f->aggregate_type.ptr != NULL && a->table.aggregate_index[0] != '\0';
	const char *names[ADMIN_COLUMNS_MAX];
	unsigned count = admin_columns(a, f->payload, names);
	struct buf *b = &a->text;

	buf_adds(b, "SELECT ");
	for (unsigned i = 0; i < count; i++)
		buf_addf(b, "%s`%s`", i > 0 ? "," : "", names[i]);
	buf_addf(b, " FROM %s", a->table.name);
	if (aggregate)
		buf_addf(b, " FORCE INDEX (%s)", a->table.aggregate_index);
	else if (status != NULL)
		buf_addf(b, " FORCE INDEX (%s)", a->table.claim_index);
	buf_adds(b, " WHERE 1");
	if (status != NULL) {
		buf_adds(b, " AND `status`=");
		sql_add_string(b, slice_str(status));
	}
	if (f->aggregate_type.ptr != NULL) {
		buf_adds(b, " AND ");
		sql_add_aggregate(b, &a->table, f->aggregate_type, f->aggregate_id);
	}
	if (f->class != NULL)
		admin_add_class(b, f->class);
	if (f->trace_id != NULL)
		add_text_is(b, "trace_id", f->trace_id);
	if (aggregate)
		buf_adds(b, " ORDER BY `created_at`,`id`");
	else if (status != NULL && strcmp(status, "SENT") == 0)
		buf_adds(b, " AND `next_retry_at` IS NULL ORDER BY `created_at` DESC,`id` DESC");
	else if (status != NULL)
		buf_adds(b, " ORDER BY `next_retry_at`,`created_at`,`id`");
	buf_addf(b, " LIMIT %u", l->left);
	return pass(a, &counting, e);
}

int admin_list(
	struct admin *a, const struct admin_filter *f, const struct admin_sink *sink, struct err *e)
{
	static const char *const unsent[] = { "DEAD", "RETRY", "PROCESSING", "PENDING" };
	struct limited l = { sink, f->limit };

	if (f->trace_id != NULL && !a->table.has[OPTIONAL_TRACE_ID])
		return err_set(e, ERR_REFUSED, 0, "the table has no column trace_id");
	if (f->status != NULL || f->aggregate_type.ptr != NULL || f->trace_id != NULL)
		return list_some(a, f, f->status, &l, e) < 0 ? err_wrap(e, "list") : 0;
	for (size_t i = 0; i < ARRAY_LEN(unsent) && l.left > 0; i++)
		if (list_some(a, f, unsent[i], &l, e) < 0)
			return err_wrap(e, "list");
	return 0;
}

/* --- one row -------------------------------------------------------------------------------- */

void admin_row_fini(struct admin_row *r)
{
	free(r->event_id);
	free(r->aggregate_type);
	free(r->aggregate_id);
	free(r->last_error);
	*r = (struct admin_row){ 0 };
}

static int keep(char **out, struct slice v, struct err *e)
{
	*out = NULL;
	if (v.ptr == NULL)
		return 0;
	*out = malloc(v.len + 1);
	if (*out == NULL)
		return err_set(e, ERR_NOMEM, errno, "row");
	memcpy(*out, v.ptr, v.len);
	(*out)[v.len] = '\0';
	return 0;
}

/* Which states are equal is for the column's collation to say, as in the relay's statements. */
void admin_add_row(struct buf *b, const struct outbox_table *t)
{
	buf_addf(b,
		"SELECT `id`,`created_at`,`event_id`,`aggregate_type`,`aggregate_id`,`status`,"
		"`retry_count`,`next_retry_at`,TIMESTAMPDIFF(MICROSECOND,NOW(6),`next_retry_at`),"
		"`locked_by`,`locked_until`,TIMESTAMPDIFF(MICROSECOND,NOW(6),`locked_until`),"
		"`sent_at`,`last_error`,CASE `status` WHEN 'PENDING' THEN 'PENDING' WHEN "
		"'PROCESSING' THEN 'PROCESSING' WHEN 'RETRY' THEN 'RETRY' WHEN 'SENT' THEN 'SENT' "
		"WHEN 'DEAD' THEN 'DEAD' END FROM %s",
		t->name);
}

int admin_read_row(const struct slice *v, struct admin_row *out, struct err *e)
{
	*out = (struct admin_row){ .created_us = value_time_us(v[1]),
		.retry_count = value_count(v[6]),
		.due_in_us = value_int(v[8], 0),
		.has_owner = v[9].ptr != NULL,
		.lease_left_us = value_int(v[11], 0) };
	admin_copy(out->created_at, sizeof(out->created_at), v[1]);
	admin_copy(out->status, sizeof(out->status), v[5]);
	admin_copy(out->next_retry_at, sizeof(out->next_retry_at), v[7]);
	admin_copy(out->owner, sizeof(out->owner), v[9]);
	admin_copy(out->locked_until, sizeof(out->locked_until), v[10]);
	admin_copy(out->sent_at, sizeof(out->sent_at), v[12]);
	admin_copy(out->state, sizeof(out->state), v[14]);
	if (!value_id(v[0], &out->id))
		return err_set(e, ERR_CONFIG, 0, "id is not an integer");
	if (keep(&out->event_id, v[2], e) < 0 || keep(&out->aggregate_type, v[3], e) < 0 ||
		keep(&out->aggregate_id, v[4], e) < 0 || keep(&out->last_error, v[13], e) < 0) {
		admin_row_fini(out);
		return -1;
	}
	return 0;
}

static int row_one(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	struct admin_row *out = arg;

	(void)statement, (void)count;
	admin_row_fini(out);
	return admin_read_row(v, out, e);
}

void admin_add_event_id(struct buf *b, const char *event_id)
{
	buf_adds(b, " WHERE 1");
	add_text_is(b, "event_id", event_id);
}

int admin_one(struct admin *a, struct admin_row *out, struct err *e)
{
	struct reply r = { .row = row_one, .arg = out };

	*out = (struct admin_row){ 0 };
	if (admin_run(a, &r, e) < 0) {
		admin_row_fini(out);
		return -1;
	}
	return 0;
}

int admin_find(struct admin *a, const char *event_id, struct admin_row *out, struct err *e)
{
	admin_add_row(&a->text, &a->table);
	admin_add_event_id(&a->text, event_id);
	return admin_one(a, out, e);
}

/* --- what stands before and after it -------------------------------------------------------- */

struct walking {
	bool pass_dead, ended;
	unsigned seen;
	struct place at;
	uint64_t head, between;
};

/* The same judgement as the relay's, except that it goes on to the first row of all. */
static int row_before(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	struct walking *w = arg;
	struct walk_step step;

	(void)statement, (void)count, (void)e;
	if (w->ended || !walk_read(v, w->pass_dead, &step))
		return 0;
	w->seen++;
	w->at = step.at;
	w->ended = step.sent;
	if (step.bars) {
		w->head = step.at.id;
		w->between++;
	}
	return 0;
}

static struct slice text_of(const char *s)
{
	return slice_str(s);
}

int admin_head_id(struct admin *a, const struct admin_row *row, uint64_t *head, uint64_t *between,
	struct err *e)
{
	struct walking w = { .pass_dead = a->conf->on_dead == ON_DEAD_PASS,
		.at = { row->created_us, row->id } };
	struct reply r = { .row = row_before, .arg = &w };

	*head = *between = 0;
	if (a->conf->ordering != ORDERING_AGGREGATE)
		return 0;
	for (unsigned limit = 8; !w.ended; limit = PAGE) {
		w.seen = 0;
		sql_before(&a->text, &a->table, "''", text_of(row->aggregate_type),
			text_of(row->aggregate_id), w.at, limit);
		if (admin_run(a, &r, e) < 0)
			return err_wrap(e, "events before it");
		w.ended |= w.seen < limit;
	}
	*head = w.head;
	*between = w.between;
	return 0;
}

int admin_head(struct admin *a, const struct admin_row *row, struct admin_row *head,
	uint64_t *between, struct err *e)
{
	uint64_t id;

	*head = (struct admin_row){ 0 };
	if (admin_head_id(a, row, &id, between, e) < 0)
		return -1;
	if (id == 0)
		return 0;
	admin_add_row(&a->text, &a->table);
	buf_adds(&a->text, " WHERE `id`=");
	sql_add_id(&a->text, &a->table, id);
	return admin_one(a, head, e);
}

/* The rows of its aggregate that follow it. */
void admin_add_behind(struct buf *b, const struct outbox_table *t, const struct admin_row *row)
{
	buf_addf(b, " FROM %s FORCE INDEX (%s) WHERE ", t->name, t->aggregate_index);
	sql_add_aggregate(b, t, text_of(row->aggregate_type), text_of(row->aggregate_id));
	buf_adds(b, " AND `created_at`>=");
	sql_add_time(b, row->created_us);
	buf_adds(b, " AND NOT (`created_at`=");
	sql_add_time(b, row->created_us);
	buf_adds(b, " AND `id`<=");
	sql_add_id(b, t, row->id);
	buf_addc(b, ')');
}

static int row_number(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	uint64_t *out = arg;

	(void)statement, (void)count, (void)e;
	if (!value_id(v[0], out))
		*out = 0;
	return 0;
}

static int number(struct admin *a, uint64_t *out, struct err *e)
{
	struct reply r = { .row = row_number, .arg = out };

	*out = 0;
	return admin_run(a, &r, e);
}

int admin_overtaken(struct admin *a, const struct admin_row *row, bool *out, struct err *e)
{
	uint64_t one;

	*out = false;
	if (a->conf->ordering != ORDERING_AGGREGATE)
		return 0;
	buf_adds(&a->text, "SELECT 1");
	admin_add_behind(&a->text, &a->table, row);
	buf_adds(&a->text, " AND `status`='SENT' LIMIT 1");
	if (number(a, &one, e) < 0)
		return err_wrap(e, "events after it");
	*out = one != 0;
	return 0;
}

/* *out: it is there, and was passed by. */
static int try_lock(struct admin *a, uint64_t id, bool *out, struct err *e)
{
	static const char *const how[] = { "", " FOR UPDATE SKIP LOCKED" };
	uint64_t seen[2];

	/* each by itself, so that the lock goes with the end of its statement */
	for (size_t i = 0; i < ARRAY_LEN(how); i++) {
		buf_addf(&a->text,
			"SELECT 1 FROM %s FORCE INDEX (PRIMARY) WHERE `id`=", a->table.name);
		sql_add_id(&a->text, &a->table, id);
		buf_adds(&a->text, how[i]);
		if (number(a, &seen[i], e) < 0)
			return -1;
	}
	*out = seen[0] == 1 && seen[1] == 0;
	return 0;
}

int admin_locked(struct admin *a, uint64_t id, bool *out, struct err *e)
{
	const struct timespec pause = { .tv_nsec = LOCK_PAUSE_MS * 1000000L };
	struct err cannot;

	*out = false;
	for (unsigned i = 0; i < LOCK_TRIES; i++) {
		if (i > 0)
			nanosleep(&pause, NULL);
		if (try_lock(a, id, out, &cannot) < 0) {
			*out = false;
			if (session_is_open(a->session))
				return 0;
			*e = cannot;
			return err_wrap(e, "whether it is locked");
		}
		if (!*out)
			return 0;
	}
	return 0;
}

int admin_backlog(struct admin *a, const struct admin_row *row, uint64_t *out, struct err *e)
{
	struct buf *b = &a->text;

	buf_addf(b,
		"SELECT COUNT(*) FROM (SELECT 1 FROM %s FORCE INDEX (%s) WHERE "
		"`status`='PENDING' AND `next_retry_at` IS NULL AND `created_at`<=",
		a->table.name, a->table.claim_index);
	sql_add_time(b, row->created_us);
	buf_adds(b, " AND NOT (`created_at`=");
	sql_add_time(b, row->created_us);
	buf_adds(b, " AND `id`>=");
	sql_add_id(b, &a->table, row->id);
	buf_addf(b, ") LIMIT %u) AS q", ADMIN_BACKLOG_MAX);
	return number(a, out, e) < 0 ? err_wrap(e, "backlog") : 0;
}

/* --- preview -------------------------------------------------------------------------------- */

struct previewing {
	struct admin *admin;
	enum row_class class;
	int (*row)(void *arg, enum row_class class, const struct row *row, struct err *e);
	void *arg;
	unsigned left;
};

static int row_exists(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	bool *exists = arg;

	(void)statement, (void)count, (void)e;
	for (unsigned c = 0; c < ROW_CLASSES; c++)
		exists[c] = value_true(v[LOOK_EXISTS + c]);
	return 0;
}

static int row_preview(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	struct previewing *p = arg;
	struct slice extra[ROW_EXTRA_MAX];
	struct row row;

	(void)statement, (void)count;
	if (event_row_read(&p->admin->table, v, &row, extra, e) < 0)
		return -1;
	p->left--;
	return p->row(p->arg, p->class, &row, e);
}

int admin_preview(struct admin *a, unsigned limit,
	int (*row)(void *arg, enum row_class class, const struct row *row, struct err *e),
	void *arg, struct err *e)
{
	static const enum row_class in_turn[] = { ROW_RETRY, ROW_DUE, ROW_EXPIRED, ROW_FRESH };
	bool exists[ROW_CLASSES] = { false };
	struct reply look = { .row = row_exists, .arg = exists };
	struct previewing p = { .admin = a, .row = row, .arg = arg, .left = limit };

	sql_look(&a->text, &a->table, "''", session_server(a->session)->isolation, NULL, true);
	if (admin_run(a, &look, e) < 0)
		return err_wrap(e, "preview");
	for (size_t i = 0; i < ARRAY_LEN(in_turn) && p.left > 0; i++) {
		struct reply r = { .row = row_preview, .arg = &p };
		enum row_class class = in_turn[i];
		unsigned share = p.left;

		if (!exists[class])
			continue;
		/* those that wait for another try get their share, as in a claim */
		if (class == ROW_RETRY && (exists[ROW_FRESH] || exists[ROW_DUE]))
			share = limit / 4;
		if (class == ROW_DUE && exists[ROW_FRESH])
			share = limit / 8;
		if (share == 0)
			share = 1;
		p.class = class;
		sql_claim_select(
			&a->text, &a->table, "''", class, share < p.left ? share : p.left, 0);
		if (admin_run(a, &r, e) < 0)
			return err_wrap(e, "preview");
	}
	return 0;
}

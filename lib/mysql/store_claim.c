/* store_claim.c: rows become PROCESSING under this owner, in one transaction:
 *
 *	START TRANSACTION; is the session ours, do we lead; the classes' rows, locked   one packet
 *	UPDATE ... WHERE id IN (...)						   one packet
 *	COMMIT
 *
 * FRESH rows fill what the other classes leave, so they are a packet of their own when others are
 * asked for. Ordered sources must know whom SKIP LOCKED passes by: what is there is read before,
 * without locks; with NOWAIT nobody is passed by, and that is saved. Rows are streamed to the sink;
 *what the sink has no room for stays as it is. */
#include "base/ids.h"
#include "mysql/errors.h"
#include "mysql/event_row.h"
#include "mysql/store_impl.h"
#include "mysql/values.h"

#include <stdio.h>
#include <stdlib.h>

/* FRESH rows that may be locked by others within one claim, without its being cut short. */
#define SKIPPED_ROOM 64

enum answer { ANSWER_NONE, ANSWER_SESSION, ANSWER_KEYS, ANSWER_ROWS, ANSWER_SKIPPED };

struct claiming {
	struct mysql_store *store;
	const struct claim_spec *spec;
	const struct row_sink *sink;
	/* what each statement of the packet answers */
	struct {
		enum answer answer;
		enum row_class class;
	} plan[ROW_CLASSES + 3];
	unsigned statements;
	bool asserted, leads;
	bool full;       /* the sink has no more room */
	size_t taken;    /* in all */
	size_t id_count; /* of them, in store->ids: not expired ones */
	size_t takeover_count;
	/* ordered: the FRESH rows there are, locked or not */
	size_t key_count, key_limit, key_next;
	size_t skipped_count; /* at the front of store->keys, which key_next has passed */
};

static void add(struct claiming *c, enum answer answer, enum row_class class)
{
	if (c->statements > 0)
		buf_addc(&c->store->text, ';');
	c->plan[c->statements].answer = answer;
	c->plan[c->statements].class = class;
	c->statements++;
}

static bool wants_skipped(const struct claiming *c)
{
	return c->store->ordered && c->sink->skipped != NULL && !c->spec->nowait;
}

static int row_session(struct claiming *c, const struct slice *v, struct err *e)
{
	if (store_check_session(c->store, v, e) < 0)
		return -1;
	c->asserted = true;
	c->leads = value_true(v[LOOK_LEADS]);
	return 0;
}

static int row_key(struct claiming *c, const struct slice *v)
{
	struct place *k = &c->store->keys[c->key_count];

	if (c->key_count == c->key_limit)
		return 0;
	if (value_id(v[0], &k->id)) {
		k->created_us = value_time_us(v[1]);
		c->key_count++;
	}
	return 0;
}

/* A FRESH row was taken: those seen before it that did not come are locked by somebody else. */
static void note_skipped(struct claiming *c, const struct row *row)
{
	struct place *keys = c->store->keys;
	struct place at = { row->created_us, row->id };

	for (; c->key_next < c->key_count && place_before(keys[c->key_next], at); c->key_next++)
		keys[c->skipped_count++] = keys[c->key_next];
	if (c->key_next < c->key_count && keys[c->key_next].id == at.id)
		c->key_next++;
}

/* Beyond the keys that were read nobody knows what has been skipped. */
static bool beyond_keys(const struct claiming *c, const struct row *row)
{
	struct place at = { row->created_us, row->id };

	return c->key_count == c->key_limit &&
	       (c->key_count == 0 || place_before(c->store->keys[c->key_count - 1], at));
}

static int row_claimed(struct claiming *c, enum row_class class, const struct slice *v,
	unsigned count, struct err *e)
{
	struct mysql_store *s = c->store;
	struct takeover *t = NULL;
	struct row row;
	int rc;

	if (c->full || c->taken >= c->spec->total || !c->leads)
		return 0;
	if (event_row_read(&s->table, v, &row, s->extra_values, e) < 0)
		return -1;
	if (class == ROW_FRESH && wants_skipped(c) && beyond_keys(c, &row)) {
		c->full = true;
		return 0;
	}
	if (class == ROW_EXPIRED) {
		struct slice from = v[count - 1];

		t = &s->takeovers[c->takeover_count];
		t->id = row.id;
		t->times = value_takeovers(row.last_error) + 1;
		snprintf(t->from, sizeof(t->from), "%.*s",
			(int)(from.len < sizeof(t->from) ? from.len : sizeof(t->from) - 1),
			from.ptr != NULL ? from.ptr : "");
	}
	rc = c->sink->row(c->sink->arg, class, &row, t != NULL ? t->times : 0);
	if (rc < 0)
		return err_set(e, ERR_NOMEM, 0, "the row could not be taken");
	if (rc > 0) {
		c->full = true;
		return 0;
	}
	if (t != NULL)
		c->takeover_count++;
	else
		s->ids[c->id_count++] = row.id;
	c->taken++;
	if (class == ROW_FRESH && wants_skipped(c))
		note_skipped(c, &row);
	return 0;
}

static int row_skipped(struct claiming *c, const struct slice *v, struct err *e)
{
	struct row row = {
		.created_us = value_time_us(v[1]),
		.event_id = v[2],
		.aggregate_type = v[3],
		.aggregate_id = v[4],
	};

	if (!value_id(v[0], &row.id))
		return 0;
	if (c->sink->skipped(c->sink->arg, &row) < 0)
		return err_set(e, ERR_NOMEM, 0, "the row could not be taken");
	return 0;
}

static int row_claim(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	struct claiming *c = arg;

	if (statement >= c->statements)
		return 0;
	switch (c->plan[statement].answer) {
	case ANSWER_SESSION:
		return row_session(c, v, e);
	case ANSWER_KEYS:
		return row_key(c, v);
	case ANSWER_ROWS:
		return row_claimed(c, c->plan[statement].class, v, count, e);
	case ANSWER_SKIPPED:
		return row_skipped(c, v, e);
	case ANSWER_NONE:
		break;
	}
	return 0;
}

static int run(struct claiming *c, struct reply *r, struct err *e)
{
	int rc;

	r->row = row_claim;
	r->arg = c;
	rc = store_run(c->store, r, e);
	c->statements = 0;
	return rc;
}

static unsigned at_most(unsigned a, size_t b)
{
	return a < b ? a : (unsigned)b;
}

static int add_fresh(struct claiming *c, struct err *e)
{
	struct mysql_store *s = c->store;
	unsigned limit = at_most(c->spec->limit[ROW_FRESH], c->spec->total - c->taken);

	if (wants_skipped(c)) {
		/* in the claim's order, without locks, before the locks: an index read */
		c->key_limit = (size_t)limit + SKIPPED_ROOM;
		if (ROOM(s, keys, c->key_limit, e) < 0)
			return -1;
		add(c, ANSWER_KEYS, ROW_FRESH);
		sql_fresh_keys(&s->text, &s->table, (unsigned)c->key_limit, c->spec->since_us);
	}
	add(c, ANSWER_ROWS, ROW_FRESH);
	sql_claim_select(&s->text, &s->table, s->owner_sql, ROW_FRESH, limit, c->spec->since_us);
	sql_lock_rows(&s->text, c->spec->nowait);
	return 0;
}

static int select_rows(struct claiming *c, struct err *e)
{
	static const enum row_class in_turn[] = { ROW_RETRY, ROW_DUE, ROW_EXPIRED };
	struct mysql_store *s = c->store;
	const struct claim_spec *spec = c->spec;
	bool fresh = spec->limit[ROW_FRESH] > 0, others = false;
	struct reply r = { 0 };

	buf_reset(&s->text);
	add(c, ANSWER_NONE, 0);
	buf_adds(&s->text, "START TRANSACTION");
	add(c, ANSWER_SESSION, 0);
	sql_assert(&s->text, session_server(s->session)->isolation, store_lock(s));
	for (size_t i = 0; i < ARRAY_LEN(in_turn); i++) {
		enum row_class class = in_turn[i];

		if (spec->limit[class] == 0)
			continue;
		others = true;
		add(c, ANSWER_ROWS, class);
		sql_claim_select(&s->text, &s->table, s->owner_sql, class,
			at_most(spec->limit[class], spec->total), 0);
		sql_lock_rows(&s->text, false);
	}
	if (fresh && !others && add_fresh(c, e) < 0)
		return -1;
	if (run(c, &r, e) < 0)
		return -1;
	if (!c->asserted)
		return err_set(e, ERR_LINK, 0, "no row came back");
	if (!c->leads)
		return err_set(e, ERR_AGAIN, 0, "another relay leads the source");
	if (!fresh || !others || c->full || c->taken >= spec->total)
		return 0;
	if (add_fresh(c, e) < 0)
		return -1;
	return run(c, &r, e);
}

static int by_takeover_id(const void *a, const void *b)
{
	const struct takeover *x = a, *y = b;

	return (x->id > y->id) - (x->id < y->id);
}

static int mark_rows(struct claiming *c, struct err *e)
{
	struct mysql_store *s = c->store;
	int64_t lease_us = c->spec->lease_us;
	struct reply r = { 0 };

	if (c->id_count > 0)
		ids_sort(s->ids, c->id_count);
	if (c->takeover_count > 0)
		qsort(s->takeovers, c->takeover_count, sizeof(*s->takeovers), by_takeover_id);
	for (size_t i = 0; i < c->id_count; i += SQL_IDS_MAX) {
		add(c, ANSWER_NONE, 0);
		c->statements = 1; /* of these any number may follow */
		sql_claim_update(&s->text, &s->table, s->owner_sql, lease_us, s->ids + i,
			at_most(SQL_IDS_MAX, c->id_count - i));
	}
	for (size_t i = 0; i < c->takeover_count; i += CASES_MAX) {
		add(c, ANSWER_NONE, 0);
		c->statements = 1;
		sql_takeover_update(&s->text, &s->table, s->owner_sql, lease_us, s->takeovers + i,
			at_most(CASES_MAX, c->takeover_count - i));
	}
	if (run(c, &r, e) < 0)
		return -1;
	if (r.matched != c->taken)
		return err_set(e, ERR_RETRY, 0, "%zu rows were locked, %llu of them found again",
			c->taken, (unsigned long long)r.matched);
	return 0;
}

/* The rows somebody has locked, as they stand: only a few, if any. */
static int report_skipped(struct claiming *c, struct err *e)
{
	struct mysql_store *s = c->store;
	struct reply r = { 0 };

	for (size_t i = 0; i < c->skipped_count; i += SQL_IDS_MAX) {
		uint64_t ids[SQL_IDS_MAX];
		unsigned n = at_most(SQL_IDS_MAX, c->skipped_count - i);

		for (unsigned k = 0; k < n; k++)
			ids[k] = s->keys[i + k].id;
		add(c, ANSWER_SKIPPED, 0);
		sql_keys(&s->text, &s->table, ids, n);
		if (run(c, &r, e) < 0)
			return -1;
	}
	return 0;
}

static int claim(struct claiming *c, bool *unknown, struct err *e)
{
	struct session *session = c->store->session;

	if (select_rows(c, e) < 0)
		return session_rollback(session, e);
	if (c->taken == 0) {
		session_rollback(session, e); /* nothing to keep; lets go of locks */
		return session_is_open(session) ? 0 : err_set(e, ERR_LINK, 0, "ROLLBACK failed");
	}
	if (report_skipped(c, e) < 0 || mark_rows(c, e) < 0)
		return session_rollback(session, e);
	return session_commit(session, unknown, e);
}

int mysql_store_claim(struct store *base, const struct claim_spec *spec,
	const struct row_sink *sink, bool *unknown, struct err *e)
{
	struct mysql_store *s = store_of(base);
	struct claiming c = { .store = s, .spec = spec, .sink = sink };
	int rc;

	*unknown = false;
	if (spec->total == 0)
		return 0;
	if (ROOM(s, ids, spec->total, e) < 0 ||
		ROOM(s, takeovers, at_most(spec->limit[ROW_EXPIRED], spec->total), e) < 0)
		return store_failed(s, e, "claim");
	if (!s->leads && session_is_open(s->session)) {
		err_set(e, ERR_AGAIN, 0, "another relay leads the source");
		return store_failed(s, e, "claim");
	}
	session_begin(s->session);
	session_meanwhile(s->session, sink->meanwhile, sink->arg);
	rc = claim(&c, unknown, e);
	session_meanwhile(s->session, NULL, NULL);
	if (rc == 0)
		return 0;
	if (spec->nowait && mysql_error_locked((unsigned)e->code) && e->kind == ERR_RETRY)
		e->kind = ERR_REFUSED;
	if (e->kind == ERR_AGAIN)
		s->leads = false;
	return store_failed(s, e, "claim");
}

/* store_order.c: questions about the order of aggregates, and the rows that wait for it. Plain
 * reads, except for the release of waiting rows, which is one short transaction. */
#include "base/str.h"
#include "mysql/statements_order.h"
#include "mysql/store_impl.h"
#include "mysql/values.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* Rows looked at in one go, going back from an event: mostly the first one decides. */
#define STEP 8
#define PAGE 1000
#define PROBES_MAX 100

static int begin(struct mysql_store *s, struct err *e)
{
	if (s->table.aggregate_index[0] == '\0')
		return err_set(e, ERR_CONFIG, 0,
			"there is no index on (aggregate_type, aggregate_id, created_at)");
	session_begin(s->session);
	buf_reset(&s->text);
	return 0;
}

/* --- predecessors --------------------------------------------------------------------------- */

struct walk {
	int64_t created_us; /* the last row seen */
	uint64_t id;
	unsigned seen; /* in this step */
	bool decided;
};

struct probing {
	struct order_probe *list;
	struct walk *walks;
	size_t of_statement[PROBES_MAX];
	bool pass_dead;
};

static int64_t not_negative(int64_t us)
{
	return us > 0 ? us : 0;
}

/* Going back, the first row that is SENT ends the search: what is before it has been passed. */
static int row_before(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	struct probing *p = arg;
	struct order_probe *probe = &p->list[p->of_statement[statement]];
	struct walk *w = &p->walks[p->of_statement[statement]];
	uint64_t id;

	(void)count, (void)e;
	if (w->decided || !value_id(v[BEFORE_ID], &id))
		return 0;
	w->seen++;
	w->id = id;
	w->created_us = value_time_us(v[BEFORE_CREATED]);
	if (value_is(v[BEFORE_STATUS], "SENT")) {
		w->decided = true;
		return 0;
	}
	if (value_is(v[BEFORE_STATUS], "DEAD")) {
		if (p->pass_dead || value_true(v[BEFORE_SKIPPED]))
			return 0;
		probe->head_dead = true;
		probe->head_due_us = TIME_NEVER;
	} else if (value_is(v[BEFORE_STATUS], "PROCESSING")) {
		probe->head_owned = value_true(v[BEFORE_OWNED]);
		probe->head_due_us = not_negative(value_int(v[BEFORE_LEASE_LEFT], 0));
	} else if (value_is(v[BEFORE_STATUS], "PENDING") || value_is(v[BEFORE_STATUS], "RETRY")) {
		probe->head_due_us = not_negative(value_int(v[BEFORE_RETRY_IN], 0));
	} else {
		return 0; /* a state of somebody else's */
	}
	probe->head_id = id;
	snprintf(probe->head_event_id, sizeof(probe->head_event_id), "%.*s",
		(int)utf8_prefix(
			(struct slice){
				v[BEFORE_EVENT_ID].ptr != NULL ? v[BEFORE_EVENT_ID].ptr : "",
				v[BEFORE_EVENT_ID].len },
			sizeof(probe->head_event_id) - 1),
		v[BEFORE_EVENT_ID].ptr != NULL ? v[BEFORE_EVENT_ID].ptr : "");
	w->decided = true;
	return 0;
}

static int step_back(
	struct mysql_store *s, struct probing *p, const size_t *open, size_t count, struct err *e)
{
	struct reply r = { .row = row_before, .arg = p };

	for (size_t i = 0; i < count; i++) {
		const struct order_probe *probe = &p->list[open[i]];
		struct walk *w = &p->walks[open[i]];

		if (i > 0)
			buf_addc(&s->text, ';');
		p->of_statement[i] = open[i];
		w->seen = 0;
		sql_before(&s->text, &s->table, s->owner_sql, probe->aggregate_type,
			probe->aggregate_id, w->created_us, w->id, STEP);
	}
	if (store_run(s, &r, e) < 0)
		return -1;
	for (size_t i = 0; i < count; i++) /* the beginning of the aggregate decides as well */
		if (p->walks[open[i]].seen < STEP)
			p->walks[open[i]].decided = true;
	return 0;
}

int mysql_store_predecessors(
	struct store *base, struct order_probe *list, size_t count, bool pass_dead, struct err *e)
{
	struct mysql_store *s = store_of(base);
	struct probing p = { .list = list, .pass_dead = pass_dead };
	int rc = 0;

	if (count == 0)
		return 0;
	if (begin(s, e) < 0)
		return store_failed(s, e, "predecessors");
	p.walks = calloc(count, sizeof(*p.walks));
	if (p.walks == NULL) {
		err_set(e, ERR_NOMEM, errno, "%zu probes", count);
		return store_failed(s, e, "predecessors");
	}
	for (size_t i = 0; i < count; i++) {
		p.walks[i] = (struct walk){ .created_us = list[i].created_us, .id = list[i].id };
		list[i].head_id = 0;
		list[i].head_event_id[0] = '\0';
		list[i].head_dead = list[i].head_owned = false;
		list[i].head_due_us = 0;
	}
	for (size_t at = 0; at < count && rc == 0;) {
		size_t open[PROBES_MAX], n = 0;

		for (size_t i = at; i < count && n < PROBES_MAX; i++)
			if (!p.walks[i].decided)
				open[n++] = i;
		if (n == 0)
			break;
		rc = step_back(s, &p, open, n, e);
		while (at < count && p.walks[at].decided)
			at++;
	}
	free(p.walks);
	return rc < 0 ? store_failed(s, e, "predecessors") : 0;
}

/* --- waiting rows --------------------------------------------------------------------------- */

/* Waiting rows are the last of their aggregate. Going back page by page, the ids are kept in a
 * ring: what counts in the end are the oldest ones. */
struct waiting {
	struct mysql_store *store;
	unsigned limit;
	uint64_t found; /* so many so far; the last `limit` of them are in store->ids */
	int64_t created_us;
	uint64_t id;
	unsigned seen;
	bool ended; /* a row that is SENT: nothing waits before it */
};

static int row_waiting(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	struct waiting *w = arg;
	uint64_t id;

	(void)statement, (void)count, (void)e;
	if (w->ended || !value_id(v[BEFORE_ID], &id))
		return 0;
	w->seen++;
	w->id = id;
	w->created_us = value_time_us(v[BEFORE_CREATED]);
	if (value_is(v[BEFORE_STATUS], "SENT"))
		w->ended = true;
	else if (value_true(v[BEFORE_WAITING]) && !value_is(v[BEFORE_STATUS], "DEAD"))
		w->store->ids[w->found++ % w->limit] = id;
	return 0;
}

static int by_id(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static int find_waiting(struct waiting *w, struct slice type, struct slice id, struct err *e)
{
	struct mysql_store *s = w->store;
	struct reply r = { .row = row_waiting, .arg = w };
	bool first = true;

	do {
		w->seen = 0;
		if (first)
			sql_last(&s->text, &s->table, s->owner_sql, type, id, STEP);
		else
			sql_before(&s->text, &s->table, s->owner_sql, type, id, w->created_us,
				w->id, PAGE);
		if (store_run(s, &r, e) < 0)
			return -1;
		if (w->seen < (first ? STEP : PAGE))
			w->ended = true;
		first = false;
	} while (!w->ended);
	return 0;
}

int mysql_store_release_waiting(struct store *base, struct slice aggregate_type,
	struct slice aggregate_id, unsigned limit, unsigned *released, struct err *e)
{
	struct mysql_store *s = store_of(base);
	struct waiting w = { .store = s, .limit = limit };
	struct reply r = { 0 };
	size_t count;

	*released = 0;
	if (limit == 0)
		return 0;
	if (begin(s, e) < 0 || ROOM(s, ids, limit, e) < 0 ||
		find_waiting(&w, aggregate_type, aggregate_id, e) < 0)
		return store_failed(s, e, "release waiting");
	count = w.found < limit ? (size_t)w.found : limit;
	if (count == 0)
		return 0;
	qsort(s->ids, count, sizeof(*s->ids), by_id);
	if (count > SQL_IDS_MAX)
		buf_adds(&s->text, "START TRANSACTION;");
	for (size_t i = 0; i < count; i += SQL_IDS_MAX) {
		if (i > 0)
			buf_addc(&s->text, ';');
		sql_release_waiting(&s->text, &s->table, s->ids + i,
			count - i < SQL_IDS_MAX ? count - i : SQL_IDS_MAX);
	}
	if (count > SQL_IDS_MAX)
		buf_adds(&s->text, ";COMMIT");
	if (store_run(s, &r, e) < 0) {
		session_rollback(s->session, e);
		return store_failed(s, e, "release waiting");
	}
	*released = (unsigned)r.matched;
	return 0;
}

/* --- barred aggregates ---------------------------------------------------------------------- */

struct barring {
	struct barred_cursor *cursor;
	void (*row)(void *arg, const struct row *key);
	void *arg;
	unsigned seen;
};

static void keep(char *out, size_t size, struct slice v)
{
	snprintf(out, size, "%.*s", (int)(v.len < size ? v.len : size - 1),
		v.ptr != NULL ? v.ptr : "");
}

static int row_barred(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	struct barring *b = arg;
	struct barred_cursor *c = b->cursor;
	struct row row = {
		.created_us = value_time_us(v[1]),
		.event_id = v[2],
		.aggregate_type = v[3],
		.aggregate_id = v[4],
	};

	(void)statement, (void)count;
	if (!value_id(v[0], &row.id))
		return err_set(e, ERR_CONFIG, 0, "id is not an integer");
	b->seen++;
	c->started = true;
	c->id = row.id;
	keep(c->created_at, sizeof(c->created_at), v[1]);
	keep(c->next_retry_at, sizeof(c->next_retry_at), v[5]);
	b->row(b->arg, &row);
	return 0;
}

int mysql_store_barred(struct store *base, bool pass_dead, struct barred_cursor *cursor, bool *more,
	void (*row)(void *arg, const struct row *key), void *arg, struct err *e)
{
	struct mysql_store *s = store_of(base);
	unsigned stages = pass_dead ? SQL_BARRED_DEAD : SQL_BARRED_STAGES;
	struct barring b = { .cursor = cursor, .row = row, .arg = arg };
	struct reply r = { .row = row_barred, .arg = &b };

	*more = false;
	session_begin(s->session);
	/* stages with little in them share a call */
	while (cursor->stage < stages && b.seen < PAGE) {
		unsigned before = b.seen, limit = PAGE - b.seen;

		buf_reset(&s->text);
		sql_barred(&s->text, &s->table, cursor, limit);
		if (store_run(s, &r, e) < 0)
			return store_failed(s, e, "barred");
		if (b.seen - before < limit)
			*cursor = (struct barred_cursor){ .stage = cursor->stage + 1 };
	}
	*more = cursor->stage < stages;
	return 0;
}

/* store_order.c: questions about the order of aggregates, and the rows that wait for it. Plain
 * reads, except for the release of waiting rows, which is one short transaction. */
#include "base/ids.h"
#include "base/str.h"
#include "mysql/errors.h"
#include "mysql/statements_order.h"
#include "mysql/store_impl.h"
#include "mysql/values.h"
#include "mysql/walk.h"
#include "sys/clock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* Rows looked at in one go, going back from an event: mostly the first one decides. */
#define STEP_FIRST 1
#define STEP 8
/* Behind an event, the next rows tell whether it is overtaken. */
#define STEP_BEHIND 4
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
	struct place at; /* the last row seen */
	unsigned step;   /* rows to be looked at */
	unsigned seen;   /* of those */
	bool decided;
};

struct probing {
	struct mysql_store *store;
	struct order_probe *list;
	struct walk *walks;
	size_t of_statement[PROBES_MAX];
	bool pass_dead;
};

static void keep(char *out, size_t size, struct slice v)
{
	size_t n = v.ptr != NULL ? utf8_prefix(v, size - 1) : 0;

	if (n > 0)
		memcpy(out, v.ptr, n);
	out[n] = '\0';
}

/* Going back, the first row that is SENT ends the search: what is before it has been passed. */
static int row_before(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	struct probing *p = arg;
	struct order_probe *probe = &p->list[p->of_statement[statement]];
	struct walk *w = &p->walks[p->of_statement[statement]];
	struct walk_step step;

	(void)count, (void)e;
	if (w->decided || !walk_read(v, p->pass_dead, &step))
		return 0;
	w->seen++;
	w->at = step.at;
	w->decided = step.sent || step.bars;
	if (!step.bars)
		return 0;
	probe->head_at = step.at;
	probe->head = step.head;
	probe->head_due_us = step.due_us;
	keep(probe->head_event_id, sizeof(probe->head_event_id),
		step.head == HEAD_WAITING ? step.behind : v[WALK_EVENT_ID]);
	return 0;
}

static int row_overtaken(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	struct probing *p = arg;

	(void)count, (void)e;
	p->list[p->of_statement[statement]].overtaken = value_true(v[0]);
	return 0;
}

static int step_back(struct probing *p, const size_t *open, size_t count, struct err *e)
{
	struct mysql_store *s = p->store;
	struct reply r = { .row = row_before, .arg = p };

	session_begin(s->session);
	for (size_t i = 0; i < count; i++) {
		const struct order_probe *probe = &p->list[open[i]];
		struct walk *w = &p->walks[open[i]];

		if (i > 0)
			buf_addc(&s->text, ';');
		p->of_statement[i] = open[i];
		w->seen = 0;
		sql_before(&s->text, &s->table, s->owner_sql, probe->aggregate_type,
			probe->aggregate_id, w->at, w->step);
	}
	if (store_run(s, &r, e) < 0)
		return -1;
	for (size_t i = 0; i < count; i++) {
		struct walk *w = &p->walks[open[i]];

		if (w->seen < w->step)
			w->decided = true; /* the beginning of the aggregate decides as well */
		w->step = STEP;
	}
	return 0;
}

/* Those from *from on that look behind, as many as a packet holds. */
static int step_forward(struct probing *p, size_t count, size_t *from, struct err *e)
{
	struct mysql_store *s = p->store;
	struct reply r = { .row = row_overtaken, .arg = p };
	size_t n = 0;

	session_begin(s->session);
	for (; *from < count && n < PROBES_MAX; ++*from) {
		const struct order_probe *probe = &p->list[*from];

		if (!probe->look_behind)
			continue;
		if (n > 0)
			buf_addc(&s->text, ';');
		p->of_statement[n++] = *from;
		sql_overtaken(&s->text, &s->table, probe->aggregate_type, probe->aggregate_id,
			probe->at, STEP_BEHIND);
	}
	return n > 0 ? store_run(s, &r, e) : 0;
}

static int find_heads(struct probing *p, size_t count, struct err *e)
{
	for (size_t at = 0; at < count;) {
		size_t open[PROBES_MAX], n = 0;

		for (size_t i = at; i < count && n < PROBES_MAX; i++)
			if (!p->walks[i].decided)
				open[n++] = i;
		if (n == 0)
			break;
		if (step_back(p, open, n, e) < 0)
			return -1;
		while (at < count && p->walks[at].decided)
			at++;
	}
	return 0;
}

int mysql_store_predecessors(
	struct store *base, struct order_probe *list, size_t count, bool pass_dead, struct err *e)
{
	struct mysql_store *s = store_of(base);
	struct probing p = { .store = s, .list = list, .pass_dead = pass_dead };
	int rc;

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
		p.walks[i] = (struct walk){ .at = list[i].at, .step = STEP_FIRST };
		list[i].head_at = (struct place){ 0 };
		list[i].head_event_id[0] = '\0';
		list[i].head = HEAD_READY;
		list[i].head_due_us = 0;
		list[i].overtaken = false;
	}
	rc = find_heads(&p, count, e);
	for (size_t from = 0; from < count && rc == 0;)
		rc = step_forward(&p, count, &from, e);
	free(p.walks);
	return rc < 0 ? store_failed(s, e, "predecessors") : 0;
}

/* --- waiting rows --------------------------------------------------------------------------- */

struct releasing {
	struct mysql_store *store;
	struct order_walk walk; /* as far as it has come */
	bool pass_dead;
	size_t count; /* waiting rows met: store->keys, in their order */
	bool pending[SQL_IDS_MAX];
	unsigned seen;
	bool full;
	uint64_t free[SQL_IDS_MAX]; /* those that nobody has locked */
	size_t free_count;
};

static int row_behind(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	struct releasing *w = arg;
	struct walk_step step;

	(void)statement, (void)count, (void)e;
	if (w->walk.barred || w->full || !walk_read(v, w->pass_dead, &step))
		return 0;
	if (step.bars && step.head == HEAD_WAITING) {
		if (w->count == w->walk.limit) {
			w->full = true;
			return 0;
		}
		w->pending[w->count] = value_is(v[WALK_STATUS], "PENDING");
		w->store->keys[w->count++] = step.at;
	} else if (step.bars && step.head != HEAD_READY && step.head != HEAD_OWNED) {
		w->walk.barred = true;
		w->walk.by = step.head;
		w->walk.due_us = step.due_us;
		return 0;
	}
	w->seen++;
	w->walk.at = step.at;
	return 0;
}

static int row_free(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	struct releasing *w = arg;

	(void)statement, (void)count, (void)e;
	if (w->free_count < SQL_IDS_MAX && value_id(v[0], &w->free[w->free_count]))
		w->free_count++;
	return 0;
}

static void sorted_ids(struct mysql_store *s, size_t count)
{
	for (size_t i = 0; i < count; i++)
		s->ids[i] = s->keys[i].id;
	ids_sort(s->ids, count);
}

/* Locks what can be locked; the walk ends before the first row that cannot. */
static int lock_free(struct releasing *w, struct place from, struct err *e)
{
	struct mysql_store *s = w->store;
	struct reply r = { .row = row_free, .arg = w };

	sorted_ids(s, w->count);
	buf_reset(&s->text);
	buf_adds(&s->text, "START TRANSACTION;");
	sql_keys(&s->text, &s->table, s->ids, w->count);
	sql_lock_rows(&s->text, false);
	if (store_run(s, &r, e) < 0)
		return session_rollback(s->session, e);
	ids_sort(w->free, w->free_count);
	for (size_t i = 0; i < w->count; i++) {
		if (ids_find(w->free, w->free_count, s->keys[i].id) < w->free_count)
			continue;
		w->walk.at = i > 0 ? s->keys[i - 1] : from;
		w->walk.ended = false;
		w->walk.barred = true;
		w->walk.by = HEAD_PROCESSING; /* whoever it is */
		w->walk.due_us = US_PER_SEC;
		w->count = i;
	}
	return 0;
}

static int release(struct releasing *w, struct place from, uint64_t *matched, struct err *e)
{
	struct mysql_store *s = w->store;
	bool locked = clock_mono_us() < s->locked_until_us;
	struct reply r = { 0 };

	if (locked && lock_free(w, from, e) < 0)
		return -1;
	if (w->count > 0) {
		sorted_ids(s, w->count);
		sql_release_waiting(&s->text, &s->table, s->ids, w->count);
	} else {
		buf_adds(&s->text, "DO 0");
	}
	if (locked)
		buf_adds(&s->text, ";COMMIT");
	if (store_run(s, &r, e) == 0) {
		*matched = r.matched;
		return 0;
	}
	if (!locked && e->kind != ERR_LINK && mysql_error_locked((unsigned)e->code)) {
		s->locked_until_us = clock_mono_us() + LOCKED_US;
		session_begin(s->session);
		return release(w, from, matched, e);
	}
	return locked ? session_rollback(s->session, e) : -1;
}

int mysql_store_release_waiting(
	struct store *base, struct order_walk *walk, bool pass_dead, struct err *e)
{
	struct mysql_store *s = store_of(base);
	struct releasing w = { .store = s, .walk = *walk, .pass_dead = pass_dead };
	struct reply found = { .row = row_behind, .arg = &w };
	uint64_t matched = 0;
	unsigned pending = 0;

	if (w.walk.limit > SQL_IDS_MAX)
		w.walk.limit = SQL_IDS_MAX;
	w.walk.ended = w.walk.barred = false;
	if (begin(s, e) < 0 || ROOM(s, ids, w.walk.limit, e) < 0 ||
		ROOM(s, keys, w.walk.limit, e) < 0)
		return store_failed(s, e, "release waiting");
	sql_behind(&s->text, &s->table, s->owner_sql, walk->aggregate_type, walk->aggregate_id,
		walk->at, PAGE);
	if (store_run(s, &found, e) < 0)
		return store_failed(s, e, "release waiting");
	w.walk.ended = !w.full && !w.walk.barred && w.seen < PAGE;
	if (w.count > 0 && release(&w, walk->at, &matched, e) < 0)
		return store_failed(s, e, "release waiting");
	for (size_t i = 0; i < w.count; i++)
		pending += w.pending[i];
	w.walk.released = (unsigned)matched;
	/* what no longer waited was not theirs to release, whichever it was */
	w.walk.fresh =
		pending + matched > w.count ? pending + (unsigned)matched - (unsigned)w.count : 0;
	*walk = w.walk;
	return 0;
}

/* --- barred aggregates ---------------------------------------------------------------------- */

struct barring {
	struct barred_cursor *cursor;
	void (*row)(void *arg, const struct row *key, enum order_head what);
	void *arg;
	unsigned seen;
};

static int row_barred(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	struct barring *b = arg;
	struct barred_cursor *c = b->cursor;
	enum order_head what;
	struct row row = {
		.created_us = value_time_us(v[1]),
		.event_id = v[2],
		.aggregate_type = v[3],
		.aggregate_id = v[4],
		.last_error = v[6],
	};

	(void)statement, (void)count;
	if (!value_id(v[0], &row.id))
		return err_set(e, ERR_CONFIG, 0, "id is not an integer");
	b->seen++;
	c->started = true;
	c->id = row.id;
	keep(c->created_at, sizeof(c->created_at), v[1]);
	keep(c->next_retry_at, sizeof(c->next_retry_at), v[5]);
	what = sql_barred_head(c->stage);
	if ((what == HEAD_RETRY || what == HEAD_DELAYED) && c->next_retry_at[0] != '\0' &&
		slice_starts(row.last_error, WAITING_BEHIND))
		what = HEAD_WAITING;
	b->row(b->arg, &row, what);
	return 0;
}

int mysql_store_barred(struct store *base, bool pass_dead, struct barred_cursor *cursor, bool *more,
	void (*row)(void *arg, const struct row *key, enum order_head what), void *arg,
	struct err *e)
{
	struct mysql_store *s = store_of(base);
	struct barring b = { .cursor = cursor, .row = row, .arg = arg };
	struct reply r = { .row = row_barred, .arg = &b };

	*more = false;
	session_begin(s->session);
	/* stages with little in them share a call */
	while (cursor->stage < SQL_BARRED_STAGES && b.seen < PAGE) {
		unsigned before = b.seen, limit = PAGE - b.seen;

		if (pass_dead && cursor->stage == SQL_BARRED_DEAD) {
			cursor->stage++;
			continue;
		}
		buf_reset(&s->text);
		sql_barred(&s->text, &s->table, cursor, limit);
		if (store_run(s, &r, e) < 0)
			return store_failed(s, e, "barred");
		if (b.seen - before < limit)
			*cursor = (struct barred_cursor){ .stage = cursor->stage + 1 };
	}
	*more = cursor->stage < SQL_BARRED_STAGES;
	return 0;
}

static int row_sent(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	struct place *k = arg;

	(void)statement, (void)count, (void)e;
	if (value_id(v[0], &k->id))
		k->created_us = value_time_us(v[1]);
	return 0;
}

int mysql_store_last_sent(struct store *base, struct place *out, struct err *e)
{
	struct mysql_store *s = store_of(base);
	struct reply r = { .row = row_sent, .arg = out };

	*out = (struct place){ 0 };
	session_begin(s->session);
	buf_reset(&s->text);
	sql_last_sent(&s->text, &s->table);
	if (store_run(s, &r, e) < 0)
		return store_failed(s, e, "last sent");
	return 0;
}

/* The fake database: struct store_ops over struct table, with sessions, a lock by name, and every
 * way a statement can go wrong. Each statement takes effect at one instant of virtual time. */
#include "sim.h"

#include "relay/failure.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE_ROWS 20

struct session {
	struct session *next;
	uint32_t owner;
	bool alive, attached; /* on the server; to a client */
	int64_t last_us;      /* the end of its last statement */
};

enum fate { FATE_DONE, FATE_ROLLED_BACK, FATE_LOST_BEFORE, FATE_UNKNOWN_DONE, FATE_UNKNOWN_NOT };

/* A statement on a relay's second session. It takes effect whether or not the relay lives to hear
 * of it. */
struct beside {
	struct beside *next; /* the world's */
	uint32_t owner;
	int64_t begun_us, answer_us;
	enum fate fate;
	bool acted, refused, killed;
	size_t count, matched;
	uint64_t ids[];
};

struct fake_store {
	struct store base;
	struct actor *a;
	struct session *session; /* the world's; NULL: not connected */
	bool second;             /* the second session is open */
	struct beside *beside;   /* what is under way on it */
};

static struct fake_store *self(struct store *s)
{
	return container_of(s, struct fake_store, base);
}

/* wait_timeout: the server ends a session that says nothing for so long. */
static int64_t session_timeout(const struct world *w)
{
	int64_t poll_us = w->p.poll_us + 2 * SEC;

	return poll_us > w->p.lease_us / 2 ? poll_us : w->p.lease_us / 2;
}

static void session_end(struct world *w, struct session *s)
{
	s->alive = false;
	if (w->lock_holder == s)
		w->lock_holder = NULL;
}

static void expire_sessions(struct world *w)
{
	for (struct session *s = w->sessions; s != NULL; s = s->next)
		if (s->alive && w->now_us - s->last_us > session_timeout(w))
			session_end(w, s);
}

static void detach(struct fake_store *s)
{
	if (s->session != NULL)
		s->session->attached = false;
	s->session = NULL;
	s->second = false;
	s->beside = NULL;
}

static void sweep(struct world *w)
{
	for (struct session **at = &w->sessions; *at != NULL;) {
		struct session *s = *at;

		if (s->alive || s->attached) {
			at = &s->next;
			continue;
		}
		*at = s->next;
		free(s);
	}
}

static int gone(struct err *e)
{
	return err_set(e, ERR_LINK, 2006, "server has gone away");
}

static int64_t latency(struct world *w)
{
	if (w->p.statement_us > 0)
		return w->p.statement_us / 2; /* either way */
	if (w->now_us < w->spell.db_slow && chance(w, 0.2))
		return between(w, 10 * MS, w->p.query_us / 2);
	return between(w, 100, 1500);
}

/* A way there or back, with the relay's own doings at any time in between, where there is a sink
 * to tell. false: it did not live to see the end. */
static bool way(struct fake_store *s, const struct row_sink *sink)
{
	int64_t left_us = latency(s->a->w);

	while (sink != NULL && left_us > 1) {
		int64_t part_us = between(s->a->w, 1, left_us);

		if (!actor_wait(s->a, part_us))
			return false;
		sink->meanwhile(sink->arg);
		left_us -= part_us;
	}
	return actor_wait(s->a, left_us);
}

/* The statement's way to the server, and what may befall it there before it does anything. `sink`:
 * of a claim, or NULL. */
static int enter(struct fake_store *s, bool write, const struct row_sink *sink, struct err *e)
{
	struct actor *a = s->a;
	struct world *w = a->w;

	w->tally->statements++;
	a->window_statements++;
	if (!way(s, sink))
		return gone(e);
	if (w->now_us < w->spell.db_cut[a->index]) {
		if (actor_wait(a, w->p.query_us))
			trace(w, 2, "relay %u: statement timed out", a->index);
		return err_set(e, ERR_LINK, 2013, "lost connection: timed out");
	}
	expire_sessions(w);
	if (s->session == NULL || !s->session->alive)
		return gone(e);
	s->session->last_us = w->now_us;
	if (w->now_us < w->spell.db_config)
		return err_set(e, ERR_CONFIG, 1146, "table does not exist");
	if (write && w->now_us < w->spell.db_readonly)
		return err_set(e, ERR_RETRY, 1290, "read only");
	if (w->now_us < w->spell.db_flaky && chance(w, 0.05)) {
		if (chance(w, 0.5))
			return err_set(e, ERR_RETRY, 1213, "deadlock");
		session_end(w, s->session);
		return err_set(e, ERR_LINK, 2013, "lost connection before it was read");
	}
	return 0;
}

static enum fate draw_fate(struct fake_store *s)
{
	struct world *w = s->a->w;
	double p;

	if (w->now_us >= w->spell.db_flaky)
		return FATE_DONE;
	p = rng_unit(&w->rng);
	if (p < 0.02)
		return FATE_ROLLED_BACK;
	if (p < 0.03)
		return FATE_LOST_BEFORE;
	if (p < 0.05)
		return FATE_UNKNOWN_DONE;
	return p < 0.07 ? FATE_UNKNOWN_NOT : FATE_DONE;
}

static bool happens(enum fate f)
{
	return f == FATE_DONE || f == FATE_UNKNOWN_DONE;
}

/* The answer's way back. `sink` as for enter(); *unknown may be NULL. */
static int leave(struct fake_store *s, enum fate fate, const struct row_sink *sink, bool *unknown,
	struct err *e)
{
	struct actor *a = s->a;
	struct world *w = a->w;
	bool open = fate == FATE_UNKNOWN_DONE || fate == FATE_UNKNOWN_NOT;

	if (fate == FATE_ROLLED_BACK)
		return err_set(e, ERR_RETRY, 1213, "deadlock at commit");
	if (fate == FATE_LOST_BEFORE) {
		session_end(w, s->session);
		return err_set(e, ERR_LINK, 2013, "lost connection before commit");
	}
	if (!way(s, sink))
		return gone(e);
	if (w->now_us < w->spell.db_cut[a->index]) {
		(void)actor_wait(a, w->p.query_us);
		open = true;
	} else if (open) {
		session_end(w, s->session);
	} else if (!s->session->alive) {
		open = true;
	} else {
		s->session->last_us = w->now_us;
	}
	if (!open)
		return 0;
	w->tally->unknown++;
	trace(w, 2, "relay %u: outcome of commit unknown (%s)", a->index,
		happens(fate) ? "done" : "not done");
	if (unknown != NULL)
		*unknown = true;
	return err_set(e, ERR_LINK, 2013, "lost connection at commit");
}

/* A new connection's way to the server. */
static int reach(struct fake_store *s, struct err *e)
{
	struct world *w = s->a->w;

	w->tally->connects++;
	if (!actor_wait(s->a, latency(w)))
		return gone(e);
	if (w->now_us < w->spell.db_cut[s->a->index]) {
		(void)actor_wait(s->a, w->source.database.connect_timeout_us);
		return err_set(e, ERR_LINK, 2003, "connect timed out");
	}
	if (w->now_us < w->spell.db_refuse)
		return err_set(e, ERR_LINK, 2003, "connection refused");
	return 0;
}

static int db_connect(struct store *base, struct err *e)
{
	struct fake_store *s = self(base);
	struct world *w = s->a->w;

	w->tally->statements++;
	s->a->window_statements++;
	if (s->session != NULL)
		wrong(w, "connect() of a store that is connected");
	if (reach(s, e) < 0)
		return -1;
	if (w->now_us < w->spell.db_config)
		return err_set(e, ERR_CONFIG, 1045, "access denied");
	s->session = calloc(1, sizeof(*s->session));
	if (s->session == NULL)
		abort();
	sweep(w);
	*s->session = (struct session){ w->sessions, s->a->owner, true, true, w->now_us };
	w->sessions = s->session;
	return 0;
}

/* A FIN gets through unless the network is cut: then the session lingers. */
static void db_close(struct store *base)
{
	struct fake_store *s = self(base);

	if (s->session != NULL && s->a->w->now_us >= s->a->w->spell.db_cut[s->a->index])
		session_end(s->a->w, s->session);
	detach(s);
}

void database_client_died(struct actor *a, bool linger)
{
	struct fake_store *s = a->store;

	if (s->session != NULL && !linger)
		session_end(a->w, s->session);
	detach(s);
}

void database_kill_sessions(struct world *w, unsigned which)
{
	for (struct session *s = w->sessions; s != NULL; s = s->next)
		if (which == RELAYS_MAX || s->owner == w->actor[which].owner)
			session_end(w, s);
	for (unsigned i = 0; i < w->p.relays; i++)
		if ((which == RELAYS_MAX || which == i) && w->actor[i].store != NULL &&
			w->actor[i].store->beside != NULL)
			w->actor[i].store->beside->killed = true;
}

static bool due(const struct world *w, const struct trow *r)
{
	return r->next_retry_us == NO_TIME || r->next_retry_us <= db_now(w);
}

static bool expired_for(const struct world *w, const struct trow *r, uint32_t owner)
{
	return r->owner == 0 || (r->owner != owner && (r->locked_until_us == NO_TIME ||
							      r->locked_until_us < db_now(w)));
}

static enum status status_of(enum row_class c)
{
	return c == ROW_RETRY ? ST_RETRY : c == ROW_EXPIRED ? ST_PROCESSING : ST_PENDING;
}

static bool in_class(const struct world *w, const struct trow *r, enum row_class c, uint32_t owner)
{
	switch (c) {
	case ROW_FRESH:
		return r->next_retry_us == NO_TIME;
	case ROW_DUE:
		return r->next_retry_us != NO_TIME && due(w, r);
	case ROW_RETRY:
		return due(w, r);
	default:
		return expired_for(w, r, owner);
	}
}

/* The first row at or behind `from` that may belong to the class; NULL at the end of its range. */
static struct trow *next_of(const struct world *w, enum row_class c, const struct trow *from)
{
	struct tnode *tree = w->table.tree[status_of(c)];
	struct tnode low = { .k1 = NO_TIME, .k2 = INT64_MAX, .id = UINT64_MAX };
	struct trow *r;

	if (from != NULL)
		r = row_of_index(tree_after(tree, &from->index));
	else if (c == ROW_DUE)
		r = row_of_index(tree_after(tree, &low));
	else
		r = row_of_index(tree_first(tree));
	if (r == NULL || c == ROW_EXPIRED)
		return r;
	if (c == ROW_FRESH ? r->next_retry_us != NO_TIME : !due(w, r))
		return NULL;
	return r;
}

static int64_t next_due(const struct world *w)
{
	static const enum status waiting[] = { ST_PENDING, ST_RETRY };
	struct tnode key = { .k1 = db_now(w), .k2 = INT64_MAX, .id = UINT64_MAX };
	int64_t best = TIME_NEVER;

	for (size_t i = 0; i < ARRAY_LEN(waiting); i++) {
		struct trow *r = row_of_index(tree_after(w->table.tree[waiting[i]], &key));

		if (r != NULL && r->next_retry_us - db_now(w) < best)
			best = r->next_retry_us - db_now(w);
	}
	return best;
}

static int db_look(struct store *base, bool expired_too, struct store_look *out, struct err *e)
{
	struct fake_store *s = self(base);
	struct world *w = s->a->w;

	if (enter(s, false, NULL, e) < 0)
		return -1;
	if (w->p.ordered && w->lock_holder == NULL)
		w->lock_holder = s->session;
	*out = (struct store_look){
		.leads = !w->p.ordered || w->lock_holder == s->session,
		.next_due_us = next_due(w),
		.now_us = db_now(w),
	};
	for (int c = 0; c < ROW_CLASSES; c++) {
		struct trow *r = NULL;

		if (c == ROW_EXPIRED && !expired_too)
			continue;
		r = next_of(w, (enum row_class)c, NULL);
		while (r != NULL && !in_class(w, r, (enum row_class)c, s->a->owner))
			r = next_of(w, (enum row_class)c, r);
		out->exists[c] = r != NULL;
	}
	return leave(s, FATE_DONE, NULL, NULL, e);
}

static struct row view(const struct trow *r)
{
	static char large[4096];
	struct row row = {
		.id = r->id,
		.created_us = r->created_us,
		.retry_count = r->retry_count,
		.event_id = slice_str(r->event_id),
		.aggregate_type = slice_str(r->aggregate->type),
		.aggregate_id = slice_str(r->aggregate->id),
		.event_type = SLICE_LIT("changed"),
		.payload = slice_str(r->event_id),
		.last_error = slice_str(r->error),
	};

	switch (r->poison) {
	case POISON_GHOST:
		row.event_type = SLICE_LIT("ghost");
		break;
	case POISON_SECRET:
		row.event_type = SLICE_LIT("secret");
		break;
	case POISON_LARGE:
		row.payload = (struct slice){ large, 4000 };
		break;
	case POISON_BROKER_BIG:
		row.payload = (struct slice){ large, 2000 };
		break;
	case POISON_HEADERS:
		row.headers = SLICE_LIT("{\"a\":");
		break;
	default:
		if (r->id % 7 == 0)
			row.event_type = SLICE_LIT("moved");
		break;
	}
	return row;
}

/* Rows of the claim in the making, with what they were taken as. */
struct picked {
	struct trow **rows;
	unsigned *takeovers;
	unsigned count;
};

/* 0; 1: no room for more; -1: rolled back; -2: a row is locked, and not to be skipped. */
static int pick_class(struct fake_store *s, enum row_class c, unsigned limit,
	const struct claim_spec *spec, const struct row_sink *sink, struct picked *out)
{
	struct world *w = s->a->w;
	struct trow *r = next_of(w, c, NULL);
	struct trow *locked[64];
	unsigned lockeds = 0, got = 0;
	int rc = 0;

	for (; r != NULL && got < limit && rc == 0; r = next_of(w, c, r)) {
		struct row row;
		unsigned takeovers = c == ROW_EXPIRED ? r->takeovers + 1 : 0;

		if (!in_class(w, r, c, s->a->owner) ||
			(c == ROW_FRESH && r->created_us < spec->since_us))
			continue;
		if (r->locked_us > w->now_us) {
			if (c == ROW_FRESH && spec->nowait)
				return -2;
			if (lockeds < ARRAY_LEN(locked))
				locked[lockeds++] = r;
			continue;
		}
		/* or one that is not committed yet */
		if (c == ROW_FRESH && spec->nowait && chance(w, 0.0002))
			return -2;
		row = view(r);
		rc = sink->row(sink->arg, c, &row, takeovers);
		if (rc != 0)
			break;
		if (c == ROW_FRESH && sink->skipped != NULL) {
			for (unsigned i = 0; i < lockeds; i++) {
				struct row key = view(locked[i]);

				trace(w, 3, "relay %u: %s is locked, skipped", s->a->index,
					locked[i]->event_id);
				(void)sink->skipped(sink->arg, &key);
			}
			lockeds = 0;
		}
		out->takeovers[out->count] = takeovers;
		out->rows[out->count++] = r;
		got++;
	}
	return rc;
}

/* Whoever may be what kills its relays is claimed alone. */
static void check_alone(struct fake_store *s, const struct picked *p)
{
	struct world *w = s->a->w;
	bool suspect = false;

	for (unsigned i = 0; i < p->count; i++)
		suspect |= p->takeovers[i] >= 2;
	if (!suspect)
		return;
	w->last_death_us = w->now_us; /* it is not over yet */
	if (p->count > 1)
		wrong(w, "a row taken over twice is claimed along with %u others", p->count - 1);
	for (struct trow *r = row_of_index(tree_first(w->table.tree[ST_PROCESSING])); r != NULL;
		r = row_of_index(tree_after(w->table.tree[ST_PROCESSING], &r->index)))
		if (r->owner == s->a->owner && !r->foreign)
			wrong(w, "a row taken over twice is claimed beside %s", r->event_id);
}

static void mark_claimed(struct fake_store *s, const struct claim_spec *spec, struct picked *p)
{
	struct world *w = s->a->w;

	check_alone(s, p);
	for (unsigned i = 0; i < p->count; i++) {
		struct trow *r = p->rows[i];

		table_unlink(&w->table, r);
		if (p->takeovers[i] > 0) {
			w->tally->takeovers++;
			r->takeovers = p->takeovers[i];
			oracle_taken(w, r, r->owner);
			snprintf(r->error, sizeof(r->error), "LEASE_EXPIRED: taken over %u times",
				r->takeovers);
		}
		r->status = ST_PROCESSING;
		r->owner = s->a->owner;
		r->written_by = 0;
		r->locked_until_us = db_now(w) + spec->lease_us;
		r->claimed_us[s->a->index] = w->now_us;
		r->seen[s->a->index].told = false; /* what it learnt before, it has forgotten */
		table_link(&w->table, r);
		trace(w, 3, "relay %u: claims %s", s->a->index, r->event_id);
	}
	if (p->count > 0) {
		w->progress_us = w->now_us;
		s->a->work += p->count;
	}
}

static int db_claim(struct store *base, const struct claim_spec *spec, const struct row_sink *sink,
	bool *unknown, struct err *e)
{
	static const enum row_class order[] = { ROW_RETRY, ROW_DUE, ROW_EXPIRED, ROW_FRESH };
	struct fake_store *s = self(base);
	struct world *w = s->a->w;
	struct picked p = { 0 };
	enum fate fate;
	int rc = 0;

	*unknown = false;
	if (sink->meanwhile == NULL)
		wrong(w, "a claim that leaves the broker waiting");
	if (enter(s, true, sink, e) < 0)
		return -1;
	if (w->p.ordered && w->lock_holder != s->session)
		return err_set(e, ERR_AGAIN, 0, "another relay leads");
	p.rows = calloc(spec->total, sizeof(struct trow *));
	p.takeovers = calloc(spec->total, sizeof(unsigned));
	if (p.rows == NULL || p.takeovers == NULL)
		abort();
	for (size_t i = 0; i < ARRAY_LEN(order) && rc == 0; i++) {
		unsigned limit = spec->limit[order[i]];

		if (limit > spec->total - p.count)
			limit = spec->total - p.count;
		rc = pick_class(s, order[i], limit, spec, sink, &p);
	}
	fate = rc < 0 ? FATE_ROLLED_BACK : draw_fate(s);
	if (happens(fate))
		mark_claimed(s, spec, &p);
	free((void *)p.rows);
	free(p.takeovers);
	if (rc == -2)
		return err_set(e, ERR_REFUSED, 3572, "somebody has locked a row");
	return leave(s, fate, sink, unknown, e);
}

/* Rows somebody else has locked make the statement wait, and do without them. */
static int wait_for_locks(struct fake_store *s, const uint64_t *ids, size_t count, struct err *e)
{
	struct world *w = s->a->w;
	int64_t until_us = 0;

	for (size_t i = 0; i < count; i++)
		if (w->table.rows[ids[i]]->locked_us > until_us)
			until_us = w->table.rows[ids[i]]->locked_us;
	if (until_us <= w->now_us)
		return 0;
	if (!actor_wait(s->a, until_us - w->now_us < SEC ? until_us - w->now_us : SEC))
		return gone(e);
	if (s->session == NULL || !s->session->alive)
		return gone(e);
	return 0;
}

static bool mine(const struct fake_store *s, const struct trow *r)
{
	return r->visible && r->status == ST_PROCESSING && r->owner == s->a->owner;
}

static enum status open_status(const struct trow *r)
{
	return r->retry_count > 0 ? ST_RETRY : ST_PENDING;
}

/* What an earlier try may have made of it. */
static bool stands(const struct trow *r, const struct settle *l)
{
	switch (l->kind) {
	case SETTLE_SENT:
		return r->status == ST_SENT;
	case SETTLE_RETRY:
		return r->status != ST_PROCESSING && r->retry_count == l->retry_count;
	case SETTLE_DEAD:
		return r->status == ST_DEAD;
	default:
		return r->status != ST_PROCESSING;
	}
}

static void write_back(struct world *w, struct trow *r, const struct settle *l)
{
	table_unlink(&w->table, r);
	r->written_by = r->owner;
	r->owner = 0;
	r->locked_until_us = NO_TIME;
	if (l->kind != SETTLE_RELEASE) {
		snprintf(r->error, sizeof(r->error), "%.*s", (int)sizeof(r->error) - 1,
			l->kind == SETTLE_SENT ? "" : l->error);
		r->takeovers = failure_takeovers(slice_str(r->error));
	}
	switch (l->kind) {
	case SETTLE_SENT:
		r->status = ST_SENT;
		r->sent_us = db_now(w);
		r->next_retry_us = NO_TIME;
		break;
	case SETTLE_RETRY:
		r->status = ST_RETRY;
		r->retry_count = l->retry_count;
		r->next_retry_us = db_now(w) + l->delay_us;
		break;
	case SETTLE_DEAD:
		r->status = ST_DEAD;
		r->retry_count = l->retry_count;
		r->next_retry_us = NO_TIME;
		break;
	case SETTLE_RELEASE:
		r->status = open_status(r);
		break;
	case SETTLE_HOLD:
		r->status = open_status(r);
		r->next_retry_us = db_now(w) + l->delay_us;
		w->tally->held++;
		break;
	}
	if ((r->status == ST_SENT || r->status == ST_DEAD) && r->id <= w->p.events)
		w->done_us = w->now_us;
	table_link(&w->table, r);
}

static void apply(struct fake_store *s, struct trow *r, const struct settle *l)
{
	struct world *w = s->a->w;

	oracle_settles(w, s->a, r, l);
	trace(w, 3, "relay %u: settles %s as %d: %s", s->a->index, r->event_id, l->kind, l->error);
	write_back(w, r, l);
}

static int db_settle(
	struct store *base, struct settle *list, size_t count, bool *unknown, struct err *e)
{
	struct fake_store *s = self(base);
	struct world *w = s->a->w;
	uint64_t ids[500];
	enum fate fate;

	*unknown = false;
	if (count == 0 || count > ARRAY_LEN(ids)) {
		wrong(w, "settle of %zu rows in one statement", count);
		return gone(e);
	}
	for (size_t i = 0; i < count; i++) {
		ids[i] = list[i].id;
		if (i > 0 && ids[i] < ids[i - 1])
			wrong(w, "ids to settle are not ascending");
		if (i > 0 && ids[i] == ids[i - 1] && !w->table.rows[ids[i]]->foreign)
			wrong(w, "row %" PRIu64 " settled twice in one statement", ids[i]);
		list[i].lost = list[i].left = false;
	}
	if (enter(s, true, NULL, e) < 0 || wait_for_locks(s, ids, count, e) < 0)
		return -1;
	fate = draw_fate(s);
	for (size_t i = 0; i < count && happens(fate); i++) {
		struct trow *r = w->table.rows[ids[i]];

		list[i].left = r->locked_us > w->now_us || (w->faulty && chance(w, 0.0005));
		if (list[i].left)
			continue;
		if (mine(s, r)) {
			apply(s, r, &list[i]);
			continue;
		}
		list[i].lost = !(list[i].again && stands(r, &list[i]));
		if (!list[i].again && r->written_by == s->a->owner && stands(r, &list[i]) &&
			!r->foreign)
			wrong(w, "%s is written already, and relay %u should know", r->event_id,
				s->a->index);
		if (list[i].lost) {
			w->tally->lost_writes++;
			trace(w, 2, "relay %u: lost %s", s->a->index, r->event_id);
		} else {
			w->tally->again++;
		}
	}
	if (happens(fate)) {
		w->progress_us = w->now_us;
		s->a->work += count;
	}
	return leave(s, fate, NULL, unknown, e);
}

static void beside_acts(struct world *w, uint64_t arg)
{
	static const struct settle sent = { .kind = SETTLE_SENT, .error = "" };
	struct beside *b = (struct beside *)(uintptr_t)arg; /* NOLINT(performance-no-int-to-ptr) */

	b->acted = true;
	b->refused = w->now_us < w->spell.db_config || w->now_us < w->spell.db_readonly;
	for (size_t i = 0; i < b->count; i++)
		b->refused |= w->table.rows[b->ids[i]]->locked_us > w->now_us;
	if (!happens(b->fate) || b->killed || b->refused)
		return;
	for (size_t i = 0; i < b->count; i++) {
		struct trow *r = w->table.rows[b->ids[i]];

		if (!r->visible || r->status != ST_PROCESSING || r->owner != b->owner)
			continue;
		trace(w, 3, "owner %u settles %s beside", b->owner, r->event_id);
		write_back(w, r, &sent);
		b->matched++;
	}
	w->progress_us = w->now_us;
}

static int open_second(struct fake_store *s, struct err *e)
{
	struct world *w = s->a->w;

	if (reach(s, e) < 0)
		return -1;
	if (w->faulty && chance(w, 0.1))
		return err_set(e, ERR_LINK, 1040, "too many connections");
	s->second = true;
	return 0;
}

static int db_settle_begin(struct store *base, const uint64_t *ids, size_t count, struct err *e)
{
	static const struct settle sent = { .kind = SETTLE_SENT, .error = "" };
	struct fake_store *s = self(base);
	struct world *w = s->a->w;
	struct beside *b;
	int64_t act_us;

	if (s->beside != NULL || count == 0 || count > 500)
		wrong(w, "%zu rows to be settled beside", count);
	for (size_t i = 1; i < count; i++)
		if (ids[i] <= ids[i - 1] && !w->table.rows[ids[i]]->foreign)
			wrong(w, "ids to settle beside are not ascending");
	if (!s->second && open_second(s, e) < 0)
		return -1;
	w->tally->statements++;
	s->a->window_statements++;
	for (size_t i = 0; i < count; i++)
		if (mine(s, w->table.rows[ids[i]]))
			oracle_settles(w, s->a, w->table.rows[ids[i]], &sent);
	b = calloc(1, sizeof(*b) + count * sizeof(ids[0]));
	if (b == NULL)
		abort();
	act_us = w->now_us + latency(w);
	*b = (struct beside){ .next = w->besides,
		.owner = s->a->owner,
		.begun_us = w->now_us,
		.answer_us = act_us + latency(w),
		.fate = draw_fate(s),
		.count = count };
	memcpy(b->ids, ids, count * sizeof(ids[0]));
	if (w->now_us < w->spell.db_cut[s->a->index])
		b->fate = chance(w, 0.5) ? FATE_LOST_BEFORE : FATE_DONE;
	if (w->now_us < w->spell.db_late)
		b->answer_us = w->now_us + 2 * w->p.query_us;
	w->besides = s->beside = b;
	world_at(w, act_us, beside_acts, (uint64_t)(uintptr_t)b);
	s->a->work++;
	return 0;
}

static int db_settle_end(struct store *base, struct err *e)
{
	struct fake_store *s = self(base);
	struct world *w = s->a->w;
	struct beside *b = s->beside;

	if (s->a->killed)
		return gone(e);
	if (b == NULL) {
		wrong(w, "settle_end() of nothing");
		return gone(e);
	}
	if (w->now_us < w->spell.db_cut[s->a->index] || w->now_us < b->answer_us) {
		if (w->now_us - b->begun_us < w->p.query_us)
			return 1;
		b->killed = true; /* given up; it may have happened */
	}
	s->beside = NULL;
	s->a->work += b->count;
	if (b->killed || (b->fate != FATE_DONE && b->fate != FATE_ROLLED_BACK)) {
		s->second = false;
		w->tally->unknown++;
		return err_set(e, ERR_LINK, 2013, "lost connection: beside");
	}
	if (b->refused || b->matched != b->count)
		return err_set(e, ERR_RETRY, 1205, "beside: %zu of %zu", b->matched, b->count);
	return 0;
}

static int db_settle_fd(const struct store *base)
{
	(void)base;
	return -1; /* database_ready_us() */
}

int64_t database_ready_us(const struct actor *a)
{
	const struct beside *b = a->store->beside;

	if (b == NULL)
		return TIME_NEVER;
	return b->answer_us > a->w->spell.db_cut[a->index] ? b->answer_us
							   : a->w->spell.db_cut[a->index];
}

static int db_renew(struct store *base, const uint64_t *ids, enum lease_fate *out, size_t count,
	int64_t lease_us, struct err *e)
{
	struct fake_store *s = self(base);
	struct world *w = s->a->w;
	enum fate fate;

	for (size_t i = 1; i < count; i++)
		if (ids[i] < ids[i - 1])
			wrong(w, "ids to renew are not ascending");
	if (count == 0 || count > 500)
		wrong(w, "renewal of %zu rows in one statement", count);
	if (enter(s, true, NULL, e) < 0 || wait_for_locks(s, ids, count, e) < 0)
		return -1;
	fate = draw_fate(s);
	for (size_t i = 0; i < count; i++) {
		struct trow *r = w->table.rows[ids[i]];

		out[i] = !mine(s, r)                ? LEASE_LOST
			 : r->locked_us > w->now_us ? LEASE_LOCKED
						    : LEASE_RENEWED;
		if (out[i] != LEASE_RENEWED || !happens(fate))
			continue;
		table_unlink(&w->table, r);
		r->locked_until_us = db_now(w) + lease_us;
		table_link(&w->table, r);
	}
	s->a->work++;
	return leave(s, fate, NULL, NULL, e);
}

static bool bars(const struct trow *r, bool pass_dead)
{
	return r->status != ST_DEAD || !(pass_dead || r->skipped);
}

static bool precedes(const struct trow *a, const struct trow *b)
{
	return a->created_us != b->created_us ? a->created_us < b->created_us : a->id < b->id;
}

static bool waits(const struct trow *r)
{
	return r->next_retry_us != NO_TIME && strncmp(r->error, "WAITING: behind ", 16) == 0;
}

static enum order_head head_of(const struct fake_store *s, const struct trow *r)
{
	switch (r->status) {
	case ST_DEAD:
		return HEAD_DEAD;
	case ST_PROCESSING:
		return mine(s, r) ? HEAD_OWNED : HEAD_PROCESSING;
	default:
		if (waits(r))
			return HEAD_WAITING;
		if (r->status == ST_RETRY)
			return HEAD_RETRY;
		return r->next_retry_us != NO_TIME ? HEAD_DELAYED : HEAD_READY;
	}
}

static int64_t head_due(const struct world *w, const struct trow *r)
{
	int64_t at_us = r->status == ST_PROCESSING ? r->locked_until_us : r->next_retry_us;

	if (r->status == ST_DEAD)
		return TIME_NEVER;
	if (r->status == ST_PROCESSING && r->owner == 0)
		return 0;
	return at_us != NO_TIME && at_us > db_now(w) ? at_us - db_now(w) : 0;
}

static void probe(struct fake_store *s, struct order_probe *p, bool pass_dead)
{
	struct world *w = s->a->w;
	struct trow *at = w->table.rows[p->at.id];
	struct tnode key = { .k1 = p->at.created_us, .id = p->at.id };
	struct trow *r = row_of_order(tree_before(at->aggregate->unsent, &key)), *sent;

	if (!slice_eq(p->aggregate_id, slice_str(at->aggregate->id)) ||
		!slice_eq(p->aggregate_type, slice_str(at->aggregate->type)))
		wrong(w, "row %" PRIu64 " asked about under another aggregate", p->at.id);
	while (r != NULL && !bars(r, pass_dead))
		r = row_of_order(tree_before(at->aggregate->unsent, &r->order));
	p->head_at = (struct place){ 0 };
	p->overtaken = false;
	p->overtaken = tree_after(at->aggregate->sent, &key) != NULL;
	/* Going back, the first that is SENT ends the search: what is before has been passed. */
	sent = row_of_order(tree_before(at->aggregate->sent, &key));
	if (r == NULL || (sent != NULL && precedes(r, sent)))
		return;
	p->head_at = (struct place){ r->created_us, r->id };
	p->head = head_of(s, r);
	p->head_due_us = head_due(w, r);
	if (p->head == HEAD_WAITING)
		snprintf(p->head_event_id, sizeof(p->head_event_id), "%s",
			r->error + strlen("WAITING: behind "));
	else
		snprintf(p->head_event_id, sizeof(p->head_event_id), "%s", r->event_id);
	trace(w, 4, "relay %u: before %s stands %s", s->a->index, at->event_id, r->event_id);
}

static int db_predecessors(
	struct store *base, struct order_probe *list, size_t count, bool pass_dead, struct err *e)
{
	struct fake_store *s = self(base);

	if (enter(s, false, NULL, e) < 0)
		return -1;
	for (size_t i = 0; i < count; i++)
		probe(s, &list[i], pass_dead);
	return leave(s, FATE_DONE, NULL, NULL, e);
}

static bool make_ready(struct world *w, struct trow *r)
{
	if ((r->status != ST_PENDING && r->status != ST_RETRY) || !waits(r))
		return false;
	table_unlink(&w->table, r);
	r->next_retry_us = NO_TIME;
	r->error[0] = '\0';
	table_link(&w->table, r);
	return true;
}

/* What the commands do: all that wait behind it, up to the end. */
static void release_behind(struct world *w, struct trow *r)
{
	struct aggregate *a = r->aggregate;

	while ((r = row_of_order(tree_after(a->unsent, &r->order))) != NULL)
		(void)make_ready(w, r);
}

/* Pages are small, so that they matter. */
static void walk_on(struct fake_store *s, struct aggregate *a, struct order_walk *walk,
	bool pass_dead, bool happens)
{
	struct world *w = s->a->w;
	struct tnode key = { .k1 = walk->at.created_us, .id = walk->at.id };
	struct trow *r = row_of_order(tree_after(a->unsent, &key));

	walk->released = walk->fresh = 0;
	walk->ended = walk->barred = false;
	for (unsigned looked = 0; r != NULL && looked < PAGE_ROWS;
		r = row_of_order(tree_after(a->unsent, &r->order)), looked++) {
		enum order_head head = head_of(s, r);

		if (bars(r, pass_dead) && head == HEAD_WAITING) {
			if (walk->released == walk->limit)
				return;
			if (happens && make_ready(w, r))
				trace(w, 3, "relay %u: releases %s", s->a->index, r->event_id);
			walk->released++;
			walk->fresh += r->status == ST_PENDING;
		} else if (bars(r, pass_dead) && head != HEAD_READY && head != HEAD_OWNED) {
			walk->barred = true;
			walk->by = head;
			walk->due_us = head_due(w, r);
			return;
		}
		walk->at = (struct place){ r->created_us, r->id };
	}
	walk->ended = r == NULL;
}

static struct aggregate *find_aggregate(struct world *w, struct slice type, struct slice id)
{
	char text[16];
	size_t i;

	snprintf(text, sizeof(text), "%.*s", (int)id.len, id.ptr);
	i = (size_t)strtoul(text + 1, NULL, 10) * 2;
	for (; i < w->table.aggregate_count; i++)
		if (slice_eq(type, slice_str(w->table.aggregates[i].type)) &&
			slice_eq(id, slice_str(w->table.aggregates[i].id)))
			return &w->table.aggregates[i];
	abort();
}

static int db_release_waiting(
	struct store *base, struct order_walk *walk, bool pass_dead, struct err *e)
{
	struct fake_store *s = self(base);
	struct order_walk done = *walk;
	enum fate fate;

	if (enter(s, true, NULL, e) < 0)
		return -1;
	fate = draw_fate(s);
	walk_on(s, find_aggregate(s->a->w, walk->aggregate_type, walk->aggregate_id), &done,
		pass_dead, happens(fate));
	s->a->work += 1 + done.released;
	if (leave(s, fate, NULL, NULL, e) < 0)
		return -1;
	*walk = done;
	return 0;
}

static int db_last_sent(struct store *base, struct place *out, struct err *e)
{
	struct fake_store *s = self(base);
	struct trow *r;

	if (enter(s, false, NULL, e) < 0)
		return -1;
	r = row_of_index(tree_last(s->a->w->table.tree[ST_SENT]));
	*out = r != NULL ? (struct place){ r->created_us, r->id } : (struct place){ 0 };
	return leave(s, FATE_DONE, NULL, NULL, e);
}

static int db_barred(struct store *base, bool pass_dead, struct barred_cursor *cursor, bool *more,
	void (*row)(void *arg, const struct row *key, enum order_head what), void *arg,
	struct err *e)
{
	/* Seed 40294 shows why PROCESSING comes first. */
	static const enum status stages[] = { ST_PROCESSING, ST_RETRY, ST_DEAD, ST_PENDING };
	struct fake_store *s = self(base);
	struct world *w = s->a->w;
	struct tnode key = { .k1 = NO_TIME, .k2 = INT64_MIN };
	struct trow *r = NULL;
	unsigned n = 0;

	*more = false;
	if (enter(s, false, NULL, e) < 0)
		return -1;
	if (cursor->started) {
		memcpy(&key.k1, cursor->next_retry_at, sizeof(key.k1));
		memcpy(&key.k2, cursor->created_at, sizeof(key.k2));
		key.id = cursor->id;
	}
	while (cursor->stage < ARRAY_LEN(stages)) {
		enum status st = stages[cursor->stage];

		if (st == ST_PENDING && !cursor->started)
			key.k2 = INT64_MAX, key.id = UINT64_MAX;
		for (r = row_of_index(tree_after(w->table.tree[st], &key)); r != NULL;
			r = row_of_index(tree_after(w->table.tree[st], &r->index))) {
			struct row k = view(r);

			if (st == ST_DEAD && !bars(r, pass_dead))
				continue;
			if (n++ == PAGE_ROWS) {
				cursor->started = true;
				*more = true;
				memcpy(cursor->next_retry_at, &key.k1, sizeof(key.k1));
				memcpy(cursor->created_at, &key.k2, sizeof(key.k2));
				cursor->id = key.id;
				return leave(s, FATE_DONE, NULL, NULL, e);
			}
			row(arg, &k, st == ST_PROCESSING ? HEAD_PROCESSING : head_of(s, r));
			s->a->work++;
			key = r->index;
		}
		/* Each stage is a statement of its own: rows move in between. */
		cursor->started = false;
		*more = ++cursor->stage < ARRAY_LEN(stages);
		break;
	}
	return leave(s, FATE_DONE, NULL, NULL, e);
}

bool database_requeue(struct world *w, struct trow *r)
{
	struct trow *later;

	if (r->status != ST_DEAD && r->status != ST_RETRY)
		return false;
	table_unlink(&w->table, r);
	r->status = ST_PENDING;
	r->next_retry_us = NO_TIME;
	r->retry_count = 0;
	r->takeovers = 0;
	r->skipped = false;
	r->error[0] = '\0';
	r->visible_us = w->now_us;
	table_link(&w->table, r);
	later = r->aggregate->last;
	if (later != NULL && (later->created_us > r->created_us ||
				     (later->created_us == r->created_us && later->id > r->id)))
		r->late = true;
	release_behind(w, r);
	return true;
}

bool database_skip(struct world *w, struct trow *r)
{
	if (r->status == ST_SENT || (r->status == ST_PROCESSING && r->locked_until_us > db_now(w)))
		return false;
	table_unlink(&w->table, r);
	r->status = ST_DEAD;
	r->next_retry_us = r->locked_until_us = NO_TIME;
	r->owner = 0;
	r->skipped = true;
	snprintf(r->error, sizeof(r->error), "SKIPPED: by the operator");
	table_link(&w->table, r);
	release_behind(w, r);
	return true;
}

static void db_free(struct store *base)
{
	free(self(base));
}

static const struct store_ops ops = {
	.connect = db_connect,
	.close = db_close,
	.look = db_look,
	.claim = db_claim,
	.settle = db_settle,
	.settle_begin = db_settle_begin,
	.settle_end = db_settle_end,
	.settle_fd = db_settle_fd,
	.renew = db_renew,
	.predecessors = db_predecessors,
	.release_waiting = db_release_waiting,
	.barred = db_barred,
	.last_sent = db_last_sent,
	.free = db_free,
};

struct store *fake_store_new(struct actor *a)
{
	struct fake_store *s = calloc(1, sizeof(*s));

	if (s == NULL)
		abort();
	s->base.ops = &ops;
	s->a = a;
	a->store = s;
	snprintf(s->base.peer, sizeof(s->base.peer), "fake database");
	return &s->base;
}

void database_fini(struct world *w)
{
	while (w->besides != NULL) {
		struct beside *b = w->besides;

		w->besides = b->next;
		free(b);
	}
	while (w->sessions != NULL) {
		struct session *s = w->sessions;

		w->sessions = s->next;
		free(s);
	}
	w->lock_holder = NULL;
}

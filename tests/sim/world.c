/* The clock, the relays' lives, the producers, and what goes wrong. */
#include "sim.h"

#include "fiber.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TURN_US 3 /* what a turn itself takes */
#define GIVE_UP_US (6 * 3600 * SEC)

bool chance(struct world *w, double p)
{
	return rng_unit(&w->rng) < p;
}

int64_t between(struct world *w, int64_t lo, int64_t hi)
{
	return hi <= lo ? lo : lo + (int64_t)rng_below(&w->rng, (uint64_t)(hi - lo + 1));
}

void trace(const struct world *w, int level, const char *fmt, ...)
{
	va_list ap;

	if (w->verbose < level)
		return;
	fprintf(stderr, "%12.6f ", (double)w->now_us / SEC);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
}

void wrong(struct world *w, const char *fmt, ...)
{
	va_list ap;
	char text[512];
	int n;

	if (w->failure != NULL)
		return;
	n = snprintf(text, sizeof(text), "at %.6f s: ", (double)w->now_us / SEC);
	va_start(ap, fmt);
	vsnprintf(text + n, sizeof(text) - (size_t)n, fmt, ap);
	va_end(ap);
	w->failure = strdup(text);
	trace(w, 1, "WRONG %s", text);
}

/* ---- happenings ---- */

static bool earlier(const struct happening *a, const struct happening *b)
{
	return a->at_us != b->at_us ? a->at_us < b->at_us : a->seq < b->seq;
}

void world_at(struct world *w, int64_t at_us, void (*run)(struct world *, uint64_t), uint64_t arg)
{
	size_t i = w->heap_count++;

	if (w->heap_count > w->heap_cap) {
		w->heap_cap = w->heap_cap > 0 ? w->heap_cap * 2 : 64;
		w->heap = realloc(w->heap, w->heap_cap * sizeof(*w->heap));
		if (w->heap == NULL)
			abort();
	}
	w->heap[i] = (struct happening){ at_us, ++w->seq, run, arg };
	while (i > 0 && earlier(&w->heap[i], &w->heap[(i - 1) / 2])) {
		struct happening swap = w->heap[i];

		w->heap[i] = w->heap[(i - 1) / 2];
		w->heap[(i - 1) / 2] = swap;
		i = (i - 1) / 2;
	}
}

static struct happening next_happening(struct world *w)
{
	struct happening top = w->heap[0];
	size_t i = 0;

	w->heap[0] = w->heap[--w->heap_count];
	for (;;) {
		size_t best = i;

		for (size_t k = 2 * i + 1; k <= 2 * i + 2 && k < w->heap_count; k++)
			if (earlier(&w->heap[k], &w->heap[best]))
				best = k;
		if (best == i)
			return top;
		struct happening swap = w->heap[i];

		w->heap[i] = w->heap[best];
		w->heap[best] = swap;
		i = best;
	}
}

/* ---- relays ---- */

int64_t sim_now(void *arg)
{
	return ((struct actor *)arg)->w->now_us;
}

int64_t sim_wall(void *arg)
{
	return db_now(((struct actor *)arg)->w);
}

bool actor_wait(struct actor *a, int64_t us)
{
	if (a->killed)
		return false;
	if (us <= 0)
		return true;
	a->resume_us = a->w->now_us + us;
	fiber_yield(a->fiber);
	return !a->killed;
}

static void live(void *arg)
{
	struct actor *a = arg;

	for (;;) {
		a->wake_us = relay_turn(a->relay);
		a->in_turn = false;
		fiber_yield(a->fiber);
	}
}

static void actor_start(struct world *w, struct actor *a)
{
	char owner[32];
	struct relay_conf conf = {
		.source = &w->source,
		.owner = owner,
		.log_events = LOG_EVENTS_FAILURES,
		.seed = rng_next(&w->rng),
		.mono_us = sim_now,
		.wall_us = sim_wall,
		.clock_arg = a,
	};
	static struct relay_metrics none;
	struct store *s;
	struct publisher *p;
	struct err e = { 0 };

	a->owner = ++w->next_owner;
	snprintf(owner, sizeof(owner), "sim/%u/0", a->owner);
	s = fake_store_new(a);
	p = fake_publisher_new(a);
	if (relay_new(&a->relay, &conf, s, p, &none, &e) < 0) {
		fprintf(stderr, "sim: %s\n", e.text);
		abort();
	}
	a->state = ACTOR_UP;
	a->killed = a->doomed = a->in_turn = false;
	a->stop_us = 0;
	a->wake_us = a->not_before_us = a->window_us = w->now_us;
	a->window_turns = a->window_statements = 0;
	a->idle_turns = 0;
	a->window_work = a->work;
	trace(w, 1, "relay %u starts as owner %u", a->index, a->owner);
}

static void actor_gone(struct world *w, struct actor *a)
{
	relay_free(a->relay);
	a->relay = NULL;
	a->store = NULL;
	a->publisher = NULL;
	a->state = ACTOR_DOWN;
	a->restart_us = w->now_us + (w->quiet ? SEC : between(w, 100 * MS, 20 * SEC));
	a->owner = 0;
}

/* kill -9. In the middle of a call it does nothing more that counts, and is buried once the call
 * has failed its way out. */
void actor_kill(struct actor *a, bool linger)
{
	struct world *w = a->w;

	if (a->state != ACTOR_UP || a->killed)
		return;
	w->tally->kills++;
	w->last_death_us = w->now_us;
	trace(w, 1, "relay %u is killed%s", a->index, linger ? ", without a FIN" : "");
	a->killed = true;
	a->frozen_us = 0;
	database_client_died(a, linger);
	broker_client_died(a, linger);
	if (!a->in_turn)
		actor_gone(w, a);
	else
		a->resume_us = w->now_us;
}

static int64_t actor_next_us(const struct actor *a)
{
	int64_t next_us;

	if (a->state == ACTOR_DOWN)
		return a->restart_us;
	if (a->in_turn) {
		next_us = a->resume_us;
	} else {
		next_us = a->wake_us;
		if (database_ready_us(a) < next_us)
			next_us = database_ready_us(a);
		if (broker_ready_us(a) < next_us)
			next_us = broker_ready_us(a);
		if (next_us < a->not_before_us)
			next_us = a->not_before_us;
	}
	return next_us < a->frozen_us ? a->frozen_us : next_us;
}

static void actor_step(struct world *w, struct actor *a)
{
	if (a->state == ACTOR_DOWN) {
		actor_start(w, a);
		return;
	}
	a->in_turn = true;
	fiber_enter(a->fiber);
	if (a->in_turn)
		return;
	a->not_before_us = w->now_us + TURN_US;
	if (a->killed) {
		actor_gone(w, a);
		return;
	}
	oracle_turned(w, a);
	if (a->doomed) {
		actor_kill(a, chance(w, 0.3));
		return;
	}
	if (relay_stopped(a->relay)) {
		trace(w, 1, "relay %u has stopped", a->index);
		actor_gone(w, a);
	}
}

/* ---- producers ---- */

static enum poison draw_poison(struct world *w)
{
	enum poison p;

	if (!chance(w, w->p.poison))
		return POISON_NONE;
	p = (enum poison)between(w, POISON_NONE + 1, POISONS - 1);
	if ((p == POISON_GHOST || p == POISON_SECRET) && w->p.fixed_exchange)
		return POISON_HEADERS;
	if (p == POISON_KILLER && !w->p.killers)
		return POISON_UNBOUND;
	if (p == POISON_MUTE && (!w->p.mutes || chance(w, 0.8)))
		return POISON_NACKED;
	w->mutes += p == POISON_MUTE;
	return p;
}

static void commit(struct world *w, uint64_t id)
{
	struct trow *r = w->table.rows[id];
	struct aggregate *a = r->aggregate;

	table_commit(&w->table, r, w->now_us);
	if (a->last != NULL && (a->last->created_us > r->created_us ||
				       (a->last->created_us == r->created_us && a->last->id > id)))
		r->late = true;
	w->progress_us = w->now_us;
}

/* One transaction of a few rows. */
static void produce(struct world *w, uint64_t arg)
{
	unsigned rows = (unsigned)between(w, 1, 6);
	double gap = -log(1.0 - rng_unit(&w->rng)) * rows / w->p.rate;
	int64_t created_us = db_now(w), commit_us = w->now_us;

	(void)arg;
	if (chance(w, 0.05))
		created_us -= between(w, 0, 20 * MS);
	created_us -= created_us % w->p.resolution_us;
	if (chance(w, w->p.late))
		commit_us += between(w, 1 * MS, chance(w, 0.1) ? 20 * SEC : 200 * MS);
	for (unsigned i = 0; i < rows && w->produced < w->p.events; i++) {
		/* A few aggregates are busy. */
		size_t n = rng_below(&w->rng, w->p.aggregates);
		struct trow *r;

		if (chance(w, 0.3))
			n = rng_below(&w->rng, n / 8 + 1);
		r = table_insert(&w->table, &w->table.aggregates[n], created_us);
		r->poison = draw_poison(w);
		w->produced++;
		if (commit_us > w->now_us)
			world_at(w, commit_us, commit, r->id);
		else
			commit(w, r->id);
	}
	if (chance(w, 0.2))
		for (unsigned i = 0; i < w->p.relays; i++)
			if (w->actor[i].state == ACTOR_UP && !w->actor[i].in_turn) {
				relay_poke(w->actor[i].relay);
				w->actor[i].wake_us = w->now_us;
				w->actor[i].work++;
			}
	if (w->produced < w->p.events)
		world_at(w, w->now_us + (int64_t)(gap * SEC), produce, 0);
}

/* ---- faults ---- */

static void changed(struct world *w, uint64_t arg)
{
	(void)arg;
	broker_changed(w);
}

static int64_t spell(struct world *w)
{
	int64_t us =
		chance(w, 0.15) ? between(w, SEC, 2 * w->p.lease_us) : between(w, 10 * MS, 5 * SEC);

	return w->now_us + us;
}

static struct trow *any_row(struct world *w)
{
	struct trow *r;

	if (w->table.count == 0)
		return NULL;
	r = w->table.rows[1 + rng_below(&w->rng, w->table.count)];
	return r->visible ? r : NULL;
}

static void foreign_edit(struct world *w)
{
	struct trow *r = row_of_index(tree_first(w->table.tree[between(w, ST_PENDING, ST_DEAD)]));

	if (r == NULL || chance(w, 0.5))
		r = any_row(w);
	if (r == NULL || r->status == ST_SENT)
		return;
	switch (between(w, 0, 4)) {
	case 0:
		trace(w, 1, "%s is marked SENT by hand", r->event_id);
		r->foreign = true;
		table_unlink(&w->table, r);
		r->status = ST_SENT;
		r->owner = 0;
		r->next_retry_us = r->locked_until_us = NO_TIME;
		table_link(&w->table, r);
		break;
	case 1:
		if (r->status != ST_PROCESSING)
			break;
		trace(w, 1, "the owner of %s is cleared by hand", r->event_id);
		r->foreign = true;
		table_unlink(&w->table, r);
		r->owner = 0;
		if (chance(w, 0.5))
			r->locked_until_us = NO_TIME;
		table_link(&w->table, r);
		break;
	case 2:
	case 3:
		if (database_requeue(w, r))
			trace(w, 1, "%s is requeued", r->event_id);
		break;
	default:
		if (r->status != ST_PENDING && database_skip(w, r)) {
			trace(w, 1, "%s is skipped", r->event_id);
			r->foreign = true;
		}
		break;
	}
}

static void lock_rows(struct world *w)
{
	int64_t until_us = w->now_us + between(w, 10 * MS, 3 * SEC);

	for (int i = 0; i < 5; i++) {
		struct trow *r = row_of_index(tree_first(w->table.tree[ST_PENDING]));

		if (r == NULL || chance(w, 0.5))
			r = any_row(w);
		if (r != NULL)
			r->locked_us = until_us;
	}
}

static void relay_fault(struct world *w)
{
	struct actor *a = &w->actor[rng_below(&w->rng, w->p.relays)];

	if (a->state != ACTOR_UP)
		return;
	switch (between(w, 0, 3)) {
	case 0:
		actor_kill(a, chance(w, 0.3));
		break;
	case 1:
		a->frozen_us = w->now_us + (chance(w, 0.3) ? between(w, SEC, 2 * w->p.lease_us)
							   : between(w, 10 * MS, 3 * SEC));
		w->tally->stops++;
		trace(w, 1, "relay %u is stopped until %.3f", a->index, (double)a->frozen_us / SEC);
		break;
	default:
		if (a->in_turn || a->stop_us != 0)
			break;
		a->stop_us = w->now_us + between(w, 0, w->p.confirm_us * 2);
		trace(w, 1, "relay %u is asked to stop by %.3f", a->index,
			(double)a->stop_us / SEC);
		relay_stop(a->relay, a->stop_us);
		a->wake_us = w->now_us;
		break;
	}
}

static const struct {
	const char *name;
	size_t offset;
} spells[] = {
#define SPELL(s)                                                                                   \
	{                                                                                          \
#s, offsetof(struct spells, s)                                                     \
	}
	SPELL(db_refuse),
	SPELL(db_config),
	SPELL(db_readonly),
	SPELL(db_slow),
	SPELL(db_flaky),
	SPELL(db_flaky),
	SPELL(db_flaky),
	SPELL(db_late),
	SPELL(db_cut),
	SPELL(mq_refuse),
	SPELL(mq_auth),
	SPELL(mq_blocked),
	SPELL(mq_hold),
	SPELL(mq_swallow),
	SPELL(mq_nack),
	SPELL(mq_unbound),
	SPELL(mq_missing),
	SPELL(mq_slow),
	SPELL(mq_disorder),
	SPELL(mq_merge),
	SPELL(mq_cut),
};

static void cast_spell(struct world *w)
{
	size_t n = rng_below(&w->rng, ARRAY_LEN(spells));
	int64_t *until_us = (int64_t *)(void *)((char *)&w->spell + spells[n].offset);

	if (strstr(spells[n].name, "cut") != NULL)
		until_us += rng_below(&w->rng, w->p.relays);
	if (strcmp(spells[n].name, "mq_missing") == 0 && !w->p.fixed_exchange)
		return;
	*until_us = spell(w);
	trace(w, 1, "%s until %.3f", spells[n].name, (double)*until_us / SEC);
	broker_changed(w);
	world_at(w, *until_us, changed, 0);
}

static void inject(struct world *w, uint64_t arg)
{
	static const double mean_s[] = { 1e9, 4.0, 1.0, 0.3 };

	(void)arg;
	if (!w->faulty)
		return;
	w->tally->faults++;
	switch (between(w, 0, 7)) {
	case 0:
		trace(w, 1, "database sessions are killed");
		database_kill_sessions(w, (unsigned)between(w, 0, RELAYS_MAX));
		break;
	case 1:
		trace(w, 1, "broker connections are dropped");
		broker_drop(w, (unsigned)between(w, 0, RELAYS_MAX));
		break;
	case 2:
		relay_fault(w);
		break;
	case 3:
		lock_rows(w);
		break;
	case 4:
		if (w->p.foreign)
			foreign_edit(w);
		break;
	default:
		cast_spell(w);
		break;
	}
	world_at(w,
		w->now_us + (int64_t)(-log(1.0 - rng_unit(&w->rng)) * mean_s[w->p.faults] * SEC),
		inject, 0);
}

static void calm_down(struct world *w)
{
	w->faulty = false;
	w->quiet = true;
	w->quiet_us = w->progress_us = w->done_us = w->now_us;
	w->spell = (struct spells){ 0 };
	broker_changed(w);
	for (unsigned i = 0; i < w->p.relays; i++) {
		w->actor[i].frozen_us = 0;
		if (w->actor[i].state == ACTOR_DOWN && w->actor[i].restart_us > w->now_us + SEC)
			w->actor[i].restart_us = w->now_us + SEC;
	}
	trace(w, 1, "all is well again: %zu rows open", w->table.open);
}

/* ---- the operator, once all is well: lets aggregates move on without their dead ---- */

static void skip_dead(struct world *w)
{
	struct trow *r = row_of_index(tree_first(w->table.tree[ST_DEAD]));

	for (; r != NULL; r = row_of_index(tree_after(w->table.tree[ST_DEAD], &r->index)))
		if (!r->skipped) {
			if (r->poison == POISON_NONE && !r->nack_once && !r->foreign &&
				!r->died_alone)
				wrong(w, "G5: %s is DEAD without being to blame: %s", r->event_id,
					r->error);
			r->skipped = true;
			snprintf(r->error, sizeof(r->error), "SKIPPED: by the operator");
			(void)database_skip(w, r);
		}
	for (unsigned i = 0; i < w->p.relays; i++)
		if (w->actor[i].state == ACTOR_UP && !w->actor[i].in_turn) {
			relay_poke(w->actor[i].relay);
			w->actor[i].wake_us = w->now_us;
		}
}

static void tick(struct world *w, uint64_t arg)
{
	(void)arg;
	oracle_tick(w);
	if (w->produced >= w->p.events && !w->quiet && w->now_us >= w->calm_after_us &&
		(!w->faulty || chance(w, 0.1)))
		calm_down(w);
	if (w->quiet && !w->p.pass_dead && w->p.ordered &&
		w->now_us - w->quiet_us > w->p.lease_us * 2 && (arg % 20) == 0)
		skip_dead(w);
	/* A row that is never confirmed is found by others that are. */
	if (w->quiet && w->mutes > 0 && w->table.open > 0 && arg % 2 == 0) {
		struct trow *r = table_insert(&w->table,
			&w->table.aggregates[rng_below(&w->rng, w->p.aggregates)], db_now(w));

		table_commit(&w->table, r, w->now_us);
	}
	world_at(w, w->now_us + SEC, tick, arg + 1);
}

struct aggregate *world_reserved(struct world *w, size_t i)
{
	return &w->table.aggregates[w->p.aggregates + i];
}

static bool finished(const struct world *w)
{
	if (w->end_us != TIME_NEVER)
		return w->now_us >= w->end_us;
	return w->quiet && w->table.open == 0 && w->produced >= w->p.events &&
	       w->table.in_status[ST_SENT] + w->table.in_status[ST_DEAD] == w->table.count;
}

static void configure(struct world *w)
{
	static char name[] = "sim", exchange_fixed[] = "events",
		    exchange_by_type[] = "{event_type}", key[] = "{aggregate_type}.{event_type}";
	const struct params *p = &w->p;

	w->broker = (struct broker_conf){
		.name = name,
		.heartbeat_us = 30 * SEC,
		.connect_timeout_us = 5 * SEC,
		.confirm_timeout_us = p->confirm_us,
		.max_message_size = 3000,
	};
	w->source = (struct source_conf){
		.name = name,
		.database = { .query_timeout_us = p->query_us, .connect_timeout_us = 5 * SEC },
		.table = name,
		.broker = &w->broker,
		.publish = { .exchange = p->fixed_exchange ? exchange_fixed : exchange_by_type,
			.routing_key = key,
			.body = BODY_PAYLOAD,
			.mandatory = true,
			.persistent = true },
		.ordering = p->ordered ? ORDERING_AGGREGATE : ORDERING_NONE,
		.on_dead = p->pass_dead ? ON_DEAD_PASS : ON_DEAD_BLOCK,
		.workers = 1,
		.batch = p->batch,
		.max_in_flight = p->max_in_flight,
		.max_in_flight_bytes = p->max_bytes,
		.retention = { .sent_us = AGE_NEVER, .dead_us = AGE_NEVER },
		.poll_interval_us = p->poll_us,
		.lease_us = p->lease_us,
		.retry = { p->max_attempts, p->retry_base_us, p->retry_cap_us, 0.2 },
	};
}

static void run_until_done(struct world *w)
{
	while (w->failure == NULL && !finished(w)) {
		int64_t next_us = broker_next_us(w);
		struct actor *who = NULL;

		if (w->heap_count > 0 && w->heap[0].at_us < next_us)
			next_us = w->heap[0].at_us;
		for (unsigned i = 0; i < w->p.relays; i++)
			if (actor_next_us(&w->actor[i]) < next_us) {
				who = &w->actor[i];
				next_us = actor_next_us(who);
			}
		if (next_us > w->now_us)
			w->now_us = next_us;
		if (w->quiet && w->now_us - w->done_us > GIVE_UP_US) {
			oracle_end(w);
			wrong(w, "no end in sight: %zu rows open", w->table.open);
		} else if (who != NULL) {
			actor_step(w, who);
		} else if (w->heap_count > 0 && w->heap[0].at_us <= w->now_us) {
			struct happening h = next_happening(w);

			h.run(w, h.arg);
		} else {
			broker_step(w);
		}
	}
}

void world_run(const struct params *p, struct tally *tally, int verbose, char **failure)
{
	struct world *w = calloc(1, sizeof(*w));

	if (w == NULL)
		abort();
	w->p = *p;
	w->rng.state = p->seed;
	w->tally = tally;
	w->verbose = verbose;
	w->now_us = 1000 * SEC;
	w->db_offset_us = INT64_C(1700000000) * SEC;
	w->faulty = p->faults > 0;
	configure(w);
	w->produce_us = w->now_us;
	w->end_us = TIME_NEVER;
	table_init(&w->table, p->aggregates + (p->reserved > 0 ? p->reserved : 1));
	if (p->prepare != NULL)
		p->prepare(w);
	for (unsigned i = 0; i < p->relays; i++) {
		struct actor *a = &w->actor[i];

		a->w = w;
		a->index = i;
		a->fiber = fiber_new(live, a);
		a->restart_us = w->now_us + between(w, 0, SEC);
	}
	if (p->events > 0)
		world_at(w, w->produce_us, produce, 0);
	world_at(w, w->now_us, tick, 0);
	if (w->faulty)
		world_at(w, w->now_us + SEC, inject, 0);
	run_until_done(w);
	if (w->failure == NULL && w->end_us == TIME_NEVER)
		oracle_end(w);
	if (w->failure == NULL && p->judge != NULL)
		p->judge(w);
	/* A relay in the middle of a call fails its way out. */
	for (unsigned i = 0; i < p->relays; i++) {
		struct actor *a = &w->actor[i];

		a->killed = true;
		while (a->state == ACTOR_UP && a->in_turn)
			fiber_enter(a->fiber);
		if (a->relay != NULL)
			relay_free(a->relay);
		fiber_free(a->fiber);
		free((void *)a->open);
	}
	tally->events += w->table.count;
	tally->virtual_us += w->now_us - 1000 * SEC;
	broker_fini(w);
	database_fini(w);
	table_fini(&w->table);
	free(w->heap);
	*failure = w->failure;
	free(w);
}

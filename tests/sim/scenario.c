/* Set pieces: an hour of this or that outage, a hundred thousand rows behind one that is stuck, an
 * hour of nothing. Each says in figures what it saw. */
#include "sim.h"

#include "log/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HOUR (3600 * SEC)
#define OUTAGE_FROM_US (60 * SEC)
#define HELD 100000
#define BURST 5000
#define BURST_US (90 * SEC)

struct before {
	uint64_t connects, turns, statements;
};

static struct before at_start;
static int64_t begin_us;  /* of the outage */
static int64_t return_us; /* its end */
static int64_t burst_us;  /* what a burst took */

static void note_start(struct world *w, uint64_t arg)
{
	(void)arg;
	at_start = (struct before){ w->tally->connects, w->tally->turns, w->tally->statements };
}

/* ---- outages ---- */

enum away {
	AWAY_REFUSE,
	AWAY_AUTH,
	AWAY_CUT,
	AWAY_BLOCKED,
	AWAY_MISSING,
	AWAY_UNBOUND,
	AWAY_MUTE,
	AWAY_DB_REFUSE,
	AWAY_DB_CONFIG,
	AWAY_DB_READONLY,
	AWAYS
};

static const struct {
	const char *name;
	bool drop; /* connections end as it begins */
	bool database;
	unsigned charges; /* rows that may be charged before it is known for what it is */
	int64_t back_us;  /* everything is delivered so soon after its end */
	unsigned connects, statements; /* in an hour, at most */
} away[AWAYS] = {
	[AWAY_REFUSE] = { "refused", true, false, 0, 10 * SEC, 1500, 5000 },
	[AWAY_AUTH] = { "login", true, false, 0, 20 * SEC, 600, 5000 },
	[AWAY_CUT] = { "cut", false, false, 0, 15 * SEC, 1500, 5000 },
	[AWAY_BLOCKED] = { "blocked", false, false, 0, 10 * SEC, 10, 6000 },
	[AWAY_MISSING] = { "exchange", false, false, 0, 15 * SEC, 10, 9000 },
	/* each probe takes a batch in the end, and what is behind those rows waits in the table */
	[AWAY_UNBOUND] = { "unbound", false, false, 50, 60 * SEC, 10, 40000 },
	[AWAY_MUTE] = { "mute", false, false, 0, 40 * SEC, 1500, 9000 },
	[AWAY_DB_REFUSE] = { "database", true, true, 0, 15 * SEC, 1500, 3000 },
	[AWAY_DB_CONFIG] = { "table", false, true, 0, 20 * SEC, 600, 3000 },
	[AWAY_DB_READONLY] = { "read-only", false, true, 0, 15 * SEC, 10, 12000 },
};

static enum away present;

static void go_away(struct world *w, uint64_t arg)
{
	int64_t *until_us[AWAYS] = {
		[AWAY_REFUSE] = &w->spell.mq_refuse,
		[AWAY_AUTH] = &w->spell.mq_auth,
		[AWAY_CUT] = &w->spell.mq_cut[0],
		[AWAY_BLOCKED] = &w->spell.mq_blocked,
		[AWAY_MISSING] = &w->spell.mq_missing,
		[AWAY_UNBOUND] = &w->spell.mq_unbound,
		[AWAY_MUTE] = &w->spell.mq_mute,
		[AWAY_DB_REFUSE] = &w->spell.db_refuse,
		[AWAY_DB_CONFIG] = &w->spell.db_config,
		[AWAY_DB_READONLY] = &w->spell.db_readonly,
	};

	(void)arg;
	note_start(w, 0);
	*until_us[present] = return_us;
	if (away[present].drop && away[present].database)
		database_kill_sessions(w, RELAYS_MAX);
	else if (away[present].drop)
		broker_drop(w, RELAYS_MAX);
	broker_changed(w);
}

static void prepare_outage(struct world *w)
{
	begin_us = w->now_us + OUTAGE_FROM_US;
	return_us = begin_us + HOUR;
	w->calm_after_us = return_us;
	world_at(w, begin_us, go_away, 0);
}

static size_t count_lines(const char *path)
{
	FILE *f = fopen(path, "r");
	size_t lines = 0;
	int c;

	while (f != NULL && (c = getc(f)) != EOF)
		lines += c == '\n';
	if (f != NULL)
		fclose(f);
	return lines;
}

static uint64_t connects_seen, statements_seen, turns_seen, charged_seen;

static void judge_outage(struct world *w)
{
	int64_t took_us = w->now_us - return_us;
	unsigned charged = 0;

	for (size_t i = 1; i <= w->table.count; i++) {
		const struct trow *r = w->table.rows[i];

		charged += r->retry_count > 0;
		if (r->status == ST_DEAD)
			wrong(w, "G4: %s is DEAD by an outage: %s", r->event_id, r->error);
	}
	connects_seen = w->tally->connects - at_start.connects;
	statements_seen = w->tally->statements - at_start.statements;
	turns_seen = w->tally->turns - at_start.turns;
	charged_seen = charged;
	burst_us = took_us;
	if (charged > away[present].charges)
		wrong(w, "G4: an outage charged %u rows", charged);
	if (took_us > away[present].back_us)
		wrong(w, "%.1f s to deliver after its end", (double)took_us / SEC);
	if (connects_seen > away[present].connects)
		wrong(w, "%" PRIu64 " connects in an hour", connects_seen);
}

static void params_init(struct params *p)
{
	*p = (struct params){
		.seed = 1,
		.relays = 1,
		.ordered = true,
		.fixed_exchange = true,
		.aggregates = 1000,
		.rate = 28,
		.resolution_us = 1,
		.batch = 500,
		.max_in_flight = 2000,
		.max_bytes = 64 << 20,
		.lease_us = 60 * SEC,
		.poll_us = SEC,
		.confirm_us = 15 * SEC,
		.query_us = 10 * SEC,
		.max_attempts = 10,
		.retry_base_us = 2 * SEC,
		.retry_cap_us = 300 * SEC,
		.socket_bytes = 256 * 1024,
	};
}

static int finish(const char *name, char *failure)
{
	if (failure == NULL)
		return 0;
	printf("sim: %s: FAILED %s\n", name, failure);
	free(failure);
	return 1;
}

static int run_outage(enum away which, struct tally *t, int verbose)
{
	struct params p;
	char *failure = NULL, path[] = "/tmp/outboxd-sim-XXXXXX";
	int fd = mkstemp(path);
	struct err e = { 0 };
	size_t lines;

	params_init(&p);
	p.events = 100000;
	p.prepare = prepare_outage;
	p.judge = judge_outage;
	present = which;
	if (fd < 0 || log_open(path, LOG_LEVEL_INFO, false, &e) < 0)
		return finish(away[which].name, strdup("no log file"));
	close(fd);
	world_run(&p, t, verbose, &failure);
	log_close();
	lines = count_lines(path);
	unlink(path);
	printf("sim: %s away for an hour, 100,000 events: charged %" PRIu64 ", connects %" PRIu64
	       ", turns %" PRIu64 ", statements %" PRIu64
	       ", log lines %zu, all delivered %.1f s after its return\n",
		away[which].name, charged_seen, connects_seen, turns_seen, statements_seen, lines,
		(double)burst_us / SEC);
	if (failure == NULL && lines > 600)
		failure = strdup("the log is flooded");
	return finish(away[which].name, failure);
}

/* ---- one head, and what waits behind it ---- */

/* Runs of each kind: one alone depends on chance by a fifth. */
#define HEAD_RUNS 6

static bool with_head;

static void prepare_head(struct world *w)
{
	w->produce_us = w->now_us + 80 * SEC; /* they are out of the way by then */
	w->end_us = w->produce_us + 60 * SEC;
	for (unsigned i = 0; with_head && i < HELD + 1; i++) {
		struct trow *r = table_insert(&w->table, world_reserved(w, 0), db_now(w) - SEC + i);

		r->poison = i == 0 ? POISON_UNBOUND : POISON_NONE;
		table_commit(&w->table, r, w->now_us);
	}
	world_at(w, w->produce_us, note_start, 0);
}

static void judge_head(struct world *w)
{
	const struct aggregate *a = world_reserved(w, 0);

	/* the last ones are those of the largest aggregates, one after the other */
	burst_us = w->most_us - w->produce_us;
	if (a->last != NULL)
		wrong(w, "G3: %s did not wait", a->last->event_id);
}

static int run_head(struct tally *t, int verbose)
{
	int64_t took_us[2] = { 0 };
	struct params p;
	char *failure = NULL;

	params_init(&p);
	p.events = 100000;
	p.rate = 1e6;
	p.prepare = prepare_head;
	p.judge = judge_head;
	for (unsigned i = 0; i < 2 * HEAD_RUNS && failure == NULL; i++) {
		p.seed = 1 + i / 2;
		with_head = i % 2 == 1;
		world_run(&p, t, verbose, &failure);
		took_us[i % 2] += burst_us / HEAD_RUNS;
	}
	printf("sim: 95,000 of 100,000 events of 1,000 aggregates took %.3f s, "
	       "with as many behind a stuck head %.3f s\n",
		(double)took_us[0] / SEC, (double)took_us[1] / SEC);
	if (failure == NULL && (double)took_us[1] * 0.9 > (double)took_us[0])
		failure = strdup("a stuck head costs the others more than a tenth");
	return finish("head", failure);
}

/* The head goes at last, and all behind it follow in order. */
static void free_head(struct world *w, uint64_t arg)
{
	(void)arg;
	w->table.rows[1]->poison = POISON_NONE;
}

static void prepare_release(struct world *w)
{
	with_head = true;
	prepare_head(w);
	w->end_us = TIME_NEVER;
	w->calm_after_us = w->now_us + 200 * SEC;
	world_at(w, w->now_us + 190 * SEC, free_head, 0);
}

static void judge_release(struct world *w)
{
	burst_us = w->now_us - 1000 * SEC;
}

static int run_release(struct tally *t, int verbose)
{
	struct params p;
	char *failure = NULL;

	params_init(&p);
	p.events = 100;
	p.prepare = prepare_release;
	p.judge = judge_release;
	world_run(&p, t, verbose, &failure);
	printf("sim: 100,000 events behind one head that is freed after 190 s: all delivered, in "
	       "order, after %.1f s\n",
		(double)burst_us / SEC);
	return finish("release", failure);
}

/* ---- a burst that nobody has bound ---- */

/* Many in a row come back, and stand before all others: it looks like an outage of the route. */
static void prepare_burst(struct world *w)
{
	w->produce_us = w->now_us + 10 * SEC;
	w->end_us = w->produce_us + 300 * SEC;
	for (unsigned i = 0; i < BURST; i++) {
		struct trow *r = table_insert(&w->table, world_reserved(w, i), db_now(w) - SEC + i);

		r->poison = POISON_UNBOUND;
		table_commit(&w->table, r, w->now_us);
	}
}

static void judge_burst(struct world *w)
{
	burst_us = w->others_us - w->produce_us;
	if (w->table.in_status[ST_SENT] != w->p.events)
		wrong(w, "%zu of %zu sent", w->table.in_status[ST_SENT], w->p.events);
}

static int run_burst(struct tally *t, int verbose)
{
	int64_t took_us[2] = { 0 };
	struct params p;
	char *failure = NULL;

	params_init(&p);
	p.events = 10000;
	p.rate = 1e6;
	p.reserved = BURST;
	p.prepare = prepare_burst;
	p.judge = judge_burst;
	for (int ordered = 0; ordered < 2 && failure == NULL; ordered++) {
		p.ordered = ordered;
		world_run(&p, t, verbose, &failure);
		took_us[ordered] = burst_us;
		if (failure == NULL && burst_us > BURST_US)
			failure = strdup("a burst of unbound events is in everybody's way");
	}
	printf("sim: 10,000 events behind 5,000 that nobody has bound: all delivered after %.1f s, "
	       "ordered %.1f s\n",
		(double)took_us[0] / SEC, (double)took_us[1] / SEC);
	return finish("burst", failure);
}

/* ---- leases that run low while verdicts wait to be written ---- */

#define BACKLOG 20000
#define BACKLOG_US (120 * SEC)
/* Long enough for its claims one after the other, and whatever else they have to wait for. */
#define LATE_US (9 * SEC)

static bool answers_late;
static int64_t written_us;

static void note_idle(struct world *w, uint64_t arg)
{
	struct relay_view v;

	(void)arg;
	relay_view(w->actor[0].relay, &v);
	written_us = w->done_us - w->produce_us;
	if (v.window > 0 || w->table.open > 0)
		wrong(w, "%u rows in the window, %zu open in the table", v.window, w->table.open);
}

static void prepare_late(struct world *w)
{
	w->calm_after_us = w->now_us + BACKLOG_US;
	if (answers_late)
		w->spell.db_late = w->calm_after_us;
	world_at(w, w->calm_after_us - SEC, note_idle, 0);
}

/* The leases are as short as they may be: of those in the window some run low all the time. */
static int run_late(struct tally *t, int verbose)
{
	struct params p;
	char *failure = NULL;

	params_init(&p);
	p.events = BACKLOG;
	p.rate = 1e6;
	p.lease_us = 10300 * MS;
	p.confirm_us = p.query_us = 5 * SEC;
	p.statement_us = 100 * MS;
	p.prepare = prepare_late;
	for (unsigned i = 0; i < 4 && failure == NULL; i++) {
		uint64_t again = t->again;

		p.ordered = i % 2 == 1;
		answers_late = i >= 2;
		world_run(&p, t, verbose, &failure);
		printf("sim: 20,000 events, 100 ms a statement%s%s: the last is written after "
		       "%.1f s, %" PRIu64 " were written already\n",
			p.ordered ? ", ordered" : "",
			answers_late ? ", the second session answers too late" : "",
			(double)written_us / SEC, t->again - again);
		if (failure == NULL && answers_late && t->again - again < p.batch / 2)
			failure = strdup("no batch was given up and done all the same");
		if (failure == NULL && !answers_late && written_us > LATE_US)
			failure = strdup("claims waited for SENT to be written");
	}
	return finish("late", failure);
}

/* ---- nothing ---- */

static void prepare_idle(struct world *w)
{
	w->end_us = w->now_us + 60 * SEC + HOUR;
	world_at(w, w->now_us + 60 * SEC, note_start, 0);
}

static void judge_idle(struct world *w)
{
	turns_seen = w->tally->turns - at_start.turns;
	statements_seen = w->tally->statements - at_start.statements;
	if (statements_seen > 4320)
		wrong(w, "%" PRIu64 " statements in an idle hour", statements_seen);
}

static int run_idle(struct tally *t, int verbose)
{
	struct params p;
	char *failure = NULL;

	params_init(&p);
	p.prepare = prepare_idle;
	p.judge = judge_idle;
	world_run(&p, t, verbose, &failure);
	printf("sim: an idle hour: %" PRIu64 " statements (%.2f a second), %" PRIu64 " turns\n",
		statements_seen, (double)statements_seen / 3600.0, turns_seen);
	return finish("idle", failure);
}

int scenario_run(const char *name, struct tally *tally, int verbose)
{
	static const struct {
		const char *name;
		int (*run)(struct tally *t, int verbose);
	} others[] = { { "head", run_head }, { "release", run_release }, { "burst", run_burst },
		{ "late", run_late }, { "idle", run_idle } };
	int failed = 0, found = 0;

	for (size_t i = 0; i < ARRAY_LEN(others); i++)
		if (name == NULL || strcmp(name, others[i].name) == 0)
			found++, failed += others[i].run(tally, verbose);
	for (int i = 0; i < AWAYS; i++)
		if (name == NULL || strcmp(name, away[i].name) == 0)
			found++, failed += run_outage((enum away)i, tally, verbose);
	return found > 0 ? failed : -1;
}

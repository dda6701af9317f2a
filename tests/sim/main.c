/* sim: runs of the relay's core under faults, each from its seed.
 *
 *	sim				1,000,000 events in runs of many kinds, from a fresh seed
 *	sim --seed 17 --runs 1 -v	run 17 once more, and tell what happens */
#include "sim.h"

#include "base/str.h"
#include "log/log.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct options {
	uint64_t seed, events, runs, run_events;
	int ordering; /* -1: by the seed; 0 none, 1 aggregate */
	int relays, faults;
	int verbose;
	bool seeded;
	const char *scenario;
};

static int64_t draw(struct rng *r, int64_t lo, int64_t hi)
{
	return lo + (int64_t)rng_below(r, (uint64_t)(hi - lo + 1));
}

/* Every die is thrown whatever the options say, so that an option changes one thing only. */
static struct params throw_dice(uint64_t seed, const struct options *o)
{
	struct rng r = { seed ^ UINT64_C(0x5DEECE66D) };
	struct params p = { .seed = seed };

	p.events = (size_t)draw(&r, 500, 4000) << draw(&r, 0, 3);
	p.relays = (unsigned)draw(&r, 1, 4);
	p.faults = (unsigned)draw(&r, 0, 3);
	p.ordered = draw(&r, 0, 2) > 0;
	p.pass_dead = draw(&r, 0, 3) == 0;
	p.fixed_exchange = draw(&r, 0, 1) == 0;
	p.aggregates = (size_t)draw(&r, 2, 60) << draw(&r, 0, 5);
	p.poison = draw(&r, 0, 2) == 0 ? 0.0 : rng_unit(&r) * (draw(&r, 0, 4) == 0 ? 0.05 : 0.004);
	p.late = draw(&r, 0, 1) == 0 ? 0.0 : rng_unit(&r) * 0.05;
	p.rate = (double)(draw(&r, 8, 16) << draw(&r, 0, 8));
	p.resolution_us = draw(&r, 0, 3) == 0 ? SEC : 1;
	p.batch = (unsigned)draw(&r, 1, 40) * (unsigned)draw(&r, 1, 12);
	p.max_in_flight = p.batch * (unsigned)draw(&r, 1, 4);
	if (draw(&r, 0, 3) == 0)
		p.max_in_flight = (unsigned)draw(&r, 1, 20);
	p.max_bytes = draw(&r, 0, 3) == 0 ? (uint64_t)draw(&r, 64, 400) * 1024 : 64 << 20;
	p.confirm_us = draw(&r, 2, 15) * SEC;
	p.query_us = draw(&r, 1, 10) * SEC;
	p.lease_us = p.confirm_us + p.query_us + draw(&r, 1, 40) * SEC;
	p.poll_us = draw(&r, 0, 2) == 0 ? draw(&r, 100, 5000) * MS : SEC;
	p.max_attempts = (unsigned)draw(&r, 1, 8);
	p.retry_base_us = draw(&r, 50, 2000) * MS;
	p.retry_cap_us = p.retry_base_us + draw(&r, 1, 30) * SEC;
	p.socket_bytes = (size_t)draw(&r, 5, 200) * 1024;
	p.killers = draw(&r, 0, 3) == 0;
	p.mutes = draw(&r, 0, 2) == 0;
	p.foreign = draw(&r, 0, 1) == 0;
	if (p.mutes && p.max_in_flight < 2)
		p.max_in_flight = 2; /* or nobody could be confirmed beside them */
	if (o->run_events > 0)
		p.events = o->run_events;
	if (o->relays > 0)
		p.relays = (unsigned)o->relays;
	if (o->faults >= 0)
		p.faults = (unsigned)o->faults;
	if (o->ordering >= 0)
		p.ordered = o->ordering == 1;
	return p;
}

static void describe(const struct params *p)
{
	fprintf(stderr,
		"seed %" PRIu64
		": %zu events, %u relays, faults %u, %s, %s, %zu aggregates, poison "
		"%.4f, late %.3f, %.0f/s, batch %u, window %u, lease %" PRId64
		" s, confirm %" PRId64 " s, query %" PRId64 " s, poll %" PRId64
		" ms, attempts %u%s%s%s\n",
		p->seed, p->events, p->relays, p->faults, p->ordered ? "ordered" : "unordered",
		p->fixed_exchange ? "fixed" : "by type", p->aggregates, p->poison, p->late, p->rate,
		p->batch, p->max_in_flight, p->lease_us / SEC, p->confirm_us / SEC,
		p->query_us / SEC, p->poll_us / MS, p->max_attempts, p->pass_dead ? ", pass" : "",
		p->foreign ? ", foreign" : "", p->killers ? ", killers" : "");
}

static void summary(const struct tally *t, double seconds)
{
	printf("sim: %" PRIu64 " runs, %" PRIu64
	       " events in %.1f s (%.0f/s), %.1f h of virtual time\n"
	       "sim: %" PRIu64 " faults, %" PRIu64 " kills, %" PRIu64 " stops, %" PRIu64
	       " unknown commits; %" PRIu64 " sends, %" PRIu64 " arrivals, %" PRIu64
	       " duplicates (%" PRIu64 " excused sends), %" PRIu64 " returned, %" PRIu64
	       " nacked, %" PRIu64 " charged, %" PRIu64 " dead, %" PRIu64 " taken over, %" PRIu64
	       " held, %" PRIu64 " order hazards, %" PRIu64 " lost writes, %" PRIu64
	       " written already; %" PRIu64 " turns, %" PRIu64 " statements, %" PRIu64
	       " connects\n",
		t->runs, t->events, seconds, (double)t->events / seconds,
		(double)t->virtual_us / SEC / 3600.0, t->faults, t->kills, t->stops, t->unknown,
		t->sends, t->arrivals, t->duplicates, t->excused, t->returned, t->nacked,
		t->charged, t->dead, t->takeovers, t->held, t->hazards, t->lost_writes, t->again,
		t->turns, t->statements, t->connects);
}

static int usage(FILE *out)
{
	fputs("usage: sim [--seed N] [--events N] [--runs N] [--run-events N]\n"
	      "           [--ordering aggregate|none|both] [--relays 1-4] [--faults 0-3]\n"
	      "           [--log LEVEL] [-v]...\n"
	      "       sim --scenario NAME|all\n",
		out);
	return 2;
}

static bool number(const char *s, uint64_t *out)
{
	return str_to_u64(slice_str(s), out);
}

static int parse(int argc, char **argv, struct options *o)
{
	static const struct option longs[] = {
		{ "seed", required_argument, NULL, 's' },
		{ "events", required_argument, NULL, 'e' },
		{ "runs", required_argument, NULL, 'r' },
		{ "run-events", required_argument, NULL, 'E' },
		{ "ordering", required_argument, NULL, 'o' },
		{ "relays", required_argument, NULL, 'R' },
		{ "faults", required_argument, NULL, 'f' },
		{ "scenario", required_argument, NULL, 'S' },
		{ "log", required_argument, NULL, 'l' },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	enum log_level level = LOG_LEVEL_ERROR;
	bool logs = false;
	uint64_t n = 0;
	struct err e = { 0 };
	int c;

	while ((c = getopt_long(argc, argv, "vh", longs, NULL)) != -1) {
		if (strchr("serERf", c) != NULL && !number(optarg, &n))
			return usage(stderr);
		switch (c) {
		case 's':
			o->seed = n;
			o->seeded = true;
			break;
		case 'e':
			o->events = n;
			break;
		case 'r':
			o->runs = n;
			break;
		case 'E':
			o->run_events = n;
			break;
		case 'R':
			if (n < 1 || n > RELAYS_MAX)
				return usage(stderr);
			o->relays = (int)n;
			break;
		case 'f':
			if (n > 3)
				return usage(stderr);
			o->faults = (int)n;
			break;
		case 'o':
			if (strcmp(optarg, "aggregate") == 0)
				o->ordering = 1;
			else if (strcmp(optarg, "none") == 0)
				o->ordering = 0;
			else if (strcmp(optarg, "both") != 0)
				return usage(stderr);
			break;
		case 'S':
			o->scenario = optarg;
			break;
		case 'l':
			if (!log_level_parse(optarg, &level))
				return usage(stderr);
			logs = true;
			break;
		case 'v':
			o->verbose++;
			break;
		case 'h':
			usage(stdout);
			exit(0);
		default:
			return usage(stderr);
		}
	}
	if (optind < argc)
		return usage(stderr);
	/* Whole runs of dead events would fill the screen. */
	if (log_open(NULL, logs ? level : (enum log_level)(LOG_LEVEL_ERROR + 1), false, &e) < 0)
		fprintf(stderr, "sim: %s\n", e.text);
	return 0;
}

int main(int argc, char **argv)
{
	struct options o = { .events = 1000000, .ordering = -1, .faults = -1 };
	struct tally t = { 0 };
	struct timespec start, end;
	double seconds;
	int rc = parse(argc, argv, &o);

	if (rc != 0)
		return rc;
	if (o.scenario != NULL) {
		rc = scenario_run(
			strcmp(o.scenario, "all") == 0 ? NULL : o.scenario, &t, o.verbose);
		return rc < 0 ? usage(stderr) : rc > 0;
	}
	if (!o.seeded)
		o.seed = rng_os_seed() >> 24;
	printf("sim: seed %" PRIu64 "\n", o.seed);
	fflush(stdout);
	clock_gettime(CLOCK_MONOTONIC, &start);
	for (uint64_t seed = o.seed; o.runs > 0 ? t.runs < o.runs : t.events < o.events; seed++) {
		struct params p = throw_dice(seed, &o);
		char *failure = NULL;

		if (o.verbose > 0)
			describe(&p);
		world_run(&p, &t, o.verbose, &failure);
		t.runs++;
		if (failure != NULL) {
			describe(&p);
			printf("sim: FAILED %s\nsim: again with: sim --seed %" PRIu64
			       " --runs 1 -v\n",
				failure, seed);
			free(failure);
			rc = 1;
			break;
		}
	}
	clock_gettime(CLOCK_MONOTONIC, &end);
	seconds = (double)(end.tv_sec - start.tv_sec) + (double)(end.tv_nsec - start.tv_nsec) / 1e9;
	summary(&t, seconds);
	log_close();
	return rc;
}

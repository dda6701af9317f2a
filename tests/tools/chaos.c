/* chaos: producers, several relays, real servers, and whatever can break breaking at random. One
 * source is ordered, the other is not; each relay serves both, through proxies of its own.
 *
 *	chaos [SECONDS [SEED]]
 *
 * The faults follow from the seed; what they hit depends on the timing as well. Exit status 1 if
 * anything was lost, out of order, sent twice without a known reason, or did not come to an end. */
#include "base/rng.h"
#include "support/proxy.h"
#include "support/rig.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RELAYS 3
#define SOURCES 2
#define HEALS 64
#define STALL_US (60 * US_PER_SEC)

enum fault {
	KILL_RELAY,
	STOP_RELAY,
	TERM_RELAY,
	CUT_DATABASE,
	CUT_BROKER,
	HOLE_DATABASE,
	HOLE_BROKER,
	REFUSE_DATABASE,
	REFUSE_BROKER,
	SLOW_DATABASE,
	SLOW_BROKER,
	PAUSE_BROKER,
	DEADLOCK_CLAIM,
	LOSE_COMMIT,
	FREEZE_DATABASE,
	KILL_DATABASE,
	FREEZE_BROKER,
	KILL_BROKER,
	ALARM,
	FAULTS
};

static const struct {
	const char *name;
	unsigned weight;
} faults[FAULTS] = {
	[KILL_RELAY] = { "relay kill -9", 14 },
	[STOP_RELAY] = { "relay stopped and continued", 12 },
	[TERM_RELAY] = { "relay restarted", 6 },
	[CUT_DATABASE] = { "database connection cut", 10 },
	[CUT_BROKER] = { "broker connection cut", 10 },
	[HOLE_DATABASE] = { "database behind a black hole", 6 },
	[HOLE_BROKER] = { "broker behind a black hole", 6 },
	[REFUSE_DATABASE] = { "database refuses connections", 4 },
	[REFUSE_BROKER] = { "broker refuses connections", 4 },
	[SLOW_DATABASE] = { "slow database connection", 5 },
	[SLOW_BROKER] = { "slow broker connection", 5 },
	[PAUSE_BROKER] = { "broker does not read", 4 },
	[DEADLOCK_CLAIM] = { "deadlock at commit", 5 },
	[LOSE_COMMIT] = { "commit never answered", 6 },
	[FREEZE_DATABASE] = { "database frozen", 2 },
	[KILL_DATABASE] = { "database kill -9", 1 },
	[FREEZE_BROKER] = { "broker frozen", 2 },
	[KILL_BROKER] = { "broker kill -9", 1 },
	[ALARM] = { "memory alarm", 2 },
};

struct relay_process {
	struct daemon *daemon;
	struct proxy *database, *broker;
	bool stopped;      /* by us */
	int64_t start_us;  /* down: when it is started again; 0: it runs */
	bool busy[FAULTS]; /* not yet healed */
};

/* Until when a fault stands. */
struct heal {
	int64_t at_us; /* 0: free */
	enum fault fault;
	unsigned relay;
};

static struct rig rig;
static struct conf confs[RELAYS];
static struct relay_process relays[RELAYS];
static struct heal heals[HEALS];
static struct rng rng;
static unsigned injected[FAULTS];
static bool server_broken;
static unsigned early_ends;

static int64_t between_ms(int64_t low, int64_t high)
{
	return low + (int64_t)rng_below(&rng, (uint64_t)(high - low + 1));
}

static void heal_after(enum fault f, unsigned relay, int64_t ms)
{
	for (size_t i = 0; i < HEALS; i++) {
		if (heals[i].at_us != 0)
			continue;
		heals[i] = (struct heal){ env_now_us() + ms * US_PER_MS, f, relay };
		relays[relay].busy[f] = true;
		return;
	}
	FAIL("too many faults at once");
}

static void heal(const struct heal *h)
{
	struct relay_process *r = &relays[h->relay];

	r->busy[h->fault] = false;
	switch (h->fault) {
	case STOP_RELAY:
		daemon_signal(r->daemon, SIGCONT);
		r->stopped = false;
		break;
	case HOLE_DATABASE:
		proxy_black_hole(r->database, false);
		break;
	case HOLE_BROKER:
		proxy_black_hole(r->broker, false);
		break;
	case REFUSE_DATABASE:
		proxy_refuse(r->database, false);
		break;
	case REFUSE_BROKER:
		proxy_refuse(r->broker, false);
		break;
	case SLOW_DATABASE:
		proxy_latency(r->database, 0);
		break;
	case SLOW_BROKER:
		proxy_latency(r->broker, 0);
		break;
	case PAUSE_BROKER:
		proxy_pause(r->broker, false);
		break;
	case DEADLOCK_CLAIM:
	case LOSE_COMMIT:
		proxy_rule(r->database, NULL);
		break;
	case FREEZE_DATABASE:
		env_server(SERVER_DATABASE, "thaw");
		server_broken = false;
		break;
	case KILL_DATABASE:
		env_server(SERVER_DATABASE, "restart");
		server_broken = false;
		break;
	case FREEZE_BROKER:
		env_server(SERVER_BROKER, "thaw");
		server_broken = false;
		break;
	case KILL_BROKER:
		env_server(SERVER_BROKER, "restart");
		server_broken = false;
		break;
	case ALARM:
		mq_alarm(false);
		server_broken = false;
		break;
	default:
		break;
	}
}

static void heal_due(bool all)
{
	for (size_t i = 0; i < HEALS; i++) {
		struct heal h = heals[i];

		if (h.at_us == 0 || (!all && h.at_us > env_now_us()))
			continue;
		heals[i].at_us = 0;
		heal(&h);
	}
	for (unsigned i = 0; i < RELAYS; i++) {
		struct relay_process *r = &relays[i];

		if (r->start_us != 0 && (all || r->start_us <= env_now_us())) {
			r->start_us = 0;
			daemon_start(r->daemon);
		} else if (r->start_us == 0 && !daemon_runs(r->daemon)) {
			printf("relay %u ended by itself, wait status %d\n", i, r->daemon->status);
			early_ends++;
			daemon_start(r->daemon);
		}
	}
}

static void break_server(enum fault f, enum which_server which, const char *verb, int64_t ms)
{
	env_server(which, verb);
	server_broken = true;
	heal_after(f, 0, ms);
}

static void set_rule(unsigned relay, enum fault f)
{
	static const char *const after[] = { "`status`='PROCESSING',`locked_by`",
		"`status`='SENT'" };
	struct proxy_rule rule = {
		.text = "COMMIT", .after = after[rng_below(&rng, 2)], .error = 1213, .times = 1
	};

	if (f == LOSE_COMMIT)
		rule.action = rng_below(&rng, 2) == 0 ? PROXY_DROP_AFTER : PROXY_DROP_BEFORE;
	proxy_rule(relays[relay].database, &rule);
	heal_after(f, relay, 1000);
}

/* false: not possible at the moment. */
static bool inject(enum fault f)
{
	unsigned relay = (unsigned)rng_below(&rng, RELAYS);
	struct relay_process *r = &relays[relay];

	if (r->busy[f] || (f >= FREEZE_DATABASE && server_broken) ||
		(f <= TERM_RELAY && (r->start_us != 0 || r->stopped)) ||
		((f == DEADLOCK_CLAIM || f == LOSE_COMMIT) &&
			(r->busy[DEADLOCK_CLAIM] || r->busy[LOSE_COMMIT])))
		return false;
	switch (f) {
	case KILL_RELAY:
		daemon_kill(r->daemon);
		r->start_us = env_now_us() + between_ms(0, 3000) * US_PER_MS;
		break;
	case STOP_RELAY:
		daemon_signal(r->daemon, SIGSTOP);
		r->stopped = true;
		heal_after(f, relay, between_ms(200, 7000));
		break;
	case TERM_RELAY:
		daemon_signal(r->daemon, SIGTERM);
		if (daemon_wait(r->daemon, 30000) != 0)
			printf("relay %u: wait status %d after TERM\n", relay, r->daemon->status);
		r->start_us = env_now_us() + between_ms(0, 1000) * US_PER_MS;
		break;
	case CUT_DATABASE:
		proxy_cut(r->database);
		break;
	case CUT_BROKER:
		proxy_cut(r->broker);
		break;
	case HOLE_DATABASE:
		proxy_black_hole(r->database, true);
		heal_after(f, relay, between_ms(500, 6000));
		break;
	case HOLE_BROKER:
		proxy_black_hole(r->broker, true);
		heal_after(f, relay, between_ms(500, 6000));
		break;
	case REFUSE_DATABASE:
		proxy_refuse(r->database, true);
		proxy_cut(r->database);
		heal_after(f, relay, between_ms(500, 4000));
		break;
	case REFUSE_BROKER:
		proxy_refuse(r->broker, true);
		proxy_cut(r->broker);
		heal_after(f, relay, between_ms(500, 4000));
		break;
	case SLOW_DATABASE:
		proxy_latency(r->database, between_ms(5, 150));
		heal_after(f, relay, between_ms(500, 4000));
		break;
	case SLOW_BROKER:
		proxy_latency(r->broker, between_ms(5, 400));
		heal_after(f, relay, between_ms(500, 4000));
		break;
	case PAUSE_BROKER:
		proxy_pause(r->broker, true);
		heal_after(f, relay, between_ms(500, 5000));
		break;
	case DEADLOCK_CLAIM:
	case LOSE_COMMIT:
		set_rule(relay, f);
		break;
	case FREEZE_DATABASE:
		break_server(f, SERVER_DATABASE, "freeze", between_ms(300, 5000));
		break;
	case KILL_DATABASE:
		break_server(f, SERVER_DATABASE, "kill9", between_ms(0, 2000));
		break;
	case FREEZE_BROKER:
		break_server(f, SERVER_BROKER, "freeze", between_ms(300, 5000));
		break;
	case KILL_BROKER:
		break_server(f, SERVER_BROKER, "kill9", between_ms(0, 2000));
		break;
	case ALARM:
		mq_alarm(true);
		server_broken = true;
		heal_after(f, 0, between_ms(1000, 4000));
		break;
	default:
		break;
	}
	return true;
}

static enum fault draw(void)
{
	unsigned total = 0;
	uint64_t at;

	for (int f = 0; f < FAULTS; f++)
		total += faults[f].weight;
	at = rng_below(&rng, total);
	for (int f = 0; f < FAULTS; f++) {
		if (at < faults[f].weight)
			return (enum fault)f;
		at -= faults[f].weight;
	}
	return KILL_RELAY;
}

static void open_all(void)
{
	const struct env *env = env_get();

	rig_open(&rig, SOURCES);
	for (unsigned i = 0; i < RELAYS; i++) {
		struct relay_process *r = &relays[i];
		struct conf *c = &confs[i];
		char name[16];

		snprintf(name, sizeof(name), "relay-%u", i);
		r->daemon = daemon_new(name);
		r->database = proxy_start(env->db_host, env->db_port);
		r->broker = proxy_start(env->mq_host, env->mq_port);
		rig_conf(&rig, c);
		conf_short_lease(c);
		c->batch = 50;
		c->window = 200;
		c->max_attempts = 1000;
		c->retry_base_ms = 200;
		c->retry_cap_ms = 1000;
		c->shutdown_ms = 5000;
		c->log_level = "debug"; /* "sent again" */
		c->broker[0].port = proxy_port(r->broker);
		for (unsigned s = 0; s < SOURCES; s++)
			c->source[s].db_port = proxy_port(r->database);
		c->source[0].more = "    ordering: aggregate\n";
		daemon_configure(r->daemon, c);
		daemon_start(r->daemon);
	}
	for (unsigned i = 0; i < RELAYS; i++)
		daemon_wait_ready(relays[i].daemon, true);
}

/* Events whose second copy somebody announced: taken over from one who may have sent them, or sent
 * again after an unknown outcome. A copy nobody knew of is a fault. What was charged is printed. */
static void collect_suspects(const struct schema *s)
{
	static const char *const reasons[] = { "lease taken over", "sent again",
		"may be sent again", "lease lost" };

	for (unsigned i = 0; i < RELAYS; i++) {
		char *text = env_read_file(relays[i].daemon->log), *save = NULL, wanted[60];

		snprintf(wanted, sizeof(wanted), "event_id=%s-", s->name);
		for (char *line = text != NULL ? strtok_r(text, "\n", &save) : NULL; line != NULL;
			line = strtok_r(NULL, "\n", &save)) {
			char *at = strstr(line, wanted);

			if (at != NULL && strstr(line, "event failed") != NULL)
				printf("charged: %s\n", line);
			for (size_t n = 0; at != NULL && n < ARRAY_LEN(reasons); n++) {
				if (strstr(line, reasons[n]) == NULL)
					continue;
				at += strlen("event_id=");
				db_exec(rig.db, "INSERT IGNORE INTO %s.suspect VALUES ('%.*s')",
					s->name, (int)strcspn(at, " "), at);
				break;
			}
		}
		free(text);
	}
}

/* Returns whether the source came through. */
static bool report(unsigned source, bool ordered)
{
	struct findings f;
	bool good;

	collect_suspects(&rig.schema[source]);
	oracle_look(&f, rig.db, &rig.schema[source], &rig.inbox);
	good = f.rows > 0 && f.lost == 0 && f.missing == 0 && f.dead == 0 && f.unexplained == 0 &&
	       (!ordered || f.disordered == 0);
	printf("%-10s events %" PRIu64 "  lost %" PRIu64 "  not sent %" PRIu64
	       "  duplicates %" PRIu64 " (unexplained %" PRIu64 ")  order violations %" PRIu64
	       "  charged %" PRIu64 "  dead %" PRIu64 "%s%s\n",
		ordered ? "ordered" : "unordered", f.rows, f.lost, f.missing, f.duplicates,
		f.unexplained, ordered ? f.disordered : 0, f.charged, f.dead,
		good ? "" : "\n           ", good ? "" : f.first);
	return good;
}

/* Many faults leave a lot to catch up with, on a busy machine for minutes: what counts is that it
 * goes on. */
static bool wait_for_the_end(void)
{
	uint64_t least = UINT64_MAX;
	int64_t began_us = env_now_us();

	for (int64_t until = began_us + STALL_US; env_now_us() < until;) {
		uint64_t left = 0;

		for (unsigned i = 0; i < SOURCES; i++)
			left += rig_rows(&rig, i, "status NOT IN ('SENT','DEAD')");
		if (left == 0) {
			printf("all sent %.1f s after the last fault\n",
				(double)(env_now_us() - began_us) / US_PER_SEC);
			return true;
		}
		if (left + 100 <= least || least == UINT64_MAX) {
			least = left;
			until = env_now_us() + STALL_US;
		}
		env_sleep_ms(200);
	}
	return false;
}

static unsigned run(int64_t seconds)
{
	int64_t end_us = env_now_us() + seconds * US_PER_SEC, told_us = env_now_us();
	int64_t next_us = env_now_us() + US_PER_SEC;
	unsigned total = 0;

	while (env_now_us() < end_us) {
		heal_due(false);
		if (env_now_us() >= next_us) {
			enum fault f = draw();

			if (inject(f)) {
				injected[f]++;
				total++;
			}
			next_us = env_now_us() + between_ms(100, 1500) * US_PER_MS;
		}
		if (env_now_us() - told_us > 30 * US_PER_SEC) {
			told_us = env_now_us();
			printf("%" PRId64 " s to go, %u faults\n", (end_us - told_us) / US_PER_SEC,
				total);
			fflush(stdout);
		}
		env_sleep_ms(20);
	}
	heal_due(true);
	return total;
}

int main(int argc, char **argv)
{
	int64_t seconds = argc > 1 ? atoll(argv[1]) : 60;
	uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : rng_os_seed() % 1000000;
	struct production p = { .first = 1,
		.count = UINT64_MAX / 2,
		.aggregates = 100,
		.transaction = 10,
		.per_second = 150 };
	struct producer *producers[SOURCES];
	unsigned total;
	bool good;

	if (env_missing() != NULL) {
		printf("SKIPPED: chaos: %s\n0 passed, 0 failed, 1 skipped\n", env_missing());
		return EXIT_SUCCESS;
	}
	rng.state = seed;
	printf("chaos: %" PRId64 " s, seed %" PRIu64 ", %u relays\n", seconds, seed, RELAYS);
	fflush(stdout);
	open_all();
	for (unsigned i = 0; i < SOURCES; i++)
		producers[i] = producer_start(&rig.schema[i], &p);
	total = run(seconds);
	for (unsigned i = 0; i < SOURCES; i++)
		producer_stop(producers[i]);
	db_reopen(rig.db, 30000);
	mq_reopen(rig.mq, 30000);
	good = wait_for_the_end();
	if (!good)
		printf("after the last fault nothing was sent for a minute, and not everything "
		       "is\n");
	for (unsigned i = 0; i < RELAYS; i++) {
		daemon_signal(relays[i].daemon, SIGTERM);
		if (daemon_wait(relays[i].daemon, 30000) != 0) {
			printf("relay %u: wait status %d after TERM\n", i,
				relays[i].daemon->status);
			good = false;
		}
	}
	rig.inbox.no_bodies = true;
	mq_drain(rig.mq, rig.queue, &rig.inbox);
	for (int f = 0; f < FAULTS; f++)
		printf("%6u  %s\n", injected[f], faults[f].name);
	printf("%6u  faults injected, seed %" PRIu64 "\n", total, seed);
	good &= report(0, true);
	good &= report(1, false);
	good &= early_ends == 0;
	printf("%d passed, %d failed\n", good ? 1 : 0, good ? 0 : 1);
	for (unsigned i = 0; i < RELAYS; i++) {
		proxy_stop(relays[i].database);
		proxy_stop(relays[i].broker);
		if (good)
			daemon_free(relays[i].daemon);
		else
			printf("log of relay %u: %s\n", i, relays[i].daemon->log);
	}
	if (good)
		rig_close(&rig);
	return good ? EXIT_SUCCESS : EXIT_FAILURE;
}

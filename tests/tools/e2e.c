/* e2e: the whole life of many events: a service commits them, two relays publish them, consumers
 * with an inbox give each its effect, retention takes the rows away, and all the time something is
 * killed, or sent once more by `outboxd replay`.
 *
 *	e2e [EVENTS [SEED [BREAK]]]
 *
 * BREAK: see e2e_consumer. The faults follow from the seed; what they hit depends on the timing as
 * well. Exit status 1 unless every committed event had its effect exactly once, in the order of its
 * thing, and nothing is left of it in the tables. */
#include "base/rng.h"
#include "support/rig.h"

#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RELAYS 2
#define CONSUMERS 4
#define AGGREGATES 5000
#define BACKLOG 3000
#define FEW 100000 /* fewer events than this: all goes faster, to see as many faults */
#define STALL_US (90 * US_PER_SEC)

enum fault { KILL_PRODUCER, KILL_RELAY, KILL_CONSUMER, KILL_DATABASE, KILL_BROKER, REPLAY, FAULTS };

static const struct {
	const char *name;
	unsigned weight;
} faults[FAULTS] = {
	[KILL_PRODUCER] = { "producer kill -9", 6 },
	[KILL_RELAY] = { "relay kill -9", 8 },
	[KILL_CONSUMER] = { "consumer kill -9", 8 },
	[KILL_DATABASE] = { "database kill -9", 1 },
	[KILL_BROKER] = { "broker kill -9", 1 },
	[REPLAY] = { "replay", 3 },
};

/* A program that is started again whenever it has ended. */
struct part {
	pid_t pid;
	int64_t start_us; /* it does not run: when it is to */
};

static struct rig rig;
static struct conf conf;
static struct daemon *relays[RELAYS];
static int64_t relay_start_us[RELAYS]; /* 0: it runs */
static struct part producer, consumers[CONSUMERS], replay;
static char queues[CONSUMERS][60];
static struct rng rng;
static const char *broken; /* NULL: nothing */
static uint64_t seed, events, committed, replayed, replays_cut;
static unsigned injected[FAULTS], early_ends;
static int64_t outbox_peak, inbox_peak;
static unsigned sent_s, processed_s; /* retention of outbox and inbox */

static int64_t between_ms(int64_t low, int64_t high)
{
	return low + (int64_t)rng_below(&rng, (uint64_t)(high - low + 1));
}

/* --- what runs ------------------------------------------------------------------------------ */

static pid_t spawn(const char *program, const char *const *args, const char *output)
{
	pid_t parent = getpid(), pid = fork();

	if (pid < 0)
		FAIL("fork");
	if (pid == 0) {
		int out = open(output, O_WRONLY | O_CREAT | O_APPEND, 0600);

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(126);
		dup2(out, 1);
		dup2(out, 2);
		execv(program, (char *const *)(uintptr_t)args);
		_exit(127);
	}
	return pid;
}

/* Of the folder this program is in. */
static void start_tool(struct part *p, const char *const *args)
{
	char self[512] = { 0 }, program[700], output[200];

	if (readlink("/proc/self/exe", self, sizeof(self) - 1) < 0)
		FAIL("/proc/self/exe");
	snprintf(program, sizeof(program), "%s/%s", dirname(self), args[0]);
	snprintf(output, sizeof(output), "%s/%s.log", relays[0]->dir, args[0]);
	p->pid = spawn(program, args, output);
	p->start_us = 0;
}

static void start_producer(void)
{
	char count[24], aggregates[24], rate[24], backlog[24], dice[24];
	const char *args[] = { "e2e_producer", rig.schema[0].name, count, aggregates, rate, backlog,
		dice, NULL };

	snprintf(count, sizeof(count), "%" PRIu64, events);
	snprintf(aggregates, sizeof(aggregates), "%d", AGGREGATES);
	snprintf(rate, sizeof(rate), "%" PRIu64, events < FEW ? events / 10 : 0);
	snprintf(backlog, sizeof(backlog), "%d", BACKLOG);
	snprintf(dice, sizeof(dice), "%" PRIu64, rng_next(&rng) >> 1);
	start_tool(&producer, args);
}

static void start_consumer(unsigned i)
{
	char dice[24];
	const char *args[] = { "e2e_consumer", rig.schema[0].name, queues[i], dice, broken, NULL };

	snprintf(dice, sizeof(dice), "%" PRIu64, rng_next(&rng) >> 1);
	start_tool(&consumers[i], args);
}

/* True: it has ended since it was last asked. */
static bool ended(struct part *p, int *status)
{
	if (p->pid == 0 || waitpid(p->pid, status, WNOHANG) != p->pid)
		return false;
	p->pid = 0;
	return true;
}

static void end_replay(int status)
{
	char path[200], *text, *at;
	uint64_t n = 0;

	snprintf(path, sizeof(path), "%s/replay.out", relays[0]->dir);
	text = env_read_file(path);
	at = text != NULL ? strstr(text, "\"changed\":") : NULL;
	if (at != NULL)
		n = strtoull(at + strlen("\"changed\":"), NULL, 10);
	replayed += n;
	replays_cut += status != 0;
	free(text);
	unlink(path);
}

static void start_replay(void)
{
	char since[40], until[40], output[200];
	const char *args[] = { "outboxd", "replay", "-c", relays[0]->config, "--json", "--since",
		since, "--until", until, NULL };
	time_t from = time(NULL) - (time_t)between_ms(2, sent_s - 2), to = from + 2;
	struct tm tm;

	strftime(since, sizeof(since), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&from, &tm));
	strftime(until, sizeof(until), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&to, &tm));
	snprintf(output, sizeof(output), "%s/replay.out", relays[0]->dir);
	replay.pid = spawn(env_get()->binary, args, output);
}

static void tend_relays(bool all)
{
	for (unsigned i = 0; i < RELAYS; i++) {
		if (relay_start_us[i] != 0) {
			if (!all && relay_start_us[i] > env_now_us())
				continue;
			relay_start_us[i] = 0;
			daemon_start(relays[i]);
		} else if (!daemon_runs(relays[i])) {
			printf("relay %u ended by itself, wait status %d\n", i, relays[i]->status);
			early_ends++;
			daemon_start(relays[i]);
		} else {
			daemon_notifications(relays[i]);
		}
	}
}

/* The producer and the consumers give up when a server is away, and are started again. */
static void tend(bool all)
{
	int64_t now_us = env_now_us();
	int status;

	tend_relays(all);
	if (ended(&producer, &status))
		producer.start_us = now_us + 500 * US_PER_MS;
	if (producer.pid == 0 && committed < events && producer.start_us <= now_us)
		start_producer();
	for (unsigned i = 0; i < CONSUMERS; i++) {
		struct part *c = &consumers[i];

		if (ended(c, &status))
			c->start_us = now_us + 500 * US_PER_MS;
		if (c->pid == 0 && c->start_us <= now_us)
			start_consumer(i);
	}
	if (ended(&replay, &status))
		end_replay(status);
}

static void kill_part(struct part *p)
{
	if (p->pid == 0)
		return;
	kill(p->pid, SIGKILL);
	waitpid(p->pid, NULL, 0);
	p->pid = 0;
	p->start_us = env_now_us() + between_ms(0, 1000) * US_PER_MS;
}

/* --- faults --------------------------------------------------------------------------------- */

static void kill_server(enum which_server which)
{
	env_server(which, "kill9");
	env_sleep_ms(between_ms(0, 1500));
	env_server(which, "restart");
	if (which != SERVER_DATABASE)
		return;
	db_reopen(rig.db, 30000);
	db_exec(rig.db, "USE %s", rig.schema[0].name);
}

/* false: not possible at the moment. */
static bool inject(enum fault f)
{
	unsigned relay = (unsigned)rng_below(&rng, RELAYS);

	switch (f) {
	case KILL_PRODUCER:
		if (producer.pid == 0)
			return false;
		kill_part(&producer);
		break;
	case KILL_RELAY:
		if (relay_start_us[relay] != 0)
			return false;
		daemon_kill(relays[relay]);
		relay_start_us[relay] = env_now_us() + between_ms(1, 3000) * US_PER_MS;
		break;
	case KILL_CONSUMER:
		kill_part(&consumers[rng_below(&rng, CONSUMERS)]);
		break;
	case KILL_DATABASE:
		kill_server(SERVER_DATABASE);
		break;
	case KILL_BROKER:
		kill_server(SERVER_BROKER);
		break;
	case REPLAY:
		if (replay.pid != 0)
			return false;
		start_replay();
		break;
	default:
		break;
	}
	injected[f]++;
	return true;
}

static unsigned weight(int f)
{
	bool server = f == KILL_DATABASE || f == KILL_BROKER;

	return server && events < FEW ? 0 : faults[f].weight;
}

/* Each kind once at first, then by weight; with few events no server a second time. */
static enum fault draw(unsigned turn)
{
	static const enum fault first[] = { KILL_RELAY, KILL_CONSUMER, KILL_PRODUCER, REPLAY,
		KILL_DATABASE, REPLAY, KILL_BROKER, REPLAY };
	unsigned total = 0;
	uint64_t at;

	if (turn < ARRAY_LEN(first))
		return first[turn];
	for (int f = 0; f < FAULTS; f++)
		total += weight(f);
	at = rng_below(&rng, total);
	for (int f = 0; f < FAULTS; f++) {
		if (at < weight(f))
			return (enum fault)f;
		at -= weight(f);
	}
	return KILL_RELAY;
}

/* --- the stage ------------------------------------------------------------------------------ */

/* `effect` has no key that would hide a second effect of an event. */
static const char tables[] =
	"CREATE TABLE progress (committed BIGINT NOT NULL);"
	"INSERT INTO progress VALUES (0);"
	"CREATE TABLE effect (id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, n BIGINT NOT NULL,"
	" out_of_order INT NOT NULL, queue VARCHAR(60) NOT NULL);"
	"CREATE TABLE thing (id BIGINT NOT NULL PRIMARY KEY, version BIGINT NOT NULL,"
	" events BIGINT NOT NULL);"
	"CREATE TABLE tally (queue VARCHAR(60) NOT NULL PRIMARY KEY,"
	" received BIGINT NOT NULL DEFAULT 0, by_inbox BIGINT NOT NULL DEFAULT 0,"
	" by_guard BIGINT NOT NULL DEFAULT 0, redelivered BIGINT NOT NULL DEFAULT 0,"
	" strange BIGINT NOT NULL DEFAULT 0)";

static void make_tables(void)
{
	const struct schema *s = &rig.schema[0];
	char path[700], *ddl;

	snprintf(path, sizeof(path), "%s/sql/inbox_event.sql", env_get()->repository);
	ddl = env_read_file(path);
	REQUIRE(ddl != NULL);
	db_exec(rig.db, "USE %s; %s %s", s->name, ddl, tables);
	db_exec(rig.db, "GRANT SELECT, DELETE ON %s.inbox_event TO '%s'@'%%'", s->name, s->user);
	free(ddl);
}

/* By the hash of the thing to one of the queues, each of which has one consumer at a time. */
static void make_queues(void)
{
	mq_delete_exchange(rig.mq, rig.exchange);
	mq_declare_exchange(rig.mq, rig.exchange, "x-consistent-hash");
	for (unsigned i = 0; i < CONSUMERS; i++) {
		snprintf(queues[i], sizeof(queues[i]), "%s.%u", rig.queue, i);
		mq_declare_queue_single(rig.mq, queues[i]);
		mq_bind(rig.mq, queues[i], rig.exchange, "1");
		db_exec(rig.db, "INSERT INTO tally (queue) VALUES ('%s')", queues[i]);
	}
	/* Its first start since then gives the queues other places on the exchange's ring, for
	 * good: events would pass those of their thing that wait in another queue. */
	env_server(SERVER_BROKER, "restart");
	mq_reopen(rig.mq, 30000);
}

/* The inbox forgets before the outbox does, so that a replay meets both defences. */
static void configure(struct daemon *d)
{
	static char top[2000], more[200];
	const struct env *env = env_get();
	char secret[200];

	daemon_secret(d, "source-s0", secret, sizeof(secret));
	snprintf(top, sizeof(top),
		"inboxes:\n  - name: i\n    database: { host: %s, port: %u, name: %s, username: "
		"%s, password_file: %s }\n    retention: { processed: %us }\n    redelivery: { "
		"message_ttl: 1s, max_retry_wait: 0s, manual_window: 1s }\n",
		env->db_host, env->db_port, rig.schema[0].name, rig.schema[0].user, secret,
		processed_s);
	snprintf(more, sizeof(more), "    retention: { sent: %us, interval: 1s }\n", sent_s);
	conf.top = top;
	conf.source[0].more = more;
	daemon_configure(d, &conf);
}

static void open_all(void)
{
	rig_open(&rig, 1);
	make_tables();
	make_queues();
	rig_conf(&rig, &conf);
	conf_short_lease(&conf);
	conf.ordering = "aggregate";
	conf.source[0].routing_key = "{aggregate_type}/{aggregate_id}";
	for (unsigned i = 0; i < RELAYS; i++) {
		char name[16];

		snprintf(name, sizeof(name), "relay-%u", i);
		relays[i] = daemon_new(name);
		configure(relays[i]);
		daemon_start(relays[i]);
	}
	for (unsigned i = 0; i < RELAYS; i++)
		daemon_wait_ready(relays[i], true);
}

/* --- the run -------------------------------------------------------------------------------- */

static int64_t ask(const char *query)
{
	return db_int(rig.db, "%s", query);
}

static void look(void)
{
	int64_t outbox = ask("SELECT COUNT(*) FROM outbox_event");
	int64_t inbox = ask("SELECT COUNT(*) FROM inbox_event");

	outbox_peak = outbox > outbox_peak ? outbox : outbox_peak;
	inbox_peak = inbox > inbox_peak ? inbox : inbox_peak;
	committed = (uint64_t)ask("SELECT committed FROM progress");
}

static void tell(int64_t began_us)
{
	printf("%4" PRId64 " s  committed %" PRIu64 "  effects %" PRId64 "  outbox %" PRId64
	       " rows  inbox %" PRId64 " rows\n",
		(env_now_us() - began_us) / US_PER_SEC, committed,
		ask("SELECT COALESCE(SUM(events),0) FROM thing"),
		ask("SELECT COUNT(*) FROM outbox_event"), ask("SELECT COUNT(*) FROM inbox_event"));
	fflush(stdout);
}

static void run(int64_t began_us)
{
	int64_t least_ms = events < FEW ? 500 : 1000, most_ms = events < FEW ? 1500 : 5000;
	int64_t next_us = began_us + 2 * US_PER_SEC, look_us = 0, tell_us = began_us;
	unsigned turn = 0;

	while (committed < events) {
		tend(false);
		if (env_now_us() >= next_us) {
			turn += inject(draw(turn));
			next_us = env_now_us() + between_ms(least_ms, most_ms) * US_PER_MS;
		}
		if (env_now_us() >= look_us) {
			look();
			look_us = env_now_us() + 2 * US_PER_SEC;
		}
		if (env_now_us() - tell_us > 20 * US_PER_SEC) {
			tell_us = env_now_us();
			tell(began_us);
		}
		env_sleep_ms(20);
	}
}

/* Until nothing arrives any more; false: it stands still before everything was sent. */
static bool settle(void)
{
	int64_t last = -1, since_us = env_now_us(), quiet_us = 5 * US_PER_SEC;

	for (;;) {
		int64_t left, now;

		tend(true);
		left = ask("SELECT COUNT(*) FROM outbox_event WHERE status<>'SENT'");
		now = ask("SELECT SUM(received) FROM tally") - left;
		if (now != last) {
			last = now;
			since_us = env_now_us();
		}
		if (left == 0 && replay.pid == 0 && env_now_us() - since_us > quiet_us)
			return true;
		if (env_now_us() - since_us > STALL_US)
			return false;
		env_sleep_ms(200);
	}
}

/* Nothing more is sent: what retention promises is that the tables become empty. The daemon looks
 * at inboxes once a minute. */
static void wait_for_retention(int64_t *outbox, int64_t *inbox)
{
	const char *purge[] = { env_get()->binary, "purge", "-c", relays[0]->config, "--inbox", "i",
		NULL };
	int64_t until = env_now_us() + (sent_s + 120) * US_PER_SEC, last = INT64_MAX;

	do {
		tend(true);
		env_sleep_ms(500);
		*outbox = ask("SELECT COUNT(*) FROM outbox_event");
		*inbox = ask("SELECT COUNT(*) FROM inbox_event");
		if (events < FEW && *outbox == 0)
			(void)env_run(NULL, 0, purge);
		if (*outbox + *inbox < last)
			until = env_now_us() + (sent_s + 120) * US_PER_SEC;
		last = *outbox + *inbox;
	} while ((*outbox > 0 || *inbox > 0) && env_now_us() < until);
}

static void stop_all(void)
{
	kill_part(&producer);
	kill_part(&replay);
	for (unsigned i = 0; i < CONSUMERS; i++)
		kill_part(&consumers[i]);
	for (unsigned i = 0; i < RELAYS; i++) {
		daemon_signal(relays[i], SIGTERM);
		if (daemon_wait(relays[i], 30000) != 0) {
			printf("relay %u: wait status %d after TERM\n", i, relays[i]->status);
			early_ends++;
		}
	}
}

static bool report(double seconds, bool settled, int64_t outbox, int64_t inbox)
{
	int64_t effects = ask("SELECT COUNT(*) FROM effect");
	int64_t distinct = ask("SELECT COUNT(DISTINCT n) FROM effect");
	int64_t foreign =
		db_int(rig.db, "SELECT COUNT(*) FROM effect WHERE n<1 OR n>%" PRIu64, committed);
	int64_t disorder = ask("SELECT COALESCE(SUM(out_of_order),0) FROM effect");
	int64_t wrong = ask("SELECT COUNT(*) FROM thing WHERE version<>events");
	int64_t strange = ask("SELECT SUM(strange) FROM tally");
	int64_t by_inbox = ask("SELECT SUM(by_inbox) FROM tally");
	int64_t by_guard = ask("SELECT SUM(by_guard) FROM tally");
	int64_t lost = (int64_t)committed - (distinct - foreign);
	unsigned kills = 0;
	bool good = settled && effects > 0 && lost == 0 && effects == distinct && foreign == 0 &&
		    disorder == 0 && wrong == 0 && strange == 0 && early_ends == 0 && outbox == 0 &&
		    inbox == 0;

	for (int f = 0; f < FAULTS; f++) {
		printf("%6u  %s\n", injected[f], faults[f].name);
		kills += f != REPLAY ? injected[f] : 0;
	}
	if (!settled)
		printf("it stood still before everything was sent\n");
	if (wrong > 0)
		printf("%" PRId64 " things whose version is not the number of their effects\n",
			wrong);
	printf("e2e: committed %" PRIu64 ", effects %" PRId64 ", lost %" PRId64 ", twice %" PRId64
	       ", never committed %" PRId64 ", out of order %" PRId64 "; received %" PRId64
	       ", redelivered %" PRId64 ", replayed %" PRIu64 " (%" PRIu64
	       " replays cut off), kept out by the inbox %" PRId64 ", by the version %" PRId64
	       "; kills %u; rows at most/at the end: outbox %" PRId64 "/%" PRId64 ", inbox %" PRId64
	       "/%" PRId64 "; %.0f s, %.0f events/s; seed %" PRIu64 "\n",
		committed, effects, lost, effects - distinct, foreign + strange, disorder,
		ask("SELECT SUM(received) FROM tally"), ask("SELECT SUM(redelivered) FROM tally"),
		replayed, replays_cut, by_inbox, by_guard, kills, outbox_peak, outbox, inbox_peak,
		inbox, seconds, (double)committed / seconds, seed);
	return good;
}

int main(int argc, char **argv)
{
	int64_t began_us, outbox, inbox;
	double seconds;
	bool settled, good;

	seed = argc > 2 ? strtoull(argv[2], NULL, 0) : rng_os_seed() % 1000000;
	events = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000000;
	broken = argc > 3 ? argv[3] : NULL;
	sent_s = events < FEW ? 8 : 60;
	processed_s = events < FEW ? 4 : 30;
	if (env_missing() != NULL) {
		printf("SKIPPED: e2e: %s\n0 passed, 0 failed, 1 skipped\n", env_missing());
		return EXIT_SUCCESS;
	}
	rng.state = seed;
	printf("e2e: %" PRIu64 " events, seed %" PRIu64 "\n", events, seed);
	fflush(stdout);
	open_all();
	began_us = env_now_us();
	run(began_us);
	settled = settle();
	seconds = (double)(env_now_us() - began_us) / US_PER_SEC;
	wait_for_retention(&outbox, &inbox);
	stop_all();
	good = report(seconds, settled, outbox, inbox);
	printf("%d passed, %d failed\n", good ? 1 : 0, good ? 0 : 1);
	for (unsigned i = 0; i < RELAYS; i++) {
		if (good)
			daemon_free(relays[i]);
		else
			printf("log of relay %u: %s\n", i, relays[i]->log);
	}
	if (!good)
		return EXIT_FAILURE;
	mq_reopen(rig.mq, 30000);
	for (unsigned i = 0; i < CONSUMERS; i++)
		mq_delete_queue(rig.mq, queues[i]);
	rig_close(&rig);
	return EXIT_SUCCESS;
}

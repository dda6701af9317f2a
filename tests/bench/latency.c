/* latency.c: from the answer to COMMIT to the broker's confirm, event by event: the producer notes
 * when its COMMIT was answered, and the daemon writes a line of its log for each confirm
 * (log.events: all). With the wake-up socket rung after each commit, and with polling alone at the
 * defaults. Beside that, in the same minute, what no relay can be faster than: one claim
 * transaction for one row, and one durable confirm, one after the other. */
#include "bench.h"

#include "mysql/store.h"
#include "sys/clock.h"
#include "sys/wakeup.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FLOOR_ROWS 300
#define PRODUCERS_MAX 8
#define RATE_EACH                                                                                  \
	200 /* commits a second that one connection manages, the flush of each included            \
	     */

static const char insert[] =
	"INSERT INTO outboxd_bench0.outbox_event "
	"(event_id,aggregate_type,aggregate_id,event_type,payload) VALUES ('w-%08u','order',"
	"'order-%u','OrderCreated','{\"orderId\":%u,\"customer\":\"customer-0001\",\"currency\":"
	"\"EUR\",\"total\":1234.5,\"note\":"
	"\"zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz\"}')";

/* ---- the floor */

static int on_row(void *arg, enum row_class class, const struct row *row, unsigned takeovers)
{
	(void)class, (void)takeovers;
	*(uint64_t *)arg = row->id;
	return 0;
}

static void measure_floor(const struct bench *b, struct report *r)
{
	static double claims[FLOOR_ROWS], confirms[FLOOR_ROWS], both[FLOOR_ROWS];
	struct config *conf =
		configure(b, &(struct daemon_conf){ .ordering = "none", .sources = 1 });
	struct claim_spec spec = { .total = BATCH, .lease_us = 60 * US_PER_SEC };
	uint64_t id = 0;
	struct row_sink sink = { .row = on_row, .arg = &id };
	static char body[170];
	struct store *store = NULL;
	struct err e = { 0 };
	struct client c;
	bool unknown;

	fill("outboxd_bench0", 0);
	memset(body, 'z', sizeof(body));
	client_open(&c, conf);
	client_send(&c, SLICE_LIT("first"), (struct slice){ body, sizeof(body) }, 1);
	if (mysql_store_new(&store, &conf->sources[0], "bench/0/0", NULL, 0, NULL, &e) < 0 ||
		store->ops->connect(store, &e) < 0)
		die("store", e.text);
	spec.limit[ROW_FRESH] = BATCH;
	for (unsigned i = 0; i < FLOOR_ROWS; i++) {
		struct settle done = { .kind = SETTLE_SENT };
		int64_t start_us, claimed_us, confirmed_us;

		sql(insert, i, i % AGGREGATES, i);
		start_us = clock_mono_us();
		if (store->ops->claim(store, &spec, &sink, &unknown, &e) < 0)
			die("claim", e.text);
		claimed_us = clock_mono_us();
		client_send(&c, SLICE_LIT("w-00000000"), (struct slice){ body, sizeof(body) }, 1);
		client_settle(&c);
		confirmed_us = clock_mono_us();
		claims[i] = (double)(claimed_us - start_us);
		confirms[i] = (double)(confirmed_us - claimed_us);
		both[i] = (double)(confirmed_us - start_us);
		done.id = id;
		if (store->ops->settle(store, &done, 1, &unknown, &e) < 0)
			die("settle", e.text);
	}
	store->ops->close(store);
	store->ops->free(store);
	client_close(&c);
	config_free(conf);
	purge_queue(b);
	r->claim_alone = spread_of(claims, FLOOR_ROWS);
	r->confirm_alone = spread_of(confirms, FLOOR_ROWS);
	r->floor = spread_of(both, FLOOR_ROWS);
}

/* ---- the daemon */

struct producer {
	pthread_t thread;
	const struct bench *b;
	bool wakeup;
	unsigned first, step, count; /* events first, first + step, ... below count */
	int64_t start_us, every_us;  /* of all producers together */
	int64_t *committed_us;       /* by event, wall clock */
};

static void *produce(void *arg)
{
	const struct producer *p = arg;
	MYSQL *db;
	struct err e = { 0 };

	mysql_thread_init();
	db = db_another(p->b);
	for (unsigned n = p->first; n < p->count; n += p->step) {
		char text[700];
		int64_t wait_us = p->start_us + n * p->every_us - clock_mono_us();

		if (wait_us > 0)
			usleep((useconds_t)wait_us);
		snprintf(text, sizeof(text), insert, n, n % AGGREGATES, n);
		sql_on(db, text);
		p->committed_us[n] = clock_wall_us();
		/* a full queue means that it is being told already */
		if (p->wakeup && wakeup_send(p->b->wakeup, SLICE_LIT("bench0"), &e) < 0 &&
			e.kind != ERR_AGAIN)
			die("wake-up", e.text);
	}
	mysql_close(db);
	mysql_thread_end();
	return NULL;
}

/* Returns how long it took, in seconds. */
static double produce_all(
	const struct bench *b, bool wakeup, unsigned rate, unsigned count, int64_t *committed_us)
{
	struct producer p[PRODUCERS_MAX];
	unsigned threads = (rate + RATE_EACH - 1) / RATE_EACH;
	int64_t start_us = clock_mono_us();

	if (threads > PRODUCERS_MAX)
		threads = PRODUCERS_MAX;
	for (unsigned i = 0; i < threads; i++) {
		p[i] = (struct producer){
			.b = b,
			.wakeup = wakeup,
			.first = i,
			.step = threads,
			.count = count,
			.start_us = start_us,
			.every_us = US_PER_SEC / rate,
			.committed_us = committed_us,
		};
		if (pthread_create(&p[i].thread, NULL, produce, &p[i]) != 0)
			die("thread", "cannot be started");
	}
	for (unsigned i = 0; i < threads; i++)
		pthread_join(p[i].thread, NULL);
	return (double)(clock_mono_us() - start_us) / 1e6;
}

/* "2026-01-02T03:04:05.678901Z ..." */
static int64_t time_of(const char *line)
{
	struct tm tm = { 0 };
	const char *rest = strptime(line, "%Y-%m-%dT%H:%M:%S", &tm);

	if (rest == NULL || *rest != '.')
		return 0;
	return (int64_t)timegm(&tm) * US_PER_SEC + strtol(rest + 1, NULL, 10);
}

/* Events whose confirm the log tells of; *lags gets how long each took. */
static size_t read_log(const char *path, const int64_t *committed_us, unsigned count, double *lags)
{
	char line[2000];
	size_t found = 0;
	FILE *f = fopen(path, "r");

	if (f == NULL)
		die(path, "cannot be read");
	while (fgets(line, sizeof(line), f) != NULL) {
		const char *id = strstr(line, "event_id=w-");
		unsigned long n;

		if (strstr(line, "relay: event sent") == NULL || id == NULL)
			continue;
		n = strtoul(id + strlen("event_id=w-"), NULL, 10);
		if (n < count && found < count)
			lags[found++] = (double)(time_of(line) - committed_us[n]);
	}
	fclose(f);
	return found;
}

static void measure_rate(
	const struct bench *b, struct report *r, const char *name, bool wakeup, unsigned rate)
{
	struct daemon_conf conf = {
		.sources = 1,
		.http_port = free_port(),
		.wakeup = wakeup,
		.log_events = true,
	};
	unsigned count = rate * b->seconds;
	int64_t *committed_us = calloc(count, sizeof(*committed_us));
	double *lags = calloc(count, sizeof(*lags));
	struct latency *l = &r->latency[r->latencies++];
	double seconds;
	pid_t pid;

	if (committed_us == NULL || lags == NULL)
		die("latency", "out of memory");
	fill("outboxd_bench0", 0);
	config_free(configure(b, &conf));
	pid = daemon_start(b);
	wait_metric(conf.http_port, "outboxd_leader", 1);
	wait_metric(conf.http_port, "outboxd_source_up", 1);
	wait_metric(conf.http_port, "outboxd_broker_up", 1);
	seconds = produce_all(b, wakeup, rate, count, committed_us);
	wait_published(conf.http_port, count);
	daemon_stop(pid);
	l->events = read_log(b->log, committed_us, count, lags);
	if (l->events != count)
		die("latency", "the log does not tell of every event");
	snprintf(l->name, sizeof(l->name), "%u/s, %s", rate, name);
	l->rate = count / seconds;
	l->lag = spread_of(lags, count);
	free(committed_us);
	free(lags);
	purge_queue(b);
}

void measure_latency(const struct bench *b, struct report *r)
{
	static const unsigned rates[] = { 100, 1000 };

	measure_floor(b, r);
	for (size_t i = 0; i < ARRAY_LEN(rates); i++) {
		measure_rate(b, r, "wake-up", true, rates[i]);
		measure_rate(b, r, "polling", false, rates[i]);
	}
}

/* soak: one daemon, real servers, a mixed load and mild faults for a long time: does it stay as
 *small as it was?
 *
 *	soak [--judge-errors-only] [SECONDS]
 *
 * Two sources, one ordered; rows of many sizes, rows that come back, broken connections, killed
 * sessions, reloads, pages, wake-ups. Once a second its resident memory, descriptors and threads
 *are read. Exit status 1 if they grew after the first quarter, or if an event was lost or left.
 * --judge-errors-only: the daemon is a program under valgrind, whose size tells nothing. */
#include "support/proxy.h"
#include "support/rig.h"

#include <dirent.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SOURCES 2
/* What the allocator may add by itself, and what a reconnect has open beside the old ones. */
#define SLACK_KB 1024
#define SLACK_FDS 3

struct sample {
	int64_t rss_kb;
	unsigned fds, threads;
};

struct soak {
	struct rig rig;
	struct conf conf;
	struct daemon *daemon;
	struct proxy *database, *broker;
	struct producer *small[SOURCES], *large;
	struct sample *samples;
	size_t count;
	unsigned faults;
};

static unsigned threads_of(const struct daemon *d)
{
	char path[64];
	unsigned n = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)d->pid);
	dir = opendir(path);
	while (dir != NULL && readdir(dir) != NULL)
		n++;
	if (dir != NULL)
		closedir(dir);
	return n >= 2 ? n - 2 : 0;
}

static void open_all(struct soak *s)
{
	static const char more[][80] = { "    ordering: aggregate\n    on_dead: pass\n", "" };

	s->daemon = daemon_new("soak");
	rig_open(&s->rig, SOURCES);
	mq_bind(s->rig.mq, s->rig.queue, s->rig.exchange, "*.created");
	mq_bind(s->rig.mq, s->rig.queue, s->rig.exchange, "*.changed");
	mq_bind(s->rig.mq, s->rig.queue, s->rig.exchange, "*.large");
	mq_unbind(s->rig.mq, s->rig.queue, s->rig.exchange, "#");
	s->database = proxy_start(env_get()->db_host, env_get()->db_port);
	s->broker = proxy_start(env_get()->mq_host, env_get()->mq_port);
	rig_conf(&s->rig, &s->conf);
	s->conf.broker[0].port = proxy_port(s->broker);
	s->conf.batch = 100;
	s->conf.window = 500;
	s->conf.max_attempts = 2;
	s->conf.retry_base_ms = 200;
	s->conf.log_events = "none";
	for (unsigned i = 0; i < SOURCES; i++) {
		s->conf.source[i].db_port = proxy_port(s->database);
		s->conf.source[i].more = more[i];
	}
	daemon_configure(s->daemon, &s->conf);
	daemon_start(s->daemon);
}

static void start_producers(struct soak *s)
{
	struct production p = { .first = 1,
		.count = UINT64_MAX / 2,
		.aggregates = 200,
		.transaction = 20,
		.per_second = 200 };

	for (unsigned i = 0; i < SOURCES; i++)
		s->small[i] = producer_start(&s->rig.schema[i], &p);
	p.first = 1000000001;
	p.transaction = 1;
	p.per_second = 5;
	p.padding = 60000;
	p.event_type = "large";
	s->large = producer_start(&s->rig.schema[1], &p);
}

/* One fault or deed a second, in turn. */
static void disturb(struct soak *s, uint64_t second)
{
	char page[65536];
	struct production bad = { .first = 2000000001 + second,
		.count = 1,
		.aggregates = 200,
		.padding = 20000,
		.event_type = "nowhere" };

	switch (second % 15) {
	case 3:
		proxy_cut(s->database);
		break;
	case 6:
		proxy_cut(s->broker);
		break;
	case 9:
		(void)db_try(s->rig.db, "KILL %" PRId64,
			db_session(s->rig.db, s->rig.schema[second % SOURCES].user));
		break;
	case 12:
		s->conf.batch = s->conf.batch == 100 ? 50 : 100;
		daemon_configure(s->daemon, &s->conf);
		daemon_signal(s->daemon, SIGHUP);
		break;
	case 14:
		daemon_signal(s->daemon, SIGUSR1);
		break;
	default:
		db_produce(s->rig.db, &s->rig.schema[second % SOURCES], &bad);
		daemon_poke(s->daemon, "");
		(void)daemon_get(s->daemon, "/metrics", page, sizeof(page));
		(void)daemon_get(s->daemon, "/status", page, sizeof(page));
		return;
	}
	s->faults++;
}

static int by_size(const void *a, const void *b)
{
	const int64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

/* Of [from, to): the median of what is resident, the most of the others. */
static struct sample sum_up(const struct soak *s, size_t from, size_t to)
{
	struct sample sum = { 0 };
	int64_t *rss = calloc(to - from + 1, sizeof(*rss));

	if (rss == NULL)
		FAIL("out of memory");
	for (size_t i = from; i < to; i++) {
		const struct sample *one = &s->samples[i];

		rss[i - from] = one->rss_kb;
		sum.fds = one->fds > sum.fds ? one->fds : sum.fds;
		sum.threads = one->threads > sum.threads ? one->threads : sum.threads;
	}
	qsort(rss, to - from, sizeof(*rss), by_size);
	sum.rss_kb = rss[(to - from) / 2];
	free(rss);
	return sum;
}

static bool is_flat(const struct soak *s)
{
	struct sample before, after;
	bool flat;

	for (size_t q = 0; q < 4; q++) {
		struct sample sum = sum_up(s, s->count * q / 4, s->count * (q + 1) / 4);

		printf("quarter %zu: resident %" PRId64 " kB, descriptors %u, threads %u\n", q + 1,
			sum.rss_kb, sum.fds, sum.threads);
	}
	before = sum_up(s, s->count / 4, s->count / 2);
	after = sum_up(s, s->count * 3 / 4, s->count);
	flat = after.rss_kb <= before.rss_kb + SLACK_KB && after.fds <= before.fds + SLACK_FDS &&
	       after.threads <= before.threads;
	printf("from the second quarter to the last: %+" PRId64 " kB: %s\n",
		after.rss_kb - before.rss_kb, flat ? "flat" : "IT GROWS");
	return flat;
}

static bool delivered(struct soak *s)
{
	bool good = true;

	for (unsigned i = 0; i < SOURCES; i++) {
		struct findings f;

		rig_wait_sent(&s->rig, i, 120000);
		mq_drain(s->rig.mq, s->rig.queue, &s->rig.inbox);
		oracle_look(&f, s->rig.db, &s->rig.schema[i], &s->rig.inbox);
		printf("source %u: events %" PRIu64 "  lost %" PRIu64 "  dead %" PRIu64
		       "  duplicates %" PRIu64 "  order violations %" PRIu64 "\n",
			i, f.rows, f.lost, f.dead, f.duplicates, i == 0 ? f.disordered : 0);
		good &= f.rows > 0 && f.lost == 0 && f.missing == 0 &&
			f.dead == rig_rows(&s->rig, i, "event_type='nowhere'") &&
			(i != 0 || f.disordered == 0);
	}
	return good;
}

int main(int argc, char **argv)
{
	bool errors_only = argc > 1 && strcmp(argv[1], "--judge-errors-only") == 0;
	int64_t seconds = argc > 1 + errors_only ? atoll(argv[1 + errors_only]) : 600;
	struct soak s = { 0 };
	bool good;

	if (env_missing() != NULL || seconds < 8) {
		printf("soak: %s\n", seconds < 8 ? "8 seconds at least" : env_missing());
		return 2;
	}
	s.samples = calloc((size_t)seconds + 1, sizeof(s.samples[0]));
	if (s.samples == NULL)
		return 2;
	s.rig.inbox.no_bodies = true;
	open_all(&s);
	s.rig.inbox.no_bodies = true;
	daemon_wait_ready(s.daemon, !errors_only);
	start_producers(&s);
	for (int64_t start_us = env_now_us(), second = 0; second < seconds; second++) {
		disturb(&s, (uint64_t)second);
		mq_drain(s.rig.mq, s.rig.queue, &s.rig.inbox);
		while (env_now_us() < start_us + (second + 1) * US_PER_SEC)
			env_sleep_ms(20);
		if (!daemon_runs(s.daemon))
			FAIL("the daemon ended, wait status %d", s.daemon->status);
		daemon_notifications(s.daemon);
		s.daemon->notified[0] = '\0';
		s.samples[s.count++] = (struct sample){ daemon_rss_kb(s.daemon),
			daemon_fds(s.daemon), threads_of(s.daemon) };
		if (second % 60 == 59) {
			printf("%" PRId64 " s: resident %" PRId64
			       " kB, descriptors %u, threads %u, "
			       "faults %u\n",
				second + 1, s.samples[s.count - 1].rss_kb,
				s.samples[s.count - 1].fds, s.samples[s.count - 1].threads,
				s.faults);
			fflush(stdout);
		}
	}
	for (unsigned i = 0; i < SOURCES; i++)
		producer_stop(s.small[i]);
	producer_stop(s.large);
	good = delivered(&s);
	daemon_signal(s.daemon, SIGTERM);
	if (daemon_wait(s.daemon, 60000) != 0) {
		printf("wait status %d after TERM\n", s.daemon->status);
		good = false;
	}
	if (!errors_only)
		good &= is_flat(&s);
	printf("%u faults in %" PRId64 " s\n%d passed, %d failed\n", s.faults, seconds,
		good ? 1 : 0, good ? 0 : 1);
	proxy_stop(s.database);
	proxy_stop(s.broker);
	daemon_free(s.daemon);
	rig_close(&s.rig);
	free(s.samples);
	return good ? EXIT_SUCCESS : EXIT_FAILURE;
}

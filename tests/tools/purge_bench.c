/* purge_bench: what a purge costs those who send. A table full of events sent long ago, a producer
 * at a steady rate; in turn nothing is purged, and as much as can be, so that whatever else the
 * machine does falls on both: how long events take from created_at to sent_at, by the database's
 * clock, in either time.
 *
 *	purge_bench [ROWS [EVENTS_PER_SECOND [SECONDS [TURNS]]]]	(1000000 1000 30)
 *
 * SECONDS are those of a turn; it ends when all rows are gone, or after so many turns of each kind.
 *
 * Needs the servers of `tests/servers env`. */
#include "support/rig.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fill(struct rig *r, uint64_t rows)
{
	const char *s = r->schema[0].name;
	struct production p = { .first = 1, .count = 1000, .aggregates = 1000 };

	db_produce(r->db, &r->schema[0], &p);
	db_exec(r->db, "SET sql_log_bin=0");
	db_exec(r->db,
		"UPDATE %s.outbox_event SET event_id=CONCAT('old-',id),status='SENT',"
		"created_at=NOW(6)-INTERVAL 9 DAY,sent_at=NOW(6)-INTERVAL 8 DAY",
		s);
	for (uint64_t have = 1000, more; have < rows; have += more) {
		more = rows - have < have ? rows - have : have;
		more = more < 20000 ? more : 20000;
		db_exec(r->db,
			"INSERT INTO %s.outbox_event (event_id,aggregate_type,aggregate_id,"
			"aggregate_version,event_type,trace_id,headers,payload,status,created_at,"
			"sent_at) SELECT UUID(),aggregate_type,aggregate_id,aggregate_version,"
			"event_type,trace_id,headers,payload,status,created_at+INTERVAL %llu "
			"MICROSECOND,sent_at FROM %s.outbox_event WHERE id<=%llu ORDER BY id LIMIT "
			"%llu",
			s, (unsigned long long)have, s, (unsigned long long)have,
			(unsigned long long)more);
	}
	db_exec(r->db, "SET sql_log_bin=1");
}

#define WINDOWS_MAX (1 << 16)

/* Times of either kind, as a condition. */
struct windows {
	char text[WINDOWS_MAX];
};

static char *now(struct rig *r)
{
	return db_text(r->db, "SELECT NOW(6)");
}

/* Of the events created in these times: milliseconds at that share. */
static double lag(struct rig *r, const struct windows *w, double share)
{
	const char *s = r->schema[0].name;
	int64_t n = db_int(r->db,
		"SELECT COUNT(*) FROM %s.outbox_event WHERE status='SENT' AND (%s)", s, w->text);

	return (double)db_int(r->db,
		       "SELECT TIMESTAMPDIFF(MICROSECOND,created_at,sent_at) d FROM "
		       "%s.outbox_event WHERE status='SENT' AND (%s) ORDER BY d LIMIT 1 OFFSET "
		       "%lld",
		       s, w->text, (long long)((double)(n - 1) * share)) /
	       1000;
}

static double purged(const struct daemon *d)
{
	return daemon_metric(d, "outboxd_purged_events_total{source=\"s0\"}");
}

/* Runs so for a while, or until all rows are gone; returns how long it was, seconds. */
static double turn(struct rig *r, struct daemon *d, struct conf *c, const char *retention,
	double rows, unsigned seconds, struct windows *w)
{
	int64_t began_us = env_now_us(), until_us = began_us + (int64_t)seconds * US_PER_SEC;
	size_t n = strlen(w->text);
	char *from, *until;

	c->source[0].more = retention;
	daemon_configure(d, c);
	from = now(r);
	daemon_signal(d, SIGHUP);
	while (env_now_us() < until_us && purged(d) < rows)
		env_sleep_ms(200);
	until = now(r);
	snprintf(w->text + n, sizeof(w->text) - n, "%s(created_at>='%s' AND created_at<'%s')",
		n > 0 ? " OR " : "", from, until);
	free(from);
	free(until);
	return (double)(env_now_us() - began_us) / US_PER_SEC;
}

static void show(struct rig *r, const char *what, const struct windows *w)
{
	printf("%-8s lag p50 %.1f ms, p90 %.1f ms, p99 %.1f ms, max %.1f ms\n", what,
		lag(r, w, 0.5), lag(r, w, 0.9), lag(r, w, 0.99), lag(r, w, 1));
	fflush(stdout);
}

int main(int argc, char **argv)
{
	uint64_t rows = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000000;
	unsigned rate = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 1000;
	unsigned seconds = argc > 3 ? (unsigned)strtoul(argv[3], NULL, 10) : 30;
	unsigned turns = argc > 4 ? (unsigned)strtoul(argv[4], NULL, 10) : UINT_MAX;
	static struct windows idle, purging;
	struct production p = { .first = 10000000,
		.count = 100000000,
		.aggregates = 500,
		.transaction = 10,
		.per_second = rate };
	struct producer *producer;
	struct daemon *d;
	struct rig r;
	struct conf c;
	double took = 0;

	if (env_missing() != NULL) {
		fprintf(stderr, "purge_bench: %s\n", env_missing());
		return EXIT_FAILURE;
	}
	rig_open(&r, 1);
	rig_conf(&r, &c);
	c.ordering = "aggregate";
	c.source[0].more = "    retention: { sent: never }\n";
	fill(&r, rows);
	d = daemon_new("purge-bench");
	daemon_configure(d, &c);
	daemon_start(d);
	daemon_wait_ready(d, true);
	producer = producer_start(&r.schema[0], &p);
	env_sleep_ms(3000);
	for (; turns > 0 && purged(d) < (double)rows; turns--) {
		(void)turn(&r, d, &c, "    retention: { sent: never }\n", 1e18, seconds, &idle);
		took += turn(&r, d, &c, "    retention: { sent: 7d, interval: 1s }\n", (double)rows,
			seconds, &purging);
	}
	producer_stop(producer);
	rig_wait_sent(&r, 0, 60000);
	show(&r, "idle:", &idle);
	show(&r, "purging:", &purging);
	printf("%.0f of %llu rows purged in %.0f s, %.0f a second, beside %u events a second\n",
		purged(d), (unsigned long long)rows, took, purged(d) / took, rate);
	daemon_stop(d);
	daemon_free(d);
	rig_close(&r);
	return EXIT_SUCCESS;
}

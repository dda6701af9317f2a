/* purge_bench: what a purge costs those who send. A table full of events sent long ago, a producer
 * at a steady rate; first nothing is purged, then everything is: how long events take from
 * created_at to sent_at, by the database's clock, in either time.
 *
 *	purge_bench [ROWS [EVENTS_PER_SECOND [IDLE_SECONDS]]]	(1000000 1000 30)
 *
 * Needs the servers of `tests/servers env`. */
#include "support/rig.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

static void fill(struct rig *r, uint64_t rows)
{
	const char *s = r->schema[0].name;
	struct production p = { .first = 1, .count = 1000, .aggregates = 1000 };

	db_produce(r->db, &r->schema[0], &p);
	db_exec(r->db,
		"UPDATE %s.outbox_event SET event_id=CONCAT('old-',id),status='SENT',"
		"created_at=NOW(6)-INTERVAL 9 DAY,sent_at=NOW(6)-INTERVAL 8 DAY",
		s);
	for (uint64_t have = 1000; have < rows;
		have = (uint64_t)db_int(r->db, "SELECT COUNT(*) FROM %s.outbox_event", s)) {
		uint64_t more = rows - have < have ? rows - have : have;

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
}

/* Of the events created since: milliseconds at that share. */
static double lag(struct rig *r, const char *since, const char *until, double share)
{
	const char *s = r->schema[0].name;
	int64_t n = db_int(r->db,
		"SELECT COUNT(*) FROM %s.outbox_event WHERE status='SENT' AND created_at>='%s' AND "
		"created_at<'%s'",
		s, since, until);

	return (double)db_int(r->db,
		       "SELECT TIMESTAMPDIFF(MICROSECOND,created_at,sent_at) d FROM "
		       "%s.outbox_event WHERE status='SENT' AND created_at>='%s' AND "
		       "created_at<'%s' ORDER BY d LIMIT 1 OFFSET %lld",
		       s, since, until, (long long)((double)(n - 1) * share)) /
	       1000;
}

static char *now(struct rig *r)
{
	return db_text(r->db, "SELECT NOW(6)");
}

static void show(struct rig *r, const char *what, const char *since, const char *until)
{
	char unsent[120];

	snprintf(unsent, sizeof(unsent), "created_at<'%s' AND status<>'SENT'", until);
	rig_wait_none(r, 0, unsent, 60000);
	printf("%-8s lag p50 %.1f ms, p99 %.1f ms, max %.1f ms\n", what, lag(r, since, until, 0.5),
		lag(r, since, until, 0.99), lag(r, since, until, 1));
	fflush(stdout);
}

int main(int argc, char **argv)
{
	uint64_t rows = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000000;
	unsigned rate = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 1000;
	unsigned idle_s = argc > 3 ? (unsigned)strtoul(argv[3], NULL, 10) : 30;
	struct production p = { .first = 10000000,
		.count = 100000000,
		.aggregates = 500,
		.transaction = 10,
		.per_second = rate };
	struct producer *producer;
	struct daemon *d;
	struct rig r;
	struct conf c;
	char *from, *until;
	int64_t began_us;
	double seconds;

	if (env_missing() != NULL) {
		fprintf(stderr, "purge_bench: %s\n", env_missing());
		return EXIT_FAILURE;
	}
	rig_open(&r, 1);
	rig_conf(&r, &c);
	c.ordering = "aggregate";
	fill(&r, rows);
	c.source[0].more = "    retention: { sent: never }\n";
	d = daemon_new("purge-bench");
	daemon_configure(d, &c);
	daemon_start(d);
	daemon_wait_ready(d, true);
	producer = producer_start(&r.schema[0], &p);
	env_sleep_ms(3000);
	from = now(&r);
	env_sleep_ms((int64_t)idle_s * 1000);
	until = now(&r);
	show(&r, "idle:", from, until);
	c.source[0].more = "    retention: { sent: 7d, interval: 1s }\n";
	daemon_configure(d, &c);
	from = now(&r);
	began_us = env_now_us();
	daemon_signal(d, SIGHUP);
	while (daemon_metric(d, "outboxd_purged_events_total{source=\"s0\"}") < (double)rows) {
		if (env_now_us() - began_us > 3600 * US_PER_SEC)
			FAIL("still not purged after an hour");
		env_sleep_ms(200);
	}
	seconds = (double)(env_now_us() - began_us) / US_PER_SEC;
	until = now(&r);
	producer_stop(producer);
	rig_wait_sent(&r, 0, 60000);
	show(&r, "purging:", from, until);
	printf("%llu rows purged in %.0f s, %.0f a second, beside %u events a second\n",
		(unsigned long long)rows, seconds, (double)rows / seconds, rate);
	daemon_stop(d);
	daemon_free(d);
	rig_close(&r);
	return EXIT_SUCCESS;
}

/* Processes that end, one way or the other, and what becomes of the rows they held. */
#include "support/proxy.h"
#include "support/rig.h"

#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCH 50
#define WINDOW 100
/* The window may grow by a batch beyond max_in_flight: see relay_new(). */
#define WINDOW_MOST (WINDOW + BATCH)
/* Two polls, and slack for a machine that does other things. */
#define TAKEOVER_MS(c) ((c)->lease_ms + 2 * (c)->poll_ms + 2500)

static void small_window(struct conf *c)
{
	conf_short_lease(c);
	c->batch = BATCH;
	c->window = WINDOW;
}

static uint64_t copies_beyond_the_first(struct rig *r)
{
	struct findings f;

	mq_drain(r->mq, r->queue, &r->inbox);
	oracle_look(&f, r->db, &r->schema[0], &r->inbox);
	return f.duplicates;
}

static void kill_in_the_middle(struct rig *r, struct daemon *d, const struct conf *c)
{
	char *owner, held[400];
	uint64_t before = copies_beyond_the_first(r), sent = rig_rows(r, 0, "status='SENT'"), n;
	int64_t killed_us;

	WAIT_FOR(15000, rig_rows(r, 0, "status='SENT'") > sent + BATCH &&
				rig_rows(r, 0, "status='PROCESSING'") > 0);
	daemon_kill(d);
	killed_us = env_now_us();
	n = rig_suspect(r, 0);
	REQUIRE_INT(n, <=, WINDOW_MOST);
	owner = db_text(r->db, "SELECT MAX(locked_by) FROM %s.outbox_event", r->schema[0].name);
	daemon_start(d); /* within the lease, under the same name */
	if (owner != NULL) {
		snprintf(held, sizeof(held), "locked_by='%s'", owner);
		rig_wait_none(r, 0, held, TAKEOVER_MS(c) - (env_now_us() - killed_us) / US_PER_MS);
		rig_wait_none(r, 0, "event_id IN (SELECT event_id FROM suspect) AND status<>'SENT'",
			15000);
	}
	free(owner);
	REQUIRE_INT(copies_beyond_the_first(r) - before, <=, n);
}

static void kills(const char *ordering)
{
	unsigned rounds = env_get()->thorough ? 20 : 4;
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("killed");
	struct production p = { .first = 1,
		.count = 1000000,
		.aggregates = 400,
		.transaction = 20,
		.per_second = 400 };
	struct allowance allowed = { .suspects = true,
		.ordered = strcmp(ordering, "aggregate") == 0 };
	struct producer *producer;
	struct findings f;

	rig_open(&r, 1);
	db_exec(r.db, "USE %s", r.schema[0].name);
	rig_conf(&r, &c);
	small_window(&c);
	c.ordering = ordering;
	daemon_configure(d, &c);
	daemon_start(d);
	producer = producer_start(&r.schema[0], &p);
	for (unsigned i = 0; i < rounds; i++)
		kill_in_the_middle(&r, d, &c);
	REQUIRE_INT(producer_stop(producer), >, 0);
	rig_wait_sent(&r, 0, 60000);
	rig_judge(&r, 0, &allowed, &f);
	REQUIRE_INT(f.duplicates, <=, rounds * WINDOW_MOST);
	daemon_stop(d);
	daemon_free(d);
	rig_close(&r);
}

START_TEST(killed_in_the_middle_of_a_batch_it_loses_nothing_and_repeats_at_most_its_window)
{
	kills("none");
}
END_TEST

START_TEST(killed_in_the_middle_of_a_batch_an_ordered_source_keeps_its_order)
{
	kills("aggregate");
}
END_TEST

static void stop_under_load(const char *ordering)
{
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("stopped");
	struct production p = { .first = 1, .count = 30000, .aggregates = 3000 };
	struct allowance half = { .ordered = strcmp(ordering, "aggregate") == 0 };

	rig_open(&r, 1);
	rig_conf(&r, &c);
	c.ordering = ordering;
	db_produce(r.db, &r.schema[0], &p);
	daemon_configure(d, &c);
	for (int round = 0; round < 3; round++) {
		uint64_t sent = rig_rows(&r, 0, "status='SENT'");
		int64_t began_us;

		daemon_start(d);
		WAIT_FOR(20000, rig_rows(&r, 0, "status='SENT'") > sent + 500);
		began_us = env_now_us();
		daemon_stop(d);
		REQUIRE_INT(env_now_us() - began_us, <, c.shutdown_ms * US_PER_MS);
		REQUIRE_INT(rig_rows(&r, 0, "status='PROCESSING'"), ==, 0);
	}
	half.missing = rig_rows(&r, 0, "status='PENDING'");
	REQUIRE_INT(half.missing, >, 0);
	rig_judge(&r, 0, &half, NULL);
	daemon_start(d);
	rig_wait_sent(&r, 0, 40000);
	daemon_stop(d);
	half.missing = 0;
	rig_judge(&r, 0, &half, NULL);
	daemon_free(d);
	rig_close(&r);
}

START_TEST(term_under_load_leaves_nothing_in_processing_and_repeats_nothing)
{
	stop_under_load("none");
}
END_TEST

START_TEST(term_under_load_of_an_ordered_source_leaves_nothing_in_processing)
{
	stop_under_load("aggregate");
}
END_TEST

START_TEST(a_second_term_ends_it_at_once)
{
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("twice");
	struct proxy *proxy = proxy_start(env_get()->mq_host, env_get()->mq_port);
	struct production p = { .first = 1, .count = 20000, .aggregates = 500 };
	static const char confirmed[] = "outboxd_events_published_total{source=\"s0\"}";
	double before;
	int64_t began_us;

	rig_open(&r, 1);
	rig_conf(&r, &c);
	c.broker[0].port = proxy_port(proxy);
	c.lease_ms = 60000;
	c.shutdown_ms = 60000;
	c.confirm_ms = 30000;
	db_produce(r.db, &r.schema[0], &p);
	daemon_configure(d, &c);
	daemon_start(d);
	WAIT_FOR(20000, rig_rows(&r, 0, "status='SENT'") > 0);
	proxy_black_hole(proxy, true);
	do { /* until no confirm comes any more */
		before = daemon_metric(d, confirmed);
		env_sleep_ms(500);
	} while (daemon_metric(d, confirmed) != before);
	WAIT_FOR(20000, daemon_metric(d, "outboxd_in_flight_messages{source=\"s0\"}") > 0);
	daemon_signal(d, SIGTERM);
	env_sleep_ms(1500);
	REQUIRE(daemon_runs(d)); /* it waits for confirms */
	began_us = env_now_us();
	daemon_signal(d, SIGTERM);
	REQUIRE_INT(daemon_wait(d, 4000), <, 2);
	REQUIRE_INT(env_now_us() - began_us, <, 3 * US_PER_SEC);
	proxy_stop(proxy);
	daemon_free(d);
	rig_close(&r);
}
END_TEST

START_TEST(orderly_restarts_cost_no_attempt)
{
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("restarts");
	struct production p = { .first = 1,
		.count = 200000,
		.aggregates = 500,
		.transaction = 50,
		.per_second = 1000 };
	struct allowance exactly = { .ordered = true };
	struct producer *producer;

	rig_open(&r, 1);
	rig_conf(&r, &c);
	c.ordering = "aggregate";
	daemon_configure(d, &c);
	producer = producer_start(&r.schema[0], &p);
	for (unsigned i = 0; i < (env_get()->thorough ? 20 : 8); i++) {
		daemon_start(d);
		daemon_wait_ready(d, false);
		env_sleep_ms(150);
		daemon_stop(d);
		REQUIRE_INT(rig_rows(&r, 0, "retry_count<>0 OR status NOT IN ('PENDING','SENT')"),
			==, 0);
	}
	producer_stop(producer);
	daemon_start(d);
	daemon_wait_ready(d, false); /* there may be nothing left to send */
	rig_wait_sent(&r, 0, 40000);
	daemon_stop(d);
	rig_judge(&r, 0, &exactly, NULL);
	daemon_free(d);
	rig_close(&r);
}
END_TEST

START_TEST(rows_of_relays_that_are_gone_are_taken_over_once_however_they_were_left)
{
	struct rig r;
	struct conf c;
	struct daemon *d[3] = { daemon_new("a"), daemon_new("b"), daemon_new("c") };
	struct production p = { .first = 1, .count = 1000, .aggregates = 100 };
	struct allowance exactly = { .missing = 1 };
	const char *table;

	rig_open(&r, 1);
	table = r.schema[0].name;
	db_produce(r.db, &r.schema[0], &p);
	db_exec(r.db,
		"UPDATE %s.outbox_event SET status='PROCESSING',locked_by='gone/1/0',"
		"locked_until=NOW(6)-INTERVAL 1 HOUR",
		table);
	db_exec(r.db, "UPDATE %s.outbox_event SET locked_by=NULL WHERE id%%10=1", table);
	db_exec(r.db, "UPDATE %s.outbox_event SET locked_until=NULL WHERE id%%10=2", table);
	db_exec(r.db, "UPDATE %s.outbox_event SET locked_by=NULL,locked_until=NULL WHERE id%%10=3",
		table);
	/* still somebody's, and for long */
	db_exec(r.db, "UPDATE %s.outbox_event SET locked_until=NOW(6)+INTERVAL 1 HOUR WHERE id=7",
		table);
	rig_conf(&r, &c);
	for (int i = 0; i < 3; i++) {
		daemon_configure(d[i], &c);
		daemon_start(d[i]);
	}
	rig_wait_none(&r, 0, "status<>'SENT' AND id<>7", 15000);
	for (int i = 0; i < 3; i++)
		daemon_stop(d[i]);
	REQUIRE_INT(
		rig_rows(&r, 0, "id=7 AND status='PROCESSING' AND locked_by='gone/1/0'"), ==, 1);
	db_exec(r.db,
		"UPDATE %s.outbox_event SET status='PENDING',locked_by=NULL,locked_until=NULL "
		"WHERE id=7",
		table);
	rig_judge(&r, 0, &exactly, NULL);
	for (int i = 0; i < 3; i++)
		daemon_free(d[i]);
	rig_close(&r);
}
END_TEST

static int64_t rows_examined_by_claims(struct rig *r)
{
	return db_int(r->db,
		"SELECT SUM(SUM_ROWS_EXAMINED) FROM "
		"performance_schema.events_statements_summary_by_digest WHERE SCHEMA_NAME='%s' AND "
		"DIGEST_TEXT LIKE '%%SKIP LOCKED%%'",
		r->schema[0].name);
}

/* Two deaths with a full window leave as many rows that go alone. Others have their turns
 * meanwhile, and no more than a few rows are read and locked for each. */
START_TEST(rows_taken_over_twice_go_alone_and_still_soon)
{
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("alone");
	struct production p = { .first = 1, .count = 1500, .aggregates = 100 };
	struct allowance exactly = { .missing = 0 };
	int64_t began_us, examined;

	if (env_get()->mariadb)
		return; /* does not count that */
	rig_open(&r, 1);
	db_produce(r.db, &r.schema[0], &p);
	db_exec(r.db,
		"UPDATE %s.outbox_event SET status='PROCESSING',locked_by='gone/1/0',"
		"locked_until=NOW(6)-INTERVAL 1 HOUR,last_error='LEASE_EXPIRED: taken over 1 time "
		"in a row, last from gone/0/0' WHERE id<=1000",
		r.schema[0].name);
	rig_conf(&r, &c);
	c.batch = 500;
	c.window = 2000;
	daemon_configure(d, &c);
	began_us = env_now_us();
	daemon_start(d);
	WAIT_FOR(120000, daemon_metric(d, "outboxd_events_published_total{source=\"s0\"}") == 1500);
	daemon_stop(d);
	examined = rows_examined_by_claims(&r);
	printf("1,000 rows alone in %.1f s, %.0f rows examined for each\n",
		(double)(env_now_us() - began_us) / US_PER_SEC, (double)examined / 1000);
	REQUIRE_INT(examined, <, 30 * 1000);
	rig_judge(&r, 0, &exactly, NULL);
	daemon_free(d);
	rig_close(&r);
}
END_TEST

RIG_MAIN("daemon: takeover", 240,
	killed_in_the_middle_of_a_batch_it_loses_nothing_and_repeats_at_most_its_window,
	killed_in_the_middle_of_a_batch_an_ordered_source_keeps_its_order,
	term_under_load_leaves_nothing_in_processing_and_repeats_nothing,
	term_under_load_of_an_ordered_source_leaves_nothing_in_processing,
	a_second_term_ends_it_at_once, orderly_restarts_cost_no_attempt,
	rows_of_relays_that_are_gone_are_taken_over_once_however_they_were_left,
	rows_taken_over_twice_go_alone_and_still_soon)

/* Statements that fail, and connections that break in the middle of one: what was confirmed is
 * settled later, what was not is not published twice, nobody is charged. */
#include "support/fake_broker.h"
#include "support/proxy.h"
#include "support/rig.h"

#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the statement before a COMMIT holds. */
#define CLAIM "`status`='PROCESSING',`locked_by`"
#define SETTLE "`status`='SENT'"

struct scene {
	struct rig rig;
	struct conf conf;
	struct daemon *daemon;
	struct proxy *database;
};

static void scene_open(struct scene *s, const char *ordering)
{
	*s = (struct scene){ .daemon = daemon_new("database") };
	rig_open(&s->rig, 1);
	rig_conf(&s->rig, &s->conf);
	s->database = proxy_start(env_get()->db_host, env_get()->db_port);
	s->conf.source[0].db_port = proxy_port(s->database);
	s->conf.ordering = ordering;
	s->conf.batch = 100;
	s->conf.window = 200;
	daemon_configure(s->daemon, &s->conf);
}

static void scene_close(struct scene *s)
{
	struct allowance exactly = { .ordered = strcmp(s->conf.ordering, "aggregate") == 0 };

	rig_wait_sent(&s->rig, 0, 40000);
	daemon_stop(s->daemon);
	rig_judge(&s->rig, 0, &exactly, NULL);
	proxy_stop(s->database);
	daemon_free(s->daemon);
	rig_close(&s->rig);
}

/* 3,000 events while the rule hits some of the statements; each arrives exactly once. The lease of
 * a minute never runs out: whatever was claimed came back by itself. */
static void survive(const char *ordering, struct proxy_rule rule)
{
	struct production p = { .first = 1, .count = 3000, .aggregates = 300 };
	struct scene s;

	scene_open(&s, ordering);
	rule.skip = 2;
	db_produce(s.rig.db, &s.rig.schema[0], &p);
	proxy_rule(s.database, &rule);
	daemon_start(s.daemon);
	rig_wait_sent(&s.rig, 0, 45000);
	REQUIRE_INT(proxy_hits(s.database), ==, rule.times);
	REQUIRE_INT(daemon_metric(s.daemon, "outboxd_lease_lost_total{source=\"s0\"}"), ==, 0);
	REQUIRE_INT(
		daemon_metric(s.daemon, "outboxd_events_redelivered_total{source=\"s0\"}"), ==, 0);
	scene_close(&s);
}

START_TEST(a_claim_whose_commit_ends_in_a_deadlock_is_not_published)
{
	survive("none", (struct proxy_rule){ "COMMIT", CLAIM, PROXY_ERROR, 1213, .times = 4 });
}
END_TEST

START_TEST(a_claim_of_an_ordered_source_whose_commit_ends_in_a_deadlock_is_not_published)
{
	survive("aggregate", (struct proxy_rule){ "COMMIT", CLAIM, PROXY_ERROR, 1213, .times = 4 });
}
END_TEST

START_TEST(while_no_claim_can_be_committed_nothing_reaches_the_broker)
{
	struct production p = { .first = 1, .count = 500, .aggregates = 100 };
	struct proxy_rule rule = { .text = "COMMIT", .after = CLAIM, .error = 1213 };
	struct scene s;

	scene_open(&s, "none");
	db_produce(s.rig.db, &s.rig.schema[0], &p);
	proxy_rule(s.database, &rule);
	daemon_start(s.daemon);
	WAIT_FOR(20000, proxy_hits(s.database) >= 3);
	env_sleep_ms(500);
	REQUIRE_INT(mq_depth(s.rig.mq, s.rig.queue), ==, 0);
	REQUIRE_INT(rig_rows(&s.rig, 0, "status<>'PENDING'"), ==, 0);
	/* and no hot loop over it */
	REQUIRE_INT(daemon_cpu_us(s.daemon), <, 2 * US_PER_SEC);
	proxy_rule(s.database, NULL);
	scene_close(&s);
}
END_TEST

START_TEST(a_claim_whose_commit_is_never_answered_is_handed_back_and_not_published_twice)
{
	survive("none", (struct proxy_rule){ "COMMIT", CLAIM, PROXY_DROP_AFTER, .times = 3 });
}
END_TEST

START_TEST(a_claim_cut_off_before_its_commit_goes_again)
{
	survive("aggregate", (struct proxy_rule){ "COMMIT", CLAIM, PROXY_DROP_BEFORE, .times = 3 });
}
END_TEST

START_TEST(a_settlement_whose_commit_is_never_answered_is_not_published_again)
{
	survive("none", (struct proxy_rule){ "COMMIT", SETTLE, PROXY_DROP_AFTER, .times = 3 });
}
END_TEST

START_TEST(a_settlement_of_an_ordered_source_cut_off_before_its_commit_is_written_later)
{
	survive("aggregate",
		(struct proxy_rule){ "COMMIT", SETTLE, PROXY_DROP_BEFORE, .times = 3 });
}
END_TEST

START_TEST(a_settlement_that_ends_in_a_deadlock_is_written_later)
{
	survive("none", (struct proxy_rule){ SETTLE, NULL, PROXY_ERROR, 1213, .times = 4 });
}
END_TEST

START_TEST(a_settlement_that_waits_too_long_for_a_lock_is_written_later)
{
	survive("aggregate", (struct proxy_rule){ SETTLE, NULL, PROXY_ERROR, 1205, .times = 3 });
}
END_TEST

START_TEST(sessions_that_an_administrator_kills_are_opened_anew)
{
	struct production p = {
		.first = 1, .count = 200000, .aggregates = 200, .transaction = 20, .per_second = 500
	};
	struct producer *producer;
	struct scene s;

	scene_open(&s, "aggregate");
	producer = producer_start(&s.rig.schema[0], &p);
	daemon_start(s.daemon);
	daemon_wait_ready(s.daemon, true);
	for (int i = 0; i < 5; i++) {
		uint64_t sent = rig_rows(&s.rig, 0, "status='SENT'");
		int64_t id;

		WAIT_FOR(10000, rig_rows(&s.rig, 0, "status='SENT'") > sent);
		WAIT_FOR(10000, (id = db_session(s.rig.db, s.rig.schema[0].user)) > 0);
		(void)db_try(s.rig.db, "KILL %" PRId64, id);
	}
	producer_stop(producer);
	REQUIRE_INT(rig_rows(&s.rig, 0, "retry_count>0"), ==, 0);
	scene_close(&s);
}
END_TEST

START_TEST(a_server_that_turns_read_only_is_waited_for)
{
	struct production p = { .first = 1, .count = 2000, .aggregates = 200 };
	struct scene s;

	scene_open(&s, "none");
	daemon_start(s.daemon);
	daemon_wait_ready(s.daemon, true);
	db_exec(s.rig.db, "SET GLOBAL read_only=1");
	db_produce(s.rig.db, &s.rig.schema[0], &p);
	env_sleep_ms(2500);
	db_exec(s.rig.db, "SET GLOBAL read_only=0");
	REQUIRE_INT(rig_rows(&s.rig, 0, "status<>'PENDING'"), ==, 0);
	scene_close(&s);
}
END_TEST

START_TEST(rows_that_somebody_else_has_locked_are_passed_by_and_come_later)
{
	struct production p = { .first = 1, .count = 1000, .aggregates = 100 };
	struct scene s;
	struct db *other = db_open();

	scene_open(&s, "none");
	db_produce(s.rig.db, &s.rig.schema[0], &p);
	db_exec(other,
		"START TRANSACTION; SELECT id FROM %s.outbox_event WHERE id<=300 ORDER BY id DESC "
		"FOR UPDATE",
		s.rig.schema[0].name);
	daemon_start(s.daemon);
	rig_wait_none(&s.rig, 0, "status<>'SENT' AND id>300", 20000);
	REQUIRE_INT(rig_rows(&s.rig, 0, "status='PENDING'"), ==, 300);
	db_exec(other, "ROLLBACK");
	scene_close(&s);
	db_close(other);
}
END_TEST

START_TEST(an_idle_relay_holds_no_transaction_and_no_lock_on_the_table)
{
	struct production p = { .first = 1, .count = 10, .aggregates = 10 };
	struct scene s;

	scene_open(&s, "aggregate");
	daemon_start(s.daemon);
	daemon_wait_ready(s.daemon, true);
	env_sleep_ms(500);
	REQUIRE_INT(db_int(s.rig.db,
			    "SELECT COUNT(*) FROM information_schema.innodb_trx t JOIN "
			    "information_schema.processlist p ON p.id=t.trx_mysql_thread_id WHERE "
			    "p.user='%s' AND t.trx_started<NOW()-INTERVAL 2 SECOND",
			    s.rig.schema[0].user),
		==, 0);
	db_exec(s.rig.db,
		"SET SESSION lock_wait_timeout=5; ALTER TABLE %s.outbox_event ADD COLUMN later INT "
		"NULL, ALGORITHM=COPY",
		s.rig.schema[0].name);
	/* and goes on with the table as it is now */
	db_produce(s.rig.db, &s.rig.schema[0], &p);
	scene_close(&s);
}
END_TEST

/* Somebody else took the rows meanwhile, and whatever he made of them stands. */
START_TEST(what_another_made_of_a_row_is_not_overwritten)
{
	struct fake_broker *fake = fake_broker_start(&(struct fake_rules){ .password = "guest" });
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("fence");
	struct production p = { .first = 1, .count = 30, .aggregates = 30 };

	rig_open(&r, 1);
	db_produce(r.db, &r.schema[0], &p);
	rig_conf(&r, &c);
	c.broker[0].port = fake_broker_port(fake);
	c.source[0].routing_key = "{aggregate_type}.x";
	db_exec(r.db, "UPDATE %s.outbox_event SET aggregate_type=IF(id>1,'hold','first')",
		r.schema[0].name);
	daemon_configure(d, &c);
	daemon_start(d);
	WAIT_FOR(15000, daemon_metric(d, "outboxd_in_flight_messages{source=\"s0\"}") == 29);
	WAIT_FOR(10000, rig_rows(&r, 0, "status='PROCESSING'") == 29);
	db_exec(r.db,
		"UPDATE %s.outbox_event SET locked_by='other/1/0',locked_until=NOW(6)+INTERVAL 1 "
		"HOUR WHERE id BETWEEN 2 AND 11",
		r.schema[0].name);
	db_exec(r.db, "UPDATE %s.outbox_event SET locked_by=NULL WHERE id BETWEEN 12 AND 16",
		r.schema[0].name);
	db_exec(r.db,
		"UPDATE %s.outbox_event SET status='DEAD',last_error='SKIPPED: by hand' WHERE id "
		"BETWEEN "
		"17 AND 20",
		r.schema[0].name);
	daemon_signal(d, SIGSTOP); /* or it takes those without an owner over */
	fake_broker_release(fake);
	daemon_signal(d, SIGCONT);
	WAIT_FOR(10000, rig_rows(&r, 0, "status='SENT'") >= 11);
	WAIT_FOR(10000, daemon_metric(d, "outboxd_lease_lost_total{source=\"s0\"}") >= 19);
	REQUIRE_INT(rig_rows(&r, 0, "status='PROCESSING' AND locked_by='other/1/0'"), ==, 10);
	REQUIRE_INT(rig_rows(&r, 0, "status='DEAD' AND last_error LIKE 'SKIPPED%'"), ==, 4);
	daemon_stop(d);
	REQUIRE_INT(rig_rows(&r, 0, "status='PROCESSING' AND locked_by='other/1/0'"), ==, 10);
	fake_broker_stop(fake);
	daemon_free(d);
	rig_close(&r);
}
END_TEST

RIG_MAIN("daemon: database", 120, a_claim_whose_commit_ends_in_a_deadlock_is_not_published,
	a_claim_of_an_ordered_source_whose_commit_ends_in_a_deadlock_is_not_published,
	while_no_claim_can_be_committed_nothing_reaches_the_broker,
	a_claim_whose_commit_is_never_answered_is_handed_back_and_not_published_twice,
	a_claim_cut_off_before_its_commit_goes_again,
	a_settlement_whose_commit_is_never_answered_is_not_published_again,
	a_settlement_of_an_ordered_source_cut_off_before_its_commit_is_written_later,
	a_settlement_that_ends_in_a_deadlock_is_written_later,
	a_settlement_that_waits_too_long_for_a_lock_is_written_later,
	sessions_that_an_administrator_kills_are_opened_anew,
	a_server_that_turns_read_only_is_waited_for,
	rows_that_somebody_else_has_locked_are_passed_by_and_come_later,
	an_idle_relay_holds_no_transaction_and_no_lock_on_the_table,
	what_another_made_of_a_row_is_not_overwritten)

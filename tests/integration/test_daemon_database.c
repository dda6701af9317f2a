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

/* Events while the rule hits some of the statements; each arrives exactly once. The lease of a
 * minute never runs out: whatever was claimed came back by itself. */
static void survive_with(struct production p, const char *ordering, struct proxy_rule rule)
{
	struct producer *producer = NULL;
	struct scene s;

	scene_open(&s, ordering);
	if (rule.action == PROXY_SWALLOW) {
		s.conf.query_ms = 1000;
		daemon_configure(s.daemon, &s.conf);
	}
	rule.skip = 2;
	if (p.per_second == 0)
		db_produce(s.rig.db, &s.rig.schema[0], &p);
	proxy_rule(s.database, &rule);
	daemon_start(s.daemon);
	if (p.per_second > 0) {
		producer = producer_start(&s.rig.schema[0], &p);
		WAIT_FOR(45000, proxy_hits(s.database) >= rule.times);
		producer_stop(producer);
	}
	rig_wait_sent(&s.rig, 0, 45000);
	REQUIRE_INT(proxy_hits(s.database), ==, rule.times);
	REQUIRE_INT(daemon_metric(s.daemon, "outboxd_lease_lost_total{source=\"s0\"}"), ==, 0);
	REQUIRE_INT(
		daemon_metric(s.daemon, "outboxd_events_redelivered_total{source=\"s0\"}"), ==, 0);
	scene_close(&s);
}

static void survive(const char *ordering, struct proxy_rule rule)
{
	survive_with((struct production){ .first = 1, .count = 3000, .aggregates = 300 }, ordering,
		rule);
}

/* A few events at a time: what is settled is settled by the session that claims. */
static void survive_trickle(const char *ordering, struct proxy_rule rule)
{
	survive_with((struct production){ .first = 1,
			     .count = 1000000,
			     .aggregates = 300,
			     .transaction = 5,
			     .per_second = 300 },
		ordering, rule);
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
	survive_trickle(
		"none", (struct proxy_rule){ "COMMIT", SETTLE, PROXY_DROP_AFTER, .times = 3 });
}
END_TEST

START_TEST(a_settlement_of_an_ordered_source_cut_off_before_its_commit_is_written_later)
{
	survive_trickle("aggregate",
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

/* One of these right after another on the same connection: that is the second session. */
START_TEST(a_settlement_beside_the_claims_that_is_never_answered_is_not_published_again)
{
	survive_with((struct production){ .first = 1, .count = 20000, .aggregates = 300 }, "none",
		(struct proxy_rule){ SETTLE, SETTLE, PROXY_DROP_AFTER, .times = 1 });
}
END_TEST

START_TEST(a_settlement_beside_the_claims_that_is_cut_off_is_written_later)
{
	survive_with((struct production){ .first = 1, .count = 20000, .aggregates = 300 },
		"aggregate", (struct proxy_rule){ SETTLE, SETTLE, PROXY_DROP_BEFORE, .times = 1 });
}
END_TEST

START_TEST(a_settlement_beside_the_claims_that_hangs_is_given_up_after_query_timeout)
{
	survive_with((struct production){ .first = 1, .count = 20000, .aggregates = 300 },
		"aggregate", (struct proxy_rule){ SETTLE, SETTLE, PROXY_SWALLOW, .times = 1 });
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

START_TEST(a_claim_cut_off_between_its_statements_takes_nothing)
{
	survive("none", (struct proxy_rule){ CLAIM, NULL, PROXY_DROP_BEFORE, .times = 3 });
}
END_TEST

START_TEST(a_settlement_whose_commit_vanishes_on_its_way_is_written_later)
{
	survive_trickle(
		"aggregate", (struct proxy_rule){ "COMMIT", SETTLE, PROXY_SWALLOW, .times = 2 });
}
END_TEST

/* From the handshake to the middle of a statement: what was sent up to there has arrived. */
START_TEST(connections_that_break_after_any_number_of_bytes_lose_and_repeat_nothing)
{
	static const uint64_t after[] = { 1, 37, 160, 1100, 7000, 20011 };
	struct production p = {
		.first = 1, .count = 200000, .aggregates = 200, .transaction = 20, .per_second = 300
	};
	struct producer *producer;
	struct scene s;

	scene_open(&s, "aggregate");
	producer = producer_start(&s.rig.schema[0], &p);
	daemon_start(s.daemon);
	daemon_wait_ready(s.daemon, true);
	for (size_t i = 0; i < ARRAY_LEN(after); i++) {
		unsigned connections = proxy_connections(s.database);

		/* the small ones hit the login that follows */
		proxy_cut_after(s.database, after[i]);
		WAIT_FOR(30000, proxy_connections(s.database) > connections);
	}
	producer_stop(producer);
	REQUIRE_INT(rig_rows(&s.rig, 0, "retry_count>0"), ==, 0);
	scene_close(&s);
}
END_TEST

START_TEST(packets_that_arrive_byte_by_byte_are_understood)
{
	struct production p = { .first = 1, .count = 200, .aggregates = 20 };
	struct scene s;
	struct proxy *broker;

	scene_open(&s, "aggregate");
	broker = proxy_start(env_get()->mq_host, env_get()->mq_port);
	s.conf.broker[0].port = proxy_port(broker);
	daemon_configure(s.daemon, &s.conf);
	proxy_split(broker, 1);
	proxy_split(s.database, 1);
	db_produce(s.rig.db, &s.rig.schema[0], &p);
	daemon_start(s.daemon);
	scene_close(&s);
	proxy_stop(broker);
}
END_TEST

/* Of four sources three have a server that refuses each statement, each for a reason of its own. */
START_TEST(a_server_that_refuses_every_statement_is_named_and_tried_slowly_and_others_flow)
{
	static const struct {
		unsigned code;
		const char *class;
	} refusals[] = {
		{ 1064, "config" }, /* a server that does not know SKIP LOCKED */
		{ 1665, "config" }, /* READ COMMITTED under binlog_format=STATEMENT */
		{ 1290, "link" },   /* read-only */
	};
	struct production p = { .first = 1, .count = 20, .aggregates = 10 };
	struct allowance exactly = { .foreign = true };
	struct proxy *proxies[3];
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("refused");
	char text[4000], series[100];
	int64_t cpu_us;

	rig_open(&r, 4);
	rig_conf(&r, &c);
	for (unsigned i = 0; i < 3; i++) {
		struct proxy_rule rule = {
			.text = "CONNECTION_ID()", .action = PROXY_ERROR, .error = refusals[i].code
		};

		proxies[i] = proxy_start(env_get()->db_host, env_get()->db_port);
		proxy_rule(proxies[i], &rule);
		c.source[i].db_port = proxy_port(proxies[i]);
	}
	daemon_configure(d, &c);
	daemon_start(d);
	daemon_wait_ready(d, false);
	WAIT_FOR(10000, proxy_hits(proxies[0]) > 0 && proxy_hits(proxies[1]) > 0 &&
				proxy_hits(proxies[2]) > 0);
	cpu_us = daemon_cpu_us(d);
	for (unsigned i = 0; i < 4; i++)
		db_produce(r.db, &r.schema[i], &p);
	rig_wait_sent(&r, 3, 5000);
	env_sleep_ms(2500);
	REQUIRE_INT(daemon_cpu_us(d) - cpu_us, <, US_PER_SEC);
	REQUIRE_INT(daemon_get(d, "/readyz", text, sizeof(text)), ==, 503);
	for (unsigned i = 0; i < 3; i++) {
		char name[20], code[20];

		snprintf(name, sizeof(name), "source s%u", i);
		snprintf(code, sizeof(code), "(%u)", refusals[i].code);
		REQUIRE(strstr(text, name) != NULL && strstr(text, code) != NULL);
		snprintf(series, sizeof(series), "outboxd_source_up{source=\"s%u\"}", i);
		REQUIRE_INT(daemon_metric(d, series), ==, 0);
		snprintf(series, sizeof(series),
			"outboxd_db_errors_total{class=\"%s\",source=\"s%u\"}", refusals[i].class,
			i);
		REQUIRE_INT(daemon_metric(d, series), >, 0);
		/* one line now and then of each who tried, not one a try */
		REQUIRE_INT(daemon_log(d, name + 7, code, NULL), <=, 6);
		REQUIRE_INT(proxy_hits(proxies[i]), <, 12);
		REQUIRE_INT(rig_rows(&r, i, "status<>'PENDING'"), ==, 0);
		proxy_rule(proxies[i], NULL);
	}
	for (unsigned i = 0; i < 3; i++)
		rig_wait_sent(&r, i, 20000);
	daemon_stop(d);
	for (unsigned i = 0; i < 4; i++)
		rig_judge(&r, i, &exactly, NULL);
	for (unsigned i = 0; i < 3; i++)
		proxy_stop(proxies[i]);
	daemon_free(d);
	rig_close(&r);
}
END_TEST

START_TEST(polling_goes_on_after_an_error_of_any_kind)
{
	static const unsigned errors[] = { 1146, 1205, 1317, 3024, 1053, 1836, 1030, 1040 };
	struct production p = { .first = 1, .count = 5, .aggregates = 5 };
	struct allowance exactly = { .foreign = true };
	struct proxy *proxies[4];
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("errors");

	rig_open(&r, 4);
	rig_conf(&r, &c);
	for (unsigned i = 0; i < 4; i++) {
		proxies[i] = proxy_start(env_get()->db_host, env_get()->db_port);
		c.source[i].db_port = proxy_port(proxies[i]);
	}
	daemon_configure(d, &c);
	daemon_start(d);
	daemon_wait_ready(d, true);
	for (unsigned round = 0; round < 2; round++) {
		for (unsigned i = 0; i < 4; i++) {
			struct proxy_rule rule = { .text = "CONNECTION_ID(),@@SESSION.time_zone",
				.action = PROXY_ERROR,
				.error = errors[round * 4 + i],
				.times = 1 };

			proxy_rule(proxies[i], &rule);
		}
		for (unsigned i = 0; i < 4; i++)
			WAIT_FOR(10000, proxy_hits(proxies[i]) == 1);
		p.first = 1 + round * p.count;
		for (unsigned i = 0; i < 4; i++)
			db_produce(r.db, &r.schema[i], &p);
		for (unsigned i = 0; i < 4; i++)
			rig_wait_sent(&r, i, 10000);
	}
	daemon_stop(d);
	for (unsigned i = 0; i < 4; i++) {
		rig_judge(&r, i, &exactly, NULL);
		proxy_stop(proxies[i]);
	}
	daemon_free(d);
	rig_close(&r);
}
END_TEST

/* Nobody there, somebody who hangs up at once, a stranger, and a database that was dropped. */
START_TEST(an_error_of_another_kind_is_logged_at_once_and_one_that_repeats_is_not)
{
	static const unsigned codes[] = { 1347, 1176 };
	struct scene s;

	scene_open(&s, "none");
	daemon_start(s.daemon);
	daemon_wait_ready(s.daemon, true);
	/* in turns, as of two hosts or of two statements: twice each, two lines in all */
	for (unsigned i = 0; i < 4; i++) {
		struct proxy_rule rule = { .text = "CONNECTION_ID(),@@SESSION.time_zone",
			.action = PROXY_ERROR,
			.error = codes[i % 2],
			.times = 1 };
		char code[20];

		snprintf(code, sizeof(code), "code=%u", rule.error);
		proxy_rule(s.database, &rule);
		WAIT_FOR(10000, proxy_hits(s.database) == 1);
		if (i < 2)
			WAIT_FOR(3000,
				daemon_log(s.daemon, "database call failed", code, NULL) == 1);
		proxy_rule(s.database, NULL);
		daemon_wait_ready(s.daemon, true);
	}
	REQUIRE_INT(daemon_log(s.daemon, "database call failed", NULL), ==, 2);
	scene_close(&s);
}
END_TEST

START_TEST(a_database_that_cannot_be_had_costs_no_cpu_no_log_and_no_descriptor)
{
	static const char http[] = "HTTP/1.1 400 Bad Request\r\n\r\n";
	struct fake_broker *hangs_up = fake_broker_start(&(struct fake_rules){ .hang_up = true });
	struct fake_broker *stranger = fake_broker_start(&(struct fake_rules){
		.banner = http, .banner_len = sizeof(http) - 1, .hang_up = true });
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("away");
	int64_t cpu_us;
	unsigned fds;

	rig_open(&r, 4);
	rig_conf(&r, &c);
	c.source[0].db_port = env_free_port();
	c.source[1].db_port = fake_broker_port(hangs_up);
	c.source[2].db_port = fake_broker_port(stranger);
	db_exec(r.db, "DROP DATABASE %s", r.schema[3].name);
	daemon_configure(d, &c);
	daemon_start(d);
	daemon_wait_ready(d, false);
	for (unsigned i = 0; i < 4; i++) {
		char name[20];

		snprintf(name, sizeof(name), "source=s%u", i);
		WAIT_FOR(10000, daemon_log(d, "database call failed", name, NULL) > 0);
	}
	env_sleep_ms(500);
	cpu_us = daemon_cpu_us(d);
	fds = daemon_fds(d);
	env_sleep_ms(3000);
	REQUIRE_INT(daemon_cpu_us(d) - cpu_us, <, 300 * US_PER_MS);
	REQUIRE_INT(daemon_fds(d), <=, fds + 2);
	REQUIRE_INT(daemon_log(d, "database call failed", NULL), <=, 8);
	db_exec(r.db, "CREATE DATABASE %s", r.schema[3].name);
	daemon_stop(d);
	fake_broker_stop(hangs_up);
	fake_broker_stop(stranger);
	daemon_free(d);
	rig_close(&r);
}
END_TEST

/* The defaults of a server that nobody would want, and what a tool that changes tables online does:
 * the table vanishes under load for a second, then another of that name takes its place. */
START_TEST(with_autocommit_off_everywhere_a_renamed_table_is_waited_for_and_its_successor_used)
{
	struct production p = {
		.first = 1, .count = 200000, .aggregates = 200, .transaction = 20, .per_second = 300
	};
	struct producer *producer;
	struct scene s;
	const char *name;

	scene_open(&s, "aggregate");
	name = s.rig.schema[0].name;
	db_exec(s.rig.db, "SET GLOBAL autocommit=0,GLOBAL init_connect='SET "
			  "autocommit=0,time_zone=\"-07:00\"',"
			  "GLOBAL sql_mode='ANSI_QUOTES,NO_BACKSLASH_ESCAPES'");
	producer = producer_start(&s.rig.schema[0], &p);
	daemon_start(s.daemon);
	daemon_wait_ready(s.daemon, true);
	WAIT_FOR(10000, rig_rows(&s.rig, 0, "status='SENT'") > 100);
	db_exec(s.rig.db,
		"SET SESSION lock_wait_timeout=5; RENAME TABLE %s.outbox_event TO %s.away", name,
		name);
	WAIT_FOR(10000, daemon_metric(s.daemon, "outboxd_source_up{source=\"s0\"}") == 0);
	db_exec(s.rig.db, "RENAME TABLE %s.away TO %s.outbox_event", name, name);
	WAIT_FOR(10000, daemon_metric(s.daemon, "outboxd_source_up{source=\"s0\"}") == 1);
	producer_stop(producer);
	rig_wait_sent(&s.rig, 0, 20000);
	db_exec(s.rig.db,
		"CREATE TABLE %s.next LIKE %s.outbox_event; ALTER TABLE %s.next ADD COLUMN n INT "
		"NULL "
		"FIRST; INSERT INTO %s.next (id,event_id,aggregate_type,aggregate_id,event_type,"
		"payload,status,created_at,sent_at) SELECT id,event_id,aggregate_type,aggregate_id,"
		"event_type,payload,status,created_at,sent_at FROM %s.outbox_event; RENAME TABLE "
		"%s.outbox_event TO %s.past, %s.next TO %s.outbox_event",
		name, name, name, name, name, name, name, name, name);
	p = (struct production){ .first = 1000001, .count = 100, .aggregates = 200 };
	db_produce(s.rig.db, &s.rig.schema[0], &p);
	rig_wait_sent(&s.rig, 0, 20000);
	db_exec(s.rig.db, "SET GLOBAL autocommit=1,GLOBAL init_connect='',GLOBAL sql_mode=DEFAULT");
	scene_close(&s);
}
END_TEST

/* What a proxy that shares server connections among clients does to what was set on them. */
START_TEST(a_session_that_somebody_else_has_changed_is_not_trusted)
{
	static const char *const changes[] = { "SET time_zone='-07:00'",
		"SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ" };
	struct production p = { .count = 50, .aggregates = 10 };
	struct scene s;

	scene_open(&s, "aggregate");
	daemon_start(s.daemon);
	daemon_wait_ready(s.daemon, true);
	for (unsigned i = 0; i < ARRAY_LEN(changes); i++) {
		struct proxy_rule rule = { .text = "CONNECTION_ID(),@@SESSION.time_zone",
			.action = PROXY_INJECT,
			.inject = changes[i],
			.times = 1 };

		proxy_rule(s.database, &rule);
		WAIT_FOR(10000, proxy_hits(s.database) == 1);
		proxy_rule(s.database, NULL);
		p.first = 1 + i * p.count;
		db_produce(s.rig.db, &s.rig.schema[0], &p);
		rig_wait_sent(&s.rig, 0, 10000);
	}
	REQUIRE_INT(daemon_log(s.daemon, "hands out other sessions", NULL), >=, 1);
	REQUIRE_INT(
		daemon_metric(s.daemon, "outboxd_db_errors_total{class=\"link\",source=\"s0\"}"),
		==, 2);
	scene_close(&s);
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
	a_settlement_beside_the_claims_that_is_never_answered_is_not_published_again,
	a_settlement_beside_the_claims_that_is_cut_off_is_written_later,
	a_settlement_beside_the_claims_that_hangs_is_given_up_after_query_timeout,
	sessions_that_an_administrator_kills_are_opened_anew,
	a_server_that_turns_read_only_is_waited_for,
	rows_that_somebody_else_has_locked_are_passed_by_and_come_later,
	a_claim_cut_off_between_its_statements_takes_nothing,
	a_settlement_whose_commit_vanishes_on_its_way_is_written_later,
	connections_that_break_after_any_number_of_bytes_lose_and_repeat_nothing,
	packets_that_arrive_byte_by_byte_are_understood,
	a_server_that_refuses_every_statement_is_named_and_tried_slowly_and_others_flow,
	polling_goes_on_after_an_error_of_any_kind,
	an_error_of_another_kind_is_logged_at_once_and_one_that_repeats_is_not,
	a_database_that_cannot_be_had_costs_no_cpu_no_log_and_no_descriptor,
	with_autocommit_off_everywhere_a_renamed_table_is_waited_for_and_its_successor_used,
	a_session_that_somebody_else_has_changed_is_not_trusted,
	an_idle_relay_holds_no_transaction_and_no_lock_on_the_table,
	what_another_made_of_a_row_is_not_overwritten)

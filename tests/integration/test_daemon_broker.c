/* Brokers that misbehave while they are there: confirms that do not come, full queues, limits of
 * their own, alarms nobody announced, connections closed with every code. */
#include "support/fake_broker.h"
#include "support/proxy.h"
#include "support/rig.h"

#include <check.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void finish(struct rig *r, struct daemon *d, const struct allowance *a)
{
	daemon_stop(d);
	rig_judge(r, 0, a, NULL);
	daemon_free(d);
	rig_close(r);
}

/* The fake has no queues: what was sent is what it counted. */
static void finish_fake(struct rig *r, struct daemon *d, struct fake_broker *fake)
{
	daemon_stop(d);
	fake_broker_stop(fake);
	daemon_free(d);
	rig_close(r);
}

static char *status_of(struct rig *r, const char *event_id)
{
	return db_text(r->db,
		"SELECT CONCAT(status,' ',retry_count,' ',COALESCE(last_error,'')) FROM "
		"%s.outbox_event WHERE event_id='%s'",
		r->schema[0].name, event_id);
}

static void require_status(struct rig *r, const char *event_id, const char *begin)
{
	char *text = status_of(r, event_id);

	if (text == NULL || strncmp(text, begin, strlen(begin)) != 0)
		FAIL("event %s: \"%s\", should begin with \"%s\"", event_id, text, begin);
	free(text);
}

static enum fake_verdict forget_some(void *arg, const struct fake_message *m)
{
	(void)arg;
	if (strcmp(m->message_id, "stuck") == 0)
		return FAKE_DROP;
	return m->nth <= 500 && m->nth % 50 == 0 ? FAKE_DROP : FAKE_ACK;
}

START_TEST(confirms_that_never_come_block_nobody_and_only_what_is_stuck_is_charged)
{
	struct fake_broker *fake = fake_broker_start(
		&(struct fake_rules){ .password = "guest", .judge = forget_some });
	struct production p = { .first = 1, .count = 500, .aggregates = 100 };
	struct producer *producer;
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("silent");

	rig_open(&r, 1);
	db_produce(r.db, &r.schema[0], &p);
	db_exec(r.db, "UPDATE %s.outbox_event SET event_id='stuck' WHERE id=300", r.schema[0].name);
	rig_conf(&r, &c);
	conf_short_lease(&c);
	c.confirm_ms = 1000;
	c.broker[0].port = fake_broker_port(fake);
	c.window = 200;
	c.max_attempts = 2;
	c.retry_base_ms = 100;
	daemon_configure(d, &c);
	daemon_start(d);
	/* others confirm while it does not: so it is the one to blame */
	p = (struct production){ .first = 2001,
		.count = 100000,
		.aggregates = 100,
		.transaction = 1,
		.per_second = 50 };
	producer = producer_start(&r.schema[0], &p);
	WAIT_FOR(20000, rig_rows(&r, 0, "event_id='stuck' AND status='DEAD'") == 1);
	producer_stop(producer);
	rig_wait_sent(&r, 0, 10000);
	require_status(&r, "stuck", "DEAD 2 CONFIRM_TIMEOUT: ");
	REQUIRE_INT(rig_rows(&r, 0, "retry_count>0"), ==, 1);
	finish_fake(&r, d, fake);
}
END_TEST

START_TEST(a_full_queue_is_not_hammered_and_fills_again_by_itself_once_there_is_room)
{
	struct production p = { .first = 1, .count = 300, .aggregates = 100 };
	struct allowance allowed = { .charged_any = true };
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("full");
	char small[60];
	int64_t nacked;

	rig_open(&r, 1);
	snprintf(small, sizeof(small), "%s.small", r.queue);
	mq_declare_queue_limited(r.mq, small, 10);
	mq_bind(r.mq, small, r.exchange, "#");
	mq_unbind(r.mq, r.queue, r.exchange, "#");
	db_produce(r.db, &r.schema[0], &p);
	rig_conf(&r, &c);
	c.max_attempts = 1000;
	c.retry_base_ms = 500;
	c.retry_cap_ms = 1000;
	daemon_configure(d, &c);
	daemon_start(d);
	WAIT_FOR(10000, rig_rows(&r, 0, "retry_count>=2") > 100);
	env_sleep_ms(1500);
	nacked = (int64_t)daemon_metric(
		d, "outboxd_events_failed_total{class=\"NACKED\",source=\"s0\"}");
	/* each at most as often as its waits allow, the first row no more often than the last */
	REQUIRE_INT(nacked, >, 300);
	REQUIRE_INT(rig_rows(&r, 0, "retry_count>8"), ==, 0);
	REQUIRE_INT(rig_rows(&r, 0, "status='DEAD'"), ==, 0);
	REQUIRE_INT(rig_rows(&r, 0, "status='RETRY' AND last_error NOT LIKE 'NACKED: %'"), ==, 0);
	mq_drain(r.mq, small, &r.inbox);
	mq_bind(r.mq, r.queue, r.exchange, "#");
	mq_unbind(r.mq, small, r.exchange, "#");
	rig_wait_sent(&r, 0, 15000);
	mq_drain(r.mq, small, &r.inbox);
	mq_delete_queue(r.mq, small);
	finish(&r, d, &allowed);
}
END_TEST

START_TEST(what_an_alternate_exchange_takes_is_sent)
{
	struct production p = { .first = 1, .count = 50, .aggregates = 10 };
	struct allowance exactly = { 0 };
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("alternate");
	char over[60];

	rig_open(&r, 1);
	snprintf(over, sizeof(over), "%s.over", r.exchange);
	mq_declare_exchange_over(r.mq, over, r.exchange); /* nothing is bound to it */
	db_produce(r.db, &r.schema[0], &p);
	rig_conf(&r, &c);
	c.source[0].exchange = over;
	daemon_configure(d, &c);
	daemon_start(d);
	rig_wait_sent(&r, 0, 10000);
	mq_delete_exchange(r.mq, over);
	finish(&r, d, &exactly);
}
END_TEST

/* As a delayed-message exchange does: what is mandatory comes back, and arrives all the same. */
static enum fake_verdict return_mandatory(void *arg, const struct fake_message *m)
{
	(void)arg;
	return m->mandatory ? FAKE_RETURN : FAKE_ACK;
}

START_TEST(without_mandatory_an_exchange_that_returns_everything_still_takes_each_event_once)
{
	struct fake_broker *fake = fake_broker_start(
		&(struct fake_rules){ .password = "guest", .judge = return_mandatory });
	struct production p = { .first = 1, .count = 50, .aggregates = 10 };
	struct fake_stats stats;
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("optional");

	rig_open(&r, 1);
	db_produce(r.db, &r.schema[0], &p);
	rig_conf(&r, &c);
	c.broker[0].port = fake_broker_port(fake);
	c.source[0].publish = "      mandatory: false\n";
	daemon_configure(d, &c);
	daemon_start(d);
	rig_wait_sent(&r, 0, 10000);
	REQUIRE_INT(rig_rows(&r, 0, "status='SENT' AND retry_count=0"), ==, 50);
	fake_broker_stats(fake, &stats);
	REQUIRE_INT(stats.messages, ==, 50);
	finish_fake(&r, d, fake);
}
END_TEST

/* Where RabbitMQ 3, and 4, keep it. */
static void set_largest_message(const char *bytes)
{
	char text[200];
	const char *words[] = { "eval", text, NULL };

	snprintf(text, sizeof(text),
		"application:set_env(rabbit, max_message_size, %s), "
		"persistent_term:put(max_message_size, %s).",
		bytes, bytes);
	mq_control(words);
}

/* The broker's limit is below ours, and one row between the two. Its channel goes down with
 * everything unconfirmed on it: those go again, and only the one is dead. */
START_TEST(a_body_that_the_broker_alone_finds_too_large_ends_dead_alone)
{
	struct production p = { .first = 1, .count = 1000, .aggregates = 100 };
	struct allowance allowed = { .dead = 1, .suspects = true };
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("limit");

	rig_open(&r, 1);
	set_largest_message("65536");
	db_produce(r.db, &r.schema[0], &p);
	db_exec(r.db,
		"UPDATE %s.outbox_event SET event_id='large',payload=JSON_OBJECT('x',"
		"REPEAT('x',70000)) WHERE id=500",
		r.schema[0].name);
	rig_conf(&r, &c);
	c.window = 100;
	c.batch = 100;
	daemon_configure(d, &c);
	daemon_start(d);
	rig_wait_sent(&r, 0, 20000);
	set_largest_message("16777216");
	require_status(&r, "large", "DEAD 0 TOO_LARGE: ");
	REQUIRE_INT(rig_rows(&r, 0, "status='SENT' AND retry_count=0"), ==, 999);
	/* what was on the channel with it, and nothing else, may have come twice */
	REQUIRE_INT(daemon_metric(d, "outboxd_events_redelivered_total{source=\"s0\"}"), <=, 101);
	allowed.suspects = false;
	allowed.duplicates = 101;
	finish(&r, d, &allowed);
}
END_TEST

/* A broker tells of an alarm only once somebody publishes. */
START_TEST(rows_that_come_during_an_alarm_are_not_hoarded_and_no_transaction_stays_open)
{
	struct production p = { .first = 1, .count = 5000, .aggregates = 500 };
	struct allowance exactly = { 0 };
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("idle-alarm");
	int64_t rss;

	rig_open(&r, 1);
	rig_conf(&r, &c);
	c.batch = 100;
	c.window = 200;
	daemon_configure(d, &c);
	daemon_start(d);
	daemon_wait_ready(d, true);
	rss = daemon_rss_kb(d);
	mq_alarm(true);
	db_produce(r.db, &r.schema[0], &p);
	WAIT_FOR(10000, daemon_log(d, "broker blocked", NULL) == 1);
	for (int i = 0; i < 25; i++) {
		REQUIRE_INT(rig_rows(&r, 0, "status='PROCESSING'"), <=, 300);
		REQUIRE_INT(
			db_int(r.db,
				"SELECT COUNT(*) FROM information_schema.innodb_trx t JOIN "
				"information_schema.processlist p ON p.id=t.trx_mysql_thread_id "
				"WHERE p.user='%s' AND t.trx_started<NOW()-INTERVAL 2 SECOND",
				r.schema[0].user),
			==, 0);
		env_sleep_ms(100);
	}
	REQUIRE_INT(daemon_rss_kb(d), <, rss + 8192);
	REQUIRE_INT(rig_rows(&r, 0, "retry_count>0 OR status IN ('RETRY','DEAD')"), ==, 0);
	mq_alarm(false);
	rig_wait_sent(&r, 0, 30000);
	finish(&r, d, &exactly);
}
END_TEST

/* 150 rows are claimed at once, and go one by one over a slow line: two leases pass meanwhile. */
START_TEST(the_tail_of_a_batch_on_a_slow_line_is_neither_taken_over_nor_sent_twice)
{
	struct production p = { .first = 1, .count = 240, .aggregates = 240 };
	struct allowance exactly = { 0 };
	struct proxy *slow = proxy_start(env_get()->mq_host, env_get()->mq_port);
	struct rig r;
	struct conf c;
	struct daemon *d[2] = { daemon_new("slow-a"), daemon_new("slow-b") };

	rig_open(&r, 1);
	rig_conf(&r, &c);
	conf_short_lease(&c);
	c.broker[0].port = proxy_port(slow);
	c.batch = 150;
	c.window = 1;
	proxy_latency(slow, 20);
	for (int i = 0; i < 2; i++) {
		daemon_configure(d[i], &c);
		daemon_start(d[i]);
		daemon_wait_ready(d[i], true);
	}
	db_produce(r.db, &r.schema[0], &p);
	rig_wait_sent(&r, 0, 30000);
	for (int i = 0; i < 2; i++)
		REQUIRE_INT(daemon_metric(d[i], "outboxd_lease_lost_total{source=\"s0\"}"), ==, 0);
	daemon_stop(d[1]);
	daemon_free(d[1]);
	finish(&r, d[0], &exactly);
	proxy_stop(slow);
}
END_TEST

static volatile sig_atomic_t hold;

static enum fake_verdict hold_until(void *arg, const struct fake_message *m)
{
	(void)arg, (void)m;
	return hold ? FAKE_HOLD : FAKE_ACK;
}

START_TEST(a_connection_that_the_broker_closes_with_any_code_costs_no_attempt)
{
	/* shutdown, internal error, what it takes for a mistake of ours, vhost deleted */
	static const unsigned codes[] = { 320, 541, 504, 530 };
	struct fake_broker *fake =
		fake_broker_start(&(struct fake_rules){ .password = "guest", .judge = hold_until });
	struct production p = { .first = 1, .count = 40, .aggregates = 40 };
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("closed");

	rig_open(&r, 1);
	rig_conf(&r, &c);
	c.broker[0].port = fake_broker_port(fake);
	daemon_configure(d, &c);
	daemon_start(d);
	daemon_wait_ready(d, true);
	for (size_t i = 0; i < ARRAY_LEN(codes); i++) {
		hold = 1;
		p.first = 1 + i * p.count;
		db_produce(r.db, &r.schema[0], &p);
		WAIT_FOR(10000, daemon_metric(d, "outboxd_in_flight_messages{source=\"s0\"}") > 0);
		hold = 0;
		fake_broker_close_connection(fake, codes[i], "made up by a test");
		rig_wait_sent(&r, 0, 15000);
	}
	REQUIRE_INT(
		rig_rows(&r, 0, "status='SENT' AND retry_count=0"), ==, p.count * ARRAY_LEN(codes));
	finish_fake(&r, d, fake);
}
END_TEST

/* From the handshake to the middle of a body. */
START_TEST(connections_that_break_after_any_number_of_bytes_lose_nothing_and_charge_nobody)
{
	static const uint64_t after[] = { 1, 300, 1500, 20011 };
	struct production p = {
		.first = 1, .count = 200000, .aggregates = 200, .transaction = 20, .per_second = 300
	};
	struct allowance allowed = { .ordered = true };
	struct proxy *broker = proxy_start(env_get()->mq_host, env_get()->mq_port);
	struct producer *producer;
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("odd-bytes");

	rig_open(&r, 1);
	rig_conf(&r, &c);
	c.broker[0].port = proxy_port(broker);
	c.ordering = "aggregate";
	c.window = 100;
	daemon_configure(d, &c);
	daemon_start(d);
	daemon_wait_ready(d, true);
	producer = producer_start(&r.schema[0], &p);
	for (size_t i = 0; i < ARRAY_LEN(after); i++) {
		unsigned connections = proxy_connections(broker);

		/* the small ones hit the login that follows */
		proxy_cut_after(broker, after[i]);
		WAIT_FOR(30000, proxy_connections(broker) > connections);
	}
	producer_stop(producer);
	rig_wait_sent(&r, 0, 20000);
	REQUIRE_INT(rig_rows(&r, 0, "retry_count>0"), ==, 0);
	/* what was sent and not confirmed when a connection broke, and counted as such */
	allowed.duplicates =
		(uint64_t)daemon_metric(d, "outboxd_events_redelivered_total{source=\"s0\"}");
	REQUIRE_INT(allowed.duplicates, <=, 100 * ARRAY_LEN(after));
	finish(&r, d, &allowed);
	proxy_stop(broker);
}
END_TEST

RIG_MAIN("daemon: broker", 90,
	confirms_that_never_come_block_nobody_and_only_what_is_stuck_is_charged,
	a_full_queue_is_not_hammered_and_fills_again_by_itself_once_there_is_room,
	what_an_alternate_exchange_takes_is_sent,
	without_mandatory_an_exchange_that_returns_everything_still_takes_each_event_once,
	a_body_that_the_broker_alone_finds_too_large_ends_dead_alone,
	rows_that_come_during_an_alarm_are_not_hoarded_and_no_transaction_stays_open,
	the_tail_of_a_batch_on_a_slow_line_is_neither_taken_over_nor_sent_twice,
	a_connection_that_the_broker_closes_with_any_code_costs_no_attempt,
	connections_that_break_after_any_number_of_bytes_lose_nothing_and_charge_nobody)

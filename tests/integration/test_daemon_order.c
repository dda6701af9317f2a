/* Order per aggregate: failing heads, dead heads, several processes, and a leader that goes. */
#include "support/fake_broker.h"
#include "support/rig.h"

#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Events of aggregate "a1" go to keys of their own, whose binding comes and goes: its head fails.
 */
static void open_troubled(struct rig *r, struct conf *c)
{
	rig_open(r, 1);
	rig_conf(r, c);
	c->ordering = "aggregate";
	c->source[0].routing_key = "{aggregate_id}.{event_type}";
	c->retry_base_ms = 400;
	c->retry_cap_ms = 800;
	c->max_attempts = 1000;
	mq_unbind(r->mq, r->queue, r->exchange, "#");
	for (int i = 0; i < 50; i++) {
		char key[20];

		snprintf(key, sizeof(key), "a%d.#", i);
		if (i != 1)
			mq_bind(r->mq, r->queue, r->exchange, key);
	}
}

static const char *event(const struct rig *r, uint64_t n)
{
	static char text[80];

	snprintf(text, sizeof(text), "%s-%" PRIu64, r->schema[0].name, n);
	return text;
}

START_TEST(behind_a_failing_head_its_aggregate_waits_and_all_others_flow)
{
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("head");
	struct production p = { .first = 1, .count = 5000, .aggregates = 50 };
	struct allowance allowed = { .ordered = true, .charged = 1 };
	char where[200];

	open_troubled(&r, &c);
	db_produce(r.db, &r.schema[0], &p);
	daemon_configure(d, &c);
	daemon_start(d);
	rig_wait_none(&r, 0, "status<>'SENT' AND aggregate_id<>'a1'", 30000);
	WAIT_FOR(10000, rig_rows(&r, 0, "aggregate_id='a1' AND retry_count>=3") == 1);
	snprintf(where, sizeof(where),
		"aggregate_id='a1' AND status='PENDING' AND retry_count=0 AND "
		"last_error LIKE 'WAITING: behind %s-%%'",
		r.schema[0].name);
	WAIT_FOR(5000, rig_rows(&r, 0, where) == 99);
	mq_bind(r.mq, r.queue, r.exchange, "a1.#");
	rig_wait_sent(&r, 0, 20000);
	daemon_stop(d);
	rig_judge(&r, 0, &allowed, NULL);
	daemon_free(d);
	rig_close(&r);
}
END_TEST

static void dead_head(const char *on_dead, uint64_t reached)
{
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("dead");
	struct production p = {
		.first = 1, .count = 1000, .aggregates = 50, .event_type = "created"
	};
	struct allowance allowed = { .ordered = true, .dead = 1, .charged = 1 };
	char where[200];

	open_troubled(&r, &c);
	c.on_dead = on_dead;
	c.max_attempts = 2;
	mq_bind(r.mq, r.queue, r.exchange, "a1.created");
	db_produce(r.db, &r.schema[0], &p);
	db_exec(r.db, "UPDATE %s.outbox_event SET event_type='nowhere' WHERE event_id='%s'",
		r.schema[0].name, event(&r, 51));
	daemon_configure(d, &c);
	daemon_start(d);
	rig_wait_none(&r, 0, "status<>'SENT' AND aggregate_id<>'a1'", 30000);
	rig_wait_none(&r, 0, "status='RETRY' OR status='PROCESSING'", 10000);
	WAIT_FOR(5000, rig_rows(&r, 0, "aggregate_id='a1' AND status='SENT'") == reached);
	env_sleep_ms(1000);
	REQUIRE_INT(rig_rows(&r, 0, "aggregate_id='a1' AND status='SENT'"), ==, reached);
	REQUIRE_INT(rig_rows(&r, 0, "aggregate_id='a1' AND status='DEAD'"), ==, 1);
	if (reached == 1) {
		snprintf(where, sizeof(where),
			"aggregate_id='a1' AND status='PENDING' AND last_error='WAITING: behind "
			"%s'",
			event(&r, 51));
		REQUIRE_INT(rig_rows(&r, 0, where), ==, 18);
		allowed.missing = 18;
	}
	daemon_stop(d);
	rig_judge(&r, 0, &allowed, NULL);
	daemon_free(d);
	rig_close(&r);
}

START_TEST(a_dead_event_blocks_its_aggregate_where_so_configured)
{
	dead_head("block", 1);
}
END_TEST

START_TEST(a_dead_event_is_passed_where_so_configured)
{
	dead_head("pass", 19);
}
END_TEST

START_TEST(of_two_processes_one_leads_and_the_other_takes_over_when_it_is_killed)
{
	struct rig r;
	struct conf c;
	struct daemon *d[2] = { daemon_new("one"), daemon_new("two") };
	struct production p = { .first = 1,
		.count = 1000000,
		.aggregates = 500,
		.transaction = 20,
		.per_second = 400 };
	struct allowance allowed = { .ordered = true, .suspects = true };
	static const char leader[] = "outboxd_leader{source=\"s0\"}";
	struct producer *producer;

	rig_open(&r, 1);
	rig_conf(&r, &c);
	conf_short_lease(&c);
	c.ordering = "aggregate";
	c.batch = 50;
	c.window = 100;
	for (int i = 0; i < 2; i++) {
		daemon_configure(d[i], &c);
		daemon_start(d[i]);
		daemon_wait_ready(d[i], true);
	}
	producer = producer_start(&r.schema[0], &p);
	for (int round = 0; round < 3; round++) {
		int leads;
		int64_t killed_us;
		uint64_t before;

		WAIT_FOR(10000, daemon_metric(d[0], leader) + daemon_metric(d[1], leader) == 1);
		leads = daemon_metric(d[1], leader) == 1;
		before = rig_rows(&r, 0, "status='SENT'");
		WAIT_FOR(10000, rig_rows(&r, 0, "status='SENT'") > before + 100);
		if (round == 2) { /* no word, no FIN: it just stops */
			daemon_signal(d[leads], SIGSTOP);
			rig_suspect(&r, 0);
		} else {
			daemon_kill(d[leads]);
			rig_suspect(&r, 0);
		}
		killed_us = env_now_us();
		WAIT_FOR(c.lease_ms + 2 * c.poll_ms + 2500,
			daemon_metric(d[1 - leads], leader) == 1);
		if (round < 2)
			REQUIRE_INT(env_now_us() - killed_us, <, 2500 * US_PER_MS);
		rig_wait_none(&r, 0,
			"status='PROCESSING' AND locked_until<NOW(6)-INTERVAL 2500000 MICROSECOND",
			c.lease_ms + 4000);
		before = rig_rows(&r, 0, "status='SENT'");
		WAIT_FOR(10000, rig_rows(&r, 0, "status='SENT'") > before + 100);
		if (round == 2) {
			daemon_signal(d[leads], SIGCONT);
			env_sleep_ms(1500);
			REQUIRE(daemon_runs(d[leads]));
		} else {
			daemon_start(d[leads]);
			daemon_wait_ready(d[leads], true);
		}
	}
	producer_stop(producer);
	rig_wait_sent(&r, 0, 30000);
	for (int i = 0; i < 2; i++)
		daemon_stop(d[i]);
	rig_judge(&r, 0, &allowed, NULL);
	for (int i = 0; i < 2; i++)
		daemon_free(d[i]);
	rig_close(&r);
}
END_TEST

START_TEST(ties_of_a_whole_second_and_aggregates_that_differ_in_case_keep_their_order)
{
	struct rig r;
	struct conf c;
	struct daemon *d[2] = { daemon_new("one"), daemon_new("two") };
	struct production p = { .first = 1, .count = 3000, .aggregates = 30, .transaction = 100 };
	struct allowance exactly = { .ordered = true };

	rig_open_with(&r, 1, "outbox_event_minimal.sql");
	rig_conf(&r, &c);
	c.ordering = "aggregate";
	db_produce(r.db, &r.schema[0], &p);
	db_exec(r.db,
		"UPDATE %s.outbox_event SET created_at='2024-01-01 10:00:00',"
		"aggregate_id=IF(id%%2=0,UPPER(aggregate_id),aggregate_id)",
		r.schema[0].name);
	for (int i = 0; i < 2; i++) {
		daemon_configure(d[i], &c);
		daemon_start(d[i]);
	}
	rig_wait_sent(&r, 0, 30000);
	for (int i = 0; i < 2; i++)
		daemon_stop(d[i]);
	rig_judge(&r, 0, &exactly, NULL);
	for (int i = 0; i < 2; i++)
		daemon_free(d[i]);
	rig_close(&r);
}
END_TEST

START_TEST(all_that_wait_name_the_head_whenever_they_came)
{
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("names");
	struct production p = { .first = 1, .count = 200, .aggregates = 10 };
	struct allowance allowed = { .ordered = true, .charged = 1 };
	char where[200];

	open_troubled(&r, &c);
	c.batch = 7;
	c.window = 14;
	daemon_configure(d, &c);
	daemon_start(d);
	for (int i = 0; i < 3; i++) { /* each behind those before it, in claims of their own */
		db_produce(r.db, &r.schema[0], &p);
		p.first += p.count;
		rig_wait_none(&r, 0, "status<>'SENT' AND aggregate_id<>'a1'", 30000);
	}
	snprintf(where, sizeof(where),
		"status='PENDING' AND last_error='WAITING: behind %s' AND next_retry_at>NOW(6)",
		event(&r, 1));
	WAIT_FOR(5000, rig_rows(&r, 0, where) == 59);
	mq_bind(r.mq, r.queue, r.exchange, "a1.#");
	rig_wait_sent(&r, 0, 20000);
	daemon_stop(d);
	rig_judge(&r, 0, &allowed, NULL);
	daemon_free(d);
	rig_close(&r);
}
END_TEST

START_TEST(an_aggregate_with_a_long_backlog_leaves_room_for_the_others)
{
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("hot");
	struct production hot = { .first = 1, .count = 3000, .aggregates = 1 };
	struct production others = { .first = 10001, .count = 500, .aggregates = 50 };
	struct allowance allowed = { .ordered = true };

	rig_open(&r, 1);
	rig_conf(&r, &c);
	c.ordering = "aggregate";
	c.batch = 100;
	c.window = 400;
	db_produce(r.db, &r.schema[0], &hot);
	db_exec(r.db, "UPDATE %s.outbox_event SET created_at=created_at-INTERVAL 1 MINUTE",
		r.schema[0].name);
	db_produce(r.db, &r.schema[0], &others);
	db_exec(r.db,
		"UPDATE %s.outbox_event SET aggregate_id=CONCAT('b',aggregate_id) WHERE id>3000",
		r.schema[0].name);
	daemon_configure(d, &c);
	daemon_start(d);
	rig_wait_none(&r, 0, "id>3000 AND status<>'SENT'", 30000);
	REQUIRE_INT(rig_rows(&r, 0, "id<=3000 AND status<>'SENT'"), >, 300);
	rig_wait_sent(&r, 0, 80000);
	daemon_stop(d);
	rig_judge(&r, 0, &allowed, NULL);
	daemon_free(d);
	rig_close(&r);
}
END_TEST

START_TEST(an_event_committed_late_goes_all_the_same_and_is_counted)
{
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("late");
	struct production p = { .first = 1, .count = 100, .aggregates = 10 };
	struct allowance allowed = { .ordered = false };
	static const char hazards[] = "outboxd_order_hazards_total{source=\"s0\"}";

	rig_open(&r, 1);
	rig_conf(&r, &c);
	c.ordering = "aggregate";
	daemon_configure(d, &c);
	daemon_start(d);
	db_produce(r.db, &r.schema[0], &p);
	rig_wait_sent(&r, 0, 20000);
	REQUIRE_INT(daemon_metric(d, hazards), ==, 0);
	for (int i = 0; i < 2; i++) {
		p.first += p.count;
		p.count = 1;
		p.first = 201 + (uint64_t)i;
		db_exec(r.db,
			"INSERT INTO %s.outbox_event (event_id,aggregate_type,aggregate_id,"
			"event_type,payload,created_at) SELECT '%s-%d',aggregate_type,"
			"aggregate_id,'late',payload,created_at-INTERVAL 1 HOUR FROM "
			"%s.outbox_event WHERE id=%d",
			r.schema[0].name, r.schema[0].name, 201 + i, r.schema[0].name, 5 + i);
		rig_wait_sent(&r, 0, 20000);
		WAIT_FOR(5000, daemon_metric(d, hazards) == i + 1);
		if (i == 0) { /* what was sent before it started it asks the table */
			daemon_stop(d);
			daemon_start(d);
			daemon_wait_ready(d, true);
			db_exec(r.db,
				"UPDATE %s.outbox_event SET status='PENDING',sent_at=NULL "
				"WHERE id=1",
				r.schema[0].name);
			rig_wait_sent(&r, 0, 20000);
			WAIT_FOR(5000, daemon_metric(d, hazards) == 1);
		}
	}
	daemon_stop(d);
	allowed.duplicates = 1;
	rig_judge(&r, 0, &allowed, NULL);
	daemon_free(d);
	rig_close(&r);
}
END_TEST

START_TEST(what_waits_for_nothing_is_found_when_a_process_begins_to_lead)
{
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("orphans");
	struct production p = { .first = 1, .count = 1000, .aggregates = 10 };
	struct allowance allowed = { .ordered = true };

	rig_open(&r, 1);
	rig_conf(&r, &c);
	c.ordering = "aggregate";
	db_produce(r.db, &r.schema[0], &p);
	db_exec(r.db,
		"UPDATE %s.outbox_event SET next_retry_at=NOW(6)+INTERVAL 1 HOUR,"
		"last_error='WAITING: behind somebody' WHERE aggregate_id='a3'",
		r.schema[0].name);
	daemon_configure(d, &c);
	daemon_start(d);
	rig_wait_sent(&r, 0, 20000);
	daemon_stop(d);
	rig_judge(&r, 0, &allowed, NULL);
	daemon_free(d);
	rig_close(&r);
}
END_TEST

/* The head is at the broker, the second one is taken over meanwhile: the third waits for it. */
START_TEST(what_queues_behind_a_row_lost_to_another_relay_does_not_overtake_it)
{
	struct fake_broker *fake = fake_broker_start(&(struct fake_rules){ .password = "guest" });
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("lost");

	rig_open(&r, 1);
	rig_conf(&r, &c);
	c.ordering = "aggregate";
	c.lease_ms = 6000;
	c.query_ms = 1000;
	c.confirm_ms = 4000;
	c.broker[0].port = fake_broker_port(fake);
	c.source[0].routing_key = "{event_type}";
	db_exec(r.db,
		"INSERT INTO %s.outbox_event "
		"(event_id,aggregate_type,aggregate_id,event_type,payload) "
		"VALUES ('e0','order','b','fine','{}'),('e1','order','a','hold','{}'),"
		"('e2','order','a','fine','{}'),('e3','order','a','fine','{}')",
		r.schema[0].name);
	daemon_configure(d, &c);
	daemon_start(d);
	WAIT_FOR(10000, fake_broker_count(fake, "e1") == 1);
	db_exec(r.db,
		"UPDATE %s.outbox_event SET locked_by='other/1/0',locked_until=NOW(6)+INTERVAL 1 "
		"HOUR "
		"WHERE event_id='e2' AND status='PROCESSING'",
		r.schema[0].name);
	WAIT_FOR(10000, daemon_log(d, "lease lost to another relay", "event_id=e2", NULL) > 0);
	fake_broker_release(fake);
	rig_wait_none(&r, 0, "event_id='e1' AND status<>'SENT'", 10000);
	WAIT_FOR(10000, rig_rows(&r, 0,
				"event_id='e3' AND status='PENDING' AND "
				"last_error='WAITING: behind e2'") == 1);
	REQUIRE_INT(fake_broker_count(fake, "e3"), ==, 0);
	db_exec(r.db,
		"UPDATE %s.outbox_event SET locked_until=NOW(6)-INTERVAL 1 SECOND WHERE "
		"event_id='e2'",
		r.schema[0].name);
	WAIT_FOR(10000, fake_broker_count(fake, "e2") == 1);
	daemon_stop(d);
	daemon_free(d);
	fake_broker_stop(fake);
	rig_close(&r);
}
END_TEST

/* The example of the README. */
START_TEST(a_consistent_hash_exchange_gives_each_aggregate_one_queue_and_its_order)
{
	enum { QUEUES = 4, AGGREGATES = 100 };
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("hash");
	struct production p = { .first = 1, .count = 2000, .aggregates = AGGREGATES };
	char exchange[60], queue[QUEUES][70];
	int home[AGGREGATES];
	uint64_t last[AGGREGATES] = { 0 };
	size_t total = 0, used = 0;

	memset(home, -1, sizeof(home));
	rig_open(&r, 1);
	rig_conf(&r, &c);
	c.ordering = "aggregate";
	snprintf(exchange, sizeof(exchange), "%s-by-id", r.exchange);
	mq_declare_exchange(r.mq, exchange, "x-consistent-hash");
	for (int i = 0; i < QUEUES; i++) {
		snprintf(queue[i], sizeof(queue[i]), "%s-%d", exchange, i);
		mq_declare_queue(r.mq, queue[i]);
		mq_bind(r.mq, queue[i], exchange, "1");
	}
	c.source[0].exchange = exchange;
	c.source[0].routing_key = "{aggregate_type}/{aggregate_id}";
	db_produce(r.db, &r.schema[0], &p);
	daemon_configure(d, &c);
	daemon_start(d);
	rig_wait_sent(&r, 0, 30000);
	daemon_stop(d);
	for (int i = 0; i < QUEUES; i++) {
		struct inbox in = { 0 };

		total += mq_drain(r.mq, queue[i], &in);
		used += in.count > 0;
		for (size_t m = 0; m < in.count; m++) {
			uint64_t n =
				strtoull(strrchr(in.messages[m].message_id, '-') + 1, NULL, 10);
			unsigned aggregate = (unsigned)(n % AGGREGATES);

			if (home[aggregate] < 0)
				home[aggregate] = i;
			REQUIRE_INT(home[aggregate], ==, i);
			REQUIRE_INT(n, >, last[aggregate]);
			last[aggregate] = n;
		}
		inbox_fini(&in);
		mq_delete_queue(r.mq, queue[i]);
	}
	REQUIRE_INT(total, ==, p.count);
	REQUIRE_INT(used, >, 1);
	mq_delete_exchange(r.mq, exchange);
	daemon_free(d);
	rig_close(&r);
}
END_TEST

RIG_MAIN("daemon: order", 120, behind_a_failing_head_its_aggregate_waits_and_all_others_flow,
	a_dead_event_blocks_its_aggregate_where_so_configured,
	a_dead_event_is_passed_where_so_configured,
	of_two_processes_one_leads_and_the_other_takes_over_when_it_is_killed,
	ties_of_a_whole_second_and_aggregates_that_differ_in_case_keep_their_order,
	all_that_wait_name_the_head_whenever_they_came,
	an_aggregate_with_a_long_backlog_leaves_room_for_the_others,
	an_event_committed_late_goes_all_the_same_and_is_counted,
	what_waits_for_nothing_is_found_when_a_process_begins_to_lead,
	what_queues_behind_a_row_lost_to_another_relay_does_not_overtake_it,
	a_consistent_hash_exchange_gives_each_aggregate_one_queue_and_its_order)

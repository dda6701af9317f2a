/* Events that fail by themselves: charged, ended, and no neighbour the worse for it. */
#include "support/fake_broker.h"
#include "support/rig.h"

#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void add_event(struct rig *r, const char *event_id, const char *aggregate, const char *type)
{
	db_exec(r->db,
		"INSERT INTO %s.outbox_event (event_id,aggregate_type,aggregate_id,event_type,"
		"payload) VALUES ('%s','order','%s','%s','{}')",
		r->schema[0].name, event_id, aggregate, type);
}

static void only_known_keys(struct rig *r)
{
	mq_bind(r->mq, r->queue, r->exchange, "order.created");
	mq_bind(r->mq, r->queue, r->exchange, "order.changed");
	mq_unbind(r->mq, r->queue, r->exchange, "#");
}

/* Waits for the row's n-th failure and checks when the next attempt is due. */
static void require_delay(struct rig *r, const char *event_id, int n, int64_t delay_ms)
{
	const char *table = r->schema[0].name;
	int64_t due_ms;

	WAIT_FOR(20000, db_int(r->db, "SELECT retry_count FROM %s.outbox_event WHERE event_id='%s'",
				table, event_id) >= n);
	due_ms = db_int(r->db,
		"SELECT TIMESTAMPDIFF(MICROSECOND,NOW(6),next_retry_at) DIV 1000 FROM "
		"%s.outbox_event WHERE event_id='%s' AND retry_count=%d AND status='RETRY'",
		table, event_id, n);
	REQUIRE_INT(due_ms, <=, delay_ms);
	REQUIRE_INT(due_ms, >, delay_ms - 1200);
}

static void require_dead(struct rig *r, const char *event_id, const char *error, int retry_count)
{
	char *text = db_text(r->db,
		"SELECT CONCAT(status,' ',retry_count,' ',last_error) FROM %s.outbox_event WHERE "
		"event_id='%s'",
		r->schema[0].name, event_id);
	char wanted[80];

	snprintf(wanted, sizeof(wanted), "DEAD %d %s: ", retry_count, error);
	if (text == NULL || strncmp(text, wanted, strlen(wanted)) != 0)
		FAIL("event %s: \"%s\", should begin with \"%s\"", event_id, text, wanted);
	free(text);
}

START_TEST(an_unroutable_event_is_retried_as_configured_and_ends_dead_alone)
{
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("unroutable");
	struct production p = { .first = 1, .count = 300, .aggregates = 30 };
	struct allowance allowed = { .dead = 1, .charged = 1 };

	rig_open(&r, 1);
	only_known_keys(&r);
	db_produce(r.db, &r.schema[0], &p);
	add_event(&r, "lost-soul", "a1", "nowhere");
	p.first = 1001;
	db_produce(r.db, &r.schema[0], &p);
	rig_conf(&r, &c);
	c.max_attempts = 4;
	c.retry_base_ms = 1600;
	c.retry_cap_ms = 4000;
	c.jitter = "0";
	daemon_configure(d, &c);
	daemon_start(d);
	require_delay(&r, "lost-soul", 1, 1600);
	require_delay(&r, "lost-soul", 2, 3200);
	rig_wait_none(&r, 0, "status<>'SENT' AND event_id<>'lost-soul'", 10000);
	require_delay(&r, "lost-soul", 3, 4000);
	rig_wait_sent(&r, 0, 10000);
	require_dead(&r, "lost-soul", "UNROUTABLE", 4);
	REQUIRE_INT(
		daemon_metric(d, "outboxd_events_failed_total{class=\"UNROUTABLE\",source=\"s0\"}"),
		==, 4);
	REQUIRE_INT(
		daemon_metric(d, "outboxd_events_dead_total{class=\"UNROUTABLE\",source=\"s0\"}"),
		==, 1);
	REQUIRE_INT(daemon_log(d, "event failed", "lost-soul", "class=UNROUTABLE", NULL), ==, 3);
	REQUIRE_INT(daemon_log(d, "event dead", "lost-soul", NULL), ==, 1);
	daemon_stop(d);
	rig_judge(&r, 0, &allowed, NULL);
	daemon_free(d);
	rig_close(&r);
}
END_TEST

START_TEST(a_returned_and_a_nacked_event_are_published_max_attempts_times_and_no_more)
{
	struct fake_broker *fake = fake_broker_start(&(struct fake_rules){ .password = "guest" });
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("attempts");

	rig_open(&r, 1);
	add_event(&r, "returned", "a1", "back");
	add_event(&r, "nacked", "a2", "no");
	add_event(&r, "good", "a3", "yes");
	db_exec(r.db, "UPDATE %s.outbox_event SET aggregate_type=ELT(id,'return','nack','fine')",
		r.schema[0].name);
	rig_conf(&r, &c);
	c.broker[0].port = fake_broker_port(fake);
	c.max_attempts = 3;
	c.retry_base_ms = 200;
	c.poll_ms = 100;
	daemon_configure(d, &c);
	daemon_start(d);
	rig_wait_sent(&r, 0, 20000);
	env_sleep_ms(1000);
	require_dead(&r, "returned", "UNROUTABLE", 3);
	require_dead(&r, "nacked", "NACKED", 3);
	REQUIRE_INT(fake_broker_count(fake, "returned"), ==, 3);
	REQUIRE_INT(fake_broker_count(fake, "nacked"), ==, 3);
	REQUIRE_INT(fake_broker_count(fake, "good"), ==, 1);
	daemon_stop(d);
	fake_broker_stop(fake);
	daemon_free(d);
	rig_close(&r);
}
END_TEST

/* Seven kinds of rows that fail, and what each is to end as. `change` makes one of a good row. */
static const struct poison {
	const char *name, *change, *class;
	unsigned rows, retry_count;
} poisons[] = {
	{ "large", "payload=JSON_OBJECT('x',REPEAT('x',70000))", "TOO_LARGE", 3, 0 },
	{ "long", "aggregate_id=REPEAT('k',128),event_type=REPEAT('t',128)", "INVALID", 3, 0 },
	{ "wide", "event_type=REPEAT(_utf8mb4 0xF09F8D8B,65)", "INVALID", 3, 0 },
	{ "header", "headers=JSON_OBJECT(REPEAT('h',300),1)", "INVALID", 3, 0 },
	{ "astray", "goes=CONCAT('gone',id)", "REFUSED", 3, 0 },
	{ "barred", "goes=CONCAT(goes,'.inner')", "REFUSED", 3, 0 },
	{ "nowhere", "event_type='nowhere'", "UNROUTABLE", 2, 2 },
};
#define POISON_ROWS 20

static void add_poison(struct rig *r)
{
	const char *table = r->schema[0].name;

	for (size_t i = 0; i < ARRAY_LEN(poisons); i++) {
		const struct poison *k = &poisons[i];

		for (unsigned n = 0; n < k->rows; n++) {
			char id[40];

			snprintf(id, sizeof(id), "%s-%u", k->name, n);
			add_event(r, id, id, "created");
			db_exec(r->db, "UPDATE %s.outbox_event SET %s WHERE event_id='%s'", table,
				k->change, id);
			/* among the others, not behind them */
			db_exec(r->db,
				"UPDATE %s.outbox_event a JOIN %s.outbox_event b ON "
				"b.event_id='%s-%zu' "
				"SET a.created_at=b.created_at WHERE a.event_id='%s'",
				table, table, table, 100 + 237 * i + 61 * n, id);
		}
	}
}

/* What no broker can take is never shown to one, and what one broker refuses goes alone. */
START_TEST(twenty_poison_rows_of_seven_kinds_end_dead_and_cost_five_thousand_neighbours_nothing)
{
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("poison");
	struct production p = { .first = 1, .count = 4980, .aggregates = 500 };
	struct allowance allowed = { .dead = POISON_ROWS, .charged = 2 };
	char inner[60];
	struct findings f;

	rig_open(&r, 1);
	only_known_keys(&r);
	mq_bind(r.mq, r.queue, r.exchange, "#.created");
	mq_bind(r.mq, r.queue, r.exchange, "#.changed");
	snprintf(inner, sizeof(inner), "%s.inner", r.exchange);
	mq_declare_exchange_internal(r.mq, inner);
	db_exec(r.db,
		"ALTER TABLE %s.outbox_event ADD COLUMN goes varchar(80) NOT NULL DEFAULT '%s'",
		r.schema[0].name, r.exchange);
	db_produce(r.db, &r.schema[0], &p);
	add_poison(&r);
	rig_conf(&r, &c);
	c.max_attempts = 2;
	c.retry_base_ms = 500;
	c.source[0].exchange = "{column:goes}";
	c.source[0].routing_key = "{aggregate_type}.{aggregate_id}.{event_type}";
	c.broker[0].more = "    max_message_size: 64KiB\n";
	daemon_configure(d, &c);
	daemon_start(d);
	rig_wait_sent(&r, 0, 40000);
	for (size_t i = 0; i < ARRAY_LEN(poisons); i++) {
		for (unsigned n = 0; n < poisons[i].rows; n++) {
			char id[40];

			snprintf(id, sizeof(id), "%s-%u", poisons[i].name, n);
			require_dead(&r, id, poisons[i].class, (int)poisons[i].retry_count);
		}
	}
	REQUIRE_INT(rig_rows(&r, 0, "status='SENT' AND retry_count=0"), ==, 4980);
	/* only the exchanges that do not work, and only the channel that is there for it */
	REQUIRE_INT(
		daemon_metric(d, "outboxd_broker_errors_total{class=\"channel\",source=\"s0\"}"),
		==, 6);
	REQUIRE_INT(daemon_log(d, "channel closed by the broker", "channel=fast", NULL), ==, 0);
	REQUIRE_INT(daemon_metric(d, "outboxd_events_redelivered_total{source=\"s0\"}"), ==, 0);
	daemon_stop(d);
	rig_judge(&r, 0, &allowed, &f);
	REQUIRE_INT(f.arrived, ==, 4980);
	mq_delete_exchange(r.mq, inner);
	daemon_free(d);
	rig_close(&r);
}
END_TEST

/* MySQL renders a JSON value as empty text where that text would exceed the limit. */
/* For as long as it takes, and the lease is short. */
START_TEST(rows_that_somebody_locks_in_flight_cost_their_neighbours_neither_time_nor_a_copy)
{
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("locked");
	struct db *other = NULL;
	struct production p = { .first = 1, .count = 300, .aggregates = 60 };
	struct allowance nothing = { 0 };

	rig_open(&r, 1);
	other = db_open();
	rig_conf(&r, &c);
	c.lease_ms = 8000;
	c.confirm_ms = 2000;
	c.query_ms = 2000;
	daemon_configure(d, &c);
	mq_alarm(true);
	db_produce(r.db, &r.schema[0], &p);
	daemon_start(d);
	WAIT_FOR(10000, rig_rows(&r, 0, "status='PROCESSING'") > 0);
	db_exec(other,
		"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION; SELECT "
		"id FROM %s.outbox_event FORCE INDEX (PRIMARY) WHERE status='PROCESSING' ORDER BY "
		"id LIMIT 1 FOR UPDATE",
		r.schema[0].name);
	mq_alarm(false);
	rig_wait_none(&r, 0, "status<>'SENT' AND status<>'PROCESSING'", 20000);
	WAIT_FOR(10000, rig_rows(&r, 0, "status<>'SENT'") == 1);
	usleep(9000000); /* more than a lease */
	p.first = 1001;
	db_produce(r.db, &r.schema[0], &p);
	WAIT_FOR(10000, rig_rows(&r, 0, "status<>'SENT'") == 1);
	REQUIRE(daemon_log(d, "not settled, the others were", NULL) >= 1);
	REQUIRE(daemon_metric(d, "outboxd_db_errors_total{class=\"retry\",source=\"s0\"}") >= 1);
	db_exec(other, "ROLLBACK");
	rig_wait_sent(&r, 0, 10000);
	daemon_stop(d);
	rig_judge(&r, 0, &nothing, NULL);
	db_close(other);
	daemon_free(d);
	rig_close(&r);
}
END_TEST

START_TEST(where_a_batch_takes_longer_than_the_time_limit_smaller_ones_go)
{
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("slow");
	struct production p = { .first = 1, .count = 120, .aggregates = 60 };

	rig_open(&r, 1);
	rig_conf(&r, &c);
	c.query_ms = 1000;
	daemon_configure(d, &c);
	db_produce(r.db, &r.schema[0], &p);
	db_exec(r.db,
		"CREATE TRIGGER %s.slow BEFORE UPDATE ON %s.outbox_event FOR EACH ROW DO "
		"SLEEP(0.02)",
		r.schema[0].name, r.schema[0].name);
	daemon_start(d);
	rig_wait_sent(&r, 0, 60000);
	REQUIRE(daemon_log(d, "with fewer rows from now on", NULL) >= 1);
	daemon_stop(d);
	daemon_free(d);
	rig_close(&r);
}
END_TEST

static void allow_topics(const struct rig *r, const char *pattern)
{
	const char *allow[] = { "set_topic_permissions", "-p", "/", env_get()->mq_user, r->exchange,
		pattern, ".*", NULL };
	const char *clear[] = { "clear_topic_permissions", "-p", "/", env_get()->mq_user,
		r->exchange, NULL };

	mq_control(pattern != NULL ? allow : clear);
}

START_TEST(an_event_whose_routing_key_is_forbidden_ends_dead_and_the_others_go)
{
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("topic");
	struct production p = { .first = 1, .count = 300, .aggregates = 30 };

	rig_open(&r, 1);
	add_event(&r, "first", "a0", "secret");
	db_produce(r.db, &r.schema[0], &p);
	add_event(&r, "forbidden", "b1", "secret");
	p.first = 1001;
	db_produce(r.db, &r.schema[0], &p);
	allow_topics(&r, "^order\\.(created|changed)$");
	rig_conf(&r, &c);
	daemon_configure(d, &c);
	daemon_start(d);
	rig_wait_none(&r, 0, "status<>'SENT' AND aggregate_id NOT IN ('a0','b1')", 10000);
	WAIT_FOR(30000, rig_rows(&r, 0, "status='DEAD'") == 2);
	require_dead(&r, "forbidden", "REFUSED", 0);
	require_dead(&r, "first", "REFUSED", 0);
	REQUIRE_INT(rig_rows(&r, 0, "retry_count>0"), ==, 0);
	REQUIRE_INT(daemon_log(d, "route broken", NULL), <=, 1);
	daemon_stop(d);
	allow_topics(&r, NULL);
	daemon_free(d);
	rig_close(&r);
}
END_TEST

/* Each aggregate has one event out at a time, and it goes again and again. */
START_TEST(where_everything_comes_back_nobody_is_charged_to_death_however_few_the_aggregates)
{
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("unbound");
	struct production p = { .first = 1, .count = 200, .aggregates = 40 };

	rig_open(&r, 1);
	mq_unbind(r.mq, r.queue, r.exchange, "#");
	db_produce(r.db, &r.schema[0], &p);
	rig_conf(&r, &c);
	c.max_attempts = 3;
	c.retry_base_ms = 200;
	c.retry_cap_ms = 400;
	daemon_configure(d, &c);
	daemon_start(d);
	WAIT_FOR(10000, daemon_log(d, "route broken", NULL) > 0);
	usleep(3000000); /* a good many attempts, were it not known */
	REQUIRE_INT(rig_rows(&r, 0, "status='DEAD'"), ==, 0);
	REQUIRE_INT(rig_rows(&r, 0, "retry_count>1"), <=, 10);
	mq_bind(r.mq, r.queue, r.exchange, "#");
	rig_wait_sent(&r, 0, 40000);
	REQUIRE_INT(rig_rows(&r, 0, "status<>'SENT'"), ==, 0);
	daemon_stop(d);
	daemon_free(d);
	rig_close(&r);
}
END_TEST

START_TEST(a_payload_that_the_database_does_not_give_is_never_sent_empty)
{
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("cut");
	struct allowance allowed = { 0 };
	const char *on = getenv("OUTBOXD_TEST_ON");
	bool text =
		on != NULL && strcmp(on, "mariadb") == 0; /* JSON is text there, and comes whole */

	rig_open(&r, 1);
	rig_conf(&r, &c);
	add_event(&r, "small-1", "a", "created");
	add_event(&r, "large", "b", "created");
	db_exec(r.db,
		"UPDATE %s.outbox_event SET payload=JSON_OBJECT('a',REPEAT('x',3000000)) WHERE "
		"event_id='large'",
		r.schema[0].name);
	add_event(&r, "small-2", "c", "created");
	db_exec(r.db, "SET GLOBAL max_allowed_packet=1048576");
	daemon_configure(d, &c);
	daemon_start(d);
	WAIT_FOR(10000, rig_rows(&r, 0, "status IN ('SENT','DEAD')") == 3);
	daemon_stop(d);
	db_exec(r.db, "SET GLOBAL max_allowed_packet=67108864");
	REQUIRE_INT(rig_rows(&r, 0, "status='SENT'"), ==, text ? 3 : 2);
	if (!text) {
		require_dead(&r, "large", "TOO_LARGE", 0);
		allowed.dead = 1;
	}
	rig_judge(&r, 0, &allowed, NULL);
	daemon_free(d);
	rig_close(&r);
}
END_TEST

START_TEST(failing_rows_at_the_head_of_the_table_do_not_starve_those_behind)
{
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("starve");
	struct production bad = {
		.first = 1, .count = 40, .aggregates = 40, .event_type = "nowhere"
	};
	struct production good = { .first = 1001, .count = 1000, .aggregates = 100 };
	struct allowance allowed = { .missing = 40, .charged = 40 };

	rig_open(&r, 1);
	only_known_keys(&r);
	db_produce(r.db, &r.schema[0], &bad);
	db_produce(r.db, &r.schema[0], &good);
	rig_conf(&r, &c);
	c.batch = 10;
	c.window = 20;
	c.retry_base_ms = 500;
	c.retry_cap_ms = 1000;
	c.max_attempts = 1000;
	daemon_configure(d, &c);
	daemon_start(d);
	rig_wait_none(&r, 0, "status<>'SENT' AND event_type<>'nowhere'", 30000);
	env_sleep_ms(2500);
	REQUIRE_INT(rig_rows(&r, 0, "retry_count>=2"), ==, 40);
	daemon_stop(d);
	rig_judge(&r, 0, &allowed, NULL);
	daemon_free(d);
	rig_close(&r);
}
END_TEST

RIG_MAIN("daemon: failures", 90, an_unroutable_event_is_retried_as_configured_and_ends_dead_alone,
	a_returned_and_a_nacked_event_are_published_max_attempts_times_and_no_more,
	twenty_poison_rows_of_seven_kinds_end_dead_and_cost_five_thousand_neighbours_nothing,
	rows_that_somebody_locks_in_flight_cost_their_neighbours_neither_time_nor_a_copy,
	where_a_batch_takes_longer_than_the_time_limit_smaller_ones_go,
	an_event_whose_routing_key_is_forbidden_ends_dead_and_the_others_go,
	where_everything_comes_back_nobody_is_charged_to_death_however_few_the_aggregates,
	a_payload_that_the_database_does_not_give_is_never_sent_empty,
	failing_rows_at_the_head_of_the_table_do_not_starve_those_behind)

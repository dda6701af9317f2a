/* A broker or a database that is away, hangs or comes back: nobody is charged, the other sources do
 * not notice, and all of it mends itself. */
#include "support/proxy.h"
#include "support/rig.h"

#include <check.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW 500

/* Two sources under load; "s0" goes its own way to database and broker, through proxies. */
struct scene {
	struct rig rig;
	struct conf conf;
	struct daemon *daemon;
	struct proxy *broker, *database;
	struct producer *producer[2];
};

static void scene_open(struct scene *s)
{
	*s = (struct scene){ .daemon = daemon_new("outage") };
	rig_open(&s->rig, 2);
	rig_conf(&s->rig, &s->conf);
	s->broker = proxy_start(env_get()->mq_host, env_get()->mq_port);
	s->database = proxy_start(env_get()->db_host, env_get()->db_port);
	conf_short_lease(&s->conf);
	s->conf.lease_ms = 4000;
	s->conf.confirm_ms = 2500;
	s->conf.window = WINDOW;
	s->conf.batch = 250;
	s->conf.broker[s->conf.brokers++] =
		(struct conf_broker){ .name = "far", .port = proxy_port(s->broker) };
	s->conf.source[0].broker = "far";
	s->conf.source[0].db_port = proxy_port(s->database);
}

static void scene_start(struct scene *s)
{
	struct production p = { .first = 1,
		.count = 1000000,
		.aggregates = 100,
		.transaction = 20,
		.per_second = 100 };

	daemon_configure(s->daemon, &s->conf);
	daemon_start(s->daemon);
	daemon_wait_ready(s->daemon, true);
	for (unsigned i = 0; i < 2; i++)
		s->producer[i] = producer_start(&s->rig.schema[i], &p);
	for (unsigned i = 0; i < 2; i++)
		WAIT_FOR(10000, rig_rows(&s->rig, i, "status='SENT'") > 100);
}

/* Comes back within 10 s: at most 5 s lie between two tries. */
static void require_return(struct scene *s, unsigned source)
{
	uint64_t sent = rig_rows(&s->rig, source, "status='SENT'");

	WAIT_FOR(10000, rig_rows(&s->rig, source, "status='SENT'") > sent);
}

/* What is being sent keeps being sent for `ms`: each second brings some. */
static void require_flow(struct scene *s, unsigned source, int64_t ms)
{
	for (int64_t until = env_now_us() + ms * US_PER_MS; env_now_us() < until;) {
		uint64_t sent = rig_rows(&s->rig, source, "status='SENT'");

		WAIT_FOR(3000, rig_rows(&s->rig, source, "status='SENT'") > sent);
		env_sleep_ms(300);
	}
}

static void require_nobody_charged(struct scene *s)
{
	for (unsigned i = 0; i < 2; i++)
		REQUIRE_INT(rig_rows(&s->rig, i, "retry_count<>0 OR status IN ('RETRY','DEAD')"),
			==, 0);
}

static void require_not_ready(struct scene *s, const char *why)
{
	char text[2000];

	WAIT_FOR(10000, daemon_get(s->daemon, "/readyz", text, sizeof(text)) == 503 &&
				strstr(text, why) != NULL);
	REQUIRE_INT(daemon_get(s->daemon, "/livez", text, sizeof(text)), ==, 200);
}

/* Ends the producers, waits for everything, judges. Copies of what was in flight are allowed where
 * the connection to the broker went. */
static void scene_close(struct scene *s, uint64_t duplicates0, uint64_t duplicates1)
{
	struct allowance allowed[2] = { { .duplicates = duplicates0, .foreign = true },
		{ .duplicates = duplicates1, .foreign = true } };

	for (unsigned i = 0; i < 2; i++)
		producer_stop(s->producer[i]);
	for (unsigned i = 0; i < 2; i++)
		rig_wait_sent(&s->rig, i, 60000);
	daemon_wait_ready(s->daemon, true);
	daemon_stop(s->daemon);
	for (unsigned i = 0; i < 2; i++)
		rig_judge(&s->rig, i, &allowed[i], NULL);
	proxy_stop(s->broker);
	proxy_stop(s->database);
	daemon_free(s->daemon);
	rig_close(&s->rig);
}

START_TEST(a_broker_that_cannot_be_reached_stops_its_source_alone)
{
	struct scene s;

	scene_open(&s);
	scene_start(&s);
	proxy_refuse(s.broker, true);
	proxy_cut(s.broker);
	require_not_ready(&s, "broker far");
	require_flow(&s, 1, 4000);
	require_nobody_charged(&s);
	rig_wait_none(
		&s.rig, 0, "status='PROCESSING' AND locked_until<NOW(6)-INTERVAL 1 SECOND", 1000);
	proxy_refuse(s.broker, false);
	require_return(&s, 0);
	scene_close(&s, WINDOW, 0);
}
END_TEST

START_TEST(a_broker_behind_a_black_hole_stops_its_source_alone)
{
	struct scene s;

	scene_open(&s);
	scene_start(&s);
	proxy_black_hole(s.broker, true);
	require_flow(&s, 1, 3000);
	require_not_ready(&s, "broker far");
	require_flow(&s, 1, 2000);
	require_nobody_charged(&s);
	proxy_black_hole(s.broker, false);
	require_return(&s, 0);
	require_nobody_charged(&s);
	scene_close(&s, WINDOW, 0);
}
END_TEST

START_TEST(a_database_behind_a_black_hole_stops_its_source_alone_and_repeats_nothing)
{
	struct scene s;
	unsigned fed;

	scene_open(&s);
	s.daemon->watchdog_usec = 2000000;
	scene_start(&s);
	proxy_black_hole(s.database, true);
	require_flow(&s, 1, 3000);
	require_not_ready(&s, "source s0");
	daemon_notifications(s.daemon);
	fed = s.daemon->watchdogs;
	require_flow(&s, 1, 3000);
	daemon_notifications(s.daemon);
	REQUIRE_INT(s.daemon->watchdogs, >, fed + 3);
	proxy_black_hole(s.database, false);
	require_return(&s, 0);
	require_nobody_charged(&s);
	scene_close(&s, 0, 0);
}
END_TEST

START_TEST(a_frozen_broker_is_survived_without_an_attempt)
{
	struct scene s;

	scene_open(&s);
	scene_start(&s);
	env_server(SERVER_BROKER, "freeze");
	env_sleep_ms(5000);
	require_nobody_charged(&s);
	env_server(SERVER_BROKER, "thaw");
	for (unsigned i = 0; i < 2; i++)
		require_return(&s, i);
	require_nobody_charged(&s);
	mq_reopen(s.rig.mq, 10000);
	scene_close(&s, WINDOW, WINDOW);
}
END_TEST

START_TEST(a_killed_broker_comes_back_with_everything_it_had_confirmed)
{
	struct scene s;

	scene_open(&s);
	scene_start(&s);
	env_server(SERVER_BROKER, "kill9");
	require_not_ready(&s, "broker main");
	env_server(SERVER_BROKER, "restart");
	mq_reopen(s.rig.mq, 30000);
	for (unsigned i = 0; i < 2; i++)
		require_return(&s, i);
	require_nobody_charged(&s);
	scene_close(&s, WINDOW, WINDOW);
}
END_TEST

START_TEST(a_frozen_database_is_survived_without_a_copy)
{
	struct scene s;

	scene_open(&s);
	scene_start(&s);
	env_server(SERVER_DATABASE, "freeze");
	env_sleep_ms(4500);
	env_server(SERVER_DATABASE, "thaw");
	for (unsigned i = 0; i < 2; i++)
		require_return(&s, i);
	require_nobody_charged(&s);
	scene_close(&s, 0, 0);
}
END_TEST

START_TEST(a_database_killed_again_and_again_is_survived_without_a_copy_by_the_same_process)
{
	unsigned rounds = env_get()->thorough ? 10 : 2;
	struct scene s;
	pid_t pid;

	scene_open(&s);
	scene_start(&s);
	pid = s.daemon->pid;
	for (unsigned n = 0; n < rounds; n++) {
		env_server(SERVER_DATABASE, "kill9");
		require_not_ready(&s, "source s1");
		env_server(SERVER_DATABASE, "restart");
		db_reopen(s.rig.db, 20000);
		for (unsigned i = 0; i < 2; i++)
			require_return(&s, i);
	}
	require_nobody_charged(&s);
	REQUIRE(daemon_runs(s.daemon) && s.daemon->pid == pid);
	REQUIRE_INT(daemon_log(s.daemon, "starting version", NULL), ==, 1);
	scene_close(&s, 0, 0);
}
END_TEST

/* Read along the claim index, unlike all that are not SENT. */
#define UNSENT "status IN ('PENDING','PROCESSING','RETRY')"

/* The rows that arrive meanwhile all go, at full speed, once it is back. A minute and 100,000 rows
 * with OUTBOXD_TEST_LONG=1. */
START_TEST(rows_that_arrive_while_the_broker_is_down_cost_no_attempt_and_go_at_once_when_it_is_back)
{
	unsigned seconds = env_get()->thorough ? 60 : 4;
	uint64_t rows = env_get()->thorough ? 100000 : 4000, before = rows / 4 + 2000;
	struct production p = { .count = before, .aggregates = 1000, .first = 3000001 };
	int64_t until, back_us, first_us, all_us, full_us;
	struct producer *burst;
	struct scene s;
	uint64_t sent;

	scene_open(&s);
	s.conf.ordering = "aggregate";
	s.conf.batch = 500;
	s.conf.window = 2000;
	/* about the broker, not about a database that is slow to answer today */
	s.conf.lease_ms = 15000;
	s.conf.query_ms = 10000;
	s.conf.heartbeat_s = 10;
	/* what it does with rows that lie there already is full speed, on this machine today */
	db_produce(s.rig.db, &s.rig.schema[0], &p);
	full_us = env_now_us();
	scene_start(&s);
	rig_wait_none(&s.rig, 0, UNSENT " AND event_id LIKE '%-3______'", 60000);
	full_us = env_now_us() - full_us;
	p = (struct production){ .count = rows, .aggregates = 1000, .first = 2000001 };
	p.per_second = (unsigned)(rows / seconds);
	if (env_get()->thorough) {
		env_server(SERVER_BROKER, "kill9");
	} else {
		proxy_refuse(s.broker, true);
		proxy_cut(s.broker);
	}
	burst = producer_start(&s.rig.schema[0], &p);
	for (until = env_now_us() + seconds * US_PER_SEC; env_now_us() < until;) {
		require_nobody_charged(&s);
		env_sleep_ms(500);
	}
	producer_wait(burst);
	sent = rig_rows(&s.rig, 0, "status='SENT'");
	if (env_get()->thorough) {
		env_server(SERVER_BROKER, "restart");
		mq_reopen(s.rig.mq, 30000);
	}
	proxy_refuse(s.broker, false);
	back_us = env_now_us();
	WAIT_FOR(10000, rig_rows(&s.rig, 0, "status='SENT'") > sent);
	first_us = env_now_us() - back_us;
	rig_wait_none(&s.rig, 0, UNSENT " AND event_id LIKE '%-2______'", 240000);
	all_us = env_now_us() - back_us;
	printf("broker away %u s, %" PRIu64
	       " rows meanwhile: the first sent %.2f s after its return, "
	       "all of them after %.2f s, %.0f rows/s; without an outage %.0f rows/s\n",
		seconds, rows, (double)first_us / US_PER_SEC, (double)all_us / US_PER_SEC,
		(double)rows * US_PER_SEC / (double)(all_us - first_us),
		(double)before * US_PER_SEC / (double)full_us);
	REQUIRE_INT(all_us, <=, 10 * US_PER_SEC + 2 * full_us * (int64_t)rows / (int64_t)before);
	require_nobody_charged(&s);
	scene_close(&s, 2500, 2500);
}
END_TEST

START_TEST(a_fixed_exchange_that_vanishes_is_an_outage_of_the_route_and_heals)
{
	struct scene s;
	struct mq *mq;
	char other[60];

	scene_open(&s);
	snprintf(other, sizeof(other), "%s.own", s.rig.exchange);
	mq_declare_exchange_over(s.rig.mq, other, s.rig.exchange);
	s.conf.source[0].exchange = other;
	scene_start(&s);
	mq_delete_exchange(s.rig.mq, other);
	require_not_ready(&s, "route of source s0");
	require_flow(&s, 1, 3000);
	require_nobody_charged(&s);
	/* one probe at a time, not a storm */
	REQUIRE_INT(daemon_metric(s.daemon,
			    "outboxd_broker_errors_total{class=\"channel\",source=\"s0\"}"),
		<=, 8);
	mq_declare_exchange_over(s.rig.mq, other, s.rig.exchange);
	WAIT_FOR(15000, daemon_log(s.daemon, "route works again", NULL) > 0);
	require_return(&s, 0);
	require_nobody_charged(&s);
	/* rows that were in flight behind the first refusal may go twice */
	scene_close(&s, WINDOW, 0);
	mq = mq_open();
	mq_delete_exchange(mq, other);
	mq_close(mq);
}
END_TEST

START_TEST(a_binding_that_vanishes_charges_a_few_and_then_nobody)
{
	struct scene s;
	struct allowance allowed = { .charged_any = true, .foreign = true };

	scene_open(&s);
	snprintf(s.conf.source[0].name, sizeof(s.conf.source[0].name), "s0");
	s.conf.retry_base_ms = 500;
	s.conf.source[0].routing_key = "lonely.{event_type}";
	mq_bind(s.rig.mq, s.rig.queue, s.rig.exchange, "order.#");
	mq_bind(s.rig.mq, s.rig.queue, s.rig.exchange, "lonely.#");
	mq_unbind(s.rig.mq, s.rig.queue, s.rig.exchange, "#");
	scene_start(&s);
	mq_unbind(s.rig.mq, s.rig.queue, s.rig.exchange, "lonely.#");
	require_not_ready(&s, "route of source s0");
	require_flow(&s, 1, 3000);
	/* It takes 50 first attempts to tell, during which an early one may be due again; what was
	 * in flight then does not count. */
	REQUIRE_INT(rig_rows(&s.rig, 0, "retry_count>3"), ==, 0);
	REQUIRE_INT(rig_rows(&s.rig, 0, "retry_count>0"), <=, 60);
	REQUIRE_INT(rig_rows(&s.rig, 0, "status='DEAD'"), ==, 0);
	mq_bind(s.rig.mq, s.rig.queue, s.rig.exchange, "lonely.#");
	WAIT_FOR(15000, daemon_log(s.daemon, "route works again", NULL) > 0);
	for (unsigned i = 0; i < 2; i++)
		producer_stop(s.producer[i]);
	for (unsigned i = 0; i < 2; i++)
		rig_wait_sent(&s.rig, i, 60000);
	daemon_stop(s.daemon);
	for (unsigned i = 0; i < 2; i++)
		rig_judge(&s.rig, i, &allowed, NULL);
	proxy_stop(s.broker);
	proxy_stop(s.database);
	daemon_free(s.daemon);
	rig_close(&s.rig);
}
END_TEST

START_TEST(during_a_memory_alarm_it_answers_within_a_second_and_goes_on_two_seconds_after)
{
	unsigned seconds = env_get()->thorough ? 30 : 4;
	struct scene s;
	unsigned fed, reloads = 0;
	int64_t lifted_us;

	scene_open(&s);
	s.daemon->watchdog_usec = 2000000;
	scene_start(&s);
	mq_alarm(true);
	WAIT_FOR(5000, daemon_log(s.daemon, "blocked", NULL) > 0);
	daemon_notifications(s.daemon);
	fed = s.daemon->watchdogs;
	for (int64_t until = env_now_us() + seconds * US_PER_SEC; env_now_us() < until;) {
		int64_t asked_us = env_now_us();

		REQUIRE(daemon_metric(s.daemon, "outboxd_in_flight_messages{source=\"s0\"}") >= 0);
		REQUIRE_INT(env_now_us() - asked_us, <, US_PER_SEC);
		daemon_signal(s.daemon, SIGHUP);
		reloads++;
		WAIT_FOR(1000, daemon_log(s.daemon, "configuration reloaded", NULL) == reloads);
		daemon_notifications(s.daemon); /* or there is no room for more */
		env_sleep_ms(100);
	}
	daemon_notifications(s.daemon);
	REQUIRE_INT(s.daemon->watchdogs, >, fed + 4);
	require_nobody_charged(&s);
	mq_alarm(false);
	lifted_us = env_now_us();
	for (unsigned i = 0; i < 2; i++) {
		uint64_t sent = rig_rows(&s.rig, i, "status='SENT'");

		WAIT_FOR(4000, rig_rows(&s.rig, i, "status='SENT'") > sent);
	}
	REQUIRE_INT(env_now_us() - lifted_us, <, 2 * US_PER_SEC);
	scene_close(&s, 0, 0);
}
END_TEST

START_TEST(term_during_a_memory_alarm_ends_in_time)
{
	struct scene s;

	scene_open(&s);
	s.conf.shutdown_ms = 2000;
	scene_start(&s);
	mq_alarm(true);
	WAIT_FOR(5000, daemon_log(s.daemon, "blocked", NULL) > 0);
	env_sleep_ms(500);
	daemon_signal(s.daemon, SIGTERM);
	REQUIRE_INT(daemon_wait(s.daemon, 5000), ==, 0);
	mq_alarm(false);
	daemon_start(s.daemon);
	scene_close(&s, WINDOW, WINDOW);
}
END_TEST

RIG_MAIN("daemon: outage", 300, a_broker_that_cannot_be_reached_stops_its_source_alone,
	a_broker_behind_a_black_hole_stops_its_source_alone,
	a_database_behind_a_black_hole_stops_its_source_alone_and_repeats_nothing,
	a_frozen_broker_is_survived_without_an_attempt,
	a_killed_broker_comes_back_with_everything_it_had_confirmed,
	a_frozen_database_is_survived_without_a_copy,
	a_database_killed_again_and_again_is_survived_without_a_copy_by_the_same_process,
	rows_that_arrive_while_the_broker_is_down_cost_no_attempt_and_go_at_once_when_it_is_back,
	a_fixed_exchange_that_vanishes_is_an_outage_of_the_route_and_heals,
	a_binding_that_vanishes_charges_a_few_and_then_nobody,
	during_a_memory_alarm_it_answers_within_a_second_and_goes_on_two_seconds_after,
	term_during_a_memory_alarm_ends_in_time)

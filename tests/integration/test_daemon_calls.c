/* Calls that do not return, and what a process has too little of: descriptors, memory, room for its
 * log, a parent. */
#include "support/fake_broker.h"
#include "support/proxy.h"
#include "support/rig.h"

#include <arpa/inet.h>
#include <check.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* All of it within a second, whatever the relays wait for. */
static void require_answers(struct daemon *d)
{
	unsigned reloads = daemon_log(d, "configuration reloaded", NULL);
	unsigned reopened = daemon_log(d, "log reopened", NULL);
	int64_t asked_us = env_now_us();

	REQUIRE(daemon_metric(d, "outboxd_config_last_reload_successful") == 1);
	REQUIRE_INT(env_now_us() - asked_us, <, US_PER_SEC);
	daemon_signal(d, SIGHUP);
	WAIT_FOR(1000, daemon_log(d, "configuration reloaded", NULL) > reloads);
	daemon_signal(d, SIGUSR1);
	WAIT_FOR(1000, daemon_log(d, "log reopened", NULL) > reopened);
	daemon_signal(d, SIGUSR2);
	REQUIRE(daemon_runs(d));
}

/* Four sources: a database that never greets, a broker that never greets, one that keeps its
 * confirms, one that stops reading. No timeout of theirs ends within this test. */
START_TEST(signals_and_pages_are_answered_within_a_second_wherever_relays_wait)
{
	struct fake_broker *mute = fake_broker_start(&(struct fake_rules){ .silent = true });
	struct fake_broker *holds = fake_broker_start(&(struct fake_rules){ .password = "guest" });
	struct fake_broker *stalls = fake_broker_start(
		&(struct fake_rules){ .password = "guest", .stall_after = 60000 });
	struct production p = { .first = 1, .count = 200, .aggregates = 50, .padding = 20000 };
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("waits");
	int64_t began_us;

	rig_open(&r, 4);
	rig_conf(&r, &c);
	c.connect_ms = 40000;
	c.query_ms = 20000;
	c.confirm_ms = 30000;
	c.heartbeat_s = 40;
	c.shutdown_ms = 2000;
	c.source[0].db_port = fake_broker_port(mute);
	c.broker[c.brokers++] =
		(struct conf_broker){ .name = "mute", .port = fake_broker_port(mute) };
	c.broker[c.brokers++] =
		(struct conf_broker){ .name = "holds", .port = fake_broker_port(holds) };
	c.broker[c.brokers++] =
		(struct conf_broker){ .name = "stalls", .port = fake_broker_port(stalls) };
	c.source[1].broker = "mute";
	c.source[2].broker = "holds";
	c.source[2].routing_key = "hold.{event_type}";
	c.source[3].broker = "stalls";
	for (unsigned i = 0; i < 4; i++)
		db_produce(r.db, &r.schema[i], &p);
	daemon_configure(d, &c);
	daemon_start(d);
	daemon_wait_ready(d, false);
	WAIT_FOR(10000, daemon_metric(d, "outboxd_in_flight_messages{source=\"s2\"}") > 0 &&
				daemon_metric(d, "outboxd_in_flight_messages{source=\"s3\"}") > 0);
	for (int i = 0; i < 3; i++)
		require_answers(d);
	began_us = env_now_us();
	daemon_signal(d, SIGTERM);
	REQUIRE_INT(daemon_wait(d, 6000), ==, 0);
	REQUIRE_INT(env_now_us() - began_us, <, 4 * US_PER_SEC);
	fake_broker_stop(mute);
	fake_broker_stop(holds);
	fake_broker_stop(stalls);
	daemon_free(d);
	rig_close(&r);
}
END_TEST

/* The resolver has no timeout of its own. */
START_TEST(a_resolver_that_hangs_holds_up_neither_other_sources_nor_the_end)
{
	struct production p = { .first = 1, .count = 50, .aggregates = 10 };
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("resolver");
	int64_t began_us;
	unsigned fed;

	rig_open(&r, 3);
	rig_conf(&r, &c);
	c.shutdown_ms = 2000;
	c.connect_ms = 200;
	c.query_ms = 1000;
	d->watchdog_usec = 2000000;
	c.source[0].db_host = "hang.test";
	c.broker[c.brokers++] = (struct conf_broker){ .name = "lost", .host = "hang.test" };
	c.source[1].broker = "lost";
	d->shim = true;
	d->environment[0] = "OUTBOXD_SHIM_RESOLVER=60";
	daemon_configure(d, &c);
	for (unsigned i = 0; i < 3; i++)
		db_produce(r.db, &r.schema[i], &p);
	daemon_start(d);
	daemon_wait_ready(d, false);
	rig_wait_sent(&r, 2, 10000);
	require_answers(d);
	/* long after the deadlines of these calls it is still no reason to end the others */
	env_sleep_ms(8000);
	daemon_notifications(d);
	fed = d->watchdogs;
	env_sleep_ms(1500);
	daemon_notifications(d);
	REQUIRE_INT(d->watchdogs, >, fed);
	began_us = env_now_us();
	daemon_signal(d, SIGTERM);
	REQUIRE_INT(daemon_wait(d, 10000), ==, 0);
	REQUIRE_INT(env_now_us() - began_us, <, 2 * US_PER_SEC);
	REQUIRE_INT(rig_rows(&r, 1, "status='PROCESSING' OR retry_count>0"), ==, 0);
	daemon_free(d);
	rig_close(&r);
}
END_TEST

START_TEST(whatever_becomes_of_its_log_and_its_output_events_flow)
{
	static const struct {
		const char *output, *log_file;
	} ways[] = {
		{ OUTPUT_CLOSED, NULL },
		{ OUTPUT_CLOSED, "" },
		{ OUTPUT_BROKEN, "" },
		{ "/dev/full", "" },
		{ NULL, "/dev/full" },
	};
	struct production p = { .count = 100, .aggregates = 10 };
	struct allowance exactly = { 0 };
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("no-log");

	rig_open(&r, 1);
	rig_conf(&r, &c);
	c.log_events = "all";
	for (size_t i = 0; i < ARRAY_LEN(ways); i++) {
		d->output = ways[i].output;
		c.log_file = ways[i].log_file;
		daemon_configure(d, &c);
		daemon_start(d);
		daemon_wait_ready(d, true);
		p.first = 1 + i * p.count;
		db_produce(r.db, &r.schema[0], &p);
		rig_wait_sent(&r, 0, 10000);
		daemon_signal(d, SIGUSR1);
		daemon_signal(d, SIGHUP);
		p.first += 1000;
		db_produce(r.db, &r.schema[0], &p);
		rig_wait_sent(&r, 0, 10000);
		daemon_stop(d);
	}
	rig_judge(&r, 0, &exactly, NULL);
	daemon_free(d);
	rig_close(&r);
}
END_TEST

START_TEST(as_process_one_of_a_container_it_takes_signals_like_everywhere)
{
	struct production p = { .first = 1, .count = 100, .aggregates = 10 };
	struct allowance exactly = { 0 };
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("first");

	if (geteuid() != 0) {
		printf("SKIPPED: a namespace of processes wants root\n");
		return;
	}
	rig_open(&r, 1);
	rig_conf(&r, &c);
	daemon_configure(d, &c);
	d->first = true;
	daemon_start(d);
	daemon_wait_ready(d, true);
	db_produce(r.db, &r.schema[0], &p);
	rig_wait_sent(&r, 0, 10000);
	require_answers(d);
	daemon_stop(d);
	for (int ms = 40; ms <= 240; ms += 100) { /* at every stage of its start */
		daemon_start(d);
		env_sleep_ms(ms);
		daemon_signal(d, SIGTERM);
		REQUIRE_INT(daemon_wait(d, 6000), ==, 0);
	}
	rig_judge(&r, 0, &exactly, NULL);
	daemon_free(d);
	rig_close(&r);
}
END_TEST

static int connect_to(unsigned port)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
		.sin_port = htons((uint16_t)port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || connect(fd, (struct sockaddr *)&at, sizeof(at)) < 0)
		FAIL("connect: %s", strerror(errno));
	return fd;
}

/* Strangers take every descriptor, and the connections of the relay break meanwhile. */
START_TEST(without_a_free_descriptor_it_waits_and_goes_on_once_there_is_one)
{
	struct production p = { .first = 1, .count = 100, .aggregates = 10 };
	struct allowance allowed = { 0 };
	struct proxy *broker = proxy_start(env_get()->mq_host, env_get()->mq_port);
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("descriptors");
	int strangers[100];
	int64_t cpu_us;

	rig_open(&r, 1);
	rig_conf(&r, &c);
	c.broker[0].port = proxy_port(broker);
	daemon_configure(d, &c);
	daemon_start(d);
	daemon_wait_ready(d, true);
	d->max_fds = daemon_fds(d) + 6;
	daemon_stop(d);
	daemon_start(d);
	daemon_wait_ready(d, true);
	for (size_t i = 0; i < ARRAY_LEN(strangers); i++)
		strangers[i] = connect_to(d->http_port);
	db_produce(r.db, &r.schema[0], &p);
	rig_wait_sent(&r, 0, 10000);
	proxy_cut(broker);
	(void)db_try(r.db, "KILL %" PRId64, db_session(r.db, r.schema[0].user));
	p.first = 1001;
	db_produce(r.db, &r.schema[0], &p);
	cpu_us = daemon_cpu_us(d);
	env_sleep_ms(2000);
	REQUIRE_INT(daemon_cpu_us(d) - cpu_us, <, 500 * US_PER_MS);
	for (size_t i = 0; i < ARRAY_LEN(strangers); i++)
		close(strangers[i]);
	rig_wait_sent(&r, 0, 15000);
	daemon_wait_ready(d, true);
	daemon_stop(d);
	rig_judge(&r, 0, &allowed, NULL);
	proxy_stop(broker);
	daemon_free(d);
	rig_close(&r);
}
END_TEST

/* Columns that may hold 4 GiB a row, in an address space of half a GiB. */
START_TEST(memory_follows_what_rows_hold_not_what_their_columns_could)
{
	struct production p = { .first = 1, .count = 2000, .aggregates = 100 };
	struct allowance exactly = { 0 };
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("memory");

	rig_open(&r, 1);
	db_exec(r.db,
		"ALTER TABLE %s.outbox_event MODIFY payload LONGTEXT NOT NULL, "
		"MODIFY last_error LONGTEXT NULL, MODIFY headers LONGTEXT NULL",
		r.schema[0].name);
	db_produce(r.db, &r.schema[0], &p);
	/* and some that are large indeed: 30 of 1 MiB */
	p = (struct production){
		.first = 5001, .count = 30, .aggregates = 30, .padding = 1 << 20, .transaction = 5
	};
	db_produce(r.db, &r.schema[0], &p);
	rig_conf(&r, &c);
	c.source[0].more = "    max_in_flight_bytes: 16MiB\n";
	d->max_memory = 512UL << 20;
	daemon_configure(d, &c);
	daemon_start(d);
	rig_wait_sent(&r, 0, 30000);
	REQUIRE_INT(daemon_rss_kb(d), <, 100 * 1024);
	daemon_stop(d);
	rig_judge(&r, 0, &exactly, NULL);
	daemon_free(d);
	rig_close(&r);
}
END_TEST

/* Each interrupts whatever call is under way. */
START_TEST(a_thousand_signals_under_load_lose_and_repeat_nothing)
{
	static const int signals[] = { SIGHUP, SIGUSR1, SIGUSR2, SIGUSR2, SIGPIPE };
	struct production p = {
		.first = 1, .count = 100000, .aggregates = 200, .transaction = 20, .per_second = 500
	};
	struct allowance exactly = { .ordered = true };
	struct producer *producer;
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("signals");

	rig_open(&r, 1);
	rig_conf(&r, &c);
	c.ordering = "aggregate";
	daemon_configure(d, &c);
	daemon_start(d);
	daemon_wait_ready(d, true);
	producer = producer_start(&r.schema[0], &p);
	for (unsigned i = 0; i < 1000; i++) {
		daemon_signal(d, signals[i % ARRAY_LEN(signals)]);
		if (i % 100 == 0) { /* also with a debugger's stops between */
			daemon_signal(d, SIGSTOP);
			daemon_signal(d, SIGCONT);
		}
		env_sleep_ms(2);
	}
	producer_stop(producer);
	rig_wait_sent(&r, 0, 10000);
	require_answers(d);
	daemon_stop(d);
	rig_judge(&r, 0, &exactly, NULL);
	daemon_free(d);
	rig_close(&r);
}
END_TEST

/* Two of three databases swallow what is sent to them; one of them is being counted all the time.
 */
START_TEST(databases_that_hang_do_not_keep_the_others_from_being_counted)
{
	static const char *const age[] = { "outboxd_sample_age_seconds{source=\"s0\"}",
		"outboxd_sample_age_seconds{source=\"s1\"}" };
	const struct env *env = env_get();
	struct proxy *hangs = proxy_start(env->db_host, env->db_port);
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("counts");
	double oldest = 0;

	rig_open(&r, 3);
	rig_conf(&r, &c);
	c.query_ms = 30000;
	c.heartbeat_s = 30;
	c.shutdown_ms = 2000;
	c.source[1].db_port = c.source[2].db_port = proxy_port(hangs);
	daemon_configure(d, &c);
	daemon_start(d);
	daemon_wait_ready(d, true);
	WAIT_FOR(10000, daemon_metric(d, "outboxd_backlog_events{source=\"s1\"}") == 0);
	proxy_black_hole(hangs, true);
	for (int64_t until = env_now_us() + 25 * US_PER_SEC; env_now_us() < until;
		env_sleep_ms(100)) {
		double now = daemon_metric(d, age[0]);

		oldest = now > oldest ? now : oldest;
	}
	REQUIRE(daemon_metric(d, age[1]) > 20);
	printf("counts at most %.1f s old while others cannot be had for 20 s\n", oldest);
	REQUIRE(oldest < 18);
	daemon_signal(d, SIGTERM);
	WAIT_FOR(4000, !daemon_runs(d));
	proxy_stop(hangs);
	daemon_free(d);
	rig_close(&r);
}
END_TEST

RIG_MAIN("daemon: calls", 90, signals_and_pages_are_answered_within_a_second_wherever_relays_wait,
	a_resolver_that_hangs_holds_up_neither_other_sources_nor_the_end,
	whatever_becomes_of_its_log_and_its_output_events_flow,
	as_process_one_of_a_container_it_takes_signals_like_everywhere,
	without_a_free_descriptor_it_waits_and_goes_on_once_there_is_one,
	memory_follows_what_rows_hold_not_what_their_columns_could,
	a_thousand_signals_under_load_lose_and_repeat_nothing,
	databases_that_hang_do_not_keep_the_others_from_being_counted)

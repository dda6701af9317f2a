/* What an operator does to a running daemon: signals, reload, wake-up, secrets; and what the
 * service manager hears of it. */
#include "support/rig.h"

#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void insert_one(struct rig *r, unsigned schema, uint64_t n)
{
	struct production p = { .first = n, .count = 1, .aggregates = 10 };

	db_produce(r->db, &r->schema[schema], &p);
}

static bool sent(struct rig *r, unsigned schema, uint64_t n)
{
	return db_int(r->db,
		       "SELECT COUNT(*) FROM %s.outbox_event WHERE event_id='%s-%" PRIu64
		       "' AND status='SENT'",
		       r->schema[schema].name, r->schema[schema].name, n) == 1;
}

static void simple(struct rig *r, struct conf *c, unsigned schemas)
{
	rig_open(r, schemas);
	rig_conf(r, c);
}

static void finish(struct rig *r, struct daemon *d)
{
	struct allowance exactly = { .foreign = true };

	for (unsigned i = 0; i < r->schemas; i++)
		rig_wait_sent(r, i, 20000);
	daemon_stop(d);
	for (unsigned i = 0; i < r->schemas; i++) {
		rig_judge(r, i, &exactly, NULL);
		daemon_never_said(d, r->schema[i].password);
	}
	daemon_free(d);
	rig_close(r);
}

START_TEST(a_reload_of_a_bad_file_changes_nothing_and_names_the_line)
{
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("bad-file");
	char *good, *bad, *at, where[160];
	unsigned line = 1;

	simple(&r, &c, 1);
	daemon_configure(d, &c);
	daemon_start(d);
	daemon_wait_ready(d, true);
	insert_one(&r, 0, 1);
	good = env_read_file(d->config);
	bad = strdup(good);
	at = strstr(bad, "  batch:");
	REQUIRE(at != NULL);
	memcpy(at, "  botch:", 8);
	for (const char *p = bad; p < at; p++)
		line += *p == '\n';
	env_write_file(d->config, bad);
	daemon_signal(d, SIGHUP);
	snprintf(where, sizeof(where), "%s:%u:3", d->config, line);
	WAIT_FOR(5000, daemon_log(d, "configuration refused", where, "botch", NULL) == 1);
	WAIT_FOR(5000, daemon_metric(d, "outboxd_config_reloads_total{result=\"rejected\"}") == 1);
	REQUIRE_INT(daemon_metric(d, "outboxd_config_last_reload_successful"), ==, 0);
	WAIT_FOR(5000, daemon_notified(d, "READY=1") == 2);
	REQUIRE_INT(daemon_notified(d, "RELOADING=1"), ==, 1);
	insert_one(&r, 0, 2);
	WAIT_FOR(5000, sent(&r, 0, 2));
	REQUIRE_INT(daemon_log(d, "source started", NULL), ==, 1);
	env_write_file(d->config, good);
	daemon_signal(d, SIGHUP);
	WAIT_FOR(5000, daemon_metric(d, "outboxd_config_last_reload_successful") == 1);
	REQUIRE_INT(daemon_log(d, "source started", NULL), ==, 1);
	free(good);
	free(bad);
	finish(&r, d);
}
END_TEST

/* What the file says in a round: s0 never changes; the others go, come back and change. */
static void reconfigure(const struct conf *c, unsigned round, struct conf *out)
{
	static const char *const changes[] = { NULL, "    batch: 50\n    max_in_flight: 100\n",
		"    batch: 200\n", "    ordering: none\n" };

	*out = *c;
	out->source[2].more = changes[round % ARRAY_LEN(changes)];
	switch (round % 5) {
	case 0: /* s2 gone */
		out->sources = 2;
		break;
	case 1: /* s1 gone */
		out->source[1] = out->source[2];
		out->sources = 2;
		break;
	case 2:
		out->source[1].more = changes[1];
		break;
	case 3: /* s0 alone */
		out->sources = 1;
		break;
	default:
		break;
	}
}

static void wait_all_move(struct rig *r, const struct conf *c)
{
	for (unsigned i = 0; i < c->sources; i++) {
		unsigned schema = (unsigned)(c->source[i].schema - r->schema);
		uint64_t before = rig_rows(r, schema, "status='SENT'");

		WAIT_FOR(10000, rig_rows(r, schema, "status='SENT'") > before);
	}
}

/* The longest time in which nothing was sent. */
static int64_t largest_gap_us(struct rig *r, unsigned schema)
{
	return db_int(r->db,
		"SELECT MAX(gap) FROM (SELECT TIMESTAMPDIFF(MICROSECOND,LAG(sent_at) OVER (ORDER "
		"BY "
		"sent_at),sent_at) AS gap FROM %s.outbox_event) AS q",
		r->schema[schema].name);
}

/* Sources go, come back and change, while events flow in all. A fourth one, of a daemon that nobody
 * reloads, tells how long nothing is sent on this machine anyway. */
START_TEST(reloads_under_load_lose_and_repeat_nothing_and_leave_alone_what_did_not_change)
{
	struct rig r;
	struct conf c, other;
	struct daemon *d = daemon_new("reload"), *other_d = daemon_new("control");
	struct production p = {
		.first = 1, .count = 3000000, .aggregates = 200, .transaction = 5, .per_second = 100
	};
	struct producer *producers[4];
	unsigned rounds = env_get()->thorough ? 200 : 20;
	int64_t control_us;

	simple(&r, &c, 4);
	c.ordering = "aggregate";
	other = c;
	other.source[0] = c.source[3];
	other.sources = 1;
	daemon_configure(other_d, &other);
	daemon_start(other_d);
	c.sources = 3;
	daemon_configure(d, &c);
	daemon_start(d);
	daemon_wait_ready(d, true);
	for (unsigned i = 0; i < 4; i++)
		producers[i] = producer_start(&r.schema[i], &p);
	wait_all_move(&r, &c);
	for (unsigned round = 1; round <= rounds; round++) {
		if (round == rounds)
			other = c;
		else
			reconfigure(&c, round, &other);
		/* the address of HTTP changes too, now and then */
		if (round % 7 == 0)
			d->http_port = env_free_port();
		daemon_configure(d, &other);
		daemon_signal(d, SIGHUP);
		WAIT_FOR(10000, daemon_log(d, "configuration reloaded", NULL) == round);
		wait_all_move(&r, &other);
	}
	for (unsigned i = 0; i < 4; i++) {
		producer_stop(producers[i]);
		REQUIRE_INT(rig_rows(&r, i, "retry_count>0"), ==, 0);
	}
	daemon_wait_ready(d, true);
	REQUIRE_INT(
		daemon_metric(d, "outboxd_config_reloads_total{result=\"applied\"}"), ==, rounds);
	REQUIRE_INT(daemon_log(d, "source started", "source=s0", NULL), ==, 1);
	REQUIRE_INT(daemon_log(d, "source started", "source=s2", NULL), >, rounds / 2);
	rig_wait_sent(&r, 3, 20000);
	daemon_stop(other_d);
	daemon_free(other_d);
	rig_wait_sent(&r, 0, 20000);
	control_us = largest_gap_us(&r, 3);
	REQUIRE_INT(largest_gap_us(&r, 0), <=, US_PER_SEC + control_us);
	finish(&r, d);
}
END_TEST

START_TEST(after_a_rotation_usr1_writes_a_new_log)
{
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("rotated");
	char old[140], *text;

	simple(&r, &c, 1);
	c.log_events = "all";
	daemon_configure(d, &c);
	daemon_start(d);
	daemon_wait_ready(d, true);
	insert_one(&r, 0, 1);
	WAIT_FOR(5000, daemon_log(d, "event sent", "-1 ", NULL) == 1);
	snprintf(old, sizeof(old), "%s.1", d->log);
	REQUIRE(rename(d->log, old) == 0);
	daemon_signal(d, SIGUSR1);
	WAIT_FOR(5000, daemon_log(d, "log reopened", NULL) == 1);
	insert_one(&r, 0, 2);
	WAIT_FOR(5000, daemon_log(d, "event sent", "-2 ", NULL) == 1);
	REQUIRE_INT(daemon_log(d, "event sent", "-1 ", NULL), ==, 0);
	text = env_read_file(old);
	REQUIRE(strstr(text, "-1 ") != NULL && strstr(text, "-2 ") == NULL);
	free(text);
	finish(&r, d);
}
END_TEST

/* Polls of an idle source lie further and further apart: returns right after one, when the next is
 * two seconds off at least. */
static void wait_for_sleep(struct daemon *d, const char *source)
{
	char series[80];
	double last, now;

	snprintf(series, sizeof(series), "outboxd_last_poll_timestamp_seconds{source=\"%s\"}",
		source);
	last = now = daemon_metric(d, series);
	while (now - last < 1.2) {
		last = now;
		WAIT_FOR(20000, (now = daemon_metric(d, series)) > last);
	}
}

START_TEST(usr2_and_the_wakeup_socket_deliver_at_once_though_polls_are_a_minute_apart)
{
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("woken");

	simple(&r, &c, 2);
	c.poll_ms = 60000;
	c.lease_ms = 120000;
	daemon_configure(d, &c);
	daemon_start(d);
	daemon_wait_ready(d, true);
	wait_for_sleep(d, "s0");
	insert_one(&r, 0, 1);
	env_sleep_ms(700);
	REQUIRE(!sent(&r, 0, 1));
	daemon_signal(d, SIGUSR2);
	WAIT_FOR(1000, sent(&r, 0, 1));
	wait_for_sleep(d, "s1");
	wait_for_sleep(d, "s0");
	insert_one(&r, 0, 2);
	insert_one(&r, 1, 2);
	daemon_poke(d, "s1");
	WAIT_FOR(1500, sent(&r, 1, 2));
	REQUIRE(!sent(&r, 0, 2));
	daemon_poke(d, "nobody");
	daemon_poke(d, "");
	WAIT_FOR(1500, sent(&r, 0, 2));
	finish(&r, d);
}
END_TEST

START_TEST(term_while_it_starts_ends_it_and_with_servers_away_too)
{
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("early");
	unsigned runs = 0;
	int status;

	simple(&r, &c, 2);
	c.shutdown_ms = 5000;
	daemon_configure(d, &c);
	for (int ms = 0; ms < 60; ms += 15) {
		daemon_start(d);
		env_sleep_ms(ms);
		daemon_signal(d, SIGTERM);
		status = daemon_wait(d, 8000);
		/* before it could say otherwise, or orderly */
		REQUIRE_INT(status, ==,
			daemon_log(d, "starting version", NULL) == runs && status != 0
				? 128 + SIGTERM
				: 0);
		runs = daemon_log(d, "starting version", NULL);
	}
	c.source[0].db_port = env_free_port();
	c.broker[0].port = env_free_port();
	daemon_configure(d, &c);
	daemon_start(d);
	daemon_wait_ready(d, false);
	env_sleep_ms(200);
	daemon_signal(d, SIGINT);
	REQUIRE_INT(daemon_wait(d, 4000), ==, 0);
	REQUIRE_INT(rig_rows(&r, 0, "1"), ==, 0);
	daemon_free(d);
	rig_close(&r);
}
END_TEST

START_TEST(the_service_manager_hears_of_start_reload_status_life_and_end)
{
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("notify");
	unsigned fed;

	simple(&r, &c, 2);
	c.ordering = "aggregate";
	d->watchdog_usec = 2000000;
	daemon_configure(d, &c);
	daemon_start(d);
	daemon_wait_ready(d, true);
	WAIT_FOR(20000, daemon_notified(d, "STATUS=2 of 2 relays up, 0 blocked by their broker, "
					   "leading 2 of 2 ordered sources") > 0);
	insert_one(&r, 0, 1);
	WAIT_FOR(20000, daemon_notified(d, "1 events sent") > 0);
	fed = d->watchdogs;
	env_sleep_ms(2500);
	daemon_notifications(d);
	REQUIRE_INT(d->watchdogs, >=, fed + 3);
	daemon_signal(d, SIGHUP);
	WAIT_FOR(5000, daemon_notified(d, "RELOADING=1") == 1);
	WAIT_FOR(5000, daemon_notified(d, "READY=1") == 2);
	REQUIRE(strstr(d->notified, "MONOTONIC_USEC=") != NULL);
	daemon_signal(d, SIGTERM);
	REQUIRE_INT(daemon_wait(d, 10000), ==, 0);
	REQUIRE_INT(daemon_notified(d, "STOPPING=1"), ==, 1);
	daemon_start(d);
	daemon_wait_ready(d, true);
	finish(&r, d);
}
END_TEST

START_TEST(rotated_secrets_are_picked_up_at_the_next_connect)
{
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("secrets");
	char path[200], fresh[40];

	simple(&r, &c, 1);
	c.log_level = "debug";
	daemon_configure(d, &c);
	daemon_start(d);
	daemon_wait_ready(d, true);
	env_name(fresh, sizeof(fresh), "Fresh!");
	daemon_secret(d, "source-s0", path, sizeof(path));
	env_write_file(path, fresh);
	db_exec(r.db, "ALTER USER '%s'@'%%' IDENTIFIED BY '%s'", r.schema[0].user, fresh);
	(void)db_try(r.db, "KILL %" PRId64, db_session(r.db, r.schema[0].user));
	insert_one(&r, 0, 1);
	WAIT_FOR(10000, sent(&r, 0, 1));
	daemon_never_said(d, fresh);
	finish(&r, d);
}
END_TEST

START_TEST(a_wrong_password_stops_one_source_is_tried_slowly_and_stays_a_secret)
{
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("password");
	char text[2000];

	simple(&r, &c, 3);
	c.log_level = "debug";
	c.source[0].password = "Wrong!database";
	c.broker[c.brokers++] = (struct conf_broker){ .name = "shut", .password = "Wrong!broker" };
	c.source[1].broker = "shut";
	daemon_configure(d, &c);
	daemon_start(d);
	daemon_wait_ready(d, false);
	for (unsigned i = 0; i < 3; i++)
		insert_one(&r, i, 1);
	WAIT_FOR(5000, sent(&r, 2, 1));
	env_sleep_ms(3000);
	REQUIRE_INT(daemon_get(d, "/readyz", text, sizeof(text)), ==, 503);
	REQUIRE(strstr(text, "source s0") != NULL && strstr(text, "broker shut") != NULL);
	REQUIRE_INT(
		daemon_metric(d, "outboxd_db_errors_total{class=\"config\",source=\"s0\"}"), <=, 6);
	REQUIRE_INT(daemon_metric(d, "outboxd_broker_errors_total{class=\"config\",source=\"s1\"}"),
		<=, 6);
	REQUIRE_INT(rig_rows(&r, 0, "status<>'PENDING' OR retry_count>0"), ==, 0);
	REQUIRE_INT(
		rig_rows(&r, 1, "status NOT IN ('PENDING','PROCESSING') OR retry_count>0"), ==, 0);
	daemon_never_said(d, "Wrong!");
	c.source[0].password = NULL;
	c.broker[1].password = NULL;
	daemon_configure(d, &c); /* the same file, other secrets */
	WAIT_FOR(20000, sent(&r, 0, 1) && sent(&r, 1, 1));
	finish(&r, d);
}
END_TEST

START_TEST(memory_and_descriptors_stay_where_they_are_over_reconnects)
{
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("flat");
	unsigned fds;
	int64_t rss;

	simple(&r, &c, 2);
	daemon_configure(d, &c);
	daemon_start(d);
	daemon_wait_ready(d, true);
	insert_one(&r, 0, 1);
	WAIT_FOR(5000, sent(&r, 0, 1));
	fds = daemon_fds(d);
	rss = daemon_rss_kb(d);
	for (int i = 0; i < 10; i++) {
		(void)db_try(r.db, "KILL %" PRId64, db_session(r.db, r.schema[0].user));
		daemon_signal(d, SIGHUP);
		env_sleep_ms(500);
	}
	daemon_wait_ready(d, true);
	WAIT_FOR(5000, daemon_fds(d) <= fds + 2);
	REQUIRE_INT(daemon_rss_kb(d), <, rss + 4096);
	REQUIRE_INT(daemon_rss_kb(d), <, 24 * 1024);
	finish(&r, d);
}
END_TEST

RIG_MAIN("daemon: operation", env_get()->thorough ? 900 : 90,
	a_reload_of_a_bad_file_changes_nothing_and_names_the_line,
	reloads_under_load_lose_and_repeat_nothing_and_leave_alone_what_did_not_change,
	after_a_rotation_usr1_writes_a_new_log,
	usr2_and_the_wakeup_socket_deliver_at_once_though_polls_are_a_minute_apart,
	term_while_it_starts_ends_it_and_with_servers_away_too,
	the_service_manager_hears_of_start_reload_status_life_and_end,
	rotated_secrets_are_picked_up_at_the_next_connect,
	a_wrong_password_stops_one_source_is_tried_slowly_and_stays_a_secret,
	memory_and_descriptors_stay_where_they_are_over_reconnects)

/* Clocks that disagree or jump, zones, and columns that keep no fractions of a second. */
#include "support/rig.h"

#include <check.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* A daemon whose wall clock is off by so many seconds. */
struct skewed {
	struct daemon *daemon;
	char path[160], variable[200];
};

static void set_skew(struct skewed *s, int64_t seconds)
{
	int fd = open(s->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	if (fd < 0 || write(fd, &seconds, sizeof(seconds)) != sizeof(seconds))
		FAIL("%s: %m", s->path);
	close(fd);
}

static void skewed_new(struct skewed *s, const char *name, int64_t seconds)
{
	s->daemon = daemon_new(name);
	snprintf(s->path, sizeof(s->path), "%s/clock", s->daemon->dir);
	snprintf(s->variable, sizeof(s->variable), "OUTBOXD_SHIM_CLOCK=%s", s->path);
	set_skew(s, seconds);
	s->daemon->shim = true;
	s->daemon->environment[0] = s->variable;
}

static void require_sent_within(struct rig *r, uint64_t n, int64_t ms)
{
	struct production p = { .first = n, .count = 1, .aggregates = 10 };

	db_produce(r->db, &r->schema[0], &p);
	rig_wait_sent(r, 0, ms);
}

static void clocks(const char *ordering)
{
	struct skewed s[2];
	struct production p = {
		.first = 1, .count = 100000, .aggregates = 200, .transaction = 20, .per_second = 400
	};
	struct allowance exactly = { .ordered = strcmp(ordering, "aggregate") == 0 };
	static const int64_t steps[] = { 3600, -3600, 0 };
	struct producer *producer;
	struct rig r;
	struct conf c;

	rig_open(&r, 1);
	rig_conf(&r, &c);
	conf_short_lease(&c);
	c.ordering = ordering;
	skewed_new(&s[0], "early", 600);
	skewed_new(&s[1], "late", -600);
	s[0].daemon->environment[1] = "TZ=Pacific/Kiritimati";
	s[1].daemon->environment[1] = "TZ=America/Caracas";
	for (int i = 0; i < 2; i++) {
		daemon_configure(s[i].daemon, &c);
		daemon_start(s[i].daemon);
		daemon_wait_ready(s[i].daemon, true);
	}
	WAIT_FOR(5000, fabs(daemon_metric(s[0].daemon,
				    "outboxd_last_poll_timestamp_seconds{source=\"s0\"}") -
			       (double)time(NULL) - 600) < 60);
	producer = producer_start(&r.schema[0], &p);
	for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
		uint64_t sent = rig_rows(&r, 0, "status='SENT'");

		/* longer than a lease at each, so that one that seemed over would be taken */
		WAIT_FOR(4000, rig_rows(&r, 0, "status='SENT'") > sent + 200);
		env_sleep_ms(1200);
		set_skew(&s[0], steps[i]);
		set_skew(&s[1], -steps[i]);
	}
	producer_stop(producer);
	rig_wait_sent(&r, 0, 10000);
	/* and at rest polls come as often as before */
	set_skew(&s[0], -7200);
	set_skew(&s[1], -7200);
	for (uint64_t n = 0; n < 3; n++)
		require_sent_within(&r, 500001 + n, 1500);
	for (int i = 0; i < 2; i++) {
		REQUIRE(daemon_metric(s[i].daemon,
				"outboxd_delivery_lag_seconds_sum{source=\"s0\"}") >= 0);
		REQUIRE_INT(daemon_metric(s[i].daemon, "outboxd_lease_lost_total{source=\"s0\"}"),
			==, 0);
		REQUIRE_INT(
			daemon_metric(s[i].daemon, "outboxd_leases_recovered_total{source=\"s0\"}"),
			==, 0);
		/* twice the polls of 200 ms apart would already be a storm */
		REQUIRE_INT(daemon_cpu_us(s[i].daemon), <, 4 * US_PER_SEC);
		daemon_stop(s[i].daemon);
		unlink(s[i].path);
	}
	rig_judge(&r, 0, &exactly, NULL);
	for (int i = 0; i < 2; i++)
		daemon_free(s[i].daemon);
	rig_close(&r);
}

START_TEST(relays_whose_clocks_are_wrong_and_jump_take_no_live_lease_and_send_nothing_twice)
{
	clocks("none");
}
END_TEST

START_TEST(ordered_relays_whose_clocks_are_wrong_and_jump_keep_the_order)
{
	clocks("aggregate");
}
END_TEST

/* The server's zone is not the session's, the columns keep whole seconds only and round, so that a
 * row may carry a time that has not come yet. */
START_TEST(whole_seconds_that_round_into_the_future_delay_by_a_poll_and_make_no_age_negative)
{
	struct allowance allowed = { .charged_any = true, .ordered = true };
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("whole");
	const char *table;

	rig_open(&r, 1);
	table = r.schema[0].name;
	db_exec(r.db, "SET GLOBAL time_zone='+13:00'");
	db_exec(r.db,
		"ALTER TABLE %s.outbox_event MODIFY created_at TIMESTAMP NOT NULL DEFAULT "
		"CURRENT_TIMESTAMP,MODIFY next_retry_at TIMESTAMP NULL,MODIFY locked_until "
		"TIMESTAMP "
		"NULL,MODIFY sent_at TIMESTAMP NULL",
		table);
	rig_conf(&r, &c);
	c.ordering = "aggregate";
	c.source[0].routing_key = "lonely.{event_type}";
	c.retry_base_ms = 1000;
	c.retry_cap_ms = 1000;
	mq_unbind(r.mq, r.queue, r.exchange, "#");
	daemon_configure(d, &c);
	daemon_start(d);
	daemon_wait_ready(d, true);
	for (uint64_t n = 1; n <= 20; n++) {
		db_exec(r.db,
			"INSERT INTO %s.outbox_event "
			"(event_id,aggregate_type,aggregate_id,event_type,"
			"payload,created_at) VALUES ('%s-%" PRIu64 "','order','a%" PRIu64
			"','created','{}',NOW(6)+INTERVAL 0.6 SECOND)",
			table, table, n, n % 5);
		env_sleep_ms(50);
	}
	WAIT_FOR(10000, rig_rows(&r, 0, "retry_count>=1 AND status='RETRY'") == 5);
	/* none is due before its second is over */
	REQUIRE_INT(rig_rows(&r, 0, "status='RETRY' AND retry_count>6"), ==, 0);
	WAIT_FOR(10000, daemon_metric(d, "outboxd_sample_age_seconds{source=\"s0\"}") >= 0);
	REQUIRE(daemon_metric(d, "outboxd_oldest_unsent_age_seconds{source=\"s0\"}") >= 0);
	REQUIRE(daemon_metric(d, "outboxd_oldest_claimable_age_seconds{source=\"s0\"}") >= 0);
	mq_bind(r.mq, r.queue, r.exchange, "#");
	rig_wait_sent(&r, 0, 15000);
	REQUIRE(daemon_metric(d, "outboxd_delivery_lag_seconds_sum{source=\"s0\"}") >= 0);
	db_exec(r.db, "SET GLOBAL time_zone='SYSTEM'");
	daemon_stop(d);
	rig_judge(&r, 0, &allowed, NULL);
	daemon_free(d);
	rig_close(&r);
}
END_TEST

RIG_MAIN("daemon: clock", 90,
	relays_whose_clocks_are_wrong_and_jump_take_no_live_lease_and_send_nothing_twice,
	ordered_relays_whose_clocks_are_wrong_and_jump_keep_the_order,
	whole_seconds_that_round_into_the_future_delay_by_a_poll_and_make_no_age_negative)

/* Order per aggregate with many aggregates, failing heads, and processes that are killed, stopped
 * and cut off. Numbers are small unless OUTBOXD_TEST_LONG=1; then comparisons of time are made as
 * well, which want a machine that does nothing else. */
#include "support/proxy.h"
#include "support/rig.h"

#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROCESSES 3
#define AGGREGATES 500
#define TROUBLED 150 /* of them */

static bool thorough(void)
{
	return env_get()->thorough;
}

/* A key for each aggregate, so that any of them can be made to fail. */
static void bind_aggregate(struct rig *r, unsigned n, bool on)
{
	char key[24];

	snprintf(key, sizeof(key), "a%u.#", n);
	if (on)
		mq_bind(r->mq, r->queue, r->exchange, key);
	else
		mq_unbind(r->mq, r->queue, r->exchange, key);
}

static void open_crowd(struct rig *r, struct conf *c)
{
	rig_open(r, 1);
	rig_conf(r, c);
	c->ordering = "aggregate";
	c->source[0].routing_key = "{aggregate_id}.{event_type}";
	c->retry_base_ms = 300;
	c->retry_cap_ms = 1500;
	c->max_attempts = 100000;
	for (unsigned n = 0; n < AGGREGATES; n++)
		bind_aggregate(r, n, true);
	mq_unbind(r->mq, r->queue, r->exchange, "#");
}

struct process {
	struct daemon *daemon;
	struct proxy *database;
};

static unsigned leader(struct process *list)
{
	static const char leads[] = "outboxd_leader{source=\"s0\"}";

	for (int64_t until = env_now_us() + 20 * US_PER_SEC; env_now_us() < until; env_sleep_ms(50))
		for (unsigned i = 0; i < PROCESSES; i++)
			if (daemon_metric(list[i].daemon, leads) == 1)
				return i;
	FAIL("nobody leads");
	return 0;
}

/* What is being worked on as it happens may be sent twice. */
static void suspect(struct rig *r)
{
	rig_suspect(r, 0);
	env_sleep_ms(100);
	rig_suspect(r, 0);
}

/* Of one that was stopped, or cut off: another takes over what it holds. */
static void outlive_the_lease(struct rig *r)
{
	suspect(r);
	env_sleep_ms(4500);
	suspect(r);
}

static void trouble(struct rig *r, struct process *list, unsigned round)
{
	struct process *p = &list[leader(list)];

	switch (round % 3) {
	case 0:
		daemon_kill(p->daemon);
		suspect(r);
		env_sleep_ms(500);
		daemon_start(p->daemon);
		break;
	case 1:
		daemon_signal(p->daemon, SIGSTOP);
		outlive_the_lease(r);
		daemon_signal(p->daemon, SIGCONT);
		break;
	default:
		proxy_black_hole(p->database, true);
		outlive_the_lease(r);
		proxy_black_hole(p->database, false);
		break;
	}
}

START_TEST(three_processes_killed_stopped_and_cut_off_keep_the_order_behind_failing_heads)
{
	const struct env *env = env_get();
	struct rig r;
	struct conf c;
	struct process list[PROCESSES];
	struct production p = { .first = 1,
		.count = thorough() ? 100000 : 4000,
		.aggregates = AGGREGATES,
		.transaction = 20,
		.per_second = 400 };
	struct allowance allowed = { .ordered = true, .suspects = true, .charged_any = true };
	struct producer *producer;
	unsigned rounds = 0;
	uint64_t sent;

	open_crowd(&r, &c);
	c.lease_ms = 6000;
	c.query_ms = 3000;
	c.confirm_ms = 2000;
	c.poll_ms = 300;
	for (unsigned i = 0; i < PROCESSES; i++) {
		char name[16];

		snprintf(name, sizeof(name), "crowd-%u", i);
		list[i] = (struct process){ daemon_new(name),
			proxy_start(env->db_host, env->db_port) };
		c.source[0].db_port = proxy_port(list[i].database);
		daemon_configure(list[i].daemon, &c);
		daemon_start(list[i].daemon);
		daemon_wait_ready(list[i].daemon, true);
	}
	producer = producer_start(&r.schema[0], &p);
	for (; rig_rows(&r, 0, "TRUE") < p.count; rounds++) {
		/* another fifth of the troubled ones fails in each round */
		for (unsigned n = 0; n < TROUBLED / 5; n++) {
			bind_aggregate(&r, (rounds + 4) % 5 * (TROUBLED / 5) + n, true);
			bind_aggregate(&r, rounds % 5 * (TROUBLED / 5) + n, false);
		}
		sent = rig_rows(&r, 0, "status='SENT'");
		WAIT_FOR(60000, rig_rows(&r, 0, "status='SENT'") > sent + 500 ||
					rig_rows(&r, 0, "TRUE") >= p.count);
		trouble(&r, list, rounds);
	}
	producer_stop(producer);
	for (unsigned n = 0; n < TROUBLED; n++)
		bind_aggregate(&r, n, true);
	rig_wait_sent(&r, 0, 120000);
	printf("%u rounds of trouble\n", rounds);
	REQUIRE_INT(rounds, >=, 2);
	for (unsigned i = 0; i < PROCESSES; i++)
		daemon_stop(list[i].daemon);
	rig_judge(&r, 0, &allowed, NULL);
	for (unsigned i = 0; i < PROCESSES; i++) {
		daemon_free(list[i].daemon);
		proxy_stop(list[i].database);
	}
	rig_close(&r);
}
END_TEST

/* p99 from insert to confirm of the aggregates that are well, microseconds. */
static int64_t p99_of_the_healthy(struct rig *r, uint64_t from)
{
	char where[120];
	uint64_t count;

	snprintf(where, sizeof(where), "id>%" PRIu64 " AND id%%10>=3", from);
	count = rig_rows(r, 0, where);
	return db_int(r->db,
		"SELECT TIMESTAMPDIFF(MICROSECOND,created_at,sent_at) FROM %s.outbox_event WHERE "
		"%s "
		"ORDER BY 1 DESC LIMIT 1 OFFSET %" PRIu64,
		r->schema[0].name, where, count / 100);
}

static int64_t flow(struct rig *r, struct production *p)
{
	uint64_t from = rig_rows(r, 0, "TRUE");
	struct producer *producer;

	producer = producer_start(&r->schema[0], p);
	WAIT_FOR(60000, rig_rows(r, 0, "TRUE") == from + p->count);
	producer_stop(producer);
	p->first += p->count;
	rig_wait_none(r, 0, "status<>'SENT' AND id%10>=3", 60000);
	return p99_of_the_healthy(r, from);
}

START_TEST(failing_heads_at_most_double_the_delay_of_the_others)
{
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("delay");
	struct production p = { .first = 1,
		.count = 400 * 15,
		.aggregates = AGGREGATES,
		.transaction = 5,
		.per_second = 400 };
	struct allowance allowed = { .ordered = true, .charged_any = true };
	int64_t without, with;

	if (!thorough())
		return;
	open_crowd(&r, &c);
	daemon_configure(d, &c);
	daemon_start(d);
	daemon_wait_ready(d, true);
	(void)flow(&r, &p); /* warm */
	without = flow(&r, &p);
	for (unsigned n = 0; n < AGGREGATES; n++)
		if (n % 10 < 3) /* spread out: many in a row would look like a broken route */
			bind_aggregate(&r, n, false);
	with = flow(&r, &p);
	printf("p99 of the healthy: %" PRId64 " us without failing heads, %" PRId64
	       " us with 30 %% of aggregates behind one\n",
		without, with);
	REQUIRE_INT(with, <=, 2 * without);
	for (unsigned n = 0; n < AGGREGATES; n++)
		bind_aggregate(&r, n, true);
	rig_wait_sent(&r, 0, 60000);
	daemon_stop(d);
	rig_judge(&r, 0, &allowed, NULL);
	daemon_free(d);
	rig_close(&r);
}
END_TEST

/* The daemon is asked, not the database: counting rows would cost more the more are held. */
/* The daemon is asked, not the database: counting rows would cost more the more are held. */
static double seconds_for(struct rig *r, struct daemon *d, unsigned schema, struct production *p)
{
	char published[60];
	double before;
	int64_t began_us;

	snprintf(published, sizeof(published), "outboxd_events_published_total{source=\"s%u\"}",
		schema);
	before = daemon_metric(d, published);
	daemon_signal(d, SIGSTOP);
	db_produce(r->db, &r->schema[schema], p);
	p->first += p->count;
	began_us = env_now_us();
	daemon_signal(d, SIGCONT);
	WAIT_FOR(120000, daemon_metric(d, published) >= before + (double)p->count);
	return (double)(env_now_us() - began_us) / US_PER_SEC;
}

/* Tables of one size and age, 100,000 rows of one aggregate in each: behind a dead head in the
 * first, sent in the second. */
START_TEST(a_hundred_thousand_rows_behind_a_dead_head_cost_the_others_a_tenth_at_most)
{
	static const char *const status[] = { "PENDING", "SENT" };
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("behind");
	struct production p = { .first = 1, .count = 1000, .aggregates = AGGREGATES };
	double took[2] = { 0 };

	if (!thorough())
		return;
	rig_open(&r, 2);
	rig_conf(&r, &c);
	c.ordering = "aggregate";
	c.batch = 500;
	c.window = 2000;
	c.lease_ms = 60000;
	daemon_configure(d, &c);
	db_exec(r.db,
		"INSERT INTO %s.outbox_event (event_id,aggregate_type,aggregate_id,event_type,"
		"payload,status,last_error) "
		"VALUES ('dead','order','blocked','x','{}','DEAD','NACKED: x')",
		r.schema[0].name);
	for (unsigned i = 0; i < 2; i++) {
		db_produce(r.db, &r.schema[i], &p);
		p.first += p.count;
		db_exec(r.db,
			"INSERT INTO %s.outbox_event (event_id,aggregate_type,aggregate_id,"
			"event_type,payload,status,sent_at) SELECT CONCAT(a.id,'-',b.id),'order',"
			"'blocked','x','{}','%s',IF('%s'='SENT',NOW(6),NULL) FROM "
			"%s.outbox_event a JOIN %s.outbox_event b WHERE a.aggregate_id<>'blocked' "
			"AND b.aggregate_id<>'blocked' ORDER BY a.id,b.id LIMIT 100000",
			r.schema[i].name, status[i], status[i], r.schema[i].name, r.schema[i].name);
	}
	daemon_start(d);
	daemon_wait_ready(d, true);
	WAIT_FOR(
		120000, rig_rows(&r, 0, "last_error='WAITING: behind dead' AND status='PENDING'") ==
				100000);
	p.count = 20000;
	for (unsigned i = 0; i < 8; i++) {
		unsigned schema = (i + 1) / 2 % 2;
		double s = seconds_for(&r, d, schema, &p);

		printf("20,000 events beside 100,000 %s rows: %.2f s\n",
			schema == 0 ? "held" : "sent", s);
		took[schema] += s;
	}
	printf("with 100,000 rows behind a dead head %.2f of the throughput\n", took[1] / took[0]);
	REQUIRE(took[0] * 0.9 <= took[1]);
	daemon_stop(d);
	daemon_free(d);
	rig_close(&r);
}
END_TEST

RIG_MAIN("daemon: crowd", 900,
	three_processes_killed_stopped_and_cut_off_keep_the_order_behind_failing_heads,
	failing_heads_at_most_double_the_delay_of_the_others,
	a_hundred_thousand_rows_behind_a_dead_head_cost_the_others_a_tenth_at_most)

/* The daemon's main job, without faults: every event once, as the contract says. */
#include "support/rig.h"

#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EVENTS 10000

static const struct rig *judged;

static void require_header(const struct message *m, const char *name, char kind, const char *text)
{
	const struct message_header *h = message_header(m, name);

	if (h == NULL)
		FAIL("%s: no header %s", m->message_id, name);
	if (h->kind != kind || strcmp(h->text, text) != 0)
		FAIL("%s: header %s is %c \"%s\", should be %c \"%s\"", m->message_id, name,
			h->kind, h->text, kind, text);
}

static int by_id(const void *a, const void *b)
{
	const struct message *x = a, *y = b;

	return strcmp(x->message_id, y->message_id);
}

/* One row against the message made of it. */
static void on_row(void *arg, const struct db_row *row)
{
	const char *source = arg;
	const char *const *v = row->value;
	struct message key = { .message_id = (char *)(uintptr_t)v[0] };
	const struct message *m =
		bsearch(&key, judged->inbox.messages, judged->inbox.count, sizeof(key), by_id);
	char text[200];
	unsigned headers = 3;

	if (m == NULL)
		FAIL("event %s did not arrive", v[0]);
	REQUIRE_INT(m->len, ==, row->len[4]);
	if (memcmp(m->body, v[4], m->len) != 0)
		FAIL("%s: body \"%.200s\", the server's column \"%.200s\"", v[0], m->body, v[4]);
	REQUIRE_STR(m->type, v[3]);
	REQUIRE_STR(m->app_id, "outboxd");
	REQUIRE_STR(m->content_type, "application/json");
	REQUIRE_INT(m->delivery_mode, ==, 2);
	REQUIRE_INT(m->timestamp, ==, strtoll(v[5], NULL, 10));
	REQUIRE_STR(m->exchange, judged->exchange);
	snprintf(text, sizeof(text), "%s.%s", v[1], v[3]);
	REQUIRE_STR(m->routing_key, text);
	require_header(m, "aggregate_type", 'S', v[1]);
	require_header(m, "aggregate_id", 'S', v[2]);
	require_header(m, "source", 'S', source);
	if (row->columns > 6 && v[6] != NULL) {
		uint64_t n = strtoull(strrchr(v[0], '-') + 1, NULL, 10);

		require_header(m, "aggregate_version", 'l', v[6]);
		require_header(m, "trace_id", 'S', v[7]);
		snprintf(text, sizeof(text), "t%u", (unsigned)(n % 7));
		require_header(m, "tenant", 'S', text);
		require_header(m, "vip", 't', n % 2 == 0 ? "true" : "false");
		snprintf(text, sizeof(text), "%" PRIu64, n);
		require_header(m, "rank", 'l', text);
		require_header(m, "rate", 'd', "1.5");
		require_header(m, "list", 'A', "[l:1,S:two]");
		require_header(m, "more", 'F', "{k=S:v}");
		headers += 8;
	}
	REQUIRE_INT(m->header_count, ==, headers);
}

static void judge_messages(struct rig *r, unsigned schema)
{
	char source[16];

	snprintf(source, sizeof(source), "s%u", schema);
	judged = r;
	qsort(r->inbox.messages, r->inbox.count, sizeof(r->inbox.messages[0]), by_id);
	db_rows(r->db, on_row, source,
		"SELECT event_id,aggregate_type,aggregate_id,event_type,payload,"
		"UNIX_TIMESTAMP(created_at)%s FROM %s.outbox_event",
		r->schema[schema].full ? ",aggregate_version,trace_id" : "",
		r->schema[schema].name);
}

static void three_sources_two_processes(const char *ordering)
{
	struct rig r;
	struct conf c;
	struct producer *producers[3];
	struct daemon *d[2] = { daemon_new("one"), daemon_new("two") };
	struct allowance exactly = { .foreign = true,
		.ordered = strcmp(ordering, "aggregate") == 0 };
	double published = 0;

	rig_open(&r, 3);
	rig_conf(&r, &c);
	c.ordering = ordering;
	for (int i = 0; i < 2; i++) {
		daemon_configure(d[i], &c);
		daemon_start(d[i]);
	}
	for (unsigned i = 0; i < 3; i++) {
		/* the last third comes while the relays run, the rest with them */
		struct production p = { .first = 1, .count = EVENTS, .aggregates = 700 };

		producers[i] = producer_start(&r.schema[i], &p);
	}
	for (int i = 0; i < 2; i++)
		daemon_wait_ready(d[i], true);
	for (unsigned i = 0; i < 3; i++)
		REQUIRE_INT(producer_wait(producers[i]), ==, EVENTS);
	for (unsigned i = 0; i < 3; i++)
		rig_wait_sent(&r, i, 60000);
	for (unsigned i = 0; i < 3; i++) {
		char series[80];

		snprintf(series, sizeof(series), "outboxd_events_published_total{source=\"s%u\"}",
			i);
		for (int n = 0; n < 2; n++)
			published += daemon_metric(d[n], series);
	}
	REQUIRE_INT(published, ==, 3 * EVENTS);
	for (int i = 0; i < 2; i++)
		daemon_stop(d[i]);
	for (unsigned i = 0; i < 3; i++) {
		struct findings f;

		rig_judge(&r, i, &exactly, &f);
		REQUIRE_INT(f.arrived, ==, EVENTS);
	}
	REQUIRE_INT(r.inbox.count, ==, 3 * EVENTS);
	for (unsigned i = 0; i < 3; i++)
		judge_messages(&r, i);
	for (int i = 0; i < 2; i++)
		daemon_free(d[i]);
	rig_close(&r);
}

START_TEST(three_sources_and_two_processes_deliver_each_event_exactly_once)
{
	three_sources_two_processes("none");
}
END_TEST

START_TEST(three_ordered_sources_and_two_processes_deliver_each_event_once_and_in_order)
{
	three_sources_two_processes("aggregate");
}
END_TEST

START_TEST(the_smallest_table_that_is_promised_works_unchanged)
{
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("minimal");
	struct production p = { .first = 1, .count = 1000, .aggregates = 50 };
	struct allowance exactly = { .ordered = true };

	rig_open_with(&r, 1, "outbox_event_minimal.sql");
	rig_conf(&r, &c);
	c.ordering = "aggregate";
	db_produce(r.db, &r.schema[0], &p);
	daemon_configure(d, &c);
	daemon_start(d);
	rig_wait_sent(&r, 0, 30000);
	daemon_stop(d);
	rig_judge(&r, 0, &exactly, NULL);
	judge_messages(&r, 0);
	daemon_free(d);
	rig_close(&r);
}
END_TEST

RIG_MAIN("daemon: relay", 120, three_sources_and_two_processes_deliver_each_event_exactly_once,
	three_ordered_sources_and_two_processes_deliver_each_event_once_and_in_order,
	the_smallest_table_that_is_promised_works_unchanged)

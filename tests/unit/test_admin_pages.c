/* What /status says of sources and brokers, and how counts are written. */
#include "mysql/gauges.h"
#include "supervisor/pages.h"
#include "sys/clock.h"
#include "unit.h"

#include <json-c/json.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static char main_name[] = "main", other_name[] = "other \"x\"", orders_name[] = "orders",
	    bulk_name[] = "bulk", away_name[] = "away";
static struct broker_conf brokers[] = { { .name = main_name }, { .name = other_name } };
static struct source_conf sources[] = {
	{ .name = orders_name, .broker = &brokers[0], .ordering = ORDERING_AGGREGATE },
	{ .name = bulk_name, .broker = &brokers[0], .ordering = ORDERING_NONE },
	{ .name = away_name, .broker = &brokers[1], .ordering = ORDERING_AGGREGATE },
};
static struct config conf = { .sources = sources, .source_count = 3 };

static struct relay_view up(void)
{
	return (struct relay_view){ .database_up = true, .broker_up = true };
}

static struct json_object *shown(struct pages *p)
{
	struct buf out = { 0 };
	struct json_object *o;

	ck_assert_uint_eq(pages_status(p, &out), 200);
	o = json_tokener_parse(out.data);
	ck_assert_msg(o != NULL, "%s", out.data);
	buf_fini(&out);
	return o;
}

static struct json_object *at(struct json_object *o, const char *list, size_t i)
{
	return json_object_array_get_idx(json_object_object_get(o, list), i);
}

static const char *text(struct json_object *o, const char *name)
{
	return json_object_get_string(json_object_object_get(o, name));
}

static bool truth(struct json_object *o, const char *name)
{
	return json_object_get_boolean(json_object_object_get(o, name));
}

START_TEST(several_workers_are_one_source_and_several_sources_one_broker)
{
	struct metrics *m = metrics_new();
	struct relay_view v = up(), w = up();
	struct json_object *o;
	struct pages p;

	pages_init(&p, m);
	v.in_flight = 3;
	v.leads = true;
	w.in_flight = 4;
	w.broker_up = false;
	w.blocked = true;
	snprintf(w.broker_error, sizeof(w.broker_error), "refused");
	pages_begin(&p, &conf);
	pages_add(&p, &sources[0], "me/1/0", &v);
	pages_add(&p, &sources[1], "me/1/1", &v);
	pages_add(&p, &sources[1], "me/1/2", &w);
	pages_end(&p, NULL);
	o = shown(&p);
	ck_assert_uint_eq(json_object_array_length(json_object_object_get(o, "sources")), 3);
	ck_assert_uint_eq(json_object_array_length(json_object_object_get(o, "brokers")), 2);
	ck_assert_str_eq(text(at(o, "sources", 0), "leader"), "me/1/0");
	ck_assert_ptr_null(text(at(o, "sources", 1), "leader")); /* nobody leads an unordered one */
	ck_assert_int_eq(
		json_object_get_int(json_object_object_get(at(o, "sources", 1), "in_flight")), 7);
	ck_assert(!truth(at(o, "brokers", 0), "up"));
	ck_assert(truth(at(o, "brokers", 0), "blocked"));
	ck_assert_str_eq(text(at(o, "brokers", 0), "error"), "refused");
	/* not started: neither up nor left out */
	ck_assert(!truth(at(o, "sources", 2), "up"));
	ck_assert(!truth(at(o, "brokers", 1), "up"));
	ck_assert_str_eq(text(at(o, "brokers", 1), "name"), "other \"x\"");
	json_object_put(o);
	pages_fini(&p);
	metrics_free(m);
}
END_TEST

START_TEST(a_broker_that_is_not_used_any_more_has_no_series)
{
	struct config fewer = { .sources = sources, .source_count = 2 };
	struct metrics *m = metrics_new();
	struct relay_view v = up();
	struct buf out = { 0 };
	struct pages p;

	pages_init(&p, m);
	for (int i = 0; i < 3; i++) {
		const struct config *c = i == 1 ? &conf : &fewer;

		pages_begin(&p, c);
		for (size_t s = 0; s < 3; s++) /* the last one may be on its way out */
			pages_add(&p, &sources[s], "me/1/0", &v);
		pages_end(&p, NULL);
		buf_reset(&out);
		ck_assert_int_eq(metrics_render(m, &out), 0);
		ck_assert_ptr_nonnull(strstr(out.data, "outboxd_broker_up{broker=\"main\"} 1"));
		ck_assert_ptr_nonnull(
			strstr(out.data, "outboxd_broker_blocked{broker=\"main\"} 0"));
		ck_assert_int_eq(
			strstr(out.data, "outboxd_broker_up{broker=\"other \\\"x\\\"\"} 1") != NULL,
			i == 1);
	}
	buf_fini(&out);
	pages_fini(&p);
	metrics_free(m);
}
END_TEST

START_TEST(ready_means_that_every_source_was_started_and_connected)
{
	struct config one = { .sources = sources, .source_count = 1 };
	struct metrics *m = metrics_new();
	struct relay_view v = up();
	struct buf out = { 0 };
	struct pages p;

	pages_init(&p, m);
	pages_begin(&p, &one);
	pages_end(&p, NULL);
	ck_assert_uint_eq(pages_readyz(&p, &out), 503);
	ck_assert_ptr_nonnull(strstr(out.data, "orders: not started"));
	buf_reset(&out);
	pages_begin(&p, &one);
	pages_add(&p, &sources[0], "me/1/0", &v);
	pages_end(&p, NULL);
	ck_assert_uint_eq(pages_readyz(&p, &out), 200);
	buf_reset(&out);
	v.database_up = false;
	pages_begin(&p, &one);
	pages_add(&p, &sources[0], "me/1/0", &v);
	pages_end(&p, NULL);
	ck_assert_uint_eq(pages_readyz(&p, &out), 503);
	ck_assert_ptr_nonnull(strstr(out.data, "source orders: not connected yet"));
	buf_fini(&out);
	pages_fini(&p);
	metrics_free(m);
}
END_TEST

static atomic_bool answered;

static void *ask_for_status(void *arg)
{
	static struct buf out;

	buf_reset(&out);
	ck_assert_uint_eq(pages_status(arg, &out), 200);
	ck_assert_ptr_nonnull(strstr(out.data, "\"sources\""));
	atomic_store(&answered, true);
	buf_fini(&out);
	return NULL;
}

START_TEST(a_status_is_written_when_somebody_asks_and_is_never_an_old_one)
{
	struct metrics *m = metrics_new();
	struct config none = { 0 };
	struct buf out = { 0 };
	struct pages p;
	pthread_t asks;

	pages_init(&p, m);
	p.asked_us = clock_mono_us() - 3600 * US_PER_SEC; /* long ago */
	pages_begin(&p, &none);
	pages_end(&p, NULL);
	ck_assert_uint_eq(p.status.len, 0);
	ck_assert_uint_eq(pages_status(&p, &out), 503); /* no picture came */
	p.asked_us -= 3600 * US_PER_SEC;
	ck_assert_int_eq(pthread_create(&asks, NULL, ask_for_status, &p), 0);
	while (!atomic_load(&answered)) {
		pages_begin(&p, &none);
		pages_end(&p, NULL);
	}
	pthread_join(asks, NULL);
	buf_fini(&out);
	pages_fini(&p);
	metrics_free(m);
}
END_TEST

START_TEST(a_count_that_is_not_known_is_null_and_never_0)
{
	struct table_sample s = {
		.pending = -1, .retry = 7, .oldest_unsent_us = 1500000, .oldest_dead_us = -1
	};
	struct buf b = { 0 };

	gauges_add_json(&b, &s);
	ck_assert_ptr_nonnull(strstr(b.data, "\"pending\":null,\"retry\":7,"));
	ck_assert_ptr_nonnull(strstr(b.data, "\"oldest_unsent_age_seconds\":1.500"));
	ck_assert_ptr_nonnull(strstr(b.data, "\"oldest_dead_age_seconds\":null"));
	buf_reset(&b);
	gauges_add_json(&b, NULL);
	ck_assert_ptr_nonnull(strstr(b.data, "\"retry\":null"));
	buf_fini(&b);
}
END_TEST

START_TEST(no_count_reads_sent_rows_or_leaves_the_claim_index)
{
	const struct outbox_table t = { .name = "`shop`.`outbox_event`",
		.claim_index = "`idx_outbox_claim`",
		.aggregate_index = "`idx_outbox_aggregate`" };
	struct buf b = { 0 };

	for (unsigned i = 0; i <= GAUGES_STATEMENTS; i++) {
		unsigned tables = 0, statuses = 0;

		buf_reset(&b);
		if (i < GAUGES_STATEMENTS)
			sql_gauge(&b, &t, i);
		else
			sql_gauges(&b, &t, (1U << GAUGES_STATEMENTS) - 1);
		ck_assert_ptr_null(strstr(b.data, "SENT"));
		ck_assert_ptr_null(strstr(b.data, "FOR UPDATE"));
		for (const char *p = b.data; (p = strstr(p, "FORCE INDEX (`idx_outbox_claim`)"));
			p++)
			tables++;
		for (const char *p = b.data; (p = strstr(p, "`status`='")); p++)
			statuses++;
		ck_assert_uint_gt(tables, 0);
		ck_assert_uint_eq(tables, statuses);
	}
	buf_fini(&b);
}
END_TEST

UNIT_MAIN("admin: pages and gauges", several_workers_are_one_source_and_several_sources_one_broker,
	a_broker_that_is_not_used_any_more_has_no_series,
	ready_means_that_every_source_was_started_and_connected,
	a_status_is_written_when_somebody_asks_and_is_never_an_old_one,
	a_count_that_is_not_known_is_null_and_never_0,
	no_count_reads_sent_rows_or_leaves_the_claim_index)

#include "mysql/gauges.h"

#include "mysql/values.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

enum gauge {
	GAUGE_PENDING,
	GAUGE_RETRY,
	GAUGE_PROCESSING,
	GAUGE_DEAD,
	GAUGE_HELD,
	GAUGE_BLOCKED,
	GAUGE_CLAIMABLE,
};

#define VALUES 4

#define AGE(what) "TIMESTAMPDIFF(MICROSECOND," what ",NOW(6))"
#define EXPIRED "(`locked_by` IS NULL OR `locked_until` IS NULL OR `locked_until`<NOW(6))"
#define SKIPPED "COALESCE(`last_error` LIKE 'SKIPPED%',0)"

/* From the index alone where nothing but status, next_retry_at and created_at is named. */
static const struct {
	const char *what, *where;
} counts[] = {
	[GAUGE_PENDING] = { "COUNT(*)," AGE("MIN(`created_at`)"), "`status`='PENDING'" },
	[GAUGE_RETRY] = { "COUNT(*)," AGE("MIN(`created_at`)"), "`status`='RETRY'" },
	[GAUGE_PROCESSING] = { "COUNT(*)," AGE(
				       "MIN(`created_at`)") ",COALESCE(SUM(" EXPIRED
							    "),0)," AGE("MIN(IF(" EXPIRED
									",COALESCE(`locked_until`,`"
									"created_at`),NULL))"),
		"`status`='PROCESSING'" },
	[GAUGE_DEAD] = { "COUNT(*),COALESCE(SUM(" SKIPPED
			 "),0)," AGE("MIN(IF(" SKIPPED ",NULL,`created_at`))"),
		"`status`='DEAD'" },
	[GAUGE_HELD] = { "COUNT(*)", "`status`='PENDING' AND `next_retry_at` IS NOT NULL AND "
				     "`last_error` LIKE 'WAITING: %'" },
};

void sql_add_aggregate_bytes(struct buf *b, const struct outbox_table *t, unsigned column)
{
	static const char *const names[] = { "aggregate_type", "aggregate_id" };

	if (t->aggregate_binary[column])
		buf_addf(b, "CAST(`%s` AS BINARY)", names[column]);
	else
		buf_addf(b, "CAST(CONVERT(`%s` USING utf8mb4) AS BINARY)", names[column]);
}

/* The first row of a range of the claim index: no more is read. */
static void add_first(struct buf *b, const struct outbox_table *t, const char *status, bool due)
{
	const char *column = due ? "`next_retry_at`" : "`created_at`";

	buf_addf(b,
		AGE("(SELECT %s FROM %s FORCE INDEX (%s) WHERE `status`='%s' AND "
		    "`next_retry_at`%s ORDER BY %s LIMIT 1)"),
		column, t->name, t->claim_index, status, due ? "<=NOW(6)" : " IS NULL", column);
}

void sql_gauge(struct buf *b, const struct outbox_table *t, unsigned which)
{
	assert(which < GAUGES_STATEMENTS);
	buf_adds(b, "SELECT ");
	switch (which) {
	case GAUGE_BLOCKED:
		buf_adds(b, "COUNT(DISTINCT ");
		sql_add_aggregate_bytes(b, t, 0);
		buf_addc(b, ',');
		sql_add_aggregate_bytes(b, t, 1);
		buf_addf(b, ") FROM %s FORCE INDEX (%s) WHERE `status`='DEAD' AND NOT ", t->name,
			t->claim_index);
		buf_adds(b, SKIPPED);
		break;
	case GAUGE_CLAIMABLE:
		for (unsigned i = 0; i < VALUES; i++) {
			if (i > 0)
				buf_addc(b, ',');
			add_first(b, t, i < 2 ? "PENDING" : "RETRY", i % 2 == 1);
		}
		break;
	default:
		buf_addf(b, "%s FROM %s FORCE INDEX (%s) WHERE %s", counts[which].what, t->name,
			t->claim_index, counts[which].where);
	}
}

struct answer {
	int64_t value[VALUES]; /* NULL: 0, and ages that would be negative too */
};

static int row_gauge(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	struct answer *a = arg;

	(void)statement, (void)e;
	for (unsigned i = 0; i < VALUES && i < count; i++) {
		a->value[i] = value_int(v[i], 0);
		if (a->value[i] < 0)
			a->value[i] = 0;
	}
	return 0;
}

static int64_t later(int64_t a, int64_t b)
{
	if (a < 0 || b < 0)
		return -1;
	return a > b ? a : b;
}

int gauges_read(struct session *c, const struct outbox_table *t, const struct source_conf *conf,
	struct table_sample *out, struct err *e)
{
	bool can_block = conf->ordering == ORDERING_AGGREGATE && conf->on_dead == ON_DEAD_BLOCK;
	struct answer a[GAUGES_STATEMENTS] = { 0 };
	struct buf text = { 0 };
	unsigned had = 0;
	int rc = 0;

	for (unsigned i = 0; i < GAUGES_STATEMENTS && rc == 0; i++) {
		struct reply r = { .row = row_gauge, .arg = &a[i] };

		if (i == GAUGE_BLOCKED && !can_block)
			continue;
		buf_reset(&text);
		sql_gauge(&text, t, i);
		session_begin(c);
		rc = text.failed ? err_set(e, ERR_NOMEM, 0, "statement")
				 : session_run(c, buf_slice(&text), &r, e);
		if (rc == 0) {
			had++;
		} else if (e->kind == ERR_RETRY) {
			/* one count that takes too long does not take the others along */
			for (unsigned k = 0; k < VALUES; k++)
				a[i].value[k] = -1;
			rc = 0;
		}
	}
	buf_fini(&text);
	if (rc < 0 || had == 0)
		return err_wrap(e, "count");
	*out = (struct table_sample){
		.pending = a[GAUGE_PENDING].value[0],
		.retry = a[GAUGE_RETRY].value[0],
		.processing = a[GAUGE_PROCESSING].value[0],
		.expired_leases = a[GAUGE_PROCESSING].value[2],
		.dead = a[GAUGE_DEAD].value[0] < 0
				? -1
				: a[GAUGE_DEAD].value[0] - a[GAUGE_DEAD].value[1],
		.skipped = a[GAUGE_DEAD].value[1],
		.held = a[GAUGE_HELD].value[0],
		.blocked_aggregates = a[GAUGE_BLOCKED].value[0],
		.oldest_unsent_us = later(later(a[GAUGE_PENDING].value[1], a[GAUGE_RETRY].value[1]),
			a[GAUGE_PROCESSING].value[1]),
		.oldest_dead_us = a[GAUGE_DEAD].value[2],
		.oldest_claimable_us = a[GAUGE_PROCESSING].value[3],
	};
	for (unsigned i = 0; i < VALUES; i++)
		out->oldest_claimable_us =
			later(out->oldest_claimable_us, a[GAUGE_CLAIMABLE].value[i]);
	return 0;
}

void gauges_add_json(struct buf *b, const struct table_sample *s)
{
	static const struct {
		const char *name;
		size_t at;
		bool age;
	} members[] = {
		{ "pending", offsetof(struct table_sample, pending), false },
		{ "retry", offsetof(struct table_sample, retry), false },
		{ "processing", offsetof(struct table_sample, processing), false },
		{ "dead", offsetof(struct table_sample, dead), false },
		{ "skipped", offsetof(struct table_sample, skipped), false },
		{ "held", offsetof(struct table_sample, held), false },
		{ "blocked_aggregates", offsetof(struct table_sample, blocked_aggregates), false },
		{ "expired_leases", offsetof(struct table_sample, expired_leases), false },
		{ "oldest_unsent_age_seconds", offsetof(struct table_sample, oldest_unsent_us),
			true },
		{ "oldest_claimable_age_seconds",
			offsetof(struct table_sample, oldest_claimable_us), true },
		{ "oldest_dead_age_seconds", offsetof(struct table_sample, oldest_dead_us), true },
	};

	for (size_t i = 0; i < ARRAY_LEN(members); i++) {
		int64_t v = -1;

		if (s != NULL)
			memcpy(&v, (const char *)s + members[i].at, sizeof(v));
		buf_addf(b, "%s\"%s\":", i > 0 ? "," : "", members[i].name);
		if (v < 0)
			buf_adds(b, "null");
		else if (members[i].age)
			buf_addf(b, "%.3f", (double)v / US_PER_SEC);
		else
			buf_addf(b, "%" PRId64, v);
	}
}

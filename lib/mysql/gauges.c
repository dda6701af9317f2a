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
	unsigned values;
} counts[] = {
	[GAUGE_PENDING] = { "COUNT(*)," AGE("MIN(`created_at`)"), "`status`='PENDING'", 2 },
	[GAUGE_RETRY] = { "COUNT(*)," AGE("MIN(`created_at`)"), "`status`='RETRY'", 2 },
	[GAUGE_PROCESSING] = { "COUNT(*)," AGE(
				       "MIN(`created_at`)") ",COALESCE(SUM(" EXPIRED
							    "),0)," AGE("MIN(IF(" EXPIRED
									",COALESCE(`locked_until`,`"
									"created_at`),NULL))"),
		"`status`='PROCESSING'", 4 },
	[GAUGE_DEAD] = { "COUNT(*),COALESCE(SUM(" SKIPPED
			 "),0)," AGE("MIN(IF(" SKIPPED ",NULL,`created_at`))"),
		"`status`='DEAD'", 3 },
	[GAUGE_HELD] = { "COUNT(*)",
		"`status`='PENDING' AND `next_retry_at` IS NOT NULL AND "
		"`last_error` LIKE 'WAITING: %'",
		1 },
	[GAUGE_BLOCKED] = { NULL, "`status`='DEAD' AND NOT " SKIPPED, 1 },
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

/* What follows SELECT; returns how many values it has. */
static unsigned add_gauge(struct buf *b, const struct outbox_table *t, unsigned which)
{
	assert(which < GAUGES_STATEMENTS);
	if (which == GAUGE_CLAIMABLE) {
		for (unsigned i = 0; i < VALUES; i++) {
			if (i > 0)
				buf_addc(b, ',');
			add_first(b, t, i < 2 ? "PENDING" : "RETRY", i % 2 == 1);
		}
		return VALUES;
	}
	if (which == GAUGE_BLOCKED) {
		buf_adds(b, "COUNT(DISTINCT ");
		sql_add_aggregate_bytes(b, t, 0);
		buf_addc(b, ',');
		sql_add_aggregate_bytes(b, t, 1);
		buf_addc(b, ')');
	} else {
		buf_adds(b, counts[which].what);
	}
	return counts[which].values;
}

static void add_from(struct buf *b, const struct outbox_table *t, unsigned which)
{
	if (which != GAUGE_CLAIMABLE)
		buf_addf(b, " FROM %s FORCE INDEX (%s) WHERE %s", t->name, t->claim_index,
			counts[which].where);
}

void sql_gauge(struct buf *b, const struct outbox_table *t, unsigned which)
{
	buf_addf(b, "SELECT %u,", which);
	for (unsigned n = add_gauge(b, t, which); n < VALUES; n++)
		buf_adds(b, ",NULL");
	add_from(b, t, which);
}

void sql_gauges(struct buf *b, const struct outbox_table *t, unsigned set)
{
	bool first = true;

	for (unsigned i = 0; i < GAUGES_STATEMENTS; i++) {
		if ((set >> i & 1) == 0)
			continue;
		if (!first)
			buf_adds(b, " UNION ALL ");
		first = false;
		sql_gauge(b, t, i);
	}
}

struct answer {
	int64_t value[VALUES]; /* NULL: 0, and ages that would be negative too */
};

static int row_gauge(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	struct answer *all = arg;
	int64_t which = value_int(v[0], GAUGES_STATEMENTS);

	(void)statement, (void)e;
	if (which < 0 || which >= GAUGES_STATEMENTS)
		return 0;
	for (unsigned i = 0; i < VALUES && i + 1 < count; i++) {
		int64_t value = value_int(v[i + 1], 0);

		all[which].value[i] = value > 0 ? value : 0;
	}
	return 0;
}

static int ask(struct session *c, const struct outbox_table *t, unsigned set, struct answer *all,
	struct err *e)
{
	struct reply r = { .row = row_gauge, .arg = all };
	struct buf text = { 0 };
	int rc;

	sql_gauges(&text, t, set);
	session_begin(c);
	rc = text.failed ? err_set(e, ERR_NOMEM, 0, "statement")
			 : session_run(c, buf_slice(&text), &r, e);
	buf_fini(&text);
	return rc;
}

/* One count that takes too long does not take the others along. */
static int ask_each(struct session *c, const struct outbox_table *t, unsigned set,
	struct answer *all, struct err *e)
{
	unsigned had = 0;

	for (unsigned i = 0; i < GAUGES_STATEMENTS; i++) {
		if ((set >> i & 1) == 0)
			continue;
		if (ask(c, t, 1U << i, all, e) == 0) {
			had++;
			continue;
		}
		if (e->kind != ERR_RETRY)
			return -1;
		for (unsigned k = 0; k < VALUES; k++)
			all[i].value[k] = -1;
	}
	return had > 0 ? 0 : -1;
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
	unsigned set = (1U << GAUGES_STATEMENTS) - 1;
	struct answer a[GAUGES_STATEMENTS] = { 0 };

	if (!can_block)
		set &= ~(1U << GAUGE_BLOCKED);
	if (ask(c, t, set, a, e) < 0 && (e->kind != ERR_RETRY || ask_each(c, t, set, a, e) < 0))
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

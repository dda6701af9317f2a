/* claim.c: what a claim of 500 rows costs, through the relay's own store and with the classes the
 * daemon asks for under load, in tables of different sizes and states: a backlog of 1 k to 1 M
 * rows, and a backlog of 1 k behind a million rows that are SENT, DEAD, or RETRY and not due.
 *
 * The tables are claimed from in turns, so that whatever else the machine does meets all of them.
 * What was claimed is released again, outside the measurement. First with statistics from when each
 * table had 1,000 rows, then right after ANALYZE TABLE. */
#include "bench.h"

#include "mysql/ddl.h"
#include "mysql/store.h"
#include "sys/clock.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define SMALL 1000
#define CHUNK 250000
#define SCHEMA "outboxd_bench_claim"
#define COLUMNS "aggregate_type,aggregate_id,event_type,payload"

struct state {
	struct claim_cost *cost;
	const char *status;              /* of the rows before the backlog; NULL: all are backlog */
	const char *more;                /* columns that go with it, "name=value" */
	struct store *claims, *releases; /* two sessions: the first does nothing but claim */
	double thread;                   /* of the first, in performance_schema */
	double examined, claimed;        /* before a measurement; since then */
	double *took;
	uint64_t id[BATCH];
	size_t count;
	MYSQL *watch; /* not NULL: count locks at the last row of this claim */
	double locks;
};

/* ---- tables */

/* As many more rows as it has, until it has all; ids and event_ids ascend without gaps. */
static void grow(unsigned table, uint64_t from, uint64_t to)
{
	for (uint64_t have = from; have < to;) {
		uint64_t n = to - have < have ? to - have : have;

		if (n > CHUNK)
			n = CHUNK;
		sql("INSERT INTO outbox%u (id,event_id," COLUMNS ",created_at) "
		    "SELECT id+%" PRIu64 ",CONCAT('00000000-0000-0000-0000-',LPAD(id+%" PRIu64
		    ",12,'0'))," COLUMNS ",created_at+INTERVAL 100*%" PRIu64
		    " MICROSECOND FROM outbox%u WHERE id<=%" PRIu64,
			table, have, have, have, table, n);
		have += n;
	}
}

static void create(unsigned table)
{
	sql("%s", ddl_outbox);
	sql("RENAME TABLE outbox_event TO outbox%u", table);
	sql("ALTER TABLE outbox%u STATS_AUTO_RECALC=0", table);
	sql("INSERT INTO outbox%u (id,event_id," COLUMNS ",created_at) SELECT n,"
	    "CONCAT('00000000-0000-0000-0000-',LPAD(n,12,'0')),'order',CONCAT('order-',n%%%d),"
	    "'OrderCreated',JSON_OBJECT('orderId',n,'customer','customer-0001','currency','EUR',"
	    "'total',1234.5,'note',"
	    "'zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz'),"
	    "NOW(6)-INTERVAL 1 HOUR+INTERVAL 100*n MICROSECOND "
	    "FROM (WITH RECURSIVE t AS (SELECT 1 n UNION ALL SELECT n+1 FROM t WHERE n<%d) "
	    "SELECT n FROM t) x",
		table, AGGREGATES, SMALL);
	sql("ANALYZE TABLE outbox%u", table);
}

/* `rows` that are not backlog, from another table, and the 1,000 there are as backlog behind. */
static void lay_before(unsigned table, unsigned from, const struct state *s, uint64_t rows)
{
	sql("UPDATE outbox%u SET created_at=created_at+INTERVAL 30 MINUTE,"
	    "event_id=CONCAT('backlog-',id),id=id+%" PRIu64 " ORDER BY id DESC",
		table, rows);
	for (uint64_t id = 0; id < rows; id += CHUNK)
		sql("INSERT INTO outbox%u (id,event_id," COLUMNS ",created_at,status,retry_count,"
		    "next_retry_at,sent_at,last_error) SELECT id,event_id," COLUMNS
		    ",created_at,'%s',%s FROM outbox%u WHERE id>%" PRIu64 " AND id<=%" PRIu64
		    " AND id<=%" PRIu64,
			table, s->status, s->more, from, id, id + CHUNK, rows);
}

static unsigned build(const struct bench *b, struct report *r, struct state *s)
{
	const uint64_t sizes[] = { SMALL, b->rows / 10, b->rows, b->most };
	static const struct {
		const char *status, *more;
	} before[] = {
		{ "SENT", "0,NULL,NOW(6),NULL" },
		{ "RETRY", "1,NOW(6)+INTERVAL 1 DAY,NULL,'NACKED: bench'" },
		{ "DEAD", "10,NULL,NULL,'NACKED: bench'" },
	};
	unsigned n = 0, large = 2;

	sql("CREATE DATABASE " SCHEMA);
	sql("USE " SCHEMA);
	sql("SET SESSION sql_log_bin=0, unique_checks=0, foreign_key_checks=0, "
	    "transaction_isolation='READ-COMMITTED'");
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		if (sizes[i] == 0)
			continue;
		s[n] = (struct state){ .cost = &r->claim[n] };
		*s[n].cost = (struct claim_cost){ .rows = sizes[i], .pending = true };
		snprintf(s[n].cost->name, sizeof(s[n].cost->name), "%" PRIu64 " PENDING", sizes[i]);
		create(n);
		grow(n, SMALL, sizes[i]);
		n++;
	}
	for (size_t i = 0; i < ARRAY_LEN(before); i++) {
		s[n] = (struct state){
			.cost = &r->claim[n],
			.status = before[i].status,
			.more = before[i].more,
		};
		*s[n].cost = (struct claim_cost){ .rows = b->rows };
		snprintf(s[n].cost->name, sizeof(s[n].cost->name), "%" PRIu64 " %s%s", b->rows,
			before[i].status, i == 1 ? ", not due" : "");
		create(n);
		lay_before(n, large, &s[n], b->rows);
		n++;
	}
	sql("SET SESSION sql_log_bin=1, unique_checks=1, foreign_key_checks=1");
	return n;
}

/* ---- claims */

static double locks_held(const struct state *s)
{
	char text[200];

	snprintf(text, sizeof(text),
		"SELECT COUNT(*) FROM performance_schema.data_locks "
		"WHERE lock_type='RECORD' AND thread_id=%.0f",
		s->thread);
	return number_on(s->watch, text);
}

static int on_row(void *arg, enum row_class class, const struct row *row, unsigned takeovers)
{
	struct state *s = arg;

	(void)class, (void)takeovers;
	s->id[s->count++] = row->id;
	if (s->count == BATCH && s->watch != NULL)
		s->locks = locks_held(s);
	return 0;
}

static int by_id(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

/* Returns the time it took. */
static double claim(struct state *s)
{
	struct claim_spec spec = { .total = BATCH, .lease_us = 600 * US_PER_SEC };
	struct row_sink sink = { .row = on_row, .arg = s };
	struct err e = { 0 };
	bool unknown;
	int64_t start_us;

	spec.limit[ROW_FRESH] = BATCH;
	spec.limit[ROW_RETRY] = BATCH / 4;
	spec.limit[ROW_DUE] = BATCH / 8;
	s->count = 0;
	start_us = clock_mono_us();
	if (s->claims->ops->claim(s->claims, &spec, &sink, &unknown, &e) < 0)
		die("claim", e.text);
	if (s->count != BATCH)
		die("claim", "found too few rows");
	return (double)(clock_mono_us() - start_us);
}

static void release(struct state *s)
{
	static struct settle settles[BATCH];
	struct err e = { 0 };
	bool unknown;

	qsort(s->id, s->count, sizeof(s->id[0]), by_id);
	for (size_t i = 0; i < s->count; i++)
		settles[i] = (struct settle){ .id = s->id[i], .kind = SETTLE_RELEASE };
	if (s->releases->ops->settle(s->releases, settles, s->count, &unknown, &e) < 0)
		die("release", e.text);
	for (size_t i = 0; i < s->count; i++)
		if (settles[i].lost)
			die("release", "a row was lost");
}

static struct store *open_store(const struct source_conf *conf)
{
	struct store *store = NULL;
	struct err e = { 0 };

	if (mysql_store_new(&store, conf, "bench/0/0", NULL, 0, NULL, &e) < 0 ||
		store->ops->connect(store, &e) < 0)
		die("store", e.text);
	return store;
}

static void close_store(struct store *store)
{
	store->ops->close(store);
	store->ops->free(store);
}

/* The newest session of this schema but our own. */
static double find_thread(void)
{
	return number("SELECT MAX(thread_id) FROM performance_schema.threads WHERE "
		      "processlist_db='" SCHEMA "' AND processlist_id<>CONNECTION_ID()");
}

static double examined(const struct state *s)
{
	return number("SELECT SUM(sum_rows_examined) FROM "
		      "performance_schema.events_statements_summary_by_thread_by_event_name "
		      "WHERE thread_id=%.0f",
		s->thread);
}

static void measure(const struct bench *b, struct state *s, unsigned count, bool stale)
{
	MYSQL *watch = db_another(b);

	for (unsigned t = 0; t < count; t++) {
		s[t].watch = watch;
		(void)claim(&s[t]);
		s[t].watch = NULL;
		release(&s[t]);
		s[t].examined = examined(&s[t]);
	}
	for (unsigned i = 0; i < b->claims; i++)
		for (unsigned t = 0; t < count; t++) {
			s[t].took[i] = claim(&s[t]);
			release(&s[t]);
		}
	for (unsigned t = 0; t < count; t++) {
		double rows = (double)b->claims * BATCH;
		struct spread took = spread_of(s[t].took, b->claims);
		double seen = (examined(&s[t]) - s[t].examined) / rows;

		if (stale) {
			s[t].cost->stale.took = took;
			s[t].cost->stale.examined = seen;
			s[t].cost->stale.locks = s[t].locks / BATCH;
		} else {
			s[t].cost->fresh.took = took;
			s[t].cost->fresh.examined = seen;
			s[t].cost->fresh.locks = s[t].locks / BATCH;
		}
	}
	mysql_close(watch);
}

void measure_claims(const struct bench *b, struct report *r)
{
	static struct state states[CLAIM_STATES];
	unsigned count = build(b, r, states);
	struct config *conf = configure(
		b, &(struct daemon_conf){ .ordering = "none", .sources = count, .tables = SCHEMA });

	for (unsigned t = 0; t < count; t++) {
		states[t].claims = open_store(&conf->sources[t]);
		states[t].thread = find_thread();
		states[t].releases = open_store(&conf->sources[t]);
		states[t].took = calloc(b->claims, sizeof(double));
		if (states[t].took == NULL)
			die("claims", "out of memory");
	}
	measure(b, states, count, true);
	for (unsigned t = 0; t < count; t++)
		sql("ANALYZE TABLE outbox%u", t);
	measure(b, states, count, false);
	for (unsigned t = 0; t < count; t++) {
		close_store(states[t].claims);
		close_store(states[t].releases);
		free(states[t].took);
	}
	config_free(conf);
	sql("USE mysql");
	sql("DROP DATABASE " SCHEMA);
	r->claims = count;
}

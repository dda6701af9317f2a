/* throughput.c: what the relay costs beside its servers.
 *
 *	one-by-one   the naive relay: claim one row, publish it, wait, mark it
 *	database     claim and settle alone, through the relay's own store
 *	broker       publish and confirm alone, through the relay's own publisher, 1,000 in flight
 *	outboxd      the daemon, unordered and ordered
 *
 * and the limit that follows: cores / (mysqld CPU per event of the database pass + broker CPU per
 * event of the broker pass + 3 us). */
#include "bench.h"

#include "mysql/store.h"
#include "sys/clock.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WINDOW 1000
#define WARM 5000
#define DRAIN 4000 /* rows behind those that count: the window never runs empty */

struct meter {
	const struct bench *b;
	int64_t start_us;
	double mysqld, broker, client;
	struct counts counts;
	pid_t client_pid;
};

static void meter_start(struct meter *m, const struct bench *b, pid_t client)
{
	*m = (struct meter){ .b = b, .client_pid = client, .counts = counts_now() };
	m->mysqld = cpu_us(b->mysqld);
	m->broker = cpu_us(b->broker);
	m->client = cpu_us(client);
	m->start_us = clock_mono_us();
}

static struct pass meter_stop(const struct meter *m, const char *name, uint64_t events)
{
	double n = (double)events;
	struct pass p = {
		.name = name,
		.events = events,
		.seconds = (double)(clock_mono_us() - m->start_us) / 1e6,
		.mysqld_us = (cpu_us(m->b->mysqld) - m->mysqld) / n,
		.broker_us = (cpu_us(m->b->broker) - m->broker) / n,
		.client_us = (cpu_us(m->client_pid) - m->client) / n,
	};
	struct counts now = counts_now();

	p.statements = (now.statements - m->counts.statements) / n;
	p.commits = (now.commits - m->counts.commits) / n;
	p.binlog_bytes = (now.binlog_bytes - m->counts.binlog_bytes) / n;
	p.db_received = (now.received - m->counts.received) / n;
	p.db_sent = (now.sent - m->counts.sent) / n;
	return p;
}

static void one_event(MYSQL *db, struct client *c)
{
	MYSQL_RES *res;
	MYSQL_ROW row;
	unsigned long *len;
	char text[200];
	uint64_t id;

	sql_on(db, "START TRANSACTION");
	if (mysql_query(db, "SELECT id,event_id,payload FROM outbox_event WHERE status='PENDING' "
			    "AND next_retry_at IS NULL ORDER BY created_at,id LIMIT 1 "
			    "FOR UPDATE SKIP LOCKED") != 0 ||
		(res = mysql_store_result(db)) == NULL || (row = mysql_fetch_row(res)) == NULL)
		die("claim", mysql_error(db));
	len = mysql_fetch_lengths(res);
	id = strtoull(row[0], NULL, 10);
	snprintf(text, sizeof(text),
		"UPDATE outbox_event SET status='PROCESSING' WHERE id=%" PRIu64, id);
	sql_on(db, text);
	sql_on(db, "COMMIT");
	client_send(c, (struct slice){ row[1], len[1] }, (struct slice){ row[2], len[2] }, 1);
	client_settle(c);
	mysql_free_result(res);
	snprintf(text, sizeof(text),
		"UPDATE outbox_event SET status='SENT', sent_at=NOW(6) WHERE id=%" PRIu64, id);
	sql_on(db, text);
}

static struct pass one_by_one(const struct bench *b, const struct config *conf, uint64_t events)
{
	MYSQL *db = db_another(b);
	struct client c;
	struct meter m;
	struct pass p;

	client_open(&c, conf);
	fill("outboxd_bench0", events);
	sql_on(db, "USE outboxd_bench0");
	meter_start(&m, b, getpid());
	for (uint64_t i = 0; i < events; i++)
		one_event(db, &c);
	p = meter_stop(&m, "one-by-one", events);
	client_close(&c);
	mysql_close(db);
	purge_queue(b);
	return p;
}

struct ids {
	uint64_t id[BATCH];
	size_t count;
};

static int on_row(void *arg, enum row_class class, const struct row *row, unsigned takeovers)
{
	struct ids *ids = arg;

	(void)class, (void)takeovers;
	ids->id[ids->count++] = row->id;
	return 0;
}

static int by_id(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static struct pass database_alone(const struct bench *b, const struct config *conf, uint64_t events)
{
	static struct ids ids;
	static struct settle settles[BATCH];
	struct store *store = NULL;
	struct claim_spec spec = { .total = BATCH, .lease_us = 60 * US_PER_SEC };
	struct row_sink sink = { .row = on_row, .arg = &ids };
	struct err e = { 0 };
	bool unknown = false;
	uint64_t done = 0;
	struct meter m;
	struct pass p;

	fill("outboxd_bench0", events);
	if (mysql_store_new(&store, &conf->sources[0], "bench/0/0", NULL, 0, NULL, &e) < 0 ||
		store->ops->connect(store, &e) < 0)
		die("store", e.text);
	spec.limit[ROW_FRESH] = BATCH;
	meter_start(&m, b, getpid());
	while (done < events) {
		ids.count = 0;
		if (store->ops->claim(store, &spec, &sink, &unknown, &e) < 0)
			die("claim", e.text);
		if (ids.count == 0)
			die("claim", "found no more rows");
		qsort(ids.id, ids.count, sizeof(ids.id[0]), by_id);
		for (size_t i = 0; i < ids.count; i++)
			settles[i] = (struct settle){ .id = ids.id[i], .kind = SETTLE_SENT };
		if (store->ops->settle(store, settles, ids.count, &unknown, &e) < 0)
			die("settle", e.text);
		done += ids.count;
	}
	p = meter_stop(&m, "database alone", done);
	store->ops->close(store);
	store->ops->free(store);
	return p;
}

static struct pass broker_alone(const struct bench *b, const struct config *conf, uint64_t events)
{
	static char body[170];
	struct client c;
	struct meter m;
	struct pass p;
	double before;

	client_open(&c, conf);
	memset(body, 'z', sizeof(body));
	before = client_bytes(&c);
	meter_start(&m, b, getpid());
	for (uint64_t i = 0; i < events; i++) {
		char id[64];

		snprintf(id, sizeof(id), "00000000-0000-0000-0000-%012" PRIu64, i);
		client_send(&c, slice_str(id), (struct slice){ body, sizeof(body) }, WINDOW);
		if (i % 50 == 0)
			client_pump(&c);
	}
	client_settle(&c);
	p = meter_stop(&m, "broker alone", events);
	p.mq_sent = (client_bytes(&c) - before) / (double)events;
	client_close(&c);
	purge_queue(b);
	return p;
}

/* From the moment it has warmed up until the window begins to drain, producer and consumer outside.
 */
static struct pass daemon_pass(
	const struct bench *b, const char *name, const char *ordering, uint64_t events)
{
	struct daemon_conf conf = { .ordering = ordering, .sources = 1, .http_port = free_port() };
	uint64_t warm = WARM, before;
	struct meter m;
	struct pass p;
	pid_t pid;

	config_free(configure(b, &conf));
	fill("outboxd_bench0", events + warm + DRAIN);
	pid = daemon_start(b);
	wait_published(conf.http_port, warm);
	meter_start(&m, b, pid);
	before = (uint64_t)scrape(conf.http_port, "outboxd_events_published_total");
	wait_published(conf.http_port, events + warm);
	p = meter_stop(&m, name, events + warm - before);
	wait_published(conf.http_port, events + warm + DRAIN);
	daemon_stop(pid);
	if (number("SELECT COUNT(*) FROM outbox_event WHERE status<>'SENT'") > 0)
		die("outboxd", "rows are left that are not SENT");
	purge_queue(b);
	return p;
}

static void mean(double *m, double events, double value, double more)
{
	*m = (*m * events + value * more) / (events + more);
}

/* The machine is faster in one second and slower in the next: rounds are short, and their mean
 * counts.
 */
static void add(struct pass *sum, struct pass p)
{
	double n = (double)sum->events, more = (double)p.events;

	sum->name = p.name;
	sum->events += p.events;
	sum->seconds += p.seconds;
	mean(&sum->mysqld_us, n, p.mysqld_us, more);
	mean(&sum->broker_us, n, p.broker_us, more);
	mean(&sum->client_us, n, p.client_us, more);
	mean(&sum->statements, n, p.statements, more);
	mean(&sum->commits, n, p.commits, more);
	mean(&sum->binlog_bytes, n, p.binlog_bytes, more);
	mean(&sum->db_sent, n, p.db_sent, more);
	mean(&sum->db_received, n, p.db_received, more);
	mean(&sum->mq_sent, n, p.mq_sent, more);
}

void measure_throughput(const struct bench *b, struct report *r)
{
	struct config *conf =
		configure(b, &(struct daemon_conf){ .ordering = "none", .sources = 1 });
	double cores = (double)sysconf(_SC_NPROCESSORS_ONLN);
	struct pass *p = r->pass;

	for (unsigned i = 0; i < b->rounds; i++) {
		add(&p[ONE_BY_ONE], one_by_one(b, conf, b->events / 20));
		add(&p[DATABASE_ALONE], database_alone(b, conf, b->events));
		add(&p[BROKER_ALONE], broker_alone(b, conf, b->events));
		add(&p[DAEMON_NONE], daemon_pass(b, "outboxd, unordered", "none", b->events));
		add(&p[DAEMON_AGGREGATE],
			daemon_pass(b, "outboxd, ordered", "aggregate", b->events));
	}
	config_free(conf);
	r->passes = PASSES;
	r->limit =
		cores * 1e6 / (p[DATABASE_ALONE].mysqld_us + p[BROKER_ALONE].broker_us + CLIENT_US);
}

/* bench.c: what the relay costs, measured in one run on the same rows and servers.
 *
 *	one-by-one   the naive relay: claim one row, publish it, wait, mark it
 *	database     claim and settle alone, through the relay's own store
 *	broker       publish and confirm alone, through the relay's own publisher, 1,000 in flight
 *	outboxd      the daemon, unordered and ordered
 *
 * and the limit that follows: cores / (mysqld CPU per event of the database pass + broker CPU per
 *event of the broker pass + 3 us). Wants the variables of `tests/servers env`. CPU is read from
 * /proc/PID/stat of the servers.
 *
 *	bench [--events N] [--rounds N] [--bin outboxd] [--json FILE]
 */
#include "amqp/publisher.h"
#include "base/buf.h"
#include "mysql/ddl.h"
#include "mysql/session.h"
#include "mysql/store.h"
#include "sys/clock.h"

#include <mysql.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define AGGREGATES 500
#define WINDOW 1000
#define BATCH 500
#define CLIENT_US 3.0 /* what the limit grants the client per event */

static const char exchange[] = "outboxd-bench";

struct servers {
	const char *mysql_host, *amqp_host, *api;
	unsigned mysql_port, amqp_port;
	pid_t mysqld, broker;
};

struct pass {
	const char *name;
	uint64_t events;
	double seconds, mysqld_us, broker_us, client_us; /* per event */
};

static _Noreturn void die(const char *what, const char *why)
{
	fprintf(stderr, "bench: %s: %s\n", what, why);
	exit(EXIT_FAILURE);
}

static const char *need(const char *name)
{
	const char *v = getenv(name);

	if (v == NULL)
		die(name, "not set; run: eval \"$(tests/servers env)\"");
	return v;
}

/* User and system time of a process with its ended children, in microseconds. */
static double cpu_us(pid_t pid)
{
	char path[64], line[1024], *p;
	unsigned long long ut, st;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	f = fopen(path, "r");
	if (f == NULL || fgets(line, sizeof(line), f) == NULL)
		die(path, strerror(errno));
	fclose(f);
	p = strrchr(line, ')');
	if (p == NULL ||
		sscanf(p, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &ut, &st) != 2)
		die(path, "not as expected");
	return (double)(ut + st) * 1e6 / (double)sysconf(_SC_CLK_TCK);
}

struct meter {
	const struct servers *s;
	int64_t start_us;
	double mysqld, broker, client;
	pid_t client_pid;
};

static void meter_start(struct meter *m, const struct servers *s, pid_t client)
{
	*m = (struct meter){ .s = s, .client_pid = client };
	m->mysqld = cpu_us(s->mysqld);
	m->broker = cpu_us(s->broker);
	m->client = cpu_us(client);
	m->start_us = clock_mono_us();
}

static struct pass meter_stop(const struct meter *m, const char *name, uint64_t events)
{
	double n = (double)events;

	return (struct pass){
		.name = name,
		.events = events,
		.seconds = (double)(clock_mono_us() - m->start_us) / 1e6,
		.mysqld_us = (cpu_us(m->s->mysqld) - m->mysqld) / n,
		.broker_us = (cpu_us(m->s->broker) - m->broker) / n,
		.client_us = (cpu_us(m->client_pid) - m->client) / n,
	};
}

static MYSQL *db;

static void sql(const char *text)
{
	MYSQL_RES *res;

	if (mysql_real_query(db, text, strlen(text)) != 0)
		die(text, mysql_error(db));
	res = mysql_store_result(db);
	if (res != NULL)
		mysql_free_result(res);
}

static uint64_t number(const char *text)
{
	MYSQL_RES *res;
	MYSQL_ROW row;
	uint64_t v;

	if (mysql_real_query(db, text, strlen(text)) != 0 || (res = mysql_store_result(db)) == NULL)
		die(text, mysql_error(db));
	row = mysql_fetch_row(res);
	v = row != NULL && row[0] != NULL ? strtoull(row[0], NULL, 10) : 0;
	mysql_free_result(res);
	return v;
}

/* N pending rows of 170 bytes of JSON over 500 aggregates, committed in order; nothing else in the
 * table. */
static void fill(const char *schema, uint64_t events)
{
	char text[1400];

	snprintf(text, sizeof(text), "USE `%s`", schema);
	sql(text);
	sql("DROP TABLE IF EXISTS outbox_event");
	sql(ddl_outbox);
	for (uint64_t from = 0; from < events; from += 10000) {
		uint64_t n = events - from < 10000 ? events - from : 10000;

		snprintf(text, sizeof(text),
			"INSERT INTO outbox_event "
			"(event_id,aggregate_type,aggregate_id,event_type,payload) "
			"SELECT UUID(),'order',CONCAT('order-',n%%%d),'OrderCreated',"
			"JSON_OBJECT('orderId',n,'customer','customer-0001','currency','EUR','"
			"total',1234.5,'note',"
			"'zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz') FROM "
			"(WITH RECURSIVE t AS (SELECT %" PRIu64
			" n UNION ALL SELECT n+1 FROM t WHERE n<%" PRIu64 ") SELECT n FROM t) x",
			AGGREGATES, from + 1, from + n);
		sql(text);
	}
}

static void api(const struct servers *s, const char *method, const char *path, const char *body)
{
	char cmd[1024];

	snprintf(cmd, sizeof(cmd),
		"curl -sf -o /dev/null -u guest:guest -H content-type:application/json -X %s -d "
		"'%s' %s/api/%s",
		method, body, s->api, path);
	if (system(cmd) != 0)
		die(cmd, "failed");
}

static void purge(const struct servers *s)
{
	api(s, "DELETE", "queues/%2f/outboxd-bench/contents", "");
}

static void prepare_broker(const struct servers *s)
{
	char body[200];

	api(s, "PUT", "exchanges/%2f/outboxd-bench", "{\"type\":\"topic\",\"durable\":true}");
	api(s, "PUT", "queues/%2f/outboxd-bench", "{\"durable\":true}");
	snprintf(body, sizeof(body), "{\"routing_key\":\"#\"}");
	api(s, "POST", "bindings/%2f/e/outboxd-bench/q/outboxd-bench", body);
}

static struct config *configure(const struct servers *s, const char *path, const char *ordering,
	unsigned sources, unsigned http_port)
{
	struct config *conf = NULL;
	struct buf faults = { 0 };
	FILE *f = fopen(path, "w");

	if (f == NULL)
		die(path, strerror(errno));
	fprintf(f, "log: { level: warn }\n");
	if (http_port != 0)
		fprintf(f, "http: { listen: \"127.0.0.1:%u\" }\n", http_port);
	fprintf(f,
		"brokers:\n  - { name: b, hosts: [\"%s:%u\"], username: guest, password: guest "
		"}\nsources:\n",
		s->amqp_host, s->amqp_port);
	for (unsigned i = 0; i < sources; i++)
		fprintf(f,
			"  - name: bench%u\n    database: { host: %s, port: %u, name: "
			"outboxd_bench%u, username: root }\n"
			"    broker: b\n    ordering: %s\n"
			"    publish: { exchange: %s, routing_key: "
			"\"{aggregate_type}.{event_type}\" }\n",
			i, s->mysql_host, s->mysql_port, i, ordering, exchange);
	fclose(f);
	if (config_load(&conf, path, &faults) < 0)
		die(path, faults.data);
	buf_fini(&faults);
	return conf;
}

/* ---- one by one */

struct waiting {
	unsigned open;
};

static void on_outcome(void *arg, void *cookie, enum outcome how, unsigned code, const char *text)
{
	struct waiting *w = arg;

	(void)cookie, (void)code;
	if (how != OUTCOME_ACK)
		die("publish", text != NULL ? text : "not confirmed");
	w->open--;
}

static void on_closed(void *arg, enum channel ch, unsigned code, const char *text)
{
	(void)arg, (void)ch, (void)code;
	die("channel closed", text);
}

static void on_blocked(void *arg, bool on, const char *reason)
{
	(void)arg, (void)on;
	fprintf(stderr, "bench: broker blocked: %s\n", reason);
}

static struct publisher *connect_publisher(const struct config *conf, struct waiting *w)
{
	struct publisher *p = NULL;
	struct err e = { 0 };

	if (amqp_publisher_new(&p, &conf->brokers[0], "outboxd bench", NULL, &e) < 0)
		die("publisher", e.text);
	p->events = (struct publisher_events){ on_outcome, on_closed, on_blocked, w };
	if (p->ops->connect(p, &e) < 0)
		die("publisher", e.text);
	return p;
}

static void pump(struct publisher *p, int timeout_ms)
{
	fd_set rd, wr;
	struct timeval tv = { 0, timeout_ms * 1000 };
	struct err e = { 0 };
	int fd = p->ops->fd(p);

	FD_ZERO(&rd);
	FD_ZERO(&wr);
	FD_SET(fd, &rd);
	if (p->ops->wants_write(p))
		FD_SET(fd, &wr);
	if (timeout_ms > 0)
		select(fd + 1, &rd, &wr, NULL, &tv);
	if (p->ops->pump(p, &e) < 0)
		die("broker", e.text);
}

static struct envelope example(struct slice id, struct slice body)
{
	static struct field headers[] = {
		{ .name = { "aggregate_type", 14 },
			.type = FIELD_STRING,
			.string = { "order", 5 } },
		{ .name = { "aggregate_id", 12 },
			.type = FIELD_STRING,
			.string = { "order-123", 9 } },
		{ .name = { "source", 6 }, .type = FIELD_STRING, .string = { "bench0", 6 } },
	};

	return (struct envelope){
		.exchange = SLICE_LIT("outboxd-bench"),
		.routing_key = SLICE_LIT("order.OrderCreated"),
		.message_id = id,
		.type = SLICE_LIT("OrderCreated"),
		.content_type = SLICE_LIT("application/json"),
		.app_id = SLICE_LIT("outboxd"),
		.timestamp = 1700000000,
		.delivery_mode = 2,
		.mandatory = true,
		.headers = headers,
		.header_count = ARRAY_LEN(headers),
		.body = body,
	};
}

static void send_wait(struct publisher *p, struct waiting *w, enum channel ch,
	const struct envelope *env, unsigned window)
{
	struct err e = { 0 };

	while (w->open >= window)
		pump(p, 10);
	while (p->ops->send(p, ch, env, w, &e) < 0) {
		if (e.kind != ERR_AGAIN)
			die("send", e.text);
		pump(p, 10);
	}
	w->open++;
}

static struct pass one_by_one(const struct servers *s, const struct config *conf, uint64_t events)
{
	struct waiting w = { 0 };
	struct publisher *p = connect_publisher(conf, &w);
	struct meter m;

	fill("outboxd_bench0", events);
	meter_start(&m, s, getpid());
	for (uint64_t i = 0; i < events; i++) {
		MYSQL_RES *res;
		MYSQL_ROW row;
		unsigned long *len;
		char text[200];
		struct envelope env;
		uint64_t id;

		sql("START TRANSACTION");
		if (mysql_query(db, "SELECT id,event_id,payload FROM outbox_event WHERE "
				    "status='PENDING' AND next_retry_at IS NULL "
				    "ORDER BY created_at,id LIMIT 1 FOR UPDATE SKIP LOCKED") != 0 ||
			(res = mysql_store_result(db)) == NULL ||
			(row = mysql_fetch_row(res)) == NULL)
			die("claim", mysql_error(db));
		len = mysql_fetch_lengths(res);
		id = strtoull(row[0], NULL, 10);
		snprintf(text, sizeof(text),
			"UPDATE outbox_event SET status='PROCESSING' WHERE id=%" PRIu64, id);
		sql(text);
		sql("COMMIT");
		env = example((struct slice){ row[1], len[1] }, (struct slice){ row[2], len[2] });
		send_wait(p, &w, i == 0 ? CHANNEL_QUARANTINE : CHANNEL_FAST, &env, 1);
		while (w.open > 0)
			pump(p, 10);
		mysql_free_result(res);
		snprintf(text, sizeof(text),
			"UPDATE outbox_event SET status='SENT', sent_at=NOW(6) WHERE id=%" PRIu64,
			id);
		sql(text);
	}
	struct pass done = meter_stop(&m, "one-by-one", events);

	p->ops->close(p);
	p->ops->free(p);
	purge(s);
	return done;
}

/* ---- database alone */

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

static struct pass database_alone(
	const struct servers *s, const struct config *conf, uint64_t events)
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

	fill("outboxd_bench0", events);
	if (mysql_store_new(&store, &conf->sources[0], "bench/0/0", NULL, 0, NULL, &e) < 0 ||
		store->ops->connect(store, &e) < 0)
		die("store", e.text);
	spec.limit[ROW_FRESH] = BATCH;
	meter_start(&m, s, getpid());
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
	struct pass result = meter_stop(&m, "database alone", done);

	store->ops->close(store);
	store->ops->free(store);
	return result;
}

/* ---- broker alone */

static struct pass broker_alone(const struct servers *s, const struct config *conf, uint64_t events)
{
	struct waiting w = { 0 };
	struct publisher *p = connect_publisher(conf, &w);
	static char body[170];
	struct meter m;

	memset(body, 'z', sizeof(body));
	meter_start(&m, s, getpid());
	for (uint64_t i = 0; i < events; i++) {
		char id[64];
		struct envelope env;

		snprintf(id, sizeof(id), "00000000-0000-0000-0000-%012" PRIu64, i);
		env = example(slice_str(id), (struct slice){ body, sizeof(body) });
		send_wait(p, &w, i == 0 ? CHANNEL_QUARANTINE : CHANNEL_FAST, &env,
			i == 0 ? 1 : WINDOW);
		if (i % 50 == 0)
			pump(p, 0);
	}
	while (w.open > 0)
		pump(p, 10);
	struct pass result = meter_stop(&m, "broker alone", events);

	p->ops->close(p);
	p->ops->free(p);
	purge(s);
	return result;
}

/* ---- the daemon */

static pid_t start_daemon(const char *bin, const char *config)
{
	pid_t pid = fork();

	if (pid == 0) {
		execl(bin, bin, "run", "-c", config, (char *)NULL);
		_exit(127);
	}
	if (pid < 0)
		die("fork", strerror(errno));
	return pid;
}

static void stop_daemon(pid_t pid)
{
	int status;

	kill(pid, SIGTERM);
	if (waitpid(pid, &status, 0) < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
		die("outboxd", "did not end well");
}

/* The sum of a counter over its series, read from /metrics; -1 while there is none. */
static double scrape(unsigned port, const char *name)
{
	static char text[1 << 20];
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
	static const char request[] = "GET /metrics HTTP/1.0\r\n\r\n";
	size_t len = 0;
	ssize_t n;
	double sum = -1;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
	if (fd < 0)
		die("socket", strerror(errno));
	if (connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0 &&
		write(fd, request, sizeof(request) - 1) > 0)
		while ((n = read(fd, text + len, sizeof(text) - 1 - len)) > 0)
			len += (size_t)n;
	close(fd);
	text[len] = '\0';
	for (char *line = text; line != NULL; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (strncmp(line, name, strlen(name)) == 0) {
			char *blank = strchr(line, ' ');

			sum = (sum < 0 ? 0 : sum) + (blank != NULL ? strtod(blank, NULL) : 0);
		}
	}
	return sum;
}

static void wait_published(unsigned port, uint64_t events)
{
	int64_t limit_us = clock_mono_us() + 300 * US_PER_SEC;

	while (scrape(port, "outboxd_events_published_total{") < (double)events) {
		if (clock_mono_us() > limit_us)
			die("outboxd", "does not publish");
		usleep(20000);
	}
}

static unsigned free_port(void)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(a);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 ||
		getsockname(fd, (struct sockaddr *)&a, &len) < 0)
		die("port", strerror(errno));
	close(fd);
	return ntohs(a.sin_port);
}

/* From the moment it has warmed up to the last confirm, producer and consumer outside. */
static struct pass daemon_pass(const struct servers *s, const char *bin, const char *path,
	const char *ordering, uint64_t events)
{
	unsigned port = free_port();
	uint64_t warm = events / 20;
	struct config *conf = configure(s, path, ordering, 1, port);
	double before;
	struct meter m;
	pid_t pid;

	fill("outboxd_bench0", events + warm);
	pid = start_daemon(bin, path);
	wait_published(port, warm);
	before = scrape(port, "outboxd_events_published_total{");
	meter_start(&m, s, pid);
	wait_published(port, events + warm);
	struct pass result = meter_stop(&m,
		strcmp(ordering, "none") == 0 ? "outboxd, unordered" : "outboxd, ordered",
		events + warm - (uint64_t)before);

	stop_daemon(pid);
	if (number("SELECT COUNT(*) FROM outbox_event WHERE status<>'SENT'") != 0)
		die("outboxd", "rows are left that are not SENT");
	config_free(conf);
	purge(s);
	return result;
}

/* Resident memory in kB with eight sources and a large backlog each. */
static unsigned long memory_pass(
	const struct servers *s, const char *bin, const char *path, uint64_t backlog)
{
	unsigned port = free_port();
	struct config *conf = configure(s, path, "aggregate", 8, port);
	char name[64], line[256];
	unsigned long peak = 0;
	pid_t pid;
	FILE *f;

	for (unsigned i = 0; i < 8; i++) {
		snprintf(name, sizeof(name), "outboxd_bench%u", i);
		fill(name, backlog);
	}
	pid = start_daemon(bin, path);
	wait_published(port, backlog * 8);
	snprintf(name, sizeof(name), "/proc/%d/status", (int)pid);
	f = fopen(name, "r");
	while (f != NULL && fgets(line, sizeof(line), f) != NULL)
		if (sscanf(line, "VmHWM: %lu", &peak) == 1)
			break;
	if (f != NULL)
		fclose(f);
	stop_daemon(pid);
	config_free(conf);
	purge(s);
	return peak;
}

static void better(struct pass *best, struct pass p)
{
	if (best->events == 0 ||
		p.seconds / (double)p.events < best->seconds / (double)best->events)
		*best = p;
}

static void print(const struct pass *p, double one, double limit)
{
	double rate = (double)p->events / p->seconds;

	printf("%-20s %8" PRIu64 " %9.0f %9.1f %9.1f %9.1f %8.1f x", p->name, p->events, rate,
		p->mysqld_us, p->broker_us, p->client_us, rate / one);
	if (limit > 0)
		printf(" %6.2f", rate / limit);
	printf("\n");
}

int main(int argc, char **argv)
{
	static const struct option known[] = { { "events", required_argument, NULL, 'e' },
		{ "rounds", required_argument, NULL, 'r' }, { "bin", required_argument, NULL, 'b' },
		{ "json", required_argument, NULL, 'j' },
		{ "memory", required_argument, NULL, 'm' }, { 0 } };
	struct servers s = {
		.mysql_host = need("OUTBOXD_TEST_MYSQL_HOST"),
		.mysql_port = (unsigned)atoi(need("OUTBOXD_TEST_MYSQL_PORT")),
		.mysqld = (pid_t)atoi(need("OUTBOXD_TEST_MYSQL_PID")),
		.amqp_host = need("OUTBOXD_TEST_AMQP_HOST"),
		.amqp_port = (unsigned)atoi(need("OUTBOXD_TEST_AMQP_PORT")),
		.broker = (pid_t)atoi(need("OUTBOXD_TEST_AMQP_PID")),
		.api = need("OUTBOXD_TEST_RABBITMQ_API"),
	};
	const char *bin = "build/outboxd", *json = NULL;
	char path[] = "/tmp/outboxd-bench-XXXXXX";
	uint64_t events = 50000, memory = 20000;
	unsigned rounds = 3;
	struct pass pass[5] = { { 0 } };
	unsigned long peak_kb;
	struct err e = { 0 };
	double cores = (double)sysconf(_SC_NPROCESSORS_ONLN), limit, one;
	struct config *conf;
	int c;

	while ((c = getopt_long(argc, argv, "", known, NULL)) != -1) {
		if (c == 'e')
			events = strtoull(optarg, NULL, 10);
		else if (c == 'r')
			rounds = (unsigned)atoi(optarg);
		else if (c == 'b')
			bin = optarg;
		else if (c == 'j')
			json = optarg;
		else if (c == 'm')
			memory = strtoull(optarg, NULL, 10);
		else
			return 2;
	}
	if (events < 1000 || rounds == 0)
		die("usage", "at least 1000 events and one round");
	if (mysql_global_init(&e) < 0 || amqp_global_init(&e) < 0)
		die("libraries", e.text);
	signal(SIGPIPE, SIG_IGN);
	if (mkstemp(path) < 0)
		die(path, strerror(errno));
	db = mysql_init(NULL);
	if (db == NULL || mysql_real_connect(db, s.mysql_host, "root",
				  getenv("OUTBOXD_TEST_MYSQL_ROOT_PASSWORD"), NULL, s.mysql_port,
				  NULL, 0) == NULL)
		die("connect", mysql_error(db));
	sql("SET SESSION cte_max_recursion_depth=1000000");
	for (unsigned i = 0; i < 8; i++) {
		char text[100];

		snprintf(text, sizeof(text), "CREATE DATABASE IF NOT EXISTS outboxd_bench%u", i);
		sql(text);
	}
	prepare_broker(&s);
	conf = configure(&s, path, "none", 1, 0);
	for (unsigned i = 0; i < rounds; i++) {
		better(&pass[0], one_by_one(&s, conf, events / 20));
		better(&pass[1], database_alone(&s, conf, events));
		better(&pass[2], broker_alone(&s, conf, events));
		better(&pass[3], daemon_pass(&s, bin, path, "none", events));
		better(&pass[4], daemon_pass(&s, bin, path, "aggregate", events));
	}
	config_free(conf);
	conf = NULL;
	peak_kb = memory > 0 ? memory_pass(&s, bin, path, memory) : 0;
	unlink(path);
	one = (double)pass[0].events / pass[0].seconds;
	limit = cores * 1e6 / (pass[1].mysqld_us + pass[2].broker_us + CLIENT_US);
	printf("best of %u rounds, %s %s, sync_binlog=%" PRIu64 ", flush at commit=%" PRIu64
	       ", %.0f cores\n",
		rounds, "MySQL", getenv("OUTBOXD_TEST_MYSQL_VERSION"),
		number("SELECT @@sync_binlog"), number("SELECT @@innodb_flush_log_at_trx_commit"),
		cores);
	printf("%-20s %8s %9s %9s %9s %9s %10s %6s\n", "", "events", "events/s", "mysqld us",
		"broker us", "client us", "one-by-one", "limit");
	for (size_t i = 0; i < ARRAY_LEN(pass); i++)
		print(&pass[i], one, i >= 3 ? limit : 0);
	printf("limit %.0f events/s = %.0f cores / (%.1f + %.1f + %.1f us)\n", limit, cores,
		pass[1].mysqld_us, pass[2].broker_us, CLIENT_US);
	if (peak_kb > 0)
		printf("peak resident memory, 8 ordered sources with %" PRIu64
		       " events each: %.1f MB\n",
			memory, (double)peak_kb / 1024);
	if (json != NULL) {
		FILE *f = fopen(json, "w");

		if (f == NULL)
			die(json, strerror(errno));
		fprintf(f,
			"{\"cores\":%.0f,\"limit_events_per_second\":%.1f,\"peak_resident_kb\":%lu,"
			"\"passes\":[",
			cores, limit, peak_kb);
		for (size_t i = 0; i < ARRAY_LEN(pass); i++)
			fprintf(f,
				"%s{\"name\":\"%s\",\"events\":%" PRIu64
				",\"seconds\":%.4f,\"events_per_second\":%.1f,"
				"\"mysqld_us\":%.2f,\"broker_us\":%.2f,\"client_us\":%.2f}",
				i > 0 ? "," : "", pass[i].name, pass[i].events, pass[i].seconds,
				(double)pass[i].events / pass[i].seconds, pass[i].mysqld_us,
				pass[i].broker_us, pass[i].client_us);
		fprintf(f, "]}\n");
		fclose(f);
	}
	mysql_close(db);
	mysql_global_fini();
	return 0;
}

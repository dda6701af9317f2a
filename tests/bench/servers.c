#include "bench.h"

#include "mysql/ddl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static MYSQL *db;
static double own_statements; /* of this program's connection, since the start */

_Noreturn void die(const char *what, const char *why)
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

/* ---- database */

MYSQL *db_another(const struct bench *b)
{
	MYSQL *c = mysql_init(NULL);

	if (c == NULL || mysql_real_connect(c, b->mysql_host, "root", b->mysql_password, NULL,
				 b->mysql_port, NULL, 0) == NULL)
		die("connect", c != NULL ? mysql_error(c) : "out of memory");
	return c;
}

void sql_on(MYSQL *c, const char *text)
{
	MYSQL_RES *res;

	if (mysql_real_query(c, text, strlen(text)) != 0)
		die(text, mysql_error(c));
	res = mysql_store_result(c);
	if (res != NULL)
		mysql_free_result(res);
	if (c == db)
		own_statements++;
}

/* The first column, or of SHOW STATUS and the like the second. */
static double value(MYSQL *c, const char *text, unsigned column)
{
	MYSQL_RES *res;
	MYSQL_ROW row;
	double v;

	if (mysql_real_query(c, text, strlen(text)) != 0 || (res = mysql_store_result(c)) == NULL)
		die(text, mysql_error(c));
	row = mysql_fetch_row(res);
	v = row != NULL && row[column] != NULL ? strtod(row[column], NULL) : 0;
	mysql_free_result(res);
	if (c == db)
		own_statements++;
	return v;
}

double number_on(MYSQL *c, const char *text)
{
	return value(c, text, 0);
}

PRINTF(1, 0) static char *formatted(const char *fmt, va_list ap)
{
	char *text = NULL;

	if (vasprintf(&text, fmt, ap) < 0)
		die("statement", "out of memory");
	return text;
}

void sql(const char *fmt, ...)
{
	va_list ap;
	char *text;

	va_start(ap, fmt);
	text = formatted(fmt, ap);
	va_end(ap);
	sql_on(db, text);
	free(text);
}

double number(const char *fmt, ...)
{
	va_list ap;
	char *text;
	double v;

	va_start(ap, fmt);
	text = formatted(fmt, ap);
	va_end(ap);
	v = number_on(db, text);
	free(text);
	return v;
}

void fill(const char *schema, uint64_t events)
{
	sql("USE `%s`", schema);
	sql("DROP TABLE IF EXISTS outbox_event");
	sql("%s", ddl_outbox);
	for (uint64_t from = 0; from < events; from += 10000) {
		uint64_t n = events - from < 10000 ? events - from : 10000;

		sql("INSERT INTO outbox_event "
		    "(event_id,aggregate_type,aggregate_id,event_type,payload,created_at) "
		    "SELECT UUID(),'order',CONCAT('order-',n%%%d),'OrderCreated',"
		    "JSON_OBJECT('orderId',n,'customer','customer-0001','currency','EUR','total',"
		    "1234.5,'note','zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz'"
		    "),NOW(6)-INTERVAL (%" PRIu64 "-n)*200 MICROSECOND "
		    "FROM (WITH RECURSIVE t AS (SELECT %" PRIu64
		    " n UNION ALL SELECT n+1 FROM t WHERE n<%" PRIu64 ") SELECT n FROM t) x",
			AGGREGATES, events, from + 1, from + n);
	}
}

static double binlog_bytes(void)
{
	MYSQL_RES *res;
	MYSQL_ROW row;
	double sum = 0;

	own_statements++;
	if (mysql_query(db, "SHOW BINARY LOGS") != 0 || (res = mysql_store_result(db)) == NULL)
		return 0; /* there is none */
	while ((row = mysql_fetch_row(res)) != NULL)
		sum += strtod(row[1], NULL);
	mysql_free_result(res);
	return sum;
}

struct counts counts_now(void)
{
	struct counts c = { .binlog_bytes = binlog_bytes() };

	c.commits = value(db, "SHOW GLOBAL STATUS LIKE 'Com_commit'", 1);
	c.received = value(db, "SHOW GLOBAL STATUS LIKE 'Bytes_received'", 1);
	c.sent = value(db, "SHOW GLOBAL STATUS LIKE 'Bytes_sent'", 1);
	c.statements = value(db, "SHOW GLOBAL STATUS LIKE 'Questions'", 1) - own_statements;
	return c;
}

/* ---- broker */

static void api(const struct bench *b, const char *method, const char *path, const char *body)
{
	char cmd[1024];

	snprintf(cmd, sizeof(cmd),
		"curl -sf -o /dev/null -u guest:guest -H content-type:application/json -X %s -d "
		"'%s' %s/api/%s",
		method, body, b->api, path);
	if (system(cmd) != 0)
		die(cmd, "failed");
}

void purge_queue(const struct bench *b)
{
	api(b, "DELETE", "queues/%2f/" EXCHANGE "/contents", "");
}

/* ---- both */

void servers_open(struct bench *b)
{
	b->mysql_host = need("OUTBOXD_TEST_MYSQL_HOST");
	b->mysql_port = (unsigned)atoi(need("OUTBOXD_TEST_MYSQL_PORT"));
	b->mysql_password = getenv("OUTBOXD_TEST_MYSQL_ROOT_PASSWORD");
	b->mysqld = (pid_t)atoi(need("OUTBOXD_TEST_MYSQL_PID"));
	b->amqp_host = need("OUTBOXD_TEST_AMQP_HOST");
	b->amqp_port = (unsigned)atoi(need("OUTBOXD_TEST_AMQP_PORT"));
	b->broker = (pid_t)atoi(need("OUTBOXD_TEST_AMQP_PID"));
	b->api = need("OUTBOXD_TEST_RABBITMQ_API");
	db = db_another(b);
	sql("SET SESSION cte_max_recursion_depth=1000000");
	for (unsigned i = 0; i < SCHEMAS; i++)
		sql("CREATE DATABASE IF NOT EXISTS outboxd_bench%u", i);
	api(b, "PUT", "exchanges/%2f/" EXCHANGE, "{\"type\":\"topic\",\"durable\":true}");
	api(b, "PUT", "queues/%2f/" EXCHANGE, "{\"durable\":true}");
	api(b, "POST", "bindings/%2f/e/" EXCHANGE "/q/" EXCHANGE, "{\"routing_key\":\"#\"}");
	purge_queue(b);
}

void servers_close(const struct bench *b)
{
	for (unsigned i = 0; i < SCHEMAS; i++)
		sql("DROP DATABASE outboxd_bench%u", i);
	mysql_close(db);
	api(b, "DELETE", "queues/%2f/" EXCHANGE, "");
	api(b, "DELETE", "exchanges/%2f/" EXCHANGE, "");
}

double cpu_us(pid_t pid)
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

static int by_value(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

struct spread spread_of(double *us, size_t count)
{
	if (count == 0)
		return (struct spread){ 0 };
	qsort(us, count, sizeof(*us), by_value);
	return (struct spread){ us[count / 2] / 1e3, us[count * 99 / 100] / 1e3 };
}

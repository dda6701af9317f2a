#include "support/db.h"

#include "base/buf.h"

#include <inttypes.h>
#include <mysql.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct db {
	MYSQL *mysql;
	unsigned long flags;
};

static MYSQL *try_connect(unsigned long flags)
{
	const struct env *env = env_get();
	MYSQL *mysql = mysql_init(NULL);
	unsigned timeout = 10;

	if (mysql == NULL)
		FAIL("mysql_init: out of memory");
	mysql_options(mysql, MYSQL_OPT_CONNECT_TIMEOUT, &timeout);
	mysql_options(mysql, MYSQL_SET_CHARSET_NAME, "utf8mb4");
	/* whatever a test makes the defaults of the server */
	mysql_options(mysql, MYSQL_INIT_COMMAND, "SET autocommit=1,sql_mode='STRICT_ALL_TABLES'");
	if (mysql_real_connect(mysql, env->db_host, env->db_user, env->db_password, NULL,
		    env->db_port, NULL, CLIENT_MULTI_STATEMENTS | flags) != NULL)
		return mysql;
	if (mysql_errno(mysql) != 2002 && mysql_errno(mysql) != 2003 &&
		mysql_errno(mysql) != 2013 && mysql_errno(mysql) != 1053)
		fprintf(stderr, "database: %u %s\n", mysql_errno(mysql), mysql_error(mysql));
	mysql_close(mysql);
	return NULL;
}

void db_reopen(struct db *db, int64_t ms)
{
	int64_t until = env_now_us() + ms * US_PER_MS;

	if (db->mysql != NULL)
		mysql_close(db->mysql);
	while ((db->mysql = try_connect(db->flags)) == NULL) {
		if (env_now_us() > until)
			FAIL("no connection to the database within %" PRId64 " ms", ms);
		env_sleep_ms(50);
	}
}

static struct db *open_with(unsigned long flags)
{
	struct db *db = calloc(1, sizeof(*db));

	if (db == NULL)
		FAIL("out of memory");
	db->flags = flags;
	db_reopen(db, 10000);
	return db;
}

struct db *db_open(void)
{
	return open_with(0);
}

struct db *db_open_found_rows(void)
{
	return open_with(CLIENT_FOUND_ROWS);
}

void db_close(struct db *db)
{
	if (db == NULL)
		return;
	if (db->mysql != NULL)
		mysql_close(db->mysql);
	free(db);
}

/* Runs all statements of the text; result sets go to `row`, or away. */
static unsigned run(struct db *db, const char *text, size_t len,
	void (*row)(void *arg, const struct db_row *row), void *arg)
{
	if (db->mysql == NULL)
		return 2006;
	if (mysql_real_query(db->mysql, text, (unsigned long)len) != 0)
		return mysql_errno(db->mysql);
	for (;;) {
		MYSQL_RES *result = mysql_use_result(db->mysql);
		MYSQL_ROW values;
		int next;

		while (result != NULL && (values = mysql_fetch_row(result)) != NULL) {
			struct db_row r = { (const char *const *)values,
				mysql_fetch_lengths(result), mysql_num_fields(result) };

			if (row != NULL)
				row(arg, &r);
		}
		if (result != NULL)
			mysql_free_result(result);
		if (mysql_errno(db->mysql) != 0)
			return mysql_errno(db->mysql);
		next = mysql_next_result(db->mysql);
		if (next < 0)
			return 0;
		if (next > 0)
			return mysql_errno(db->mysql);
	}
}

static char *format(const char *fmt, va_list ap) PRINTF(1, 0);
static char *format(const char *fmt, va_list ap)
{
	char *text = NULL;

	if (vasprintf(&text, fmt, ap) < 0)
		FAIL("out of memory");
	return text;
}

static void must(struct db *db, unsigned code, const char *text)
{
	if (code != 0)
		FAIL("%.300s: %u %s", text, code,
			db->mysql != NULL ? mysql_error(db->mysql) : "not connected");
}

void db_exec(struct db *db, const char *fmt, ...)
{
	va_list ap;
	char *text;

	va_start(ap, fmt);
	text = format(fmt, ap);
	va_end(ap);
	must(db, run(db, text, strlen(text), NULL, NULL), text);
	free(text);
}

unsigned db_try(struct db *db, const char *fmt, ...)
{
	unsigned code;
	va_list ap;
	char *text;

	va_start(ap, fmt);
	text = format(fmt, ap);
	va_end(ap);
	code = run(db, text, strlen(text), NULL, NULL);
	free(text);
	return code;
}

static void first_text(void *arg, const struct db_row *row)
{
	char **out = arg;

	if (*out == NULL && row->value[0] != NULL && (*out = strdup(row->value[0])) == NULL)
		FAIL("out of memory");
}

int64_t db_int(struct db *db, const char *fmt, ...)
{
	char *value = NULL, *text;
	int64_t number = -1;
	va_list ap;

	va_start(ap, fmt);
	text = format(fmt, ap);
	va_end(ap);
	must(db, run(db, text, strlen(text), first_text, &value), text);
	if (value != NULL)
		number = strtoll(value, NULL, 10);
	free(value);
	free(text);
	return number;
}

char *db_text(struct db *db, const char *fmt, ...)
{
	char *value = NULL, *text;
	va_list ap;

	va_start(ap, fmt);
	text = format(fmt, ap);
	va_end(ap);
	must(db, run(db, text, strlen(text), first_text, &value), text);
	free(text);
	return value;
}

void db_rows(struct db *db, void (*row)(void *arg, const struct db_row *row), void *arg,
	const char *fmt, ...)
{
	va_list ap;
	char *text;

	va_start(ap, fmt);
	text = format(fmt, ap);
	va_end(ap);
	must(db, run(db, text, strlen(text), row, arg), text);
	free(text);
}

int64_t db_session(struct db *db, const char *user)
{
	/* information_schema.processlist of MySQL stumbles over statements with emoji in them */
	return db_int(db,
		env_get()->mariadb ? "SELECT IFNULL(MIN(id),0) FROM information_schema.processlist "
				     "WHERE user='%s'"
				   : "SELECT IFNULL(MIN(processlist_id),0) FROM "
				     "performance_schema.threads WHERE "
				     "processlist_user='%s'",
		user);
}

static void replace(struct buf *out, const char *text, const char *from, const char *to)
{
	for (const char *at; (at = strstr(text, from)) != NULL; text = at + strlen(from)) {
		buf_add(out, text, (size_t)(at - text));
		buf_adds(out, to);
	}
	buf_adds(out, text);
}

static char *read_sql(const char *file)
{
	char path[700], *text;

	snprintf(path, sizeof(path), "%s/sql/%s", env_get()->repository, file);
	text = env_read_file(path);
	if (text == NULL)
		FAIL("cannot read %s", path);
	return text;
}

/* sql/grants.sql as it is, for this schema and this account. */
static void grant(struct db *db, const struct schema *s)
{
	char *text = read_sql("grants.sql"), to[60];
	struct buf once = { 0 }, twice = { 0 };

	snprintf(to, sizeof(to), "`%s`", s->name);
	replace(&once, text, "`shop`", to);
	snprintf(to, sizeof(to), "'%s", s->user);
	replace(&twice, once.data, "'outboxd", to);
	must(db, run(db, twice.data, twice.len, NULL, NULL), "sql/grants.sql");
	db_exec(db, "ALTER USER '%s'@'%%' IDENTIFIED BY '%s' ACCOUNT UNLOCK", s->user, s->password);
	buf_fini(&once);
	buf_fini(&twice);
	free(text);
}

void schema_make(struct db *db, struct schema *s, const char *ddl)
{
	char *text = read_sql(ddl);

	env_name(s->name, sizeof(s->name), "it_");
	snprintf(s->user, sizeof(s->user), "%s", s->name);
	env_name(s->password, sizeof(s->password), "Secret!db");
	s->full = strcmp(ddl, "outbox_event.sql") == 0;
	db_exec(db, "CREATE DATABASE %s; USE %s", s->name, s->name);
	must(db, run(db, text, strlen(text), NULL, NULL), ddl);
	db_exec(db, "CREATE TABLE suspect (event_id varchar(64) CHARACTER SET utf8mb4 COLLATE "
		    "utf8mb4_bin PRIMARY KEY)");
	free(text);
	grant(db, s);
}

void schema_drop(struct db *db, struct schema *s)
{
	static const char *const tails[] = { "", "_admin", "_monitor" };

	db_exec(db, "DROP DATABASE %s", s->name);
	for (size_t i = 0; i < ARRAY_LEN(tails); i++)
		db_exec(db, "DROP USER IF EXISTS '%s%s'@'%%'", s->user, tails[i]);
}

/* Payloads with what JSON has: escapes, characters of one to four bytes, nesting, numbers. */
static void add_row(struct buf *b, const struct schema *s, const struct production *p, uint64_t n)
{
	unsigned aggregate = (unsigned)(n % p->aggregates);

	buf_addf(b, "('%s-%" PRIu64 "','order','a%u','%s','{\"n\":%" PRIu64 ",\"note\":\"", s->name,
		n, aggregate,
		p->event_type != NULL ? p->event_type
		: n % 2 == 0          ? "created"
				      : "changed",
		n);
	buf_adds(b, "k\\\\u016f\\\\u0148 \\\\\"q\\\\\" \xc5\xa1 \xe2\x82\xac \xf0\x9f\x90\x87\",");
	buf_addf(b, "\"total\":%" PRIu64 ".25,\"tags\":[true,null,{\"a\":[]}],\"pad\":\"", n * 3);
	for (unsigned i = 0; i < p->padding; i++)
		buf_addc(b, (char)('a' + (n + i) % 26));
	buf_adds(b, "\"}'");
	if (s->full) {
		if (n % 3 == 0)
			buf_addf(b, ",NULL,NULL,NULL");
		else
			buf_addf(b,
				",%" PRIu64 ",'trace-%" PRIu64
				"','{\"tenant\":\"t%u\",\"vip\":%s,\"rank\":%" PRIu64
				",\"rate\":1.5,\"list\":[1,\"two\"],\"more\":{\"k\":\"v\"},"
				"\"none\":null}'",
				n / p->aggregates + 1, n, (unsigned)(n % 7),
				n % 2 == 0 ? "true" : "false", n);
	}
	buf_addc(b, ')');
}

static void make_insert(struct buf *b, const struct schema *s, const struct production *p,
	uint64_t from, uint64_t count)
{
	buf_reset(b);
	buf_addf(b,
		"INSERT IGNORE INTO `%s`.outbox_event "
		"(event_id,aggregate_type,aggregate_id,event_type,payload%s) VALUES ",
		s->name, s->full ? ",aggregate_version,trace_id,headers" : "");
	for (uint64_t n = from; n < from + count; n++) {
		if (n > from)
			buf_addc(b, ',');
		add_row(b, s, p, n);
	}
}

static uint64_t step(const struct production *p, uint64_t done)
{
	uint64_t most = p->transaction > 0 ? p->transaction : 500;

	return p->count - done < most ? p->count - done : most;
}

void db_produce(struct db *db, const struct schema *s, const struct production *p)
{
	struct buf b = { 0 };

	for (uint64_t done = 0, n; done < p->count; done += n) {
		n = step(p, done);
		make_insert(&b, s, p, p->first + done, n);
		must(db, run(db, b.data, b.len, NULL, NULL), "INSERT");
	}
	buf_fini(&b);
}

struct producer {
	struct schema schema;
	struct production p;
	pthread_t thread;
	atomic_bool stop;
	_Atomic uint64_t written;
};

static void *produce(void *arg)
{
	struct producer *p = arg;
	struct buf b = { 0 };
	struct db db = { 0 };
	int64_t start = env_now_us();

	mysql_thread_init();
	for (uint64_t done = 0; done < p->p.count && !atomic_load(&p->stop);) {
		uint64_t n = step(&p->p, done);
		unsigned code;

		if (db.mysql == NULL && (db.mysql = try_connect(db.flags)) == NULL) {
			env_sleep_ms(100);
			continue;
		}
		make_insert(&b, &p->schema, &p->p, p->p.first + done, n);
		code = run(&db, b.data, b.len, NULL, NULL);
		if (code != 0) {
			if (code != 1213 && code != 1205) {
				mysql_close(db.mysql);
				db.mysql = NULL;
			}
			env_sleep_ms(20);
			continue; /* the same events again; those that stand are ignored */
		}
		done += n;
		atomic_store(&p->written, done);
		while (p->p.per_second > 0 && !atomic_load(&p->stop) &&
			(uint64_t)(env_now_us() - start) * p->p.per_second / US_PER_SEC < done)
			env_sleep_ms(5);
	}
	if (db.mysql != NULL)
		mysql_close(db.mysql);
	mysql_thread_end();
	buf_fini(&b);
	return NULL;
}

struct producer *producer_start(const struct schema *s, const struct production *what)
{
	struct producer *p = calloc(1, sizeof(*p));

	if (p == NULL)
		FAIL("out of memory");
	p->schema = *s;
	p->p = *what;
	if (pthread_create(&p->thread, NULL, produce, p) != 0)
		FAIL("no thread");
	return p;
}

uint64_t producer_wait(struct producer *p)
{
	uint64_t written;

	pthread_join(p->thread, NULL);
	written = atomic_load(&p->written);
	free(p);
	return written;
}

uint64_t producer_stop(struct producer *p)
{
	atomic_store(&p->stop, true);
	return producer_wait(p);
}

uint64_t producer_written(const struct producer *p)
{
	return atomic_load(&p->written);
}

/* check.c: `outboxd check` of one source: what a relay would meet, found by trying it without
 * changing anything. */
#include "mysql/purge.h"
#include "mysql/schema.h"
#include "mysql/statements_order.h"
#include "mysql/statements_purge.h"
#include "mysql/values.h"
#include "sys/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* Differences of the clocks do no harm to leases and retries, which know only the database's, but
 * show in time stamps and in the age of events. */
#define SKEW_WARN_US (5 * US_PER_SEC)

struct check {
	const struct source_conf *conf;
	const struct finding_sink *sink;
	struct session *session;
	struct outbox_table table;
	unsigned faults;
	struct buf text;
};

static void report(struct check *c, enum severity severity, const char *where, const char *fix,
	const char *fmt, ...) PRINTF(5, 6);
static void report(struct check *c, enum severity severity, const char *where, const char *fix,
	const char *fmt, ...)
{
	char what[600];
	struct finding f = { severity, where, what, fix };
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	c->faults += severity == SEVERITY_FAULT;
	c->sink->found(c->sink->arg, &f);
}

static void on_finding(void *arg, const struct finding *f)
{
	struct check *c = arg;

	c->faults += f->severity == SEVERITY_FAULT;
	c->sink->found(c->sink->arg, f);
}

static int run(struct check *c, struct reply *r, struct err *e)
{
	int rc;

	if (c->text.failed)
		rc = err_set(e, ERR_NOMEM, errno, "statement");
	else
		rc = session_run(c->session, buf_slice(&c->text), r, e);
	buf_reset(&c->text);
	return rc;
}

/* --- the server ----------------------------------------------------------------------------- */

struct settings {
	struct check *check;
	int64_t now_us;
};

static int row_setting(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	struct settings *s = arg;

	(void)e;
	if (statement == 0) {
		s->now_us = value_time_us(v[0]);
	} else if (count > 1 && !value_is(v[1], "1")) {
		char fix[120];

		snprintf(fix, sizeof(fix), "SET GLOBAL %.*s = 1",
			(int)(v[0].len > 60 ? 60 : v[0].len), v[0].ptr);
		report(s->check, SEVERITY_NOTE, session_address(s->check->session), fix,
			"%.*s is %.*s: after a crash of its machine the server may have forgotten "
			"what was marked SENT, which is then sent again",
			(int)(v[0].len > 60 ? 60 : v[0].len), v[0].ptr,
			(int)(v[1].len > 20 ? 20 : v[1].len), v[1].ptr != NULL ? v[1].ptr : "");
	}
	return 0;
}

static void check_server(struct check *c)
{
	const struct server *server = session_server(c->session);
	const char *where = session_address(c->session);
	struct settings settings = { .check = c };
	struct reply r = { .row = row_setting, .arg = &settings };
	int64_t before_us, after_us, skew_us;
	struct err e;

	if (server->read_only)
		report(c, SEVERITY_FAULT, where,
			"name the primary in hosts, or SET GLOBAL read_only = 0",
			"the server is read-only");
	if (server->log_bin && value_is(slice_str(server->binlog_format), "STATEMENT"))
		report(c, SEVERITY_FAULT, where,
			"SET GLOBAL binlog_format = 'ROW', and in the server's option file",
			"binlog_format is STATEMENT, which refuses READ COMMITTED");
	if (c->conf->database.binlog_row_image == ROW_IMAGE_MINIMAL &&
		session_run_text(c->session, "SET SESSION binlog_row_image='MINIMAL'", &e) < 0)
		report(c, SEVERITY_FAULT, where,
			server->mariadb ? "GRANT BINLOG ADMIN ON *.* TO the account"
					: "GRANT SESSION_VARIABLES_ADMIN ON *.* TO the account",
			"binlog_row_image: minimal: %s", e.text);
	buf_adds(&c->text, "SELECT NOW(6);SHOW GLOBAL VARIABLES WHERE Variable_name IN "
			   "('innodb_flush_log_at_trx_commit','sync_binlog')");
	if (!server->log_bin) {
		buf_reset(&c->text);
		buf_adds(&c->text, "SELECT NOW(6);SHOW GLOBAL VARIABLES LIKE "
				   "'innodb_flush_log_at_trx_commit'");
	}
	before_us = clock_wall_us();
	if (run(c, &r, &e) < 0) {
		report(c, SEVERITY_FAULT, where, "", "%s", e.text);
		return;
	}
	after_us = clock_wall_us();
	skew_us = settings.now_us < before_us  ? settings.now_us - before_us
		  : settings.now_us > after_us ? settings.now_us - after_us
					       : 0;
	if (skew_us > SKEW_WARN_US || skew_us < -SKEW_WARN_US)
		report(c, SEVERITY_WARNING, where, "let both machines synchronise their clocks",
			"the database's clock is %" PRId64 " s %s this machine's",
			(skew_us < 0 ? -skew_us : skew_us) / US_PER_SEC,
			skew_us < 0 ? "behind" : "ahead of");
}

/* --- the account ---------------------------------------------------------------------------- */

static void check_privileges(struct check *c)
{
	static const char *const written[] = { "status", "retry_count", "locked_by", "last_error" };
	char fix[1000];
	struct err e;

	/* matches no row, but is allowed or refused like any other */
	buf_addf(&c->text, "UPDATE %s SET ", c->table.name);
	for (size_t i = 0; i < ARRAY_LEN(written); i++)
		buf_addf(&c->text, "%s`%s`=`%s`", i > 0 ? "," : "", written[i], written[i]);
	for (unsigned i = 0; i < TIME_COLUMNS; i++)
		if (i != TIME_CREATED || c->table.on_update[i])
			buf_addf(&c->text, ",`%s`=`%s`", time_column_name[i], time_column_name[i]);
	buf_adds(&c->text, " WHERE `id` IS NULL");
	if (run(c, NULL, &e) == 0)
		return;
	if (e.code == 1142 || e.code == 1143) {
		snprintf(fix, sizeof(fix),
			"GRANT UPDATE (`status`, `retry_count`, `next_retry_at`, `locked_by`, "
			"`locked_until`, `sent_at`, `last_error`%s) ON %.560s TO the account",
			c->table.on_update[TIME_CREATED] ? ", `created_at`" : "", c->table.name);
		report(c, SEVERITY_FAULT, c->conf->table, fix, "the account %s may not write: %s",
			c->conf->database.username, e.text);
	} else if (!session_server(c->session)->read_only) {
		report(c, SEVERITY_FAULT, c->conf->table, "", "writing fails: %s", e.text);
	}
}

/* --- retention ------------------------------------------------------------------------------ */

static void check_delete(struct check *c)
{
	bool at_once = c->conf->retention.sent_us == 0;
	char fix[800];
	struct err e;

	if (!purger_wanted(c->conf))
		return;
	buf_addf(&c->text, "DELETE o FROM %s AS o WHERE o.`id` IS NULL", c->table.name);
	if (run(c, NULL, &e) == 0 || session_server(c->session)->read_only)
		return;
	snprintf(fix, sizeof(fix),
		"GRANT DELETE ON %.560s TO the account, or retention: { sent: never }",
		c->table.name);
	report(c, at_once ? SEVERITY_FAULT : SEVERITY_WARNING, c->conf->table, fix,
		"%s: the account %s may not delete: %s",
		at_once ? "nothing can be marked as sent" : "rows are never removed",
		c->conf->database.username, e.text);
}

/* One column of the outbox table, and its like in the archive. */
static void check_archive_column(struct check *c, const char *where,
	const struct schema_column *from, const struct schema_column *to)
{
	const char *archive = c->conf->retention.archive_table;
	char fix[700];

	snprintf(fix, sizeof(fix), "ALTER TABLE `%.64s` %s `%.64s` %.200s%s", archive,
		to == NULL ? "ADD" : "MODIFY", from->name, from->full,
		from->nullable ? " NULL" : " NOT NULL");
	if (to == NULL)
		report(c, SEVERITY_FAULT, where, fix, "the column %s is missing", from->name);
	else if (schema_generated(to))
		report(c, SEVERITY_FAULT, where, "make it an ordinary column",
			"the column %s is a generated one, which cannot be written", from->name);
	else if (from->nullable && !to->nullable)
		report(c, SEVERITY_FAULT, where, fix, "the column %s must allow NULL", from->name);
	else if (strcmp(from->full, to->full) != 0 || strcmp(from->charset, to->charset) != 0)
		report(c, SEVERITY_WARNING, where, fix,
			"the column %s is %s %s here and %s %s in the outbox table: what does not "
			"fit is not moved",
			from->name, to->full, to->charset, from->full, from->charset);
}

static void compare_archive(
	struct check *c, const char *where, const struct schema *from, const struct schema *to)
{
	for (size_t i = 0; i < from->column_count; i++)
		if (!schema_generated(&from->columns[i]))
			check_archive_column(c, where, &from->columns[i],
				schema_column(to, from->columns[i].name));
	for (size_t i = 0; i < to->column_count; i++) {
		const struct schema_column *more = &to->columns[i];

		if (schema_column(from, more->name) == NULL && !more->has_default &&
			!schema_generated(more) &&
			strcasestr(more->extra, "auto_increment") == NULL)
			report(c, SEVERITY_FAULT, where, "give it a default",
				"the column %s, which the outbox table does not have, has no "
				"default",
				more->name);
	}
}

static void check_insert(struct check *c, const char *where, const struct schema *from)
{
	const struct source_conf *conf = c->conf;
	struct buf columns = { 0 };
	char archive[600], fix[800];
	struct err e;

	schema_add_columns(from, &columns);
	if (!sql_table_name(
		    archive, sizeof(archive), conf->database.name, conf->retention.archive_table) ||
		columns.failed) {
		buf_fini(&columns);
		return;
	}
	buf_addf(&c->text, "INSERT INTO %s (%s) SELECT %s FROM %s WHERE `id` IS NULL", archive,
		columns.data, columns.data, c->table.name);
	buf_fini(&columns);
	if (run(c, NULL, &e) == 0 || session_server(c->session)->read_only)
		return;
	snprintf(fix, sizeof(fix), "GRANT INSERT ON %.560s TO the account", archive);
	report(c, SEVERITY_FAULT, where, e.code == 1142 || e.code == 1143 ? fix : "",
		"the account %s cannot move rows there: %s", conf->database.username, e.text);
}

static void check_archive(struct check *c)
{
	const struct source_conf *conf = c->conf;
	const char *archive = conf->retention.archive_table;
	struct schema from = { 0 }, to = { 0 };
	unsigned before = c->faults;
	char where[160];
	struct err e;

	if (archive == NULL)
		return;
	snprintf(where, sizeof(where), "%.70s.%.70s", conf->database.name, archive);
	session_begin(c->session);
	if (schema_read(c->session, conf->database.name, conf->table, &from, &e) < 0 ||
		schema_read(c->session, conf->database.name, archive, &to, &e) < 0) {
		report(c, SEVERITY_FAULT, where, "", "%s", e.text);
	} else if (to.kind[0] == '\0') {
		char fix[300];

		snprintf(fix, sizeof(fix),
			"create it with what `outboxd schema --archive` prints, or CREATE TABLE "
			"`%.64s` LIKE `%.64s`; GRANT INSERT on it",
			archive, conf->table);
		report(c, SEVERITY_FAULT, where, fix,
			"the archive table does not exist, or the account has no privilege on it");
	} else if (strcmp(to.kind, "BASE TABLE") != 0 || strcasecmp(to.engine, "InnoDB") != 0) {
		report(c, SEVERITY_FAULT, where, "make it an InnoDB table",
			"it is a %s of engine %s: moving a row would not be one transaction",
			to.kind, to.engine);
	} else {
		compare_archive(c, where, &from, &to);
		if (c->faults == before)
			check_insert(c, where, &from);
	}
	schema_fini(&from);
	schema_fini(&to);
}

/* --- plans ---------------------------------------------------------------------------------- */

struct plan {
	char text[300];
	bool scan, sort;
};

static int row_plan(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	struct plan *p = arg;

	(void)statement, (void)e;
	for (unsigned i = 0; i < count; i++) {
		struct slice value = v[i].ptr != NULL ? v[i] : SLICE_LIT("-");
		size_t n = strlen(p->text);

		p->scan |= value_is(value, "ALL");
		p->sort |= memmem(value.ptr, value.len, "filesort", 8) != NULL ||
			   memmem(value.ptr, value.len, "temporary", 9) != NULL;
		snprintf(p->text + n, sizeof(p->text) - n, "%s%.*s", n > 0 ? " " : "",
			(int)(value.len > 100 ? 100 : value.len), value.ptr);
	}
	return 0;
}

static void check_plan(struct check *c, const char *name, struct buf *statement)
{
	struct plan plan = { 0 };
	struct reply r = { .row = row_plan, .arg = &plan };
	struct err e;

	/* newer servers answer with a tree unless asked otherwise, MariaDB knows no other */
	buf_adds(&c->text,
		session_server(c->session)->mariadb ? "EXPLAIN " : "EXPLAIN FORMAT=TRADITIONAL ");
	buf_add_slice(&c->text, buf_slice(statement));
	c->text.failed |= statement->failed;
	buf_reset(statement);
	if (run(c, &r, &e) < 0)
		report(c, SEVERITY_FAULT, c->conf->table, "", "the statement for %s: %s", name,
			e.text);
	else if (plan.scan || plan.sort)
		report(c, SEVERITY_FAULT, c->conf->table,
			"compare the table's indexes with what `outboxd schema --outbox` prints; "
			"ANALYZE TABLE",
			"the statement for %s %s: %s", name,
			plan.scan ? "reads the whole table" : "sorts", plan.text);
}

static void check_plans(struct check *c)
{
	static const char *const names[ROW_CLASSES] = {
		[ROW_FRESH] = "new events",
		[ROW_DUE] = "held events",
		[ROW_RETRY] = "retries",
		[ROW_EXPIRED] = "expired leases",
	};
	const char *isolation = session_server(c->session)->isolation;
	struct buf text = { 0 };

	for (unsigned class = 0; class < ROW_CLASSES; class ++) {
		sql_claim_select(&text, &c->table, "'check'", class, c->conf->batch, NULL);
		check_plan(c, names[class], &text);
	}
	sql_look(&text, &c->table, "'check'", isolation, NULL, true);
	check_plan(c, "the idle poll", &text);
	if (c->conf->ordering == ORDERING_AGGREGATE) {
		sql_before(&text, &c->table, "'check'", SLICE_LIT("a"), SLICE_LIT("b"),
			clock_wall_us(), 1, 1);
		check_plan(c, "the order of an aggregate", &text);
	}
	sql_purge_read(&text, &c->table, PURGE_SENT, US_PER_SEC, &(struct purge_cursor){ 0 },
		c->conf->retention.batch);
	check_plan(c, "retention", &text);
	sql_purge_read(&text, &c->table, PURGE_SENT, US_PER_SEC,
		&(struct purge_cursor){ "2026-01-01 00:00:00", 1 }, c->conf->retention.batch);
	check_plan(c, "the rest of retention", &text);
	buf_fini(&text);
}

/* --- all ------------------------------------------------------------------------------------ */

static int examine(struct check *c, const char *const *extra, size_t extra_count, struct err *e)
{
	const struct schema_wish wish = { extra, extra_count,
		c->conf->ordering == ORDERING_AGGREGATE, NULL };
	const struct finding_sink sink = { on_finding, c };
	unsigned before;
	struct schema schema;

	if (session_open(c->session, e) < 0)
		return -1;
	session_begin(c->session);
	check_server(c);
	if (!session_is_open(c->session))
		return err_set(e, ERR_LINK, 0, "the connection broke");
	if (schema_read(c->session, c->conf->database.name, c->conf->table, &schema, e) < 0)
		return -1;
	before = c->faults;
	schema_judge(&schema, &wish, &sink, &c->table);
	schema_fini(&schema);
	if (c->faults > before)
		return 0; /* its statements would only fail for the same reasons */
	check_privileges(c);
	if (session_is_open(c->session))
		check_delete(c);
	if (session_is_open(c->session))
		check_archive(c);
	if (session_is_open(c->session))
		check_plans(c);
	return 0;
}

int mysql_check(const struct source_conf *conf, const char *const *extra, size_t extra_count,
	const struct finding_sink *sink, struct err *e)
{
	const struct session_options options = {
		.wait_timeout_s = 60, .examine = true, .program = "outboxd check"
	};
	struct check c = { .conf = conf, .sink = sink };
	int rc = session_new(&c.session, &conf->database, &options, NULL, e);

	if (rc == 0)
		rc = examine(&c, extra, extra_count, e);
	if (rc < 0)
		report(&c, SEVERITY_FAULT, conf->database.name, "", "%s", e->text);
	session_free(c.session);
	buf_fini(&c.text);
	return rc;
}

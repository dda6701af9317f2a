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

/* The longest statements of a relay: 500 rows that failed, each with its reason. */
#define PACKET_FLOOR (1024U * 1024)

struct check {
	const struct source_conf *conf;
	const struct finding_sink *sink;
	struct session *session;
	struct outbox_table table;
	unsigned faults;
	char account[220]; /* 'relay'@'%', as the server found it */
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
	uint64_t max_packet;
};

/* "relay@%" as it is written in a GRANT. */
static void quote_account(char *out, size_t size, struct slice v)
{
	const char *at = v.ptr != NULL ? memrchr(v.ptr, '@', v.len) : NULL;

	if (at == NULL)
		snprintf(out, size, "the account");
	else
		snprintf(out, size, "'%.*s'@'%.*s'", (int)(at - v.ptr), v.ptr,
			(int)(v.ptr + v.len - at - 1), at + 1);
}

static int row_setting(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	struct settings *s = arg;

	(void)e;
	if (statement == 0) {
		s->now_us = value_time_us(v[0]);
		quote_account(s->check->account, sizeof(s->check->account), v[1]);
		if (!value_id(v[2], &s->max_packet))
			s->max_packet = UINT64_MAX;
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

static void check_packet(struct check *c, uint64_t max_packet)
{
	uint64_t largest = c->conf->broker->max_message_size;
	char fix[120];

	if (max_packet < PACKET_FLOOR) {
		snprintf(fix, sizeof(fix),
			"SET GLOBAL max_allowed_packet = %u, and in the option "
			"file",
			16 * PACKET_FLOOR);
		report(c, SEVERITY_FAULT, session_address(c->session), fix,
			"max_allowed_packet is %" PRIu64 " bytes: the relay's statements take up "
			"to %u",
			max_packet, PACKET_FLOOR);
	} else if (max_packet < largest && !session_server(c->session)->mariadb) {
		/* a text comes whole, whatever the limit, and MariaDB's JSON is text */
		snprintf(fix, sizeof(fix),
			"SET GLOBAL max_allowed_packet = %" PRIu64 ", or lower max_message_size",
			(largest + PACKET_FLOOR - 1) / PACKET_FLOOR * PACKET_FLOOR);
		report(c, SEVERITY_WARNING, session_address(c->session), fix,
			"max_allowed_packet is %" PRIu64
			" bytes, less than max_message_size, %" PRIu64
			": the server does not hand out a JSON payload between them, and its event "
			"ends DEAD as TOO_LARGE",
			max_packet, largest);
	}
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
	buf_adds(&c->text, "SELECT NOW(6),CURRENT_USER(),@@max_allowed_packet;SHOW GLOBAL "
			   "VARIABLES WHERE Variable_name IN "
			   "('innodb_flush_log_at_trx_commit','sync_binlog')");
	if (!server->log_bin) {
		buf_reset(&c->text);
		buf_adds(&c->text, "SELECT NOW(6),CURRENT_USER(),@@max_allowed_packet;SHOW GLOBAL "
				   "VARIABLES LIKE "
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
	check_packet(c, settings.max_packet);
	if (skew_us > SKEW_WARN_US || skew_us < -SKEW_WARN_US)
		report(c, SEVERITY_WARNING, where, "let both machines synchronise their clocks",
			"the database's clock is %" PRId64 " s %s this machine's",
			(skew_us < 0 ? -skew_us : skew_us) / US_PER_SEC,
			skew_us < 0 ? "behind" : "ahead of");
}

/* --- the account ---------------------------------------------------------------------------- */

static bool is_denied(const struct err *e)
{
	return e->code == 1142 || e->code == 1143;
}

static void report_unreadable(struct check *c, const char *column, const struct err *e)
{
	char where[200], fix[1000];

	snprintf(where, sizeof(where), "%.60s.%.60s%s%.60s", c->conf->database.name, c->conf->table,
		column != NULL ? "." : "", column != NULL ? column : "");
	snprintf(fix, sizeof(fix), "GRANT SELECT ON `%.64s`.`%.64s` TO %s", c->conf->database.name,
		c->conf->table, c->account);
	report(c, SEVERITY_FAULT, where, fix, "the account may not read it: %s", e->text);
}

/* True, and reported, if the account may not read the table or a column. What it may not see at all
 * is missing in the information schema, as if it were not there. */
static bool check_hidden(
	struct check *c, const struct schema *schema, const struct schema_wish *wish)
{
	static const char *const needed[] = { "id", "event_id", "aggregate_type", "aggregate_id",
		"event_type", "payload", "status", "retry_count", "next_retry_at", "locked_by",
		"locked_until", "created_at", "sent_at", "last_error" };
	unsigned before = c->faults;
	size_t count = schema->kind[0] != '\0' ? ARRAY_LEN(needed) + wish->extra_count : 1;
	struct err e;

	for (size_t i = 0; i < count && session_is_open(c->session); i++) {
		const char *column =
			i < ARRAY_LEN(needed) ? needed[i] : wish->extra[i - ARRAY_LEN(needed)];

		buf_adds(&c->text, "SELECT ");
		if (schema->kind[0] != '\0')
			sql_add_name(&c->text, column);
		else
			buf_addc(&c->text, '1');
		buf_adds(&c->text, " FROM ");
		sql_add_name(&c->text, c->conf->database.name);
		buf_addc(&c->text, '.');
		sql_add_name(&c->text, c->conf->table);
		buf_adds(&c->text, " LIMIT 0");
		if (run(c, NULL, &e) < 0 && is_denied(&e))
			report_unreadable(c, schema->kind[0] != '\0' ? column : NULL, &e);
	}
	return c->faults > before;
}

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
	if (is_denied(&e)) {
		snprintf(fix, sizeof(fix),
			"GRANT UPDATE (`status`, `retry_count`, `next_retry_at`, `locked_by`, "
			"`locked_until`, `sent_at`, `last_error`%s) ON %.560s TO %s",
			c->table.on_update[TIME_CREATED] ? ", `created_at`" : "", c->table.name,
			c->account);
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
	char fix[1000];
	struct err e;

	if (!purger_wanted(c->conf))
		return;
	buf_addf(&c->text, "DELETE o FROM %s AS o WHERE o.`id` IS NULL", c->table.name);
	if (run(c, NULL, &e) == 0 || session_server(c->session)->read_only)
		return;
	snprintf(fix, sizeof(fix), "GRANT DELETE ON %.560s TO %s, or retention: { sent: never }",
		c->table.name, c->account);
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
		const struct schema_column *more = &to->columns[i],
					   *own = schema_column(from, more->name);

		/* nor is what the outbox table generates written there */
		if ((own == NULL || schema_generated(own)) && !more->has_default &&
			!schema_generated(more) &&
			strcasestr(more->extra, "auto_increment") == NULL)
			report(c, SEVERITY_FAULT, where, "give it a default",
				"the column %s, which the outbox table %s, has no default",
				more->name, own == NULL ? "does not have" : "generates");
	}
}

/* What SHOW CREATE TABLE says: MariaDB's information schema keeps the CHECKs from all accounts that
 * have privileges on tables only. */
struct create_texts {
	struct buf archive, outbox;
};

static int row_create(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	struct create_texts *t = arg;

	(void)e;
	if (count > 1)
		buf_add_slice(statement == 0 ? &t->archive : &t->outbox, v[1]);
	return 0;
}

/* The last CHECK (...) that a line ends with; empty: there is none. */
static struct slice rule_of(struct slice line)
{
	static const char start[] = " CHECK (";
	struct slice rule = { 0 };
	const char *at = line.ptr, *end;

	if (line.len > 0 && line.ptr[line.len - 1] == ',')
		line.len--;
	end = line.ptr + line.len;
	if (line.len == 0 || end[-1] != ')')
		return rule; /* NOT ENFORCED, for one */
	while ((at = memmem(at, (size_t)(end - at), start, sizeof(start) - 1)) != NULL) {
		at++;
		rule = (struct slice){ at, (size_t)(end - at) };
	}
	return rule;
}

static void report_rule(struct check *c, const char *where, const struct schema *from,
	const struct schema *to, struct slice line, struct slice rule)
{
	bool constraint = slice_starts(line, "  CONSTRAINT `");
	const char *at = memchr(line.ptr, '`', line.len);
	const struct schema_column *own;
	char name[80], fix[700];

	if (at == NULL)
		return;
	snprintf(name, sizeof(name), "%.*s", (int)strcspn(at + 1, "`\n"), at + 1);
	if (constraint) {
		snprintf(fix, sizeof(fix), "ALTER TABLE `%.64s` DROP CONSTRAINT `%s`", to->table,
			name);
		report(c, SEVERITY_WARNING, where, fix,
			"the constraint %s is not the outbox table's: what breaks %.*s is not "
			"moved",
			name, (int)(rule.len > 300 ? 300 : rule.len), rule.ptr);
		return;
	}
	own = schema_column(from, name);
	if (own == NULL)
		return; /* it is left at its default */
	snprintf(fix, sizeof(fix), "ALTER TABLE `%.64s` MODIFY `%.64s` %.200s%s", to->table, name,
		own->full, own->nullable ? " NULL" : " NOT NULL");
	report(c, SEVERITY_WARNING, where, fix,
		slice_starts(rule, "CHECK (json_valid(")
			? "the column %s is JSON here and not in the outbox table: what breaks "
			  "%.*s is not moved"
			: "the column %s has a rule that is not the outbox table's: what breaks "
			  "%.*s is not moved",
		name, (int)(rule.len > 300 ? 300 : rule.len), rule.ptr);
}

/* What the archive refuses by a CHECK that the outbox table takes. */
static void compare_rules(
	struct check *c, const char *where, const struct schema *from, const struct schema *to)
{
	struct create_texts t = { 0 };
	struct reply r = { .row = row_create, .arg = &t };
	struct slice rest = { 0 }, line, rule;
	struct err e;

	buf_adds(&c->text, "SHOW CREATE TABLE ");
	sql_add_name(&c->text, c->conf->database.name);
	buf_addc(&c->text, '.');
	sql_add_name(&c->text, c->conf->retention.archive_table);
	buf_addf(&c->text, ";SHOW CREATE TABLE %s", c->table.name);
	if (run(c, &r, &e) < 0)
		report(c, SEVERITY_WARNING, where, "", "its CHECKs cannot be read: %s", e.text);
	else if (t.archive.failed || t.outbox.failed)
		report(c, SEVERITY_WARNING, where, "", "its CHECKs cannot be read: no memory");
	else
		rest = buf_slice(&t.archive);
	while (rest.len > 0) {
		const char *end = memchr(rest.ptr, '\n', rest.len);

		line = (struct slice){ rest.ptr,
			end != NULL ? (size_t)(end - rest.ptr) : rest.len };
		rest.ptr += line.len + (end != NULL);
		rest.len -= line.len + (end != NULL);
		rule = rule_of(line);
		if (rule.len > 0 && (t.outbox.len == 0 || memmem(t.outbox.data, t.outbox.len,
								  rule.ptr, rule.len) == NULL))
			report_rule(c, where, from, to, line, rule);
	}
	buf_fini(&t.archive);
	buf_fini(&t.outbox);
}

static void check_insert(struct check *c, const char *where, const struct schema *from)
{
	const struct source_conf *conf = c->conf;
	struct buf columns = { 0 };
	char archive[600], fix[1000];
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
	snprintf(fix, sizeof(fix), "GRANT INSERT ON %.560s TO %s", archive, c->account);
	report(c, SEVERITY_FAULT, where, is_denied(&e) ? fix : "",
		"the account %s cannot move rows there: %s", conf->database.username, e.text);
}

static void no_finding(void *arg, const struct finding *f)
{
	(void)arg, (void)f;
}

static void check_replay(struct check *c, const char *where, const struct schema *archive)
{
	const struct schema_wish wish = { 0 };
	const struct finding_sink sink = { no_finding, NULL };
	struct outbox_table table;
	char fix[400];

	schema_judge(archive, &wish, &sink, &table);
	snprintf(fix, sizeof(fix),
		"CREATE INDEX `idx_outbox_archive_replay` ON `%.64s`.`%.64s` (`status`, "
		"`next_retry_at`, `created_at`)",
		archive->database, archive->table);
	if (table.claim_index[0] == '\0')
		report(c, SEVERITY_NOTE, where, fix,
			"there is no index on (status, next_retry_at, created_at), which `outboxd "
			"replay --archive` reads");
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
		compare_rules(c, where, &from, &to);
		if (c->faults == before)
			check_insert(c, where, &from);
		check_replay(c, where, &to);
	}
	schema_fini(&from);
	schema_fini(&to);
}

/* --- triggers and foreign keys ---------------------------------------------------------------- */

static int row_trigger(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	struct check *c = arg;
	bool insert = value_is(v[2], "INSERT");

	(void)statement, (void)count, (void)e;
	report(c, SEVERITY_WARNING, insert ? c->conf->retention.archive_table : c->conf->table,
		"take it off the table, or make sure that it neither fails nor waits nor changes "
		"what the relay writes",
		"the trigger %.*s runs %.*s %.*s: with each %s",
		(int)(v[0].len > 64 ? 64 : v[0].len), v[0].ptr,
		(int)(v[1].len > 10 ? 10 : v[1].len), v[1].ptr,
		(int)(v[2].len > 10 ? 10 : v[2].len), v[2].ptr,
		insert                     ? "row that retention moves"
		: value_is(v[2], "DELETE") ? "row that retention removes"
					   : "claim and each settlement");
	return 0;
}

/* Shown to accounts with the privilege TRIGGER only. */
static void check_triggers(struct check *c)
{
	const char *archive = c->conf->retention.archive_table;
	struct reply r = { .row = row_trigger, .arg = c };
	struct err e;

	buf_adds(&c->text, "SELECT TRIGGER_NAME,LOWER(ACTION_TIMING),EVENT_MANIPULATION FROM "
			   "information_schema.TRIGGERS WHERE EVENT_OBJECT_SCHEMA=");
	sql_add_string(&c->text, slice_str(c->conf->database.name));
	buf_adds(&c->text, " AND (EVENT_OBJECT_TABLE=");
	sql_add_string(&c->text, slice_str(c->conf->table));
	buf_addf(&c->text, " AND EVENT_MANIPULATION IN ('UPDATE'%s)",
		purger_wanted(c->conf) ? ",'DELETE'" : "");
	if (purger_wanted(c->conf) && archive != NULL) {
		buf_adds(&c->text, " OR EVENT_MANIPULATION='INSERT' AND EVENT_OBJECT_TABLE=");
		sql_add_string(&c->text, slice_str(archive));
	}
	buf_addc(&c->text, ')');
	if (run(c, &r, &e) < 0)
		report(c, SEVERITY_FAULT, c->conf->table, "", "triggers: %s", e.text);
}

static int row_foreign_key(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	struct check *c = arg;
	char name[80], table[140], fix[500];

	(void)statement, (void)count, (void)e;
	snprintf(name, sizeof(name), "%.*s", (int)(v[2].len > 64 ? 64 : v[2].len), v[2].ptr);
	snprintf(table, sizeof(table), "%.*s.%.*s", (int)(v[0].len > 64 ? 64 : v[0].len), v[0].ptr,
		(int)(v[1].len > 64 ? 64 : v[1].len), v[1].ptr);
	snprintf(fix, sizeof(fix), "ALTER TABLE `%.*s`.`%.*s` DROP FOREIGN KEY `%s`",
		(int)(v[0].len > 64 ? 64 : v[0].len), v[0].ptr,
		(int)(v[1].len > 64 ? 64 : v[1].len), v[1].ptr, name);
	if (value_is(v[3], "CASCADE") || value_is(v[3], "SET NULL"))
		report(c, SEVERITY_WARNING, c->conf->table, fix,
			"the foreign key %s of %s is ON DELETE %.*s: retention changes that table "
			"too",
			name, table, (int)v[3].len, v[3].ptr);
	else
		report(c, SEVERITY_WARNING, c->conf->table, fix,
			"the foreign key %s of %s keeps rows from being deleted%s: %s", name, table,
			v[3].ptr == NULL ? ", unless it is ON DELETE CASCADE or SET NULL" : "",
			c->conf->retention.sent_us == 0
				? "with sent: 0s such an event is never done with"
				: "those stay");
	return 0;
}

/* Shown to accounts with a privilege on the table that refers only; what becomes of its rows
 * MariaDB shows to those with one on the schema. */
static void check_foreign_keys(struct check *c)
{
	struct reply r = { .row = row_foreign_key, .arg = c };
	struct err e;

	if (!purger_wanted(c->conf))
		return;
	buf_adds(&c->text,
		"SELECT k.TABLE_SCHEMA,k.TABLE_NAME,k.CONSTRAINT_NAME,r.DELETE_RULE FROM "
		"information_schema.KEY_COLUMN_USAGE k LEFT JOIN "
		"information_schema.REFERENTIAL_CONSTRAINTS r ON "
		"r.CONSTRAINT_SCHEMA=k.CONSTRAINT_SCHEMA AND r.CONSTRAINT_NAME=k.CONSTRAINT_NAME "
		"AND r.TABLE_NAME=k.TABLE_NAME WHERE k.ORDINAL_POSITION=1 AND "
		"k.REFERENCED_TABLE_SCHEMA=");
	sql_add_string(&c->text, slice_str(c->conf->database.name));
	buf_adds(&c->text, " AND k.REFERENCED_TABLE_NAME=");
	sql_add_string(&c->text, slice_str(c->conf->table));
	if (run(c, &r, &e) < 0)
		report(c, SEVERITY_FAULT, c->conf->table, "", "foreign keys: %s", e.text);
}

/* --- plans ---------------------------------------------------------------------------------- */

static int row_plan(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	(void)statement, (void)e;
	plan_add(arg, v, count);
	return 0;
}

static void check_plan(struct check *c, const char *name, struct buf *statement)
{
	struct query_plan plan = { 0 };
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
		sql_claim_select(&text, &c->table, "'check'", class, c->conf->batch, 0);
		sql_lock_rows(&text, false);
		check_plan(c, names[class], &text);
	}
	sql_look(&text, &c->table, "'check'", isolation, NULL, true);
	check_plan(c, "the idle poll", &text);
	if (c->conf->ordering == ORDERING_AGGREGATE) {
		sql_before(&text, &c->table, "'check'", SLICE_LIT("a"), SLICE_LIT("b"),
			(struct place){ clock_wall_us(), 1 }, 1);
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

/* --- connecting ----------------------------------------------------------------------------- */

/* What to do about a connection that could not be made. */
static const char *mend_connection(const struct err *e)
{
	static const struct {
		long code;
		const char *fix;
	} known[] = {
		{ 1044, "GRANT the account what `outboxd schema --grants` prints" },
		{ 1045, "correct username and password, or ALTER USER ... IDENTIFIED BY "
			"'...'" },
		{ 1049, "correct database.name" },
		{ 1129, "FLUSH HOSTS, or TRUNCATE TABLE performance_schema.host_cache" },
		{ 1130, "CREATE USER for this machine's address: the account allows others "
			"only" },
		{ 1040, "raise max_connections" },
		{ 1203, "raise the account's MAX_USER_CONNECTIONS" },
		{ 1226, "raise the account's resource limits" },
		{ 1820, "ALTER USER ... IDENTIFIED BY '...': the password has expired" },
		{ 1862, "ALTER USER ... IDENTIFIED BY '...': the password has expired" },
		{ 3118, "ALTER USER ... ACCOUNT UNLOCK" },
		{ 4151, "ALTER USER ... ACCOUNT UNLOCK" },
		{ 3159, "set database.tls.mode to verify_identity: the server wants TLS" },
	};

	for (size_t i = 0; i < ARRAY_LEN(known); i++)
		if (known[i].code == e->code)
			return known[i].fix;
	if (e->code == 2026 || strcasestr(e->text, "tls") != NULL ||
		strcasestr(e->text, "certificate") != NULL)
		return "name the authority that signed the server's certificate in "
		       "database.tls.ca_file, and the host as the certificate has it";
	if (e->code >= 2001 && e->code <= 2005)
		return "start the server, or correct the host and port in database";
	return "";
}

/* --- rows ------------------------------------------------------------------------------------ */

/* The longest lease that can be configured, and slack. */
#define LEASE_ABSURD_HOURS 2

static int row_count(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	(void)statement, (void)count, (void)e;
	*(int64_t *)arg = value_int(v[0], 0);
	return 0;
}

/* No relay writes a lease like that, and none takes such a row over before its end. */
static void check_leases(struct check *c)
{
	int64_t rows = 0;
	struct reply r = { .row = row_count, .arg = &rows };
	char fix[700];
	struct err e;

	buf_addf(&c->text,
		"SELECT COUNT(*) FROM %s WHERE `status`='PROCESSING' AND "
		"`locked_until`>NOW(6)+INTERVAL %d HOUR",
		c->table.name, LEASE_ABSURD_HOURS);
	if (run(c, &r, &e) < 0 || rows == 0)
		return;
	snprintf(fix, sizeof(fix),
		"UPDATE %.560s SET locked_until=NULL WHERE status='PROCESSING' AND "
		"locked_until>NOW()+INTERVAL %d HOUR",
		c->table.name, LEASE_ABSURD_HOURS);
	report(c, SEVERITY_WARNING, c->conf->table, fix,
		"%" PRId64
		" rows are held by leases longer than any relay takes, and stay where they "
		"are until those end",
		rows);
}

/* --- all ------------------------------------------------------------------------------------ */

static int examine(struct check *c, const char *const *extra, size_t extra_count, struct err *e)
{
	const struct schema_wish wish = { extra, extra_count,
		c->conf->ordering == ORDERING_AGGREGATE, NULL };
	const struct finding_sink sink = { on_finding, c };
	unsigned before;
	struct schema schema;

	if (session_open(c->session, e) < 0) {
		report(c, SEVERITY_FAULT, c->conf->database.name, mend_connection(e), "%s",
			e->text);
		return -1;
	}
	session_begin(c->session);
	check_server(c);
	if (!session_is_open(c->session))
		return err_set(e, ERR_LINK, 0, "the connection broke");
	if (schema_read(c->session, c->conf->database.name, c->conf->table, &schema, e) < 0)
		return -1;
	before = c->faults;
	if (!check_hidden(c, &schema, &wish))
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
		check_triggers(c);
	if (session_is_open(c->session))
		check_foreign_keys(c);
	if (session_is_open(c->session))
		check_plans(c);
	if (session_is_open(c->session))
		check_leases(c);
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
	if (rc < 0 && c.faults == 0)
		report(&c, SEVERITY_FAULT, conf->database.name, "", "%s", e->text);
	session_free(c.session);
	buf_fini(&c.text);
	return rc;
}

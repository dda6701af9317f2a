/* `outboxd check` over deployments that are broken, each in one way: it has to name the fault,
 * where it is, and the statement or setting that mends it; where that is a statement, it is carried
 * out, and the fault has to be gone. And over one that is well, to which it has nothing to say. */
#include "support/command.h"
#include "support/fake_broker.h"
#include "support/proxy.h"
#include "support/rig.h"

#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct deployment {
	const char *what_is_wrong;
	/* As administrator, in the schema; $S is its name, $U the relay's account. */
	const char *breaks, *undo;
	/* In the configuration: the first `from` becomes `to`. $CA, $OTHER, $DEAD (a port where
	 * nobody listens), $HTTP (one where a web server does), $SILENT (one that never answers),
	 * $DIR. */
	const char *from, *to;
	const char *exposes; /* a file open to every user: "config", or a secret's name */
	const char *probe;
	const char *severity; /* NULL: the file itself is refused, exit status 2 */
	const char *where, *what, *fix;
	enum { BY_HAND, BY_STATEMENT } mends;
	enum { ANY, MYSQL, MARIADB } only;
};

#define TABLE "$S.outbox_event"
#define DB_PORT "    database:\n"

static const struct deployment deployments[] = {
	/* --- the table */
	{ "there is no table", "DROP TABLE outbox_event", .severity = "fault", .where = TABLE,
		.what = "does not exist", .fix = "outboxd schema --outbox" },
	{ "a view instead of a table",
		"RENAME TABLE outbox_event TO real_table; CREATE VIEW outbox_event AS SELECT * "
		"FROM "
		"real_table",
		"DROP VIEW outbox_event; DROP TABLE real_table", .severity = "fault",
		.where = TABLE, .what = "it is a VIEW", .fix = "name the table itself" },
	{ "an engine without transactions", "ALTER TABLE outbox_event ENGINE=MyISAM",
		.severity = "fault", .where = TABLE, .what = "its engine is MyISAM",
		.fix = "ENGINE=InnoDB", .mends = BY_STATEMENT },
	{ "a missing column", "ALTER TABLE outbox_event DROP COLUMN last_error",
		.severity = "fault", .where = TABLE ".last_error", .what = "column is missing",
		.fix = "ADD `last_error`", .mends = BY_STATEMENT },
	{ "a missing column of time", "ALTER TABLE outbox_event DROP COLUMN locked_until",
		.severity = "fault", .where = TABLE ".locked_until", .what = "column is missing",
		.fix = "ADD `locked_until`", .mends = BY_STATEMENT },
	{ "a count that is text", "ALTER TABLE outbox_event MODIFY retry_count VARCHAR(10)",
		.severity = "fault", .where = TABLE ".retry_count", .what = "not an integer",
		.fix = "MODIFY `retry_count` INT", .mends = BY_STATEMENT },
	{ "a time that is a number",
		"ALTER TABLE outbox_event MODIFY sent_at BIGINT NULL DEFAULT NULL",
		.severity = "fault", .where = TABLE ".sent_at",
		.what = "neither TIMESTAMP nor DATETIME", .fix = "MODIFY `sent_at` TIMESTAMP(6)",
		.mends = BY_STATEMENT },
	{ "an ENUM without RETRY",
		"ALTER TABLE outbox_event MODIFY status ENUM('PENDING','PROCESSING','SENT','DEAD') "
		"NOT NULL DEFAULT 'PENDING'",
		.severity = "fault", .where = TABLE ".status", .what = "lacks the state RETRY",
		.fix = "MODIFY `status` VARCHAR(32)", .mends = BY_STATEMENT },
	{ "a status too short for its words",
		"ALTER TABLE outbox_event MODIFY status VARCHAR(8) NOT NULL DEFAULT 'PENDING'",
		.severity = "fault", .where = TABLE ".status", .what = "too few for PROCESSING",
		.fix = "MODIFY `status`", .mends = BY_STATEMENT },
	{ "a next_retry_at that must not be NULL",
		"ALTER TABLE outbox_event MODIFY next_retry_at TIMESTAMP(6) NOT NULL DEFAULT "
		"'2026-01-01'",
		.severity = "fault", .where = TABLE ".next_retry_at", .what = "must allow NULL",
		.fix = "MODIFY `next_retry_at`", .mends = BY_STATEMENT },
	{ "a locked_by that must not be NULL",
		"ALTER TABLE outbox_event MODIFY locked_by VARCHAR(128) NOT NULL DEFAULT ''",
		.severity = "fault", .where = TABLE ".locked_by", .what = "must allow NULL",
		.fix = "MODIFY `locked_by`", .mends = BY_STATEMENT },
	{ "a locked_by too short for an owner",
		"ALTER TABLE outbox_event MODIFY locked_by VARCHAR(20) NULL DEFAULT NULL",
		.severity = "warning", .where = TABLE ".locked_by", .what = "too few",
		.fix = "MODIFY `locked_by`", .mends = BY_STATEMENT },
	{ "a last_error too short for a reason",
		"ALTER TABLE outbox_event MODIFY last_error VARCHAR(30) NULL DEFAULT NULL",
		.severity = "fault", .where = TABLE ".last_error", .what = "too few",
		.fix = "MODIFY `last_error`", .mends = BY_STATEMENT },
	{ "a generated column where the relay writes",
		"ALTER TABLE outbox_event DROP COLUMN sent_at, ADD sent_at TIMESTAMP(6) GENERATED "
		"ALWAYS AS (next_retry_at) VIRTUAL",
		.severity = "fault", .where = TABLE ".sent_at", .what = "generated column",
		.fix = "ordinary column" },
	{ "DATETIME instead of TIMESTAMP",
		"ALTER TABLE outbox_event MODIFY created_at DATETIME(6) NOT NULL DEFAULT "
		"CURRENT_TIMESTAMP(6)",
		.severity = "note", .where = TABLE ".created_at", .what = "taken as UTC",
		.fix = "" },
	{ "times without fractions of a second",
		"ALTER TABLE outbox_event MODIFY created_at TIMESTAMP NOT NULL DEFAULT "
		"CURRENT_TIMESTAMP",
		.severity = "note", .where = TABLE ".created_at", .what = "0 digits of the second",
		.fix = "TIMESTAMP(6)", .mends = BY_STATEMENT },
	{ "a created_at that moves with every update",
		"ALTER TABLE outbox_event MODIFY created_at TIMESTAMP(6) NOT NULL DEFAULT "
		"CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6); GRANT UPDATE (created_at) ON "
		"outbox_event TO $U",
		.severity = "warning", .where = TABLE ".created_at", .what = "ON UPDATE",
		.fix = "MODIFY `created_at`", .mends = BY_STATEMENT },
	{ "aggregates that know no case",
		"ALTER TABLE outbox_event MODIFY aggregate_type VARCHAR(64) CHARACTER SET utf8mb4 "
		"COLLATE utf8mb4_general_ci NOT NULL",
		.severity = "note", .where = TABLE ".aggregate_type", .what = "utf8mb4_general_ci",
		.fix = "" },
	{ "one more column that must be filled", "ALTER TABLE outbox_event ADD tenant INT NOT NULL",
		.severity = "note", .where = TABLE ".tenant",
		.what = "every producer has to fill it", .fix = "" },
	{ "a trigger on updates",
		"GRANT TRIGGER ON outbox_event TO $U; CREATE TRIGGER slow BEFORE UPDATE ON "
		"outbox_event FOR EACH ROW SET NEW.trace_id=NEW.trace_id",
		"REVOKE TRIGGER ON outbox_event FROM $U", .severity = "warning",
		.where = "outbox_event", .what = "trigger slow runs before UPDATE",
		.fix = "take it off the table" },
	{ "a trigger on deletes",
		"GRANT TRIGGER ON outbox_event TO $U; CREATE TRIGGER guard AFTER DELETE ON "
		"outbox_event FOR EACH ROW SET @gone=OLD.id",
		"REVOKE TRIGGER ON outbox_event FROM $U", .severity = "warning",
		.where = "outbox_event",
		.what = "trigger guard runs after DELETE: with each row that retention removes",
		.fix = "take it off the table" },
	{ "a foreign key that retention stops at",
		"CREATE TABLE sending (event BIGINT UNSIGNED NOT NULL, CONSTRAINT fk_event FOREIGN "
		"KEY (event) REFERENCES outbox_event (id)); GRANT SELECT ON sending TO $U",
		"REVOKE ALL ON sending FROM $U; DROP TABLE sending", .severity = "warning",
		.where = "outbox_event", .what = "keeps rows from being deleted",
		.fix = "ALTER TABLE `$S`.`sending` DROP FOREIGN KEY `fk_event`" },
	{ "a foreign key that stops the source",
		"CREATE TABLE sending (event BIGINT UNSIGNED NOT NULL, CONSTRAINT fk_event FOREIGN "
		"KEY (event) REFERENCES outbox_event (id)); GRANT SELECT ON sending TO $U",
		"REVOKE ALL ON sending FROM $U; DROP TABLE sending", .from = "  batch: ",
		.to = "  retention: { sent: 0s }\n  batch: ", .severity = "warning",
		.where = "outbox_event", .what = "with sent: 0s such an event is never done with",
		.fix = "DROP FOREIGN KEY `fk_event`" },
	{ "a foreign key that deletes elsewhere",
		"CREATE TABLE sending (event BIGINT UNSIGNED NOT NULL, CONSTRAINT fk_event FOREIGN "
		"KEY (event) REFERENCES outbox_event (id) ON DELETE CASCADE); GRANT SELECT ON "
		"sending TO $U",
		"REVOKE ALL ON sending FROM $U; DROP TABLE sending", .severity = "warning",
		.where = "outbox_event",
		.what = "foreign key fk_event of $S.sending is ON DELETE CASCADE: retention "
			"changes that table too",
		.fix = "DROP FOREIGN KEY `fk_event`", .only = MYSQL },
	/* --- the archive */
	{ "a trigger on the archive",
		"CREATE TABLE old LIKE outbox_event; GRANT INSERT, TRIGGER ON old TO $U; "
		"CREATE TRIGGER copied BEFORE INSERT ON old FOR EACH ROW SET NEW.locked_by=NULL",
		"REVOKE ALL ON old FROM $U; DROP TABLE old", .from = "  batch: ",
		.to = "  retention: { archive_table: old }\n  batch: ", .severity = "warning",
		.where = "old",
		.what = "trigger copied runs before INSERT: with each row that retention moves",
		.fix = "take it off the table" },
	{ "an archive with a rule of its own",
		"CREATE TABLE old LIKE outbox_event; GRANT INSERT ON old TO $U; "
		"ALTER TABLE old ADD CONSTRAINT few CHECK (retry_count < 5)",
		"REVOKE ALL ON old FROM $U; DROP TABLE old", .from = "  batch: ",
		.to = "  retention: { archive_table: old }\n  batch: ", .severity = "warning",
		.where = "$S.old",
		.what = "constraint few is not the outbox table's: what breaks CHECK (",
		.fix = "DROP CONSTRAINT `few`" },
	{ "an archive of JSON for payloads that are text",
		"CREATE TABLE old LIKE outbox_event; GRANT INSERT ON old TO $U; "
		"ALTER TABLE outbox_event MODIFY payload LONGTEXT CHARACTER SET utf8mb4 COLLATE "
		"utf8mb4_bin NOT NULL",
		.from = "  batch: ", .to = "  retention: { archive_table: old }\n  batch: ",
		.severity = "warning", .where = "$S.old",
		.what = "column payload is JSON here and not in the outbox table: what breaks "
			"CHECK (json_valid(",
		.fix = "MODIFY `payload` longtext", .mends = BY_STATEMENT, .only = MARIADB },
	{ "an archive that has to be told what the outbox table generates",
		"DROP TABLE IF EXISTS old; CREATE TABLE old LIKE outbox_event; GRANT SELECT, "
		"INSERT "
		"ON old TO $U; ALTER TABLE old ADD digest CHAR(64) NOT NULL; ALTER TABLE "
		"outbox_event ADD digest CHAR(64) GENERATED ALWAYS AS (SHA2(event_id,256)) STORED",
		"REVOKE ALL ON old FROM $U; DROP TABLE old", .from = "  batch: ",
		.to = "  retention: { archive_table: old }\n  batch: ", .severity = "fault",
		.where = "$S.old",
		.what = "column digest, which the outbox table generates, has no default",
		.fix = "give it a default" },
	{ "a template of a column that is not there", .from = "{aggregate_type}.{event_type}",
		.to = "{column:tenant}.{event_type}", .severity = "fault", .where = TABLE ".tenant",
		.what = "a template names this column", .fix = "add the column" },
	/* --- indexes and plans */
	{ "no index for claims", "DROP INDEX idx_outbox_claim ON outbox_event", .severity = "fault",
		.where = TABLE, .what = "no index on (status, next_retry_at, created_at)",
		.fix = "CREATE INDEX `idx_outbox_claim`", .mends = BY_STATEMENT },
	{ "an index for claims in another order",
		"DROP INDEX idx_outbox_claim ON outbox_event; CREATE INDEX other ON outbox_event "
		"(status, created_at, next_retry_at)",
		.severity = "fault", .where = TABLE,
		.what = "no index on (status, next_retry_at, created_at)", .fix = "CREATE INDEX",
		.mends = BY_STATEMENT },
	{ "an index for claims that optimizers do not see",
		"ALTER TABLE outbox_event ALTER INDEX idx_outbox_claim INVISIBLE",
		.severity = "fault", .where = TABLE,
		.what = "no index on (status, next_retry_at, created_at)", .fix = "CREATE INDEX",
		.only = MYSQL },
	{ "no index for aggregates", "DROP INDEX idx_outbox_aggregate ON outbox_event",
		.severity = "fault", .where = TABLE,
		.what = "no index on (aggregate_type, aggregate_id, created_at)",
		.fix = "CREATE INDEX `idx_outbox_aggregate`", .mends = BY_STATEMENT },
	{ "another primary key",
		"ALTER TABLE outbox_event MODIFY id BIGINT UNSIGNED NOT NULL, DROP PRIMARY KEY, "
		"ADD "
		"PRIMARY KEY (event_id)",
		.severity = "fault", .where = TABLE, .what = "id is not the primary key",
		.fix = "ADD PRIMARY KEY (`id`)" },
	{ "events that may be there twice", "DROP INDEX uq_outbox_event_id ON outbox_event",
		.severity = "warning", .where = TABLE, .what = "event_id is not unique",
		.fix = "ADD UNIQUE KEY", .mends = BY_STATEMENT },
	/* --- the account */
	{ "an account that may not write",
		"REVOKE ALL ON outbox_event FROM $U; GRANT SELECT ON "
		"outbox_event TO $U",
		.severity = "fault", .where = "outbox_event", .what = "may not write",
		.fix = "GRANT UPDATE (`status`", .mends = BY_STATEMENT },
	{ "an account that may not read a column",
		"REVOKE ALL ON outbox_event FROM $U; GRANT SELECT (id, event_id, aggregate_type, "
		"aggregate_id, event_type, status, retry_count, next_retry_at, locked_by, "
		"locked_until, created_at, sent_at, last_error), UPDATE ON outbox_event TO $U",
		.severity = "fault", .where = TABLE ".payload", .what = "may not read",
		.fix = "GRANT SELECT ON `$S`.`outbox_event` TO '", .mends = BY_STATEMENT },
	{ "an account that may not see the table",
		"REVOKE ALL ON outbox_event FROM $U; GRANT SELECT ON suspect TO $U",
		"REVOKE ALL ON suspect FROM $U", .severity = "fault", .where = TABLE,
		.what = "may not read it", .fix = "GRANT SELECT ON `$S`.`outbox_event` TO '",
		.mends = BY_STATEMENT },
	{ "an account without any privilege", "REVOKE ALL ON outbox_event FROM $U",
		.severity = "fault", .where = "$S", .what = "Access denied",
		.fix = "outboxd schema --grants" },
	{ "a locked account", "ALTER USER $U ACCOUNT LOCK", "ALTER USER $U ACCOUNT UNLOCK",
		.severity = "fault", .where = "$S", .what = "locked",
		.fix = "ALTER USER ... ACCOUNT UNLOCK" },
	{ "another password", "ALTER USER $U IDENTIFIED BY 'Other!secret1'",
		"ALTER USER $U IDENTIFIED BY '$P'", .severity = "fault", .where = "$S",
		.what = "Access denied", .fix = "ALTER USER ... IDENTIFIED BY" },
	{ "a row image that takes a privilege", .from = DB_PORT,
		.to = DB_PORT "      binlog_row_image: minimal\n", .severity = "fault",
		.where = "127.0.0.1", .what = "binlog_row_image: minimal",
		.fix = "ADMIN ON *.* TO" },
	/* --- the server */
	{ "a database that is not there", .from = "      name: $S",
		.to = "      name: no_such_schema", .severity = "fault", .where = "no_such_schema",
		.what = "no_such_schema", .fix = "" },
	{ "no server",
		.from = "      port: ", .to = "      connect_timeout: 1s\n      port: $DEAD #",
		.severity = "fault", .where = "$S", .what = "connect",
		.fix = "start the server, or correct the host and port" },
	{ "a server that is only read", "SET GLOBAL read_only=1", "SET GLOBAL read_only=0",
		.severity = "fault", .where = "127.0.0.1", .what = "read-only",
		.fix = "name the primary in hosts" },
	{ "replication by statement", "SET GLOBAL binlog_format='STATEMENT'",
		"SET GLOBAL binlog_format='ROW'", .severity = "fault", .where = "127.0.0.1",
		.what = "binlog_format is STATEMENT", .fix = "SET GLOBAL binlog_format = 'ROW'" },
	{ "packets too small for the relay's statements", "SET GLOBAL max_allowed_packet=131072",
		"SET GLOBAL max_allowed_packet=67108864", .severity = "fault", .where = "127.0.0.1",
		.what = "max_allowed_packet is 131072",
		.fix = "SET GLOBAL max_allowed_packet = 16777216" },
	{ "packets smaller than messages may be", "SET GLOBAL max_allowed_packet=4194304",
		"SET GLOBAL max_allowed_packet=67108864", .severity = "warning",
		.where = "127.0.0.1", .what = "event ends DEAD as TOO_LARGE",
		.fix = "SET GLOBAL max_allowed_packet = 16777216", .only = MYSQL },
	{ "clocks that differ", "SET GLOBAL init_connect='SET timestamp=UNIX_TIMESTAMP()+3600'",
		"SET GLOBAL init_connect=''", .severity = "warning", .where = "127.0.0.1",
		.what = "s ahead of this machine's", .fix = "synchronise" },
	{ "a server that forgets in a crash", "SET GLOBAL innodb_flush_log_at_trx_commit=2",
		"SET GLOBAL innodb_flush_log_at_trx_commit=1", .severity = "note",
		.where = "127.0.0.1", .what = "innodb_flush_log_at_trx_commit is 2",
		.fix = "SET GLOBAL innodb_flush_log_at_trx_commit = 1", .mends = BY_STATEMENT },
	{ "a database's certificate that nobody vouches for", .from = DB_PORT,
		.to = DB_PORT "      tls: { mode: verify_identity, ca_file: \"$OTHER\" }\n",
		.severity = "fault", .where = "$S", .what = "ertificate",
		.fix = "database.tls.ca_file" },
	/* --- the file */
	{ "a lease too short", .from = "  lease: ", .to = "  lease: 1s #", .severity = NULL,
		.what = "does not exceed confirm_timeout" },
	{ "a key that there is not", .from = "  batch: ", .to = "  botch: ", .severity = NULL,
		.what = "botch" },
	{ "a secret that everybody can read", .exposes = "source-s0", .severity = "warning",
		.where = "source s0", .what = "open to every user", .fix = "chmod 0640 $DIR" },
	{ "a broker's secret that everybody can read", .exposes = "broker-main",
		.severity = "warning", .where = "broker main", .what = "open to every user",
		.fix = "chmod 0640 $DIR" },
	{ "a password in a file that everybody can read", .exposes = "config",
		.from = "      password_file:", .to = "      password: \"$P\" #",
		.severity = "warning", .where = "outboxd.yaml", .what = "holds a password",
		.fix = "chmod 0640" },
	/* --- the broker */
	{ "no exchange", .from = "      exchange: \"",
		.to = "      exchange: \"no.such.exchange\" #", .severity = "fault",
		.where = "source s0: exchange no.such.exchange", .what = "404",
		.fix = "rabbitmqadmin declare exchange name=no.such.exchange" },
	{ "nothing bound", .probe = "nobody.wants.this", .severity = "fault",
		.where = "source s0: exchange",
		.what = "nothing is bound for routing key "
			"'nobody.wants.this'",
		.fix = "rabbitmqadmin declare binding" },
	{ "another password at the broker", .from = "    username: ",
		.to = "    username: no_such_user #", .severity = "fault", .where = "broker main",
		.what = "ACCESS_REFUSED", .fix = "rabbitmqctl change_password no_such_user" },
	{ "a vhost that is not there", .from = "    username: ",
		.to = "    vhost: /no_such\n    username: ", .severity = "fault",
		.where = "broker main", .what = "no_such",
		.fix = "rabbitmqctl add_vhost /no_such" },
	{ "no broker", .from = "    hosts: ", .to = "    hosts: [\"127.0.0.1:$DEAD\"] #",
		.severity = "fault", .where = "broker main", .what = "refused",
		.fix = "start the broker, or correct its hosts" },
	{ "a web server in place of the broker",
		.from = "    hosts: ", .to = "    hosts: [\"127.0.0.1:$HTTP\"] #",
		.severity = "fault", .where = "broker main", .what = "no AMQP at all",
		.fix = "5672 is AMQP's usual port" },
	{ "a server in place of the broker that waits for words of its own",
		.from = "    hosts: ", .to = "    hosts: [\"127.0.0.1:$SILENT\"] #",
		.severity = "fault", .where = "broker main", .what = "no AMQP at all",
		.fix = "5672 is AMQP's usual port" },
	{ "a broker's certificate that nobody vouches for", .from = "    hosts: ",
		.to = "    tls: { mode: verify_identity, ca_file: \"$OTHER\" }\n    hosts: "
		      "[\"127.0.0.1:$AMQPS\"] #",
		.severity = "fault", .where = "broker main", .what = "certificate",
		.fix = "tls.ca_file" },
};

struct stage {
	struct rig rig;
	struct conf conf;
	struct daemon *d;
	struct fake_broker *silent;
	unsigned dead, http;
};

/* With what $NAMES stand for; to be freed. */
static char *expand(const struct stage *s, const char *text)
{
	char dead[16], http[16], silent[16], account[100];
	const struct {
		const char *name, *value;
	} names[] = { { "$OTHER", getenv("OUTBOXD_TEST_OTHER_CA_FILE") },
		{ "$CA", getenv("OUTBOXD_TEST_CA_FILE") },
		{ "$AMQPS", getenv("OUTBOXD_TEST_AMQPS_PORT") }, { "$DEAD", dead },
		{ "$HTTP", http }, { "$SILENT", silent }, { "$DIR", s->d->dir },
		{ "$S", s->rig.schema[0].name }, { "$P", s->rig.schema[0].password },
		{ "$U", account } };
	char *out = NULL;
	size_t size;
	FILE *f = open_memstream(&out, &size);

	REQUIRE(f != NULL);
	snprintf(dead, sizeof(dead), "%u", s->dead);
	snprintf(http, sizeof(http), "%u", s->http);
	snprintf(silent, sizeof(silent), "%u", fake_broker_port(s->silent));
	snprintf(account, sizeof(account), "'%s'@'%%'", s->rig.schema[0].user);
	while (*text != '\0') {
		size_t i = 0;

		while (i < ARRAY_LEN(names) &&
			strncmp(text, names[i].name, strlen(names[i].name)) != 0)
			i++;
		if (i == ARRAY_LEN(names)) {
			fputc(*text++, f);
			continue;
		}
		fputs(names[i].value != NULL ? names[i].value : "?", f);
		text += strlen(names[i].name);
	}
	fclose(f);
	return out;
}

static void execute(struct stage *s, const char *sql)
{
	char *text = expand(s, sql);

	db_exec(s->rig.db, "USE %s; %s", s->rig.schema[0].name, text);
	free(text);
}

static void rewrite(struct stage *s, const struct deployment *d)
{
	char *from = expand(s, d->from), *to = expand(s, d->to);
	char *text = env_read_file(s->d->config), *at = strstr(text, from), *changed;

	if (at == NULL)
		FAIL("%s: no '%s' in:\n%s", d->what_is_wrong, from, text);
	REQUIRE(asprintf(&changed, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from)) > 0);
	env_write_file(s->d->config, changed);
	free(changed);
	free(text);
	free(from);
	free(to);
}

static void expose(struct stage *s, const char *which)
{
	char path[200];

	if (strcmp(which, "config") == 0)
		snprintf(path, sizeof(path), "%s", s->d->config);
	else
		daemon_secret(s->d, which, path, sizeof(path));
	REQUIRE(chmod(path, 0644) == 0);
}

static bool finding_is(
	struct stage *s, struct json_object *finding, const struct deployment *d, char **fix)
{
	char *where = expand(s, d->where), *what = expand(s, d->what), *mend = expand(s, d->fix);
	bool is = strcmp(json_text(finding, "severity"), d->severity) == 0 &&
		  strstr(json_text(finding, "where"), where) != NULL &&
		  strstr(json_text(finding, "what"), what) != NULL &&
		  strstr(json_text(finding, "fix"), mend) != NULL;

	free(where);
	free(what);
	free(mend);
	if (is && fix != NULL)
		*fix = strdup(json_text(finding, "fix"));
	return is;
}

/* Whether the last check found it. */
static bool found(struct stage *s, const struct deployment *d, char **fix)
{
	struct json_object *o = command_json(), *list = json_member(o, "findings");
	bool is = false;

	for (size_t i = 0; !is && i < json_object_array_length(list); i++)
		is = finding_is(s, json_object_array_get_idx(list, i), d, fix);
	json_object_put(o);
	return is;
}

static void check(struct stage *s, const struct deployment *d)
{
	if (d->probe != NULL)
		command_run(s->d, "check", "--json", "--probe", d->probe, NULL);
	else
		command_run(s->d, "check", "--json", NULL);
}

static void mend(struct stage *s, const struct deployment *d, const char *fix)
{
	db_exec(s->rig.db, "USE %s; %s", s->rig.schema[0].name, fix);
	check(s, d);
	if (found(s, d, NULL))
		FAIL("%s: still there after \"%s\": %s", d->what_is_wrong, fix, command_last.out);
}

/* Tables as they should be, and the account's privileges, which go with them. */
static void renew(struct stage *s)
{
	static char *ddl;

	if (ddl == NULL) {
		char path[600];

		snprintf(path, sizeof(path), "%s/sql/outbox_event.sql", env_get()->repository);
		ddl = env_read_file(path);
	}
	execute(s, "DROP TABLE IF EXISTS outbox_event");
	db_exec(s->rig.db, "USE %s; %s", s->rig.schema[0].name, ddl);
	execute(s, "GRANT SELECT, DELETE, UPDATE (status, retry_count, next_retry_at, locked_by, "
		   "locked_until, sent_at, last_error) ON outbox_event TO $U");
}

static void require_named(struct stage *s, const struct deployment *d)
{
	char *fix = NULL;

	if (d->severity == NULL) {
		if (command_last.status != 2 || strstr(command_last.out, d->what) == NULL ||
			strstr(command_last.err, d->what) == NULL)
			FAIL("%s: exit status %d: %s%s", d->what_is_wrong, command_last.status,
				command_last.out, command_last.err);
		return;
	}
	if (!found(s, d, &fix))
		FAIL("%s: no %s \"%s\" with \"%s\" in: %s%s", d->what_is_wrong, d->severity,
			d->what, d->fix, command_last.out, command_last.err);
	if (command_last.status != (strcmp(d->severity, "fault") == 0 ? 1 : 0))
		FAIL("%s: exit status %d: %s%s", d->what_is_wrong, command_last.status,
			command_last.out, command_last.err);
	if (d->mends == BY_STATEMENT)
		mend(s, d, fix);
	free(fix);
}

static void stage_open(struct stage *s)
{
	const char *api = getenv("OUTBOXD_TEST_RABBITMQ_API");

	rig_open(&s->rig, 1);
	rig_conf(&s->rig, &s->conf);
	s->conf.ordering = "aggregate";
	s->d = daemon_new("check");
	s->silent = fake_broker_start(&(struct fake_rules){ .silent = true });
	s->dead = env_free_port();
	s->http = api != NULL ? (unsigned)atoi(strrchr(api, ':') + 1) : 1;
	mq_unbind(s->rig.mq, s->rig.queue, s->rig.exchange, "#");
	mq_bind(s->rig.mq, s->rig.queue, s->rig.exchange, "order.#");
}

static void stage_close(struct stage *s)
{
	daemon_free(s->d);
	fake_broker_stop(s->silent);
	rig_close(&s->rig);
}

/* --- tests ---------------------------------------------------------------------------------- */

START_TEST(each_broken_deployment_is_named_with_what_mends_it)
{
	struct stage s;

	stage_open(&s);
	for (size_t i = 0; i < ARRAY_LEN(deployments); i++) {
		const struct deployment *d = &deployments[i];

		if (d->only != ANY && (d->only == MARIADB) != env_get()->mariadb)
			continue;
		renew(&s);
		daemon_configure(s.d, &s.conf);
		if (d->from != NULL)
			rewrite(&s, d);
		if (d->exposes != NULL)
			expose(&s, d->exposes);
		if (d->breaks != NULL)
			execute(&s, d->breaks);
		check(&s, d);
		if (d->undo != NULL)
			execute(&s, d->undo);
		require_named(&s, d);
	}
	stage_close(&s);
}
END_TEST

START_TEST(connections_off_this_machine_without_tls_or_without_a_verified_server_are_warned_of)
{
	static const struct {
		const char *mode;
		unsigned warnings;
	} modes[] = { { "", 0 }, { "tls: { mode: verify_identity }", 0 },
		{ "tls: { mode: disabled }", 1 }, { "tls: { mode: required }", 1 } };
	struct stage s;

	stage_open(&s);
	daemon_configure(s.d, &s.conf);
	for (size_t i = 0; i < ARRAY_LEN(modes); i++) {
		struct json_object *o;
		char text[1200];

		snprintf(text, sizeof(text),
			"brokers:\n  - name: b\n    hosts: [mq.example.org]\n    username: u\n"
			"    password_file: %s/broker-main.pass\n    %s\n"
			"sources:\n  - name: s\n    broker: b\n    database:\n      host: "
			"db.example.org\n      name: d\n      username: u\n      password_file: "
			"%s/source-s0.pass\n      %s\n    publish: { exchange: e, routing_key: k "
			"}\n",
			s.d->dir, modes[i].mode, s.d->dir, modes[i].mode);
		env_write_file(s.d->config, text);
		command_run(s.d, "check", "--offline", "--json", NULL);
		require_status(0);
		o = command_json();
		REQUIRE_INT(json_object_array_length(json_member(o, "findings")), ==,
			2 * modes[i].warnings);
		json_object_put(o);
		if (modes[i].warnings > 0) {
			require_text(command_last.out, "\"where\":\"broker b\"");
			require_text(command_last.out, "database.tls.mode: verify_identity");
		}
	}
	stage_close(&s);
}
END_TEST

START_TEST(to_a_deployment_that_is_well_it_has_nothing_to_say)
{
	struct stage s;
	struct json_object *o;

	stage_open(&s);
	daemon_configure(s.d, &s.conf);
	command_run(s.d, "check", "--json", NULL);
	require_status(0);
	o = command_json();
	if (json_object_array_length(json_member(o, "findings")) != 0)
		FAIL("findings: %s", command_last.out);
	json_object_put(o);
	command_run(s.d, "check", NULL);
	require_status(0);
	require_text(command_last.out, "0 faults, 0 warnings");
	execute(&s, "CREATE TABLE old LIKE outbox_event; GRANT INSERT ON old TO $U");
	rewrite(&s, &(struct deployment){ .from = "  batch: ",
			    .to = "  retention: { archive_table: old }\n  batch: " });
	command_run(s.d, "check", NULL);
	require_status(0);
	require_text(command_last.out, "0 faults, 0 warnings");
	stage_close(&s);
}
END_TEST

START_TEST(a_probe_says_what_it_does_and_stays_in_no_queue)
{
	struct stage s;

	stage_open(&s);
	daemon_configure(s.d, &s.conf);
	command_run(s.d, "check", "--json", "--probe", "order.{created}", NULL);
	require_status(0);
	require_text(command_last.err, "publishing a message");
	require_text(command_last.err, "'order.{created}'");
	require_text(command_last.out, "reaches a queue");
	WAIT_FOR(5000, mq_depth(s.rig.mq, s.rig.queue) == 0);
	REQUIRE_INT(mq_drain(s.rig.mq, s.rig.queue, &s.rig.inbox), ==, 0);
	command_run(s.d, "check", "--offline", "--probe", "x", NULL);
	require_status(2);
	stage_close(&s);
}
END_TEST

START_TEST(a_claim_that_the_server_refuses_is_named)
{
	struct proxy *p = proxy_start(env_get()->db_host, env_get()->db_port);
	const struct proxy_rule rule = {
		.text = "`status`='RETRY' AND", .action = PROXY_ERROR, .error = 1176, .skip = 0
	};
	struct stage s;

	stage_open(&s);
	s.conf.source[0].db_port = proxy_port(p);
	daemon_configure(s.d, &s.conf);
	proxy_rule(p, &rule);
	command_run(s.d, "check", "--json", NULL);
	require_status(1);
	require_text(command_last.out, "the statement for retries: ");
	stage_close(&s);
	proxy_stop(p);
}
END_TEST

static enum fake_verdict judge(void *arg, const struct fake_message *m)
{
	(void)m;
	return *(const enum fake_verdict *)arg;
}

START_TEST(a_probe_that_is_nacked_or_never_answered_is_a_fault)
{
	static const struct {
		enum fake_verdict verdict;
		const char *what;
	} answers[] = { { FAKE_NACK, "NACKED" }, { FAKE_CLOSE_403, "403" },
		{ FAKE_DROP, "no confirm within" }, { FAKE_CUT, "" } };
	struct stage s;
	enum fake_verdict verdict = FAKE_ACK;
	const struct fake_rules rules = { .judge = judge, .judge_arg = &verdict };
	struct fake_broker *b = fake_broker_start(&rules);

	stage_open(&s);
	s.conf.confirm_ms = 1000;
	s.conf.brokers = 1;
	s.conf.broker[0] = (struct conf_broker){ .name = "main", .port = fake_broker_port(b) };
	daemon_configure(s.d, &s.conf);
	for (size_t i = 0; i < ARRAY_LEN(answers); i++) {
		verdict = answers[i].verdict;
		command_run(s.d, "check", "--json", "--probe", "x", NULL);
		require_status(1);
		require_text(command_last.out, answers[i].what);
		require_text(command_last.out, "\"severity\":\"fault\"");
	}
	verdict = FAKE_ACK;
	command_run(s.d, "check", "--probe", "x", NULL);
	require_status(0);
	stage_close(&s);
	fake_broker_stop(b);
}
END_TEST

/* --- the queue of an inbox ------------------------------------------------------------------ */

struct inbox_queue {
	const char *arguments[9]; /* of the queue; none: there is no queue */
	bool transient;
	const char *processed; /* the retention, with message_ttl 1h and 10m + 10m */
	const char *severity, *what, *more;
};

static void configure_inbox(struct stage *s, const char *queue, const char *processed)
{
	static char top[1000];
	char secret[200];

	daemon_secret(s->d, "source-s0", secret, sizeof(secret));
	snprintf(top, sizeof(top),
		"inboxes:\n  - name: i\n    database: { host: %s, port: %u, name: %s, username: "
		"%s, "
		"password_file: %s }\n    retention: { processed: %s }\n    redelivery: { "
		"message_ttl: 1h, max_retry_wait: 10m, manual_window: 10m, queue: \"%s\" }\n",
		env_get()->db_host, env_get()->db_port, s->rig.schema[0].name,
		s->rig.schema[0].user, secret, processed, queue);
	s->conf.top = top;
	daemon_configure(s->d, &s->conf);
}

static void open_inbox(struct stage *s)
{
	char path[700], *ddl;

	stage_open(s);
	snprintf(path, sizeof(path), "%s/sql/inbox_event.sql", env_get()->repository);
	ddl = env_read_file(path);
	db_exec(s->rig.db, "USE %s; %s", s->rig.schema[0].name, ddl);
	execute(s, "GRANT SELECT, DELETE ON inbox_event TO $U");
	free(ddl);
}

/* The only finding is that of the queue. */
static void require_queue_finding(const char *queue, const struct inbox_queue *q)
{
	struct json_object *o, *list, *f;

	o = command_json();
	list = json_member(o, "findings");
	if (json_object_array_length(list) != 1)
		FAIL("%s: %s%s", queue, command_last.out, command_last.err);
	f = json_object_array_get_idx(list, 0);
	require_text(json_text(f, "where"), "inbox i: queue ");
	require_text(json_text(f, "where"), queue);
	require_text(json_text(f, "severity"), q->severity);
	require_text(json_text(f, "what"), q->what);
	require_text(json_text(f, "what"), q->more != NULL ? q->more : "");
	require_status(strcmp(q->severity, "fault") == 0 ? 1 : 0);
	json_object_put(o);
}

START_TEST(an_inbox_is_compared_with_its_consumers_queue)
{
	static const struct inbox_queue queues[] = {
		{ { "x-message-ttl", "3600000" }, false, "2h", "note", "live for 1h", NULL },
		{ { "x-message-ttl", "0", "x-expires", "600000" }, false, "2h", "note",
			"live for 0s", NULL },
		{ { "x-message-ttl", "5400000" }, false, "2h", "warning", "live for 90m",
			"message_ttl says 1h" },
		{ { "x-message-ttl", "5400000" }, false, "never", "warning", "live for 90m",
			"message_ttl says 1h" },
		{ { "x-message-ttl", "6000000" }, false, "2h", "fault", "live for 100m",
			"retention.processed 2h does not exceed message_ttl 100m + max_retry_wait "
			"10m + manual_window 10m = 2h" },
		/* more that differs, and is told of before */
		{ { "x-expires", "600000", "x-dead-letter-exchange", "it's, but current is",
			  "x-message-ttl", "6000000", "x-overflow", "reject-publish" },
			true, "2h", "fault", "live for 100m", "= 2h" },
		{ { "x-queue-type", "quorum", "x-dead-letter-exchange", "dlx", "x-message-ttl",
			  "3600000" },
			false, "2h", "note", "live for 1h", NULL },
		{ { "x-expires", "600000" }, false, "2h", "warning", "has no x-message-ttl",
			"policy" },
		{ { "x-queue-type", "stream" }, false, "2h", "warning", "cannot be compared",
			"stream" },
		{ { NULL }, false, "2h", "warning", "cannot be compared", "no queue" },
	};
	struct stage s;

	open_inbox(&s);
	for (size_t i = 0; i < ARRAY_LEN(queues); i++) {
		const struct inbox_queue *q = &queues[i];
		char name[100];

		snprintf(name, sizeof(name), "%s' but current is '7'", s.rig.queue);
		if (q->arguments[0] != NULL)
			mq_declare_queue_with(s.rig.mq, name, !q->transient, q->arguments);
		configure_inbox(&s, name, q->processed);
		command_run(s.d, "check", "--json", NULL);
		require_queue_finding(name, q);
		/* it stands as it was declared, and where there was none there is none */
		REQUIRE(mq_queue_exists(s.rig.mq, name) == (q->arguments[0] != NULL));
		if (q->arguments[0] == NULL)
			continue;
		mq_declare_queue_with(s.rig.mq, name, !q->transient, q->arguments);
		mq_delete_queue(s.rig.mq, name);
	}
	stage_close(&s);
}
END_TEST

START_TEST(a_user_who_may_not_configure_the_queue_is_told_so)
{
	static const char *const ttl[] = { "x-message-ttl", "60000", NULL };
	static const struct inbox_queue refused = {
		.severity = "warning", .what = "cannot be compared", .more = "ACCESS_REFUSED"
	};
	char user[60], from[100], to[100];
	const char *add[] = { "add_user", user, env_get()->mq_password, NULL };
	const char *allow[] = { "set_permissions", "-p", "/", user, "^$", ".*", ".*", NULL };
	const char *delete[] = { "delete_user", user, NULL };
	struct stage s;

	open_inbox(&s);
	snprintf(user, sizeof(user), "u-%s", s.rig.queue);
	snprintf(from, sizeof(from), "username: %s\n", env_get()->mq_user);
	snprintf(to, sizeof(to), "username: %s\n", user);
	mq_control(add);
	mq_control(allow);
	mq_delete_queue(s.rig.mq, s.rig.queue);
	mq_declare_queue_with(s.rig.mq, s.rig.queue, true, ttl);
	configure_inbox(&s, s.rig.queue, "2h");
	rewrite(&s, &(struct deployment){ .from = from, .to = to });
	command_run(s.d, "check", "--json", NULL);
	mq_control(delete);
	require_queue_finding(s.rig.queue, &refused);
	require_text(command_last.out, "configure the queue");
	stage_close(&s);
}
END_TEST

RIG_MAIN("check", 120, a_user_who_may_not_configure_the_queue_is_told_so,
	an_inbox_is_compared_with_its_consumers_queue,
	to_a_deployment_that_is_well_it_has_nothing_to_say,
	connections_off_this_machine_without_tls_or_without_a_verified_server_are_warned_of,
	a_claim_that_the_server_refuses_is_named, a_probe_says_what_it_does_and_stays_in_no_queue,
	a_probe_that_is_nacked_or_never_answered_is_a_fault,
	each_broken_deployment_is_named_with_what_mends_it)

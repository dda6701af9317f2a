/* Inbox tables against real servers: what goes and what stays, what is counted, what check says. */
#include "support/command.h"
#include "support/rig.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROCESSED(age)                                                                             \
	"status='PROCESSED',received_at=NOW(6)-INTERVAL 90 DAY,processed_at=NOW(6)-INTERVAL " age

/* The daemon's configuration with these lines of an inbox "i". */
static void configure(struct rig *r, struct conf *c, struct daemon *d, const char *lines)
{
	static char top[2000];
	char secret[200];

	daemon_secret(d, "source-s0", secret, sizeof(secret));
	snprintf(top, sizeof(top),
		"inboxes:\n  - name: i\n    database: { host: %s, port: %u, name: %s, username: "
		"%s, "
		"password_file: %s }\n%s",
		env_get()->db_host, env_get()->db_port, r->schema[0].name, r->schema[0].user,
		secret, lines);
	c->top = top;
	daemon_configure(d, c);
}

static void start(struct rig *r, struct conf *c, struct daemon **d, const char *lines)
{
	char path[700], *ddl;

	rig_open(r, 1);
	rig_conf(r, c);
	snprintf(path, sizeof(path), "%s/sql/inbox_event.sql", env_get()->repository);
	ddl = env_read_file(path);
	REQUIRE(ddl != NULL);
	db_exec(r->db, "USE %s; %s GRANT SELECT, DELETE ON %s.inbox_event TO '%s'@'%%'",
		r->schema[0].name, ddl, r->schema[0].name, r->schema[0].user);
	free(ddl);
	*d = daemon_new("inbox");
	configure(r, c, *d, lines);
}

static void finish(struct rig *r, struct daemon *d)
{
	daemon_free(d);
	rig_close(r);
}

static void add(struct rig *r, const char *event_id, const char *consumer, const char *set)
{
	db_exec(r->db,
		"INSERT INTO %s.inbox_event SET event_id='%s',consumer_name='%s',"
		"event_type='created',%s",
		r->schema[0].name, event_id, consumer, set);
}

static int64_t rows(struct rig *r, const char *where)
{
	return db_int(
		r->db, "SELECT COUNT(*) FROM %s.inbox_event WHERE %s", r->schema[0].name, where);
}

static int64_t purged(const struct daemon *d)
{
	struct json_object *o;
	int64_t n;

	command_run(d, "purge", "--inbox", "i", "--json", NULL);
	require_status(0);
	o = command_json();
	n = json_number(o, "changed");
	json_object_put(o);
	return n;
}

/* Names that a query, JSON or a collation could stumble over, and the one that is no name at all.
 */
static const char *const consumers[] = { "inventory", "Inventory", "it\\'s \"q\" \\\\ {}",
	"\xc5\xa1 \xe2\x82\xac \xf0\x9f\x90\x87", "" };

/* Two of each consumer go. */
static void add_mixed(struct rig *r)
{
	for (size_t i = 0; i < ARRAY_LEN(consumers); i++) {
		const char *c = consumers[i];

		add(r, "old-1", c, PROCESSED("337 HOUR"));
		add(r, "OLD-1", c, PROCESSED("60 DAY"));
		add(r, "just", c, PROCESSED("335 HOUR"));
		add(r, "never", c, "status='PROCESSED',received_at=NOW(6)-INTERVAL 90 DAY");
		add(r, "waiting", c, "status='RECEIVED',received_at=NOW(6)-INTERVAL 90 DAY");
		add(r, "failed", c,
			"status='FAILED',received_at=NOW(6)-INTERVAL 90 DAY,"
			"processed_at=NOW(6)-INTERVAL 90 DAY");
	}
}

START_TEST(only_rows_processed_longer_ago_than_the_age_go)
{
	struct rig r;
	struct conf c;
	struct daemon *d;
	struct json_object *o;

	start(&r, &c, &d, "");
	add_mixed(&r);
	command_run(d, "purge", "--inbox", "i", "--dry-run", "--json", NULL);
	require_status(0);
	o = command_json();
	REQUIRE_STR(json_text(o, "inbox"), "i");
	REQUIRE_INT(json_number(o, "matched"), ==, 2 * ARRAY_LEN(consumers));
	REQUIRE_INT(json_number(o, "changed"), ==, 0);
	json_object_put(o);
	REQUIRE_INT(purged(d), ==, 2 * ARRAY_LEN(consumers));
	REQUIRE_INT(rows(&r, "1"), ==, 4 * ARRAY_LEN(consumers));
	REQUIRE_INT(rows(&r, "event_id LIKE 'old%' OR event_id LIKE 'OLD%'"), ==, 0);
	REQUIRE_INT(purged(d), ==, 0);
	/* everything together, a limit for all of it, and what there is not */
	db_exec(r.db,
		"INSERT INTO %s.outbox_event (event_id,aggregate_type,aggregate_id,event_type,"
		"payload,status,created_at,sent_at) SELECT CONCAT(event_id,HEX(consumer_name)),"
		"'order','a','created','{}','SENT',NOW(6)-INTERVAL 9 DAY,NOW(6)-INTERVAL 8 DAY "
		"FROM %s.inbox_event",
		r.schema[0].name, r.schema[0].name);
	command_run(d, "purge", "--dry-run", "--limit", "2", NULL);
	require_status(0);
	require_text(command_last.out,
		"source s0: 2 rows would be deleted\ninbox i: 0 rows would be deleted\n");
	command_run(d, "purge", "--source", "s0", NULL);
	require_status(0);
	command_run(d, "purge", NULL);
	require_status(0);
	require_text(command_last.out, "source s0: 0 rows deleted\ninbox i: 0 rows deleted\n");
	command_run(d, "purge", "--inbox", "nobody", NULL);
	require_status(2);
	finish(&r, d);
}
END_TEST

START_TEST(without_its_index_the_table_is_read_by_the_key_and_the_same_goes)
{
	struct rig r;
	struct conf c;
	struct daemon *d;

	start(&r, &c, &d, "    retention: { batch: 4 }\n");
	add_mixed(&r);
	db_exec(r.db, "ALTER TABLE %s.inbox_event DROP KEY idx_inbox_consumer", r.schema[0].name);
	REQUIRE_INT(purged(d), ==, 2 * ARRAY_LEN(consumers));
	REQUIRE_INT(rows(&r, "1"), ==, 4 * ARRAY_LEN(consumers));
	/* another character set and collation of the key, another status */
	db_exec(r.db,
		"DELETE FROM %s.inbox_event WHERE consumer_name NOT IN ('inventory','');"
		"ALTER TABLE %s.inbox_event MODIFY event_id VARCHAR(64) CHARACTER SET latin1 "
		"COLLATE latin1_general_cs NOT NULL, MODIFY consumer_name VARCHAR(128) CHARACTER "
		"SET utf8mb4 COLLATE utf8mb4_unicode_ci NOT NULL; UPDATE %s.inbox_event SET "
		"status='DONE',processed_at=NOW(6)-INTERVAL 20 DAY WHERE event_id IN "
		"('never','just')",
		r.schema[0].name, r.schema[0].name, r.schema[0].name);
	configure(&r, &c, d, "    processed_status: DONE\n");
	REQUIRE_INT(purged(d), ==, 4);
	REQUIRE_INT(rows(&r, "status='DONE'"), ==, 0);
	REQUIRE_INT(rows(&r, "1"), ==, 4);
	finish(&r, d);
}
END_TEST

START_TEST(a_row_that_a_repeated_message_has_locked_is_left_for_the_next_pass)
{
	struct rig r;
	struct conf c;
	struct daemon *d;
	struct db *consumer = db_open();

	start(&r, &c, &d, "");
	for (unsigned i = 0; i < 600; i++) {
		char id[20];

		snprintf(id, sizeof(id), "e%u", i);
		add(&r, id, "inventory", PROCESSED("20 DAY"));
	}
	db_exec(consumer,
		"START TRANSACTION; INSERT IGNORE INTO %s.inbox_event (event_id,consumer_name,"
		"event_type) VALUES ('e5','inventory','created')",
		r.schema[0].name);
	REQUIRE_INT(purged(d), ==, 599);
	db_exec(consumer, "COMMIT");
	REQUIRE_INT(rows(&r, "event_id='e5'"), ==, 1);
	REQUIRE_INT(purged(d), ==, 1);
	db_close(consumer);
	finish(&r, d);
}
END_TEST

static int check(const struct daemon *d)
{
	return command_run(d, "check", NULL);
}

START_TEST(check_finds_a_key_that_swallows_events_and_what_retention_lacks)
{
	struct rig r;
	struct conf c;
	struct daemon *d;
	const char *s;

	start(&r, &c, &d, "");
	s = r.schema[0].name;
	check(d);
	require_status(0);
	db_exec(r.db,
		"ALTER TABLE %s.inbox_event MODIFY event_id VARCHAR(36) CHARACTER SET utf8mb4 "
		"COLLATE utf8mb4_general_ci NOT NULL, DROP KEY idx_inbox_consumer",
		s);
	check(d);
	require_status(1);
	require_text(command_last.out, "event_id is compared by utf8mb4_general_ci");
	require_text(command_last.out, "event_id holds 36 characters");
	require_text(command_last.out, "CREATE INDEX `idx_inbox_consumer`");
	db_exec(r.db,
		"ALTER TABLE %s.inbox_event MODIFY event_id VARCHAR(64) CHARACTER SET utf8mb4 "
		"COLLATE utf8mb4_bin NOT NULL; REVOKE DELETE ON %s.inbox_event FROM '%s'@'%%'",
		s, s, r.schema[0].user);
	check(d);
	require_status(1);
	require_text(command_last.out, "GRANT DELETE ON ");
	command_run(d, "purge", "--inbox", "i", NULL);
	require_status(0); /* nothing is due */
	db_exec(r.db, "ALTER TABLE %s.inbox_event DROP PRIMARY KEY, ADD KEY (event_id)", s);
	check(d);
	require_status(1);
	require_text(command_last.out, "the primary key is not (event_id, consumer_name)");
	command_run(d, "purge", "--inbox", "i", NULL);
	require_status(1);
	db_exec(r.db, "DROP TABLE %s.inbox_event", s);
	check(d);
	require_status(1);
	require_text(command_last.out, "outboxd schema --inbox");
	finish(&r, d);
}
END_TEST

static double gauge(const struct daemon *d, const char *name, const char *labels)
{
	char series[200];

	snprintf(series, sizeof(series), "outboxd_%s{%s}", name, labels);
	return daemon_metric(d, series);
}

START_TEST(the_daemon_counts_and_purges_inboxes_as_they_come_change_and_go_with_reloads)
{
	struct rig r;
	struct conf c;
	struct daemon *d;
	const char *none;

	start(&r, &c, &d, "");
	for (unsigned i = 0; i < 60; i++) {
		char name[20];

		snprintf(name, sizeof(name), "c%02u", i);
		add(&r, "new", name, "status='RECEIVED',received_at=NOW(6)-INTERVAL 100 SECOND");
		add(&r, "done", name, PROCESSED("1 DAY"));
	}
	add(&r, "old", "c00", PROCESSED("20 DAY"));
	add(&r, "failed", "c00", "status='FAILED',received_at=NOW(6)-INTERVAL 1000 SECOND");
	/* at first without */
	none = c.top;
	c.top = NULL;
	daemon_configure(d, &c);
	daemon_start(d);
	daemon_wait_ready(d, true);
	REQUIRE_INT(gauge(d, "inbox_purged_total", "inbox=\"i\""), ==, -1);
	c.top = none;
	daemon_configure(d, &c);
	daemon_signal(d, SIGHUP);
	WAIT_FOR(5000, gauge(d, "inbox_purged_total", "inbox=\"i\"") == 1);
	REQUIRE_INT(rows(&r, "event_id='old'"), ==, 0);
	WAIT_FOR(8000,
		gauge(d, "inbox_events", "consumer=\"c00\",inbox=\"i\",status=\"PROCESSED\"") == 1);
	REQUIRE_INT(gauge(d, "inbox_events", "consumer=\"c49\",inbox=\"i\",status=\"RECEIVED\""),
		==, 1);
	REQUIRE_INT(gauge(d, "inbox_events", "consumer=\"c50\",inbox=\"i\",status=\"RECEIVED\""),
		==, -1);
	REQUIRE_INT(gauge(d, "inbox_events", "consumer=\"other\",inbox=\"i\",status=\"RECEIVED\""),
		==, 10);
	REQUIRE_INT(
		gauge(d, "inbox_oldest_unprocessed_age_seconds", "consumer=\"c00\",inbox=\"i\""),
		>=, 1000);
	REQUIRE_INT(
		gauge(d, "inbox_oldest_unprocessed_age_seconds", "consumer=\"c01\",inbox=\"i\""), <,
		200);
	REQUIRE_INT(gauge(d, "sample_age_seconds", "inbox=\"i\""), <, 10);
	/* what was there is 0 when it is done, and gone with its consumer */
	db_exec(r.db,
		"UPDATE %s.inbox_event SET status='PROCESSED',processed_at=NOW(6) WHERE "
		"consumer_name='c00'; DELETE FROM %s.inbox_event WHERE consumer_name='c01'",
		r.schema[0].name, r.schema[0].name);
	WAIT_FOR(8000,
		gauge(d, "inbox_events", "consumer=\"c00\",inbox=\"i\",status=\"FAILED\"") == 0);
	REQUIRE_INT(
		gauge(d, "inbox_oldest_unprocessed_age_seconds", "consumer=\"c00\",inbox=\"i\""),
		==, 0);
	REQUIRE_INT(gauge(d, "inbox_events", "consumer=\"c01\",inbox=\"i\",status=\"RECEIVED\""),
		==, -1);
	/* another retention: at once */
	configure(&r, &c, d,
		"    retention: { processed: 1h }\n    redelivery: { message_ttl: 10m, "
		"max_retry_wait: 10m, manual_window: 10m }\n");
	daemon_signal(d, SIGHUP);
	WAIT_FOR(5000, rows(&r, "event_id='done' AND consumer_name<>'c00'") == 0);
	REQUIRE_INT(daemon_log(d, "inbox i: retention.processed: 14d -> 1h", NULL), ==, 1);
	/* what cannot be counted is absent, and its age grows */
	db_exec(r.db, "RENAME TABLE %s.inbox_event TO %s.elsewhere", r.schema[0].name,
		r.schema[0].name);
	WAIT_FOR(8000, gauge(d, "inbox_events",
			       "consumer=\"c00\",inbox=\"i\",status=\"PROCESSED\"") == -1);
	REQUIRE_INT(daemon_log(d, "warn upkeep: table not counted", "inbox=i", NULL), ==, 1);
	c.top = NULL;
	daemon_configure(d, &c);
	daemon_signal(d, SIGHUP);
	WAIT_FOR(5000, gauge(d, "inbox_purged_total", "inbox=\"i\"") == -1);
	REQUIRE_INT(gauge(d, "sample_age_seconds", "inbox=\"i\""), ==, -1);
	REQUIRE_INT(daemon_log(d, "source started", NULL), ==, 1);
	daemon_stop(d);
	finish(&r, d);
}
END_TEST

static void consume(struct rig *r, struct db *client, const char *sql, const char *event_id,
	const char *type, const char *order, unsigned version)
{
	db_exec(client,
		"USE %s; SET @event_id='%s',@event_type='%s',@order_id='%s',@version=%u; %s",
		r->schema[0].name, event_id, type, order, version, sql);
}

static void require_order(struct rig *r, const char *order, const char *state, unsigned version)
{
	char *found = db_text(r->db,
		"SELECT CONCAT(state,' ',version) FROM %s.order_view WHERE order_id='%s'",
		r->schema[0].name, order);
	char want[100];

	snprintf(want, sizeof(want), "%s %u", state, version);
	REQUIRE_STR(found, want);
	free(found);
}

static void consume_all(struct rig *r, struct db *client, const char *sql)
{
	const char *s = r->schema[0].name;
	const char *long_id = "0123456789012345678901234567890123456789012345678901234567890123x";

	consume(r, client, sql, "e1", "created", "A", 1);
	consume(r, client, sql, "e1", "created", "A", 1);  /* the same again */
	consume(r, client, sql, "E1", "created", "a", 1);  /* others, by bytes */
	consume(r, client, sql, "e1b", "created", "A", 1); /* the same fact under another id */
	consume(r, client, sql, "e3", "paid", "A", 3);
	require_order(r, "A", "paid", 3);
	consume(r, client, sql, "e2", "cancelled", "A", 2); /* late */
	require_order(r, "A", "paid", 3);
	REQUIRE_INT(db_int(r->db, "SELECT COUNT(*) FROM %s.reconciliation", s), ==, 0);
	consume(r, client, sql, "e4", "created>paid", "A", 4); /* cannot be */
	consume(r, client, sql, "e5", "created", "A", 5);
	consume(r, client, sql, "f1", "shipped", "B", 1);
	consume(r, client, sql, "f1", "shipped", "B", 1);
	require_order(r, "A", "paid", 3);
	require_order(r, "a", "created", 1);
	REQUIRE_INT(db_int(r->db,
			    "SELECT COUNT(*) FROM %s.reconciliation WHERE (event_id IN "
			    "('e4','e5') AND found_state='paid') OR (event_id='f1' AND found_state "
			    "IS NULL)",
			    s),
		==, 3);
	/* cut, it would be the id of another event */
	consume(r, client, sql, long_id, "shipped", "A", 5);
	consume(r, client, sql, "", "shipped", "A", 5);
	require_order(r, "A", "paid", 3);
	REQUIRE_INT(rows(r, "status='PROCESSED'"), ==, 8);
	REQUIRE_INT(rows(r, "1"), ==, 8);
}

START_TEST(the_example_consumer_applies_each_event_once_in_order_and_only_what_may_be)
{
	struct rig r;
	struct conf c;
	struct daemon *d;
	struct db *found_rows = db_open_found_rows();
	char path[700], *sql;

	start(&r, &c, &d, "");
	snprintf(path, sizeof(path), "%s/sql/example_consumer.sql", env_get()->repository);
	sql = env_read_file(path);
	REQUIRE(sql != NULL);
	consume_all(&r, r.db, sql);
	db_exec(r.db, "USE %s; DROP TABLE order_view, reconciliation; DELETE FROM inbox_event",
		r.schema[0].name);
	consume_all(&r, found_rows, sql);
	free(sql);
	db_close(found_rows);
	finish(&r, d);
}
END_TEST

RIG_MAIN("inboxes", 120, only_rows_processed_longer_ago_than_the_age_go,
	without_its_index_the_table_is_read_by_the_key_and_the_same_goes,
	a_row_that_a_repeated_message_has_locked_is_left_for_the_next_pass,
	check_finds_a_key_that_swallows_events_and_what_retention_lacks,
	the_daemon_counts_and_purges_inboxes_as_they_come_change_and_go_with_reloads,
	the_example_consumer_applies_each_event_once_in_order_and_only_what_may_be)

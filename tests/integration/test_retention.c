/* Retention against real servers, with the account and the privileges of sql/grants.sql: by hand
 * with `outboxd purge`, and by the daemon at work. */
#include "support/rig.h"

#include <check.h>
#include <inttypes.h>
#include <json-c/json.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* --- a table -------------------------------------------------------------------------------- */

#define DIGITS                                                                                     \
	"(SELECT 0 d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 " \
	"UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL "   \
	"SELECT 9)"

/* `count` events "PREFIX-n", n from 0, at most 10,000; `set`: status, created_at and sent_at. */
static void add_many(struct rig *r, const char *prefix, unsigned count, const char *set)
{
	db_exec(r->db,
		"INSERT INTO %s.outbox_event (event_id,aggregate_type,aggregate_id,event_type,"
		"payload,status,created_at,sent_at) SELECT CONCAT('%s-',n),'order',CONCAT('a',n %% "
		"50),'created',JSON_OBJECT('n',n),%s FROM (SELECT a.d+10*b.d+100*c.d+1000*e.d n "
		"FROM " DIGITS " a," DIGITS " b," DIGITS " c," DIGITS " e) x WHERE n<%u",
		r->schema[0].name, prefix, set, count);
}

static void add(struct rig *r, const char *event_id, const char *set)
{
	db_exec(r->db,
		"INSERT INTO %s.outbox_event SET event_id='%s',aggregate_type='order',"
		"aggregate_id='%s',event_type='created',payload='{}',%s",
		r->schema[0].name, event_id, event_id, set);
}

#define OLD "'SENT',NOW(6)-INTERVAL 9 DAY,NOW(6)-INTERVAL 8 DAY"

static void add_archive(struct rig *r)
{
	const struct schema *s = &r->schema[0];

	db_exec(r->db,
		"CREATE TABLE %s.old_events LIKE %s.outbox_event;"
		"GRANT INSERT ON %s.old_events TO '%s'@'%%'",
		s->name, s->name, s->name, s->user);
}

static bool exists(struct rig *r, const char *event_id)
{
	return db_int(r->db, "SELECT COUNT(*) FROM %s.outbox_event WHERE event_id='%s'",
		       r->schema[0].name, event_id) == 1;
}

static void start(
	struct rig *r, struct conf *c, struct daemon **d, const char *name, const char *retention)
{
	rig_open(r, 1);
	rig_conf(r, c);
	c->source[0].more = retention;
	*d = daemon_new(name);
	daemon_configure(*d, c);
}

static void finish(struct rig *r, struct daemon *d)
{
	daemon_free(d);
	rig_close(r);
}

/* --- the command ---------------------------------------------------------------------------- */

struct output {
	char text[20000];
	int status;
};

static void purge_into(struct output *o, const struct daemon *d, va_list ap)
{
	const char *args[24] = { env_get()->binary, "purge", "-c", d->config };

	for (unsigned n = 4; n < 23 && (args[n] = va_arg(ap, const char *)) != NULL;)
		n++;
	o->status = env_run(o->text, sizeof(o->text), args);
}

static struct output last;

/* `outboxd purge ARGS...`, NULL ends them. */
static int purge(const struct daemon *d, ...) __attribute__((sentinel));
static int purge(const struct daemon *d, ...)
{
	va_list ap;

	va_start(ap, d);
	purge_into(&last, d, ap);
	va_end(ap);
	return last.status;
}

static struct json_object *member(const char *name)
{
	struct json_object *o = json_tokener_parse(last.text), *m = NULL;

	if (o == NULL || !json_object_object_get_ex(o, name, &m))
		FAIL("no member %s in: %s", name, last.text);
	return m; /* a test's end frees */
}

static int64_t number(const char *name)
{
	return json_object_get_int64(member(name));
}

/* --- what goes ------------------------------------------------------------------------------ */

START_TEST(nothing_goes_but_what_was_sent_longer_ago_than_its_age)
{
	static const struct {
		const char *name, *set;
		bool goes;
	} rows[] = {
		{ "old",
			"status='SENT',created_at=NOW(6)-INTERVAL 9 DAY,sent_at=NOW(6)-INTERVAL "
			"169 HOUR",
			true },
		{ "just",
			"status='SENT',created_at=NOW(6)-INTERVAL 8 DAY,sent_at=NOW(6)-INTERVAL "
			"167 HOUR",
			false },
		{ "sent-late",
			"status='SENT',created_at=NOW(6)-INTERVAL 90 DAY,"
			"sent_at=NOW(6)-INTERVAL 30 MINUTE",
			false },
		{ "never-sent", "status='SENT',created_at=NOW(6)-INTERVAL 9 DAY,sent_at=NULL",
			false },
		{ "pending", "created_at=NOW(6)-INTERVAL 9 DAY", false },
		{ "pending-sent", "created_at=NOW(6)-INTERVAL 9 DAY,sent_at=NOW(6)-INTERVAL 9 DAY",
			false },
		{ "processing",
			"status='PROCESSING',created_at=NOW(6)-INTERVAL 9 DAY,"
			"locked_by='x',locked_until=NOW(6)-INTERVAL 9 DAY",
			false },
		{ "retry",
			"status='RETRY',created_at=NOW(6)-INTERVAL 9 DAY,"
			"next_retry_at=NOW(6)-INTERVAL 9 DAY",
			false },
		{ "dead",
			"status='DEAD',created_at=NOW(6)-INTERVAL 9 DAY,"
			"sent_at=NOW(6)-INTERVAL 9 DAY",
			false },
	};
	struct rig r;
	struct conf c;
	struct daemon *d;

	start(&r, &c, &d, "ages", "");
	/* nothing depends on the server's own zone, nor on this machine's */
	db_exec(r.db, "SET GLOBAL time_zone='+13:00'");
	setenv("TZ", "UTC+10", 1);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		add(&r, rows[i].name, rows[i].set);
	purge(d, "--dry-run", "--json", NULL);
	REQUIRE_INT(number("matched"), ==, 1);
	REQUIRE_INT(number("changed"), ==, 0);
	REQUIRE(json_object_get_boolean(member("dry_run")));
	REQUIRE_INT(rig_rows(&r, 0, "1"), ==, ARRAY_LEN(rows));
	purge(d, "--json", NULL);
	db_exec(r.db, "SET GLOBAL time_zone='SYSTEM'");
	REQUIRE_INT(last.status, ==, 0);
	REQUIRE_STR(json_object_get_string(member("source")), "s0");
	REQUIRE_INT(number("matched"), ==, 1);
	REQUIRE_INT(number("changed"), ==, 1);
	REQUIRE_INT(number("dead"), ==, 0);
	REQUIRE_STR(
		json_object_get_string(json_object_array_get_idx(member("event_ids"), 0)), "old");
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (exists(&r, rows[i].name) == rows[i].goes)
			FAIL("%s: %s", rows[i].name, rows[i].goes ? "still there" : "gone");
	finish(&r, d);
}
END_TEST

START_TEST(dead_events_go_only_when_asked_for_and_never_in_silence)
{
	struct rig r;
	struct conf c;
	struct daemon *d;

	start(&r, &c, &d, "dead", "    retention: { sent: never }\n");
	add_many(&r, "dead", 12, "'DEAD',NOW(6)-INTERVAL 3 DAY,NULL");
	add(&r, "young", "status='DEAD',created_at=NOW(6)-INTERVAL 1 DAY");
	add(&r, "sent",
		"status='SENT',created_at=NOW(6)-INTERVAL 9 DAY,"
		"sent_at=NOW(6)-INTERVAL 9 DAY");
	REQUIRE_INT(purge(d, NULL), ==, 0);
	REQUIRE(strstr(last.text, "never: nothing to do") != NULL);
	c.source[0].more = "    retention: { sent: never, dead: 2d, interval: 1s }\n";
	daemon_configure(d, &c);
	daemon_start(d);
	daemon_wait_ready(d, true);
	rig_wait_none(&r, 0, "event_id LIKE 'dead-%'", 5000);
	WAIT_FOR(3000, daemon_metric(d, "outboxd_purged_events_total{source=\"s0\"}") == 12);
	REQUIRE(daemon_metric(d, "outboxd_retention_failing{source=\"s0\"}") == 0);
	REQUIRE_INT(daemon_log(d, "warn retention: dead events deleted", "rows=12", "dead-9",
			    "more=yes", NULL),
		==, 1);
	REQUIRE(exists(&r, "young") && exists(&r, "sent"));
	daemon_stop(d);
	finish(&r, d);
}
END_TEST

START_TEST(a_row_that_somebody_has_locked_is_left_and_the_others_go)
{
	struct rig r;
	struct conf c;
	struct daemon *d;
	struct db *other = db_open();
	int64_t began;

	start(&r, &c, &d, "locked", "");
	add_many(&r, "old", 700, OLD);
	db_exec(other,
		"START TRANSACTION; SELECT id FROM %s.outbox_event WHERE event_id='old-7' FOR "
		"UPDATE",
		r.schema[0].name);
	began = env_now_us();
	if (purge(d, "--json", NULL) != 0)
		FAIL("%s", last.text);
	REQUIRE_INT(env_now_us() - began, <, 5 * US_PER_SEC); /* waits for nobody */
	REQUIRE_INT(number("matched"), ==, 700);
	REQUIRE_INT(number("changed"), ==, 699);
	REQUIRE(exists(&r, "old-7"));
	db_exec(other, "ROLLBACK");
	REQUIRE_INT(purge(d, "--json", NULL), ==, 0);
	REQUIRE_INT(number("changed"), ==, 1);
	REQUIRE_INT(rig_rows(&r, 0, "1"), ==, 0);
	db_close(other);
	finish(&r, d);
}
END_TEST

START_TEST(a_limit_and_a_rate_are_kept)
{
	struct rig r;
	struct conf c;
	struct daemon *d;
	int64_t began;

	start(&r, &c, &d, "rate", "    retention: { max_rate: 1000, batch: 300 }\n");
	add_many(&r, "old", 1900, OLD);
	REQUIRE_INT(purge(d, "--limit", "300", "--json", NULL), ==, 0);
	REQUIRE_INT(number("changed"), ==, 300);
	REQUIRE_INT(rig_rows(&r, 0, "1"), ==, 1600);
	REQUIRE_INT(purge(d, "--limit", "20", "--dry-run", "--json", NULL), ==, 0);
	REQUIRE_INT(number("matched"), ==, 20);
	began = env_now_us();
	REQUIRE_INT(purge(d, "--json", NULL), ==, 0);
	REQUIRE_INT(env_now_us() - began, >, 1300 * US_PER_MS);
	REQUIRE_INT(number("changed"), ==, 1600);
	REQUIRE_INT(rig_rows(&r, 0, "1"), ==, 0);
	REQUIRE_INT(purge(d, "--source", "nobody", NULL), ==, 2);
	REQUIRE_INT(purge(d, "--limit", "0", NULL), ==, 2);
	finish(&r, d);
}
END_TEST

/* The failure of `outboxd purge` begins so, and does not name the source again. */
static void require_named_once(const char *begin)
{
	const char *at = strstr(last.text, begin);

	if (at == NULL || strstr(at + strlen(begin), "source s0: ") != NULL)
		FAIL("no \"%s\", or twice: %s", begin, last.text);
}

START_TEST(without_the_privilege_the_command_fails_and_the_relay_goes_on)
{
	struct rig r;
	struct conf c;
	struct daemon *d;
	const char *check[] = { env_get()->binary, "check", "-c", NULL, NULL };
	char out[8000];

	start(&r, &c, &d, "refused", "    retention: { interval: 1s }\n");
	add_many(&r, "old", 3, OLD);
	db_exec(r.db, "REVOKE DELETE ON %s.outbox_event FROM '%s'@'%%'", r.schema[0].name,
		r.schema[0].user);
	REQUIRE_INT(purge(d, NULL), ==, 1);
	check[3] = d->config;
	REQUIRE_INT(env_run(out, sizeof(out), check), ==, 0);
	REQUIRE(strstr(out, "rows are never removed") != NULL);
	c.source[0].db_port = 1;
	daemon_configure(d, &c);
	REQUIRE_INT(purge(d, NULL), ==, 1);
	require_named_once("outboxd purge: source s0: ");
	c.source[0].db_port = 0;
	daemon_configure(d, &c);
	daemon_start(d);
	daemon_wait_ready(d, true);
	WAIT_FOR(5000, daemon_log(d, "warn upkeep: rows not removed", NULL) == 1);
	REQUIRE(daemon_metric(d, "outboxd_retention_failing{source=\"s0\"}") == 1);
	add(&r, "new", "status='PENDING'");
	rig_wait_sent(&r, 0, 5000);
	daemon_stop(d);
	finish(&r, d);
}
END_TEST

/* A child that refers to it keeps a row from being deleted. */
static void refer_to(struct rig *r, const char *where)
{
	const char *s = r->schema[0].name;

	db_exec(r->db,
		"CREATE TABLE %s.child (event BIGINT UNSIGNED NOT NULL, FOREIGN KEY (event) "
		"REFERENCES %s.outbox_event (id)); INSERT INTO %s.child SELECT id FROM "
		"%s.outbox_event WHERE %s",
		s, s, s, s, where);
}

START_TEST(a_row_that_is_refused_is_named_and_only_that_one_is_left)
{
	struct rig r;
	struct conf c;
	struct daemon *d;
	char named[60];

	start(&r, &c, &d, "refused_row", "");
	add_many(&r, "old", 1300, OLD);
	refer_to(&r, "event_id IN ('old-7','old-8','old-1200')");
	REQUIRE_INT(purge(d, NULL), ==, 1);
	snprintf(named, sizeof(named), "row %" PRId64 ": ",
		db_int(r.db, "SELECT MIN(event) FROM %s.child", r.schema[0].name));
	if (strstr(last.text, named) == NULL)
		FAIL("no '%s' in: %s", named, last.text);
	REQUIRE_INT(rig_rows(&r, 0, "1"), ==, 3);
	REQUIRE(exists(&r, "old-7") && exists(&r, "old-8") && exists(&r, "old-1200"));
	finish(&r, d);
}
END_TEST

START_TEST(where_every_row_is_refused_the_pass_ends)
{
	struct rig r;
	struct conf c;
	struct daemon *d;

	start(&r, &c, &d, "refused_all", "");
	add_many(&r, "old", 600, OLD);
	refer_to(&r, "1");
	REQUIRE_INT(purge(d, NULL), ==, 1);
	REQUIRE_INT(rig_rows(&r, 0, "1"), ==, 600);
	finish(&r, d);
}
END_TEST

static double failing(const struct daemon *d)
{
	return daemon_metric(d, "outboxd_retention_failing{source=\"s0\"}");
}

START_TEST(retention_that_fails_says_so_until_rows_are_removed)
{
	struct rig r;
	struct conf c;
	struct daemon *d;
	int64_t until_us;

	start(&r, &c, &d, "refused_long", "    retention: { interval: 1s }\n");
	add_many(&r, "old", 100, OLD);
	refer_to(&r, "event_id='old-50'");
	daemon_start(d);
	daemon_wait_ready(d, true);
	WAIT_FOR(10000, rig_rows(&r, 0, "1") == 1 && failing(d) == 1);
	until_us = env_now_us() + 4 * US_PER_SEC;
	while (env_now_us() < until_us) {
		REQUIRE(failing(d) == 1);
		usleep(50000);
	}
	REQUIRE_INT(daemon_log(d, "rows are removed again", NULL), ==, 0);
	REQUIRE_INT(daemon_log(d, "warn upkeep: a row is not removed", NULL), ==, 1);
	db_exec(r.db, "DROP TABLE %s.child", r.schema[0].name);
	WAIT_FOR(10000, rig_rows(&r, 0, "1") == 0 && failing(d) == 0);
	REQUIRE_INT(daemon_log(d, "rows are removed again", NULL), ==, 1);
	daemon_stop(d);
	finish(&r, d);
}
END_TEST

/* What a server that has become read-only does to a session: it ends with the first write. */
START_TEST(where_each_removal_ends_the_connection_it_is_not_tried_all_the_time)
{
	struct rig r;
	struct conf c;
	struct daemon *d;
	int64_t until_us;

	start(&r, &c, &d, "refused_link", "    retention: { interval: 1s }\n");
	add_many(&r, "old", 100, OLD);
	db_exec(r.db,
		"CREATE TABLE %s.tries (n INT) ENGINE=MyISAM; CREATE TRIGGER %s.cut BEFORE DELETE "
		"ON %s.outbox_event FOR EACH ROW BEGIN INSERT INTO %s.tries VALUES (1); KILL "
		"CONNECTION_ID(); END",
		r.schema[0].name, r.schema[0].name, r.schema[0].name, r.schema[0].name);
	daemon_start(d);
	daemon_wait_ready(d, true);
	WAIT_FOR(10000, failing(d) == 1);
	until_us = env_now_us() + 8 * US_PER_SEC;
	while (env_now_us() < until_us) {
		REQUIRE(failing(d) == 1);
		usleep(50000);
	}
	REQUIRE_INT(db_int(r.db, "SELECT COUNT(*) FROM %s.tries", r.schema[0].name), <=, 4);
	db_exec(r.db, "DROP TRIGGER %s.cut", r.schema[0].name);
	WAIT_FOR(30000, rig_rows(&r, 0, "1") == 0 && failing(d) == 0);
	daemon_stop(d);
	finish(&r, d);
}
END_TEST

/* --- the archive ---------------------------------------------------------------------------- */

/* Each row is in one of the two tables, as it was. */
static void require_all(struct rig *r, unsigned rows)
{
	const char *s = r->schema[0].name;

	REQUIRE_INT(db_int(r->db,
			    "SELECT COUNT(*) FROM %s.reference k JOIN (SELECT * FROM "
			    "%s.outbox_event UNION ALL SELECT * FROM %s.old_events) t USING "
			    "(id,event_id,aggregate_type,aggregate_id,event_type,status,created_at,"
			    "sent_at,retry_count) WHERE CAST(k.payload AS CHAR)=CAST(t.payload AS "
			    "CHAR)",
			    s, s, s),
		==, rows);
	REQUIRE_INT(db_int(r->db,
			    "SELECT (SELECT COUNT(*) FROM %s.outbox_event)+(SELECT COUNT(*) FROM "
			    "%s.old_events)",
			    s, s),
		==, rows);
}

START_TEST(a_move_to_the_archive_is_whole_however_often_the_daemon_is_killed)
{
	struct rig r;
	struct conf c;
	struct daemon *d;

	start(&r, &c, &d, "archive",
		"    retention: { interval: 1s, batch: 400, max_rate: 1500, archive_table: "
		"old_events }\n");
	add_many(&r, "old", 3000, OLD);
	add_archive(&r);
	db_exec(r.db,
		"CREATE TABLE %s.reference (PRIMARY KEY (id)) AS SELECT * FROM %s.outbox_event",
		r.schema[0].name, r.schema[0].name);
	/* it dies between the copy and the delete: the server ends the one, and never sees the
	 * other */
	db_exec(r.db,
		"CREATE TRIGGER %s.slow BEFORE INSERT ON %s.old_events FOR EACH ROW DO "
		"SLEEP(0.001)",
		r.schema[0].name, r.schema[0].name);
	for (unsigned round = 0; round < 3; round++) {
		uint64_t before = rig_rows(&r, 0, "1");

		daemon_start(d);
		if (round % 2 == 1)
			WAIT_FOR(20000, rig_rows(&r, 0, "1") < before);
		WAIT_FOR(20000, db_int(r.db,
					"SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE "
					"USER='%s' AND INFO LIKE 'INSERT INTO%%old_events%%'",
					r.schema[0].user) > 0);
		daemon_kill(d);
		WAIT_FOR(5000, db_session(r.db, r.schema[0].user) == 0);
		require_all(&r, 3000);
	}
	db_exec(r.db, "DROP TRIGGER %s.slow", r.schema[0].name);
	REQUIRE_INT(rig_rows(&r, 0, "1"), >, 0);
	REQUIRE_INT(purge(d, NULL), ==, 0);
	REQUIRE(strstr(last.text, "rows moved to old_events") != NULL);
	REQUIRE_INT(rig_rows(&r, 0, "1"), ==, 0);
	require_all(&r, 3000);
	finish(&r, d);
}
END_TEST

struct parallel {
	const struct daemon *d;
	pthread_t thread;
	struct output out;
};

static void *purge_aside(void *arg)
{
	struct parallel *p = arg;
	const char *args[] = { env_get()->binary, "purge", "-c", p->d->config, "--json", NULL };

	p->out.status = env_run(p->out.text, sizeof(p->out.text), args);
	return NULL;
}

START_TEST(purgers_at_the_same_time_remove_every_row_once)
{
	struct rig r;
	struct conf c;
	struct daemon *d;
	struct parallel two[2];
	int64_t sum = 0;

	start(&r, &c, &d, "several",
		"    retention: { interval: 1s, batch: 250, archive_table: old_events }\n");
	add_many(&r, "old", 3000, OLD);
	add_archive(&r);
	db_exec(r.db,
		"CREATE TABLE %s.reference (PRIMARY KEY (id)) AS SELECT * FROM %s.outbox_event",
		r.schema[0].name, r.schema[0].name);
	daemon_start(d);
	for (unsigned i = 0; i < 2; i++) {
		two[i] = (struct parallel){ .d = d };
		REQUIRE(pthread_create(&two[i].thread, NULL, purge_aside, &two[i]) == 0);
	}
	for (unsigned i = 0; i < 2; i++) {
		pthread_join(two[i].thread, NULL);
		last = two[i].out;
		REQUIRE_INT(last.status, ==, 0);
		sum += number("changed");
	}
	rig_wait_none(&r, 0, "1", 10000);
	WAIT_FOR(5000,
		sum + (int64_t)daemon_metric(d, "outboxd_purged_events_total{source=\"s0\"}") ==
			3000);
	require_all(&r, 3000);
	REQUIRE_INT(daemon_log(d, "rows not removed", NULL), ==, 0);
	daemon_stop(d);
	finish(&r, d);
}
END_TEST

START_TEST(an_archive_that_does_not_fit_is_found_by_check_and_loses_nothing)
{
	struct rig r;
	struct conf c;
	struct daemon *d;
	const char *check[] = { env_get()->binary, "check", "-c", NULL, NULL };
	char out[8000];

	start(&r, &c, &d, "misfit", "    retention: { archive_table: old_events }\n");
	check[3] = d->config;
	add_many(&r, "old", 3, OLD);
	REQUIRE_INT(env_run(out, sizeof(out), check), ==, 1);
	REQUIRE(strstr(out, "the archive table does not exist") != NULL);
	REQUIRE_INT(purge(d, NULL), ==, 1);
	require_named_once("outboxd purge: source s0: retention: ");
	add_archive(&r);
	REQUIRE_INT(env_run(out, sizeof(out), check), ==, 0);
	db_exec(r.db,
		"REVOKE INSERT ON %s.old_events FROM '%s'@'%%'; GRANT SELECT ON "
		"%s.old_events TO '%s'@'%%'",
		r.schema[0].name, r.schema[0].user, r.schema[0].name, r.schema[0].user);
	REQUIRE_INT(env_run(out, sizeof(out), check), ==, 1);
	REQUIRE(strstr(out, "GRANT INSERT ON ") != NULL);
	REQUIRE_INT(purge(d, NULL), ==, 1);
	db_exec(r.db,
		"GRANT INSERT ON %s.old_events TO '%s'@'%%'; ALTER TABLE %s.old_events DROP "
		"trace_id, ADD more INT NOT NULL, MODIFY event_type VARCHAR(5) NOT NULL, MODIFY "
		"sent_at TIMESTAMP(6) NOT NULL",
		r.schema[0].name, r.schema[0].user, r.schema[0].name);
	REQUIRE_INT(env_run(out, sizeof(out), check), ==, 1);
	REQUIRE(strstr(out, "the column trace_id is missing") != NULL);
	REQUIRE(strstr(out, "the column sent_at must allow NULL") != NULL);
	REQUIRE(strstr(out, "the column event_type is ") != NULL);
	REQUIRE(strstr(out, "the column more, which the outbox table does not have") != NULL);
	REQUIRE_INT(purge(d, NULL), ==, 1);
	REQUIRE_INT(rig_rows(&r, 0, "1"), ==, 3);
	db_exec(r.db, "ALTER TABLE %s.old_events ENGINE=MyISAM", r.schema[0].name);
	REQUIRE_INT(purge(d, NULL), ==, 1);
	if (strstr(last.text, "no InnoDB table") == NULL)
		FAIL("%s", last.text);
	REQUIRE_INT(rig_rows(&r, 0, "1"), ==, 3);
	/* one that can: more columns, another order, a row that is there already */
	db_exec(r.db,
		"DROP TABLE %s.old_events; CREATE TABLE %s.old_events LIKE %s.outbox_event; ALTER "
		"TABLE %s.old_events ADD moved_at TIMESTAMP(6) NOT NULL DEFAULT "
		"CURRENT_TIMESTAMP(6) FIRST",
		r.schema[0].name, r.schema[0].name, r.schema[0].name, r.schema[0].name);
	REQUIRE_INT(env_run(out, sizeof(out), check), ==, 0);
	REQUIRE_INT(purge(d, NULL), ==, 0);
	REQUIRE_INT(db_int(r.db, "SELECT COUNT(*) FROM %s.old_events WHERE moved_at>created_at",
			    r.schema[0].name),
		==, 3);
	finish(&r, d);
}
END_TEST

/* --- the daemon ----------------------------------------------------------------------------- */

START_TEST(outside_its_window_nothing_goes_and_a_reload_opens_it_without_a_new_relay)
{
	struct rig r;
	struct conf c;
	struct daemon *d;
	char closed[120];
	time_t now = time(NULL);
	unsigned hour = (unsigned)(now / 3600 % 24);

	snprintf(closed, sizeof(closed),
		"    retention: { interval: 1s, window: \"%02u:00-%02u:00\" }\n", (hour + 4) % 24,
		(hour + 5) % 24);
	start(&r, &c, &d, "window", closed);
	add_many(&r, "old", 20, OLD);
	daemon_start(d);
	daemon_wait_ready(d, true);
	/* counted twice: the thread had five seconds to look at its window */
	WAIT_FOR(5000, daemon_metric(d, "outboxd_backlog_events{source=\"s0\"}") == 0);
	env_sleep_ms(2500);
	REQUIRE_INT(rig_rows(&r, 0, "1"), ==, 20);
	REQUIRE_INT(daemon_metric(d, "outboxd_purged_events_total{source=\"s0\"}"), ==, 0);
	c.source[0].more = "    retention: { interval: 1s }\n";
	daemon_configure(d, &c);
	daemon_signal(d, SIGHUP);
	rig_wait_none(&r, 0, "1", 5000);
	WAIT_FOR(3000, daemon_metric(d, "outboxd_purged_events_total{source=\"s0\"}") == 20);
	REQUIRE_INT(daemon_log(d, "source started", NULL), ==, 1);
	REQUIRE_INT(daemon_log(d, "source s0: retention.window: ", "(none)", NULL), ==, 1);
	daemon_stop(d);
	finish(&r, d);
}
END_TEST

START_TEST(with_0s_events_are_deleted_as_they_are_sent_and_each_arrives_once)
{
	static const char *const orderings[] = { "aggregate", "none" };

	for (size_t i = 0; i < ARRAY_LEN(orderings); i++) {
		struct rig r;
		struct conf c;
		struct daemon *d;
		struct production p = { .first = 1, .count = 1000, .aggregates = 60 };
		uint64_t seen[60] = { 0 };

		start(&r, &c, &d, "at-once", "    retention: { sent: 0s }\n");
		c.ordering = orderings[i];
		daemon_configure(d, &c);
		add_many(&r, "before", 10, OLD); /* sent under another configuration */
		db_produce(r.db, &r.schema[0], &p);
		daemon_start(d);
		rig_wait_none(&r, 0, "1", 20000);
		WAIT_FOR(3000,
			daemon_metric(d, "outboxd_purged_events_total{source=\"s0\"}") == 1010);
		REQUIRE_INT(daemon_metric(d, "outboxd_events_published_total{source=\"s0\"}"), ==,
			1000);
		REQUIRE_INT(daemon_metric(d, "outboxd_lease_lost_total{source=\"s0\"}"), ==, 0);
		WAIT_FOR(5000, mq_drain(r.mq, r.queue, &r.inbox) + r.inbox.count >= 1000);
		REQUIRE_INT(r.inbox.count, ==, 1000);
		for (size_t m = 0; m < r.inbox.count; m++) {
			uint64_t n = strtoull(
				strrchr(r.inbox.messages[m].message_id, '-') + 1, NULL, 10);

			if (i == 0)
				REQUIRE_INT(n, >, seen[n % 60]);
			seen[n % 60] = n;
		}
		daemon_stop(d);
		finish(&r, d);
	}
}
END_TEST

START_TEST(a_source_whose_backlog_only_grows_is_purged_all_the_same)
{
	struct rig r;
	struct conf c;
	struct daemon *d;

	start(&r, &c, &d, "busy", "    retention: { interval: 1s }\n");
	c.source[0].exchange = "nowhere-at-all";
	daemon_configure(d, &c);
	add_many(&r, "old", 2000, OLD);
	add_many(&r, "waiting", 500, "'PENDING',NOW(6)-INTERVAL 1 MINUTE,NULL");
	daemon_start(d);
	rig_wait_none(&r, 0, "status='SENT'", 30000);
	REQUIRE_INT(rig_rows(&r, 0, "1"), ==, 500);
	daemon_stop(d);
	finish(&r, d);
}
END_TEST

START_TEST(events_flow_in_order_and_undisturbed_while_rows_are_purged)
{
	struct rig r;
	struct conf c;
	struct daemon *d;
	struct allowance exactly = { .foreign = true };
	struct production p = {
		.first = 1, .count = 1500, .aggregates = 50, .transaction = 10, .per_second = 500
	};
	struct producer *producer;

	start(&r, &c, &d, "traffic", "    retention: { interval: 1s, batch: 1000 }\n");
	add_many(&r, "old", 6000, OLD);
	daemon_start(d);
	daemon_wait_ready(d, true);
	producer = producer_start(&r.schema[0], &p);
	REQUIRE_INT(producer_wait(producer), ==, 1500);
	rig_wait_sent(&r, 0, 10000);
	rig_wait_none(&r, 0, "event_id LIKE 'old-%'", 15000);
	REQUIRE_INT(daemon_metric(d, "outboxd_lease_lost_total{source=\"s0\"}"), ==, 0);
	REQUIRE_INT(
		daemon_metric(d, "outboxd_db_errors_total{class=\"retry\",source=\"s0\"}"), ==, 0);
	WAIT_FOR(5000, daemon_metric(d, "outboxd_purged_events_total{source=\"s0\"}") == 6000);
	daemon_stop(d);
	rig_judge(&r, 0, &exactly, NULL);
	finish(&r, d);
}
END_TEST

RIG_MAIN("retention", 120, nothing_goes_but_what_was_sent_longer_ago_than_its_age,
	dead_events_go_only_when_asked_for_and_never_in_silence,
	a_row_that_somebody_has_locked_is_left_and_the_others_go, a_limit_and_a_rate_are_kept,
	without_the_privilege_the_command_fails_and_the_relay_goes_on,
	a_row_that_is_refused_is_named_and_only_that_one_is_left,
	where_every_row_is_refused_the_pass_ends,
	retention_that_fails_says_so_until_rows_are_removed,
	where_each_removal_ends_the_connection_it_is_not_tried_all_the_time,
	a_move_to_the_archive_is_whole_however_often_the_daemon_is_killed,
	purgers_at_the_same_time_remove_every_row_once,
	an_archive_that_does_not_fit_is_found_by_check_and_loses_nothing,
	outside_its_window_nothing_goes_and_a_reload_opens_it_without_a_new_relay,
	with_0s_events_are_deleted_as_they_are_sent_and_each_arrives_once,
	a_source_whose_backlog_only_grows_is_purged_all_the_same,
	events_flow_in_order_and_undisturbed_while_rows_are_purged)

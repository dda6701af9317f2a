/* The administrative commands and the gauges of the tables, against real servers: with the relay's
 * least privileges, beside a daemon at work where that matters. */
#include "support/command.h"
#include "support/rig.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <json-c/json.h>
#include <regex.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- a table -------------------------------------------------------------------------------- */

/* One event; `set` are further assignments. */
static void add(struct rig *r, const char *event_id, const char *aggregate, const char *set)
{
	db_exec(r->db,
		"INSERT INTO %s.outbox_event SET event_id='%s',aggregate_type='order',"
		"aggregate_id='%s',event_type='created',payload='{}',created_at=NOW(6)%s%s",
		r->schema[0].name, event_id, aggregate, set[0] != '\0' ? "," : "", set);
}

#define DEAD_SET "status='DEAD',retry_count=10,last_error='UNROUTABLE: returned: NO_ROUTE'"
#define WAITING_SET "next_retry_at=NOW(6)+INTERVAL 250 SECOND,last_error='WAITING: behind dead-1'"

static void add_all_states(struct rig *r)
{
	add(r, "sent-1", "z", "status='SENT',sent_at=NOW(6)");
	add(r, "dead-1", "blocked", DEAD_SET);
	add(r, "held-1", "blocked", WAITING_SET);
	add(r, "held-2", "blocked", WAITING_SET);
	add(r, "skipped-1", "skipped", "status='DEAD',last_error='SKIPPED: not wanted'");
	add(r, "retry-1", "retry",
		"status='RETRY',retry_count=3,next_retry_at=NOW(6)+INTERVAL 90 SECOND,"
		"last_error='NACKED: no'");
	add(r, "after-retry", "retry", "");
	add(r, "live-1", "live",
		"status='PROCESSING',locked_by='other/1/0',locked_until=NOW(6)+INTERVAL 50 SECOND");
	add(r, "expired-1", "expired",
		"status='PROCESSING',locked_by='gone/1/0',locked_until=NOW(6)-INTERVAL 40 SECOND");
	add(r, "fresh-1", "fresh", "");
	add(r, "later-1", "later", "next_retry_at=NOW(6)+INTERVAL 1 HOUR");
	add(r, "odd-1", "odd", "status='WHATEVER'");
}

struct stage {
	struct rig rig;
	struct conf conf;
	struct daemon *d;
};

static void stage_open(struct stage *s, const char *ordering)
{
	rig_open(&s->rig, 1);
	rig_conf(&s->rig, &s->conf);
	s->conf.ordering = ordering;
	s->d = daemon_new("admin");
	daemon_configure(s->d, &s->conf);
}

static void stage_close(struct stage *s)
{
	daemon_free(s->d);
	rig_close(&s->rig);
}

static char *value(struct rig *r, const char *event_id, const char *what)
{
	return db_text(r->db, "SELECT CAST(%s AS CHAR) FROM %s.outbox_event WHERE event_id='%s'",
		what, r->schema[0].name, event_id);
}

static void require_value(
	struct rig *r, const char *event_id, const char *what, const char *expected)
{
	char *v = value(r, event_id, what);

	if (strcmp(v != NULL ? v : "NULL", expected) != 0)
		FAIL("%s of %s is %s, should be %s", what, event_id, v != NULL ? v : "NULL",
			expected);
	free(v);
}

/* --- status --------------------------------------------------------------------------------- */

START_TEST(status_counts_every_state_and_says_what_is_blocked)
{
	static const struct {
		const char *name;
		int64_t value;
	} counts[] = { { "pending", 5 }, { "retry", 1 }, { "processing", 2 }, { "dead", 1 },
		{ "skipped", 1 }, { "held", 2 }, { "blocked_aggregates", 1 },
		{ "expired_leases", 1 } };
	struct stage s;
	struct json_object *o, *source, *blocked;

	stage_open(&s, "aggregate");
	add_all_states(&s.rig);
	command_run(s.d, "status", "--json", NULL);
	require_status(0);
	o = command_json();
	source = json_object_array_get_idx(json_member(o, "sources"), 0);
	REQUIRE_STR(json_text(source, "name"), "s0");
	REQUIRE(json_object_get_boolean(json_member(source, "up")));
	REQUIRE(json_member(source, "leader") == NULL);
	for (size_t i = 0; i < ARRAY_LEN(counts); i++)
		if (json_number(source, counts[i].name) != counts[i].value)
			FAIL("%s: %s", counts[i].name, command_last.out);
	REQUIRE(json_object_get_double(json_member(source, "oldest_claimable_age_seconds")) >= 40);
	REQUIRE(json_object_get_double(json_member(source, "oldest_unsent_age_seconds")) > 0);
	REQUIRE_INT(json_object_array_length(json_member(source, "leases")), ==, 2);
	REQUIRE_INT(json_object_array_length(json_member(source, "blocked")), ==, 1);
	blocked = json_object_array_get_idx(json_member(source, "blocked"), 0);
	REQUIRE_STR(json_text(blocked, "event_id"), "dead-1");
	REQUIRE_STR(json_text(blocked, "class"), "UNROUTABLE");
	REQUIRE_STR(json_text(blocked, "aggregate_id"), "blocked");
	require_text(json_text(blocked, "unblock"), "requeue");
	json_object_put(o);
	command_run(s.d, "status", NULL);
	require_status(0);
	require_text(command_last.out, "order/blocked");
	require_text(command_last.out, "gone/1/0");
	require_text(command_last.out, "--source s0 dead-1");
	stage_close(&s);
}
END_TEST

/* The server has no performance_schema where it is MariaDB. */
static const char *leader_begins(void)
{
	return env_get()->mariadb ? "connection " : "admin/";
}

START_TEST(no_lease_makes_its_owner_the_leader)
{
	struct stage s;
	struct json_object *o, *source;

	stage_open(&s, "aggregate");
	daemon_start(s.d);
	daemon_wait_ready(s.d, true);
	/* as of a leader that was killed, and whose rows are not over yet */
	add(&s.rig, "live-1", "live",
		"status='PROCESSING',locked_by='dead/1/0',locked_until=NOW(6)+INTERVAL 90 SECOND");
	command_run(s.d, "status", "--json", NULL);
	require_status(0);
	o = command_json();
	source = json_object_array_get_idx(json_member(o, "sources"), 0);
	require_text(json_text(source, "leader"), leader_begins());
	json_object_put(o);
	daemon_stop(s.d);
	stage_close(&s);
}
END_TEST

START_TEST(status_names_the_leader_and_fails_for_a_source_that_is_away)
{
	struct stage s;
	struct json_object *o, *list;

	stage_open(&s, "aggregate");
	daemon_start(s.d);
	daemon_wait_ready(s.d, true);
	command_run(s.d, "status", "--json", NULL);
	require_status(0);
	o = command_json();
	list = json_member(o, "sources");
	require_text(json_text(json_object_array_get_idx(list, 0), "leader"), leader_begins());
	REQUIRE_INT(json_number(json_object_array_get_idx(list, 0), "leader_connection"), >, 0);
	json_object_put(o);
	daemon_stop(s.d);

	conf_add(&s.conf, "away", &s.rig.schema[0], s.rig.exchange)->db_port = 1;
	daemon_configure(s.d, &s.conf);
	command_run(s.d, "status", "--json", NULL);
	require_status(1);
	o = command_json();
	list = json_member(o, "sources");
	REQUIRE_INT(json_object_array_length(list), ==, 2);
	REQUIRE(json_object_get_boolean(json_member(json_object_array_get_idx(list, 0), "up")));
	REQUIRE(!json_object_get_boolean(json_member(json_object_array_get_idx(list, 1), "up")));
	REQUIRE(json_member(json_object_array_get_idx(list, 1), "pending") == NULL);
	REQUIRE(json_text(json_object_array_get_idx(list, 1), "error") != NULL);
	json_object_put(o);
	command_run(s.d, "status", "--source", "s0", NULL);
	require_status(0);
	command_run(s.d, "status", "--source", "nosuch", NULL);
	require_status(2);
	command_run(s.d, "status", "--nosuch", NULL);
	require_status(2);
	command_run(s.d, "events", NULL); /* two sources: which one? */
	require_status(2);
	stage_close(&s);
}
END_TEST

/* --- events --------------------------------------------------------------------------------- */

static size_t listed(struct stage *s, const char *option, const char *value_, const char *first)
{
	struct json_object *o;
	size_t n;

	command_run(s->d, "events", "--json", option, value_, NULL);
	require_status(0);
	o = command_json();
	n = json_object_array_length(o);
	if (first != NULL) {
		REQUIRE_INT(n, >, 0);
		REQUIRE_STR(json_text(json_object_array_get_idx(o, 0), "event_id"), first);
	}
	json_object_put(o);
	return n;
}

START_TEST(events_lists_rows_by_state_class_aggregate_and_trace)
{
	struct stage s;
	struct json_object *o, *row;

	stage_open(&s, "aggregate");
	add_all_states(&s.rig);
	add(&s.rig, "it''s \\\\ odd", "Q", "trace_id='trace-7'");
	db_exec(s.rig.db,
		"UPDATE %s.outbox_event SET payload='{\"secret\":1}' WHERE trace_id='trace-7'",
		s.rig.schema[0].name);
	REQUIRE_INT(listed(&s, "--status", "DEAD", "dead-1"), ==, 2);
	REQUIRE_INT(listed(&s, "--status", "SENT", "sent-1"), ==, 1);
	REQUIRE_INT(listed(&s, "--class", "SKIPPED", "skipped-1"), ==, 1);
	REQUIRE_INT(listed(&s, "--class", "SKIP", NULL), ==, 0);
	REQUIRE_INT(listed(&s, "--class", "WAITING", "held-1"), ==, 2);
	REQUIRE_INT(listed(&s, "--aggregate", "order/blocked", "dead-1"), ==, 3);
	REQUIRE_INT(listed(&s, "--aggregate", "order/BLOCKED", NULL), ==, 0);
	REQUIRE_INT(listed(&s, "--limit", "3", "dead-1"), ==, 3);
	REQUIRE_INT(listed(&s, "--trace-id", "trace-7", "it's \\ odd"), ==, 1);
	if (strstr(command_last.out, "secret") != NULL)
		FAIL("a payload that nobody asked for: %s", command_last.out);
	command_run(s.d, "events", "--json", "--trace-id", "trace-7", "--payload", NULL);
	require_text(command_last.out, "secret");
	command_run(s.d, "events", "--json", "--status", "RETRY", NULL);
	o = command_json();
	row = json_object_array_get_idx(o, 0);
	REQUIRE_INT(json_number(row, "retry_count"), ==, 3);
	REQUIRE(json_object_is_type(json_member(row, "id"), json_type_int));
	REQUIRE(json_member(row, "locked_by") == NULL);
	REQUIRE(strchr(json_text(row, "next_retry_at"), 'T') != NULL);
	json_object_put(o);
	command_run(s.d, "events", "--status", "NOSUCH", NULL);
	require_status(2);
	command_run(s.d, "events", NULL);
	require_status(0);
	require_text(command_last.out, "LAST_ERROR");
	stage_close(&s);
}
END_TEST

/* --- explain -------------------------------------------------------------------------------- */

static void require_explained(
	struct stage *s, const char *event_id, const char *reason, const char *next)
{
	struct json_object *o;

	command_run(s->d, "explain", "--json", "--source", "s0", event_id, NULL);
	require_status(0);
	o = command_json();
	require_text(json_text(o, "reason"), reason);
	require_text(json_text(o, "next"), next);
	json_object_put(o);
}

START_TEST(explain_says_of_every_state_why_and_what_next)
{
	static const struct {
		const char *event_id, *reason, *next;
	} cases[] = {
		{ "sent-1", "SENT since", "Nothing" },
		{ "dead-1", "UNROUTABLE", "bind one" },
		{ "held-1", "which is DEAD: UNROUTABLE", "--source s0 dead-1" },
		{ "held-2", "2 unsent ones are before it", "--source s0 dead-1" },
		{ "skipped-1", "not wanted", "requeue" },
		{ "retry-1", "3 of 10 attempts failed", "--status RETRY" },
		{ "after-retry", "retry-1, whose attempt 4 of 10", "requeue --status RETRY" },
		{ "live-1", "other/1/0 has claimed it", "takes it over at" },
		{ "expired-1", "gone/1/0 had claimed it and vanished", "Start outboxd" },
		{ "fresh-1", "no relay leads the source", "Start outboxd" },
		{ "later-1", "not to be sent before", "by itself" },
		{ "odd-1", "WHATEVER", "set status to PENDING" },
	};
	struct stage s;

	stage_open(&s, "aggregate");
	add_all_states(&s.rig);
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct json_object *o;

		command_run(s.d, "explain", "--json", "--source", "s0", cases[i].event_id, NULL);
		require_status(0);
		o = command_json();
		REQUIRE_STR(json_text(o, "event_id"), cases[i].event_id);
		REQUIRE_STR(json_text(o, "source"), "s0");
		require_text(json_text(o, "reason"), cases[i].reason);
		require_text(json_text(o, "next"), cases[i].next);
		json_object_put(o);
	}
	command_run(s.d, "explain", "nosuch", NULL);
	require_status(1);
	command_run(s.d, "explain", NULL);
	require_status(2);
	command_run(s.d, "explain", "held-2", NULL);
	require_text(command_last.out, "\nNext: ");
	stage_close(&s);
}
END_TEST

START_TEST(explain_reads_the_status_as_the_relay_does)
{
	static const char collate[] =
		"ALTER TABLE %s.outbox_event MODIFY status VARCHAR(32) CHARACTER SET utf8mb4 "
		"COLLATE %s NOT NULL DEFAULT 'PENDING'";
	struct stage s;

	stage_open(&s, "aggregate");
	db_exec(s.rig.db, collate, s.rig.schema[0].name, "utf8mb4_general_ci");
	add(&s.rig, "any", "any", "status='pending'");
	require_explained(&s, "any", "not been claimed yet", "Start outboxd");
	db_exec(s.rig.db, collate, s.rig.schema[0].name, "utf8mb4_bin");
	add(&s.rig, "after", "any", "");
	require_explained(
		&s, "any", "Its status is pending, which is not PENDING", "set status to PENDING");
	require_explained(&s, "after",
		"an earlier event of its aggregate order/any, any, whose "
		"status is pending",
		"Set status of that one to PENDING");
	add(&s.rig, "dead-2", "dead", "status='dead'");
	command_run(s.d, "requeue", "--source", "s0", "dead-2", NULL);
	require_status(1);
	require_text(command_last.err, "its state is another one (dead)");
	stage_close(&s);
}
END_TEST

START_TEST(explain_says_that_somebody_has_the_row_locked)
{
	static const char *const locked = "another transaction has it locked";
	struct stage s;
	struct db *other = db_open();

	stage_open(&s, "aggregate");
	add(&s.rig, "fresh-1", "a", "");
	add(&s.rig, "fresh-2", "a", "");
	add(&s.rig, "retry-1", "b", "status='RETRY',retry_count=3,last_error='NACKED: no'");
	db_exec(other, "START TRANSACTION");
	db_exec(other, "UPDATE %s.outbox_event SET trace_id='mine' WHERE event_id<>'fresh-2'",
		s.rig.schema[0].name);
	daemon_start(s.d);
	daemon_wait_ready(s.d, true);
	require_explained(&s, "fresh-1", locked, "commit or be rolled back");
	require_explained(&s, "fresh-2",
		"to be sent first; another transaction has that one locked",
		"commit or be rolled back");
	require_explained(&s, "retry-1", locked, "commit or be rolled back");
	db_exec(other, "ROLLBACK");
	db_close(other);
	rig_wait_sent(&s.rig, 0, 20000);
	daemon_stop(s.d);
	stage_close(&s);
}
END_TEST

START_TEST(explain_says_how_to_end_a_lease_that_no_relay_writes)
{
	struct stage s;
	char statement[200], *end;
	int64_t id;

	stage_open(&s, "aggregate");
	add(&s.rig, "held-1", "a",
		"status='PROCESSING',locked_by='x',locked_until='2037-01-01 00:00:00'");
	add(&s.rig, "after-1", "a", "");
	id = db_int(s.rig.db, "SELECT id FROM %s.outbox_event WHERE event_id='held-1'",
		s.rig.schema[0].name);
	snprintf(statement, sizeof(statement),
		"UPDATE `%s`.`outbox_event` SET locked_until=NULL WHERE id=%" PRId64
		" AND status='PROCESSING';",
		s.rig.schema[0].name, id);
	require_explained(&s, "held-1", "no relay writes such a lease", statement);
	require_explained(&s, "after-1", "no relay writes such a lease", statement);
	end = strstr(command_last.out, "UPDATE `");
	*strchr(end, ';') = '\0';
	db_exec(s.rig.db, "%s", end);
	daemon_start(s.d);
	rig_wait_sent(&s.rig, 0, 20000);
	daemon_stop(s.d);
	stage_close(&s);
}
END_TEST

/* --- preview -------------------------------------------------------------------------------- */

START_TEST(preview_shows_the_messages_and_claims_nothing)
{
	struct stage s;
	struct json_object *o, *m;
	uint64_t before;

	stage_open(&s, "aggregate");
	add(&s.rig, "good", "a", "headers='{\"tenant\":\"t1\",\"n\":[1,true]}',trace_id='t-1'");
	add(&s.rig, "bad", "b", "headers='[1]'");
	before = rig_rows(&s.rig, 0, "status='PENDING' AND locked_by IS NULL");
	command_run(s.d, "preview", "--json", "--limit", "5", NULL);
	require_status(0);
	o = command_json();
	REQUIRE_INT(json_object_array_length(o), ==, 2);
	m = json_object_array_get_idx(o, 0);
	REQUIRE_STR(json_text(m, "event_id"), "good");
	REQUIRE_STR(json_text(m, "exchange"), s.rig.exchange);
	REQUIRE_STR(json_text(m, "routing_key"), "order.created");
	REQUIRE_STR(json_text(json_member(m, "properties"), "message_id"), "good");
	REQUIRE_STR(json_text(json_member(m, "headers"), "tenant"), "t1");
	REQUIRE_STR(json_text(json_member(m, "headers"), "source"), "s0");
	REQUIRE_INT(json_number(m, "size"), ==, 2);
	require_text(json_text(json_object_array_get_idx(o, 1), "error"), "INVALID: ");
	json_object_put(o);
	REQUIRE_INT(rig_rows(&s.rig, 0, "status='PENDING' AND locked_by IS NULL"), ==, before);
	REQUIRE_INT(mq_depth(s.rig.mq, s.rig.queue), ==, 0);
	command_run(s.d, "preview", NULL);
	require_text(command_last.out, "routing key  order.created");
	stage_close(&s);
}
END_TEST

/* --- requeue, skip -------------------------------------------------------------------------- */

static void require_change(int64_t matched, int64_t changed, bool dry_run, size_t ids)
{
	struct json_object *o = command_json();

	if (json_number(o, "matched") != matched || json_number(o, "changed") != changed ||
		json_object_get_boolean(json_member(o, "dry_run")) != dry_run ||
		json_object_array_length(json_member(o, "event_ids")) != ids)
		FAIL("%s", command_last.out);
	REQUIRE_STR(json_text(o, "source"), "s0");
	json_object_put(o);
}

START_TEST(requeue_gives_dead_rows_a_fresh_budget_and_leaves_the_skipped_alone)
{
	struct stage s;

	stage_open(&s, "aggregate");
	add_all_states(&s.rig);
	add(&s.rig, "nacked-1", "n", "status='DEAD',retry_count=10,last_error='NACKED: no'");
	add(&s.rig, "bare-1", "n2", "status='DEAD'");

	command_run(s.d, "requeue", "--json", "--all", "--dry-run", NULL);
	require_status(0);
	require_change(3, 0, true, 3);
	require_value(&s.rig, "dead-1", "status", "DEAD");

	command_run(s.d, "requeue", "--json", "--class", "UNROUTABLE", NULL);
	require_status(0);
	require_change(1, 1, false, 1);
	require_value(&s.rig, "dead-1", "status", "PENDING");
	require_value(&s.rig, "dead-1", "retry_count", "0");
	require_value(&s.rig, "dead-1", "last_error", "NULL");
	require_value(&s.rig, "dead-1", "next_retry_at", "NULL");
	/* and what waited behind it */
	require_value(&s.rig, "held-1", "next_retry_at", "NULL");
	require_value(&s.rig, "held-2", "last_error", "NULL");
	require_value(&s.rig, "later-1", "next_retry_at IS NULL", "0");

	command_run(s.d, "requeue", "--json", "--all", NULL);
	require_status(0);
	require_change(2, 2, false, 2);
	require_value(&s.rig, "skipped-1", "status", "DEAD");
	command_run(s.d, "requeue", "--json", "skipped-1", NULL);
	require_status(0);
	require_value(&s.rig, "skipped-1", "status", "PENDING");

	command_run(s.d, "requeue", "retry-1", NULL); /* it is no DEAD row */
	require_status(1);
	require_text(command_last.err, "--status RETRY");
	command_run(s.d, "requeue", "--status", "RETRY", "retry-1", NULL);
	require_status(0);
	require_value(&s.rig, "retry-1", "retry_count", "0");
	command_run(s.d, "requeue", "--json", "sent-1", "live-1", "nosuch", NULL);
	require_status(1);
	require_change(2, 0, false, 0);
	require_value(&s.rig, "live-1", "locked_by", "other/1/0");
	command_run(s.d, "requeue", NULL);
	require_status(2);
	command_run(s.d, "requeue", "--all", "dead-1", NULL);
	require_status(2);
	command_run(s.d, "requeue", "--all", "--source", "nosuch", NULL);
	require_status(2);
	stage_close(&s);
}
END_TEST

START_TEST(requeue_of_many_goes_in_batches_and_keeps_their_number)
{
	struct stage s;

	stage_open(&s, "aggregate");
	db_exec(s.rig.db,
		"INSERT INTO %s.outbox_event (event_id,aggregate_type,aggregate_id,event_type,"
		"payload,status,retry_count,last_error) WITH RECURSIVE n AS (SELECT 1 AS i UNION "
		"ALL SELECT i+1 FROM n WHERE i<950) SELECT CONCAT('m-',i),'order',CONCAT('a',i),"
		"'created','{}','DEAD',10,'NACKED: no' FROM n",
		s.rig.schema[0].name);
	command_run(s.d, "requeue", "--json", "--class", "NACKED", NULL);
	require_status(0);
	require_change(950, 950, false, 950);
	REQUIRE_INT(rig_rows(&s.rig, 0, "status='PENDING' AND retry_count=0"), ==, 950);
	stage_close(&s);
}
END_TEST

START_TEST(what_a_later_event_has_overtaken_is_requeued_by_force_only)
{
	struct stage s;

	stage_open(&s, "aggregate");
	add(&s.rig, "old", "a", DEAD_SET);
	add(&s.rig, "new", "a", "status='SENT',sent_at=NOW(6)");
	command_run(s.d, "requeue", "--json", "old", NULL);
	require_status(1);
	require_change(1, 0, false, 0);
	require_text(command_last.err, "--force");
	command_run(s.d, "requeue", "--all", NULL);
	require_status(1);
	require_value(&s.rig, "old", "status", "DEAD");
	command_run(s.d, "explain", "old", NULL);
	require_text(command_last.out, "requeue --force");
	command_run(s.d, "requeue", "--force", "old", NULL);
	require_status(0);
	require_value(&s.rig, "old", "status", "PENDING");
	stage_close(&s);
}
END_TEST

START_TEST(skip_lets_the_aggregate_go_and_refuses_what_is_sent_or_held)
{
	struct stage s;

	stage_open(&s, "aggregate");
	add_all_states(&s.rig);
	command_run(s.d, "skip", "dead-1", NULL);
	require_status(2);
	command_run(s.d, "skip", "--reason", " ", "dead-1", NULL);
	require_status(2);
	command_run(s.d, "skip", "--reason", "x", "sent-1", NULL);
	require_status(1);
	command_run(s.d, "skip", "--reason", "x", "live-1", NULL);
	require_status(1);
	require_text(command_last.err, "other/1/0");
	command_run(s.d, "skip", "--reason", "x", "nosuch", NULL);
	require_status(1);
	command_run(s.d, "skip", "--json", "--dry-run", "--reason", "x", "dead-1", NULL);
	require_status(0);
	require_change(1, 0, true, 1);
	require_value(&s.rig, "dead-1", "last_error", "UNROUTABLE: returned: NO_ROUTE");

	/* not the head: nothing behind it may go before the head has */
	command_run(s.d, "skip", "--reason", "x", "held-1", NULL);
	require_status(0);
	require_value(&s.rig, "held-2", "next_retry_at IS NULL", "0");
	command_run(s.d, "skip", "--json", "--reason", "it's \"not\" wanted", "dead-1", NULL);
	require_status(0);
	require_change(1, 1, false, 1);
	require_value(&s.rig, "dead-1", "status", "DEAD");
	require_value(&s.rig, "dead-1", "last_error", "SKIPPED: it's \"not\" wanted");
	require_value(&s.rig, "held-2", "next_retry_at", "NULL");
	require_value(&s.rig, "held-2", "last_error", "NULL");
	command_run(s.d, "skip", "--json", "--reason", "again", "dead-1", NULL);
	require_status(0);
	require_change(1, 0, false, 1);
	command_run(s.d, "skip", "--reason", "its relay is gone", "expired-1", NULL);
	require_status(0);
	require_value(&s.rig, "expired-1", "locked_by", "NULL");
	stage_close(&s);
}
END_TEST

START_TEST(with_json_a_failure_is_an_object_with_its_error)
{
	static const char *const commands[][6] = {
		{ "requeue", "--all", "" },
		{ "skip", "--reason", "why", "dead-1", "" },
		{ "replay", "--type", "created", "" },
		{ "purge", "" },
	};
	struct stage s;

	stage_open(&s, "aggregate");
	for (unsigned away = 0; away < 2; away++) {
		s.conf.source[0].db_port = away ? 1 : 0;
		daemon_configure(s.d, &s.conf);
		for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
			const char *a[6] = { 0 };
			struct json_object *o, *error;

			for (unsigned n = 0; commands[i][n][0] != '\0'; n++)
				a[n] = commands[i][n];
			if (!away && i == 1)
				add(&s.rig, "dead-1", "a", DEAD_SET);
			command_run(s.d, a[0], "--json", "--source", "s0", a[1], a[2], a[3], a[4],
				NULL);
			require_status(away ? 1 : 0);
			o = command_json();
			REQUIRE_STR(json_text(o, "source"), "s0");
			REQUIRE_INT(json_number(o, "changed"), ==, !away && i == 1);
			REQUIRE_INT(json_object_array_length(json_member(o, "event_ids")), ==,
				!away && i == 1);
			error = json_member(o, "error");
			if (away)
				require_text(
					json_object_get_string(error), "source s0: 127.0.0.1:1: ");
			else
				REQUIRE(error == NULL);
			json_object_put(o);
		}
	}
	stage_close(&s);
}
END_TEST

START_TEST(of_several_sources_the_one_that_could_not_be_purged_is_in_the_list)
{
	struct stage s;
	struct json_object *list;

	stage_open(&s, "aggregate");
	conf_add(&s.conf, "away", &s.rig.schema[0], s.rig.exchange)->db_port = 1;
	daemon_configure(s.d, &s.conf);
	command_run(s.d, "purge", "--json", NULL);
	require_status(1);
	list = command_json();
	REQUIRE_INT(json_object_array_length(list), ==, 2);
	REQUIRE(json_member(json_object_array_get_idx(list, 0), "error") == NULL);
	REQUIRE_STR(json_text(json_object_array_get_idx(list, 1), "source"), "away");
	require_text(json_text(json_object_array_get_idx(list, 1), "error"), "source away: ");
	json_object_put(list);
	stage_close(&s);
}
END_TEST

START_TEST(every_change_leaves_a_line_in_syslog)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX, .sun_path = "/dev/log" };
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct stage s;
	char line[2000];
	ssize_t n;

	if (access("/dev/log", F_OK) == 0 || bind(fd, (struct sockaddr *)&at, sizeof(at)) < 0) {
		printf("SKIPPED: /dev/log is not ours to listen on\n");
		close(fd);
		return;
	}
	stage_open(&s, "aggregate");
	add_all_states(&s.rig);
	command_run(s.d, "skip", "--reason", "first\nline", "dead-1", NULL);
	n = recv(fd, line, sizeof(line) - 1, 0);
	unlink("/dev/log");
	REQUIRE_INT(n, >, 0);
	line[n] = '\0';
	require_text(line, "<29>"); /* daemon.notice */
	require_text(line, "user=");
	require_text(line, "command=skip source=s0 changed=1 reason=\"first?line\"");
	require_text(line, "event_id=dead-1");
	REQUIRE(strchr(line, '\n') == NULL);
	close(fd);
	stage_close(&s);
}
END_TEST

/* --- beside a daemon ------------------------------------------------------------------------ */

static void add_many(struct rig *r, const char *aggregate, unsigned from, unsigned to)
{
	/* MySQL goes no deeper than 1,000 by itself */
	for (; from <= to; from += 500)
		db_exec(r->db,
			"INSERT INTO %s.outbox_event (event_id,aggregate_type,aggregate_id,"
			"event_type,payload) WITH RECURSIVE n AS (SELECT %u AS i UNION ALL SELECT "
			"i+1 FROM n WHERE i<%u) SELECT CONCAT('%s-',i),'order','%s','created','{}' "
			"FROM n",
			r->schema[0].name, from, to < from + 499 ? to : from + 499, aggregate,
			aggregate);
}

/* More than are released with the change, so that the relay has to see to the rest. */
static void let_go(const char *command, const char *option, const char *value_)
{
	struct allowance a = { .ordered = true };
	struct stage s;

	stage_open(&s, "aggregate");
	add(&s.rig, "x-1", "x", DEAD_SET);
	add_many(&s.rig, "x", 2, 600);
	add_many(&s.rig, "other", 1, 50);
	daemon_start(s.d);
	daemon_wait_ready(s.d, true);
	rig_wait_none(&s.rig, 0, "aggregate_id='other' AND status<>'SENT'", 20000);
	rig_wait_none(
		&s.rig, 0, "aggregate_id='x' AND status<>'DEAD' AND next_retry_at IS NULL", 20000);
	REQUIRE_INT(rig_rows(&s.rig, 0, "last_error LIKE 'WAITING: %%'"), ==, 599);
	command_run(s.d, "explain", "x-300", NULL);
	require_text(command_last.out, "x-1");
	require_text(command_last.out, "which is DEAD");

	command_run(s.d, command, "x-1", option, value_, NULL);
	require_status(0);
	add_many(&s.rig, "x", 601, 610); /* must not overtake those that still wait */
	rig_wait_none(&s.rig, 0, "event_id='x-2' AND status<>'SENT'", 15000);
	rig_wait_sent(&s.rig, 0, 90000); /* one aggregate goes one by one */
	a.dead = strcmp(command, "skip") == 0;
	REQUIRE_INT(rig_rows(&s.rig, 0, "status='SENT'"), ==, 610 + 50 - (int)a.dead);
	daemon_stop(s.d);
	a.charged_any = true;
	rig_judge(&s.rig, 0, &a, NULL);
	stage_close(&s);
}

START_TEST(behind_a_skipped_event_everything_flows_in_order_at_once)
{
	let_go("skip", "--reason", "not wanted");
}
END_TEST

START_TEST(a_requeued_event_goes_first_and_what_waited_follows_in_order)
{
	let_go("requeue", "--reason", "mended");
}
END_TEST

/* Events of type "bad" go nowhere until a queue is bound for them. */
START_TEST(changes_made_all_the_time_beside_a_relay_lose_double_and_reorder_nothing)
{
	struct stage s;
	struct allowance a = { .ordered = true, .charged_any = true };
	int64_t until;
	char skipped[300] = "";

	stage_open(&s, "aggregate");
	s.conf.max_attempts = 2;
	s.conf.retry_base_ms = 50;
	s.conf.retry_cap_ms = 100;
	daemon_configure(s.d, &s.conf);
	mq_unbind(s.rig.mq, s.rig.queue, s.rig.exchange, "#");
	mq_bind(s.rig.mq, s.rig.queue, s.rig.exchange, "order.created");
	for (unsigned i = 0; i < 20; i++) {
		char aggregate[16];

		snprintf(aggregate, sizeof(aggregate), "r%u", i);
		add_many(&s.rig, aggregate, 1, 25);
	}
	db_exec(s.rig.db, "UPDATE %s.outbox_event SET event_type='bad' WHERE id%%6=0",
		s.rig.schema[0].name);
	daemon_start(s.d);
	daemon_wait_ready(s.d, true);
	until = env_now_us() + 6 * US_PER_SEC;
	for (unsigned i = 0; env_now_us() < until || (skipped[0] == '\0' && i < 100); i++) {
		char *victim = db_text(s.rig.db,
			"SELECT event_id FROM %s.outbox_event WHERE event_type='bad' AND "
			"status<>'SENT' ORDER BY RAND() LIMIT 1",
			s.rig.schema[0].name);

		command_run(s.d, "requeue", i % 2 == 0 ? "--all" : "--class",
			i % 2 == 0 ? NULL : "UNROUTABLE", NULL);
		if (command_last.status > 1)
			FAIL("%s%s", command_last.out, command_last.err);
		command_run(s.d, "requeue", "--status", "RETRY", "--all", NULL);
		if (command_last.status > 1)
			FAIL("%s%s", command_last.out, command_last.err);
		if (victim != NULL && i % 3 == 0) {
			command_run(s.d, "skip", "--reason", "a test", victim, NULL);
			if (command_last.status > 1)
				FAIL("%s%s", command_last.out, command_last.err);
			if (command_last.status == 0)
				snprintf(skipped, sizeof(skipped), "%s", victim);
		}
		free(victim);
	}
	REQUIRE(skipped[0] != '\0');
	require_value(&s.rig, skipped, "status", "DEAD");
	mq_bind(s.rig.mq, s.rig.queue, s.rig.exchange, "#");
	until = env_now_us() + 60 * US_PER_SEC;
	while (rig_rows(&s.rig, 0,
		       "status<>'SENT' AND (status<>'DEAD' OR last_error NOT LIKE "
		       "'SKIPPED:%%')") > 0) {
		command_run(s.d, "requeue", "--all", NULL);
		if (command_last.status > 1 || env_now_us() > until)
			FAIL("%s%s", command_last.out, command_last.err);
		env_sleep_ms(100);
	}
	daemon_stop(s.d);
	a.dead = rig_rows(&s.rig, 0, "status='DEAD'");
	rig_judge(&s.rig, 0, &a, NULL);
	stage_close(&s);
}
END_TEST

START_TEST(a_monitoring_account_may_look_and_nothing_else)
{
	struct stage s;
	struct schema monitor;

	stage_open(&s, "aggregate");
	add_all_states(&s.rig);
	monitor = s.rig.schema[0];
	snprintf(monitor.user, sizeof(monitor.user), "%.30s_m", s.rig.schema[0].user);
	db_exec(s.rig.db, "CREATE USER '%s'@'%%' IDENTIFIED BY '%s'", monitor.user,
		monitor.password);
	db_exec(s.rig.db, "GRANT SELECT ON %s.outbox_event TO '%s'@'%%'", monitor.name,
		monitor.user);
	s.conf.source[0].schema = &monitor;
	daemon_configure(s.d, &s.conf);
	command_run(s.d, "status", NULL);
	require_status(0);
	command_run(s.d, "events", NULL);
	require_status(0);
	command_run(s.d, "explain", "held-2", NULL);
	require_status(0);
	command_run(s.d, "explain", "fresh-1", NULL); /* which it may not lock */
	require_status(0);
	if (strstr(command_last.out, "locked") != NULL)
		FAIL("it cannot know: %s", command_last.out);
	command_run(s.d, "preview", NULL);
	require_status(0);
	command_run(s.d, "skip", "--reason", "x", "dead-1", NULL);
	require_status(1);
	command_run(s.d, "requeue", "--all", NULL);
	require_status(1);
	require_value(&s.rig, "dead-1", "last_error", "UNROUTABLE: returned: NO_ROUTE");
	db_exec(s.rig.db, "DROP USER '%s'@'%%'", monitor.user);
	stage_close(&s);
}
END_TEST

/* --- gauges --------------------------------------------------------------------------------- */

static double gauge(struct stage *s, const char *name)
{
	char series[100];

	snprintf(series, sizeof(series), "outboxd_%s{source=\"s0\"}", name);
	return daemon_metric(s->d, series);
}

START_TEST(the_daemon_counts_its_tables_and_never_shows_old_counts_as_new)
{
	static const char *const members[] = { "name", "up", "leader", "pending", "retry",
		"processing", "dead", "skipped", "held", "blocked_aggregates", "expired_leases",
		"oldest_unsent_age_seconds", "sample_age_seconds" };
	struct stage s;
	struct json_object *o, *list;

	stage_open(&s, "aggregate");
	conf_add(&s.conf, "s1", &s.rig.schema[0], s.rig.exchange)->more =
		"    ordering: none\n    workers: 2\n";
	/* both look at one table: s1 must not be able to relay it away */
	s.conf.source[1].db_port = 1;
	daemon_configure(s.d, &s.conf);
	add(&s.rig, "dead-1", "blocked", DEAD_SET);
	add(&s.rig, "held-1", "blocked", "");
	add(&s.rig, "skipped-1", "skipped", "status='DEAD',last_error='SKIPPED: x'");
	add(&s.rig, "later-1", "later", "next_retry_at=NOW(6)+INTERVAL 1 HOUR");
	daemon_start(s.d);
	daemon_wait_ready(s.d, false);
	WAIT_FOR(20000, gauge(&s, "held_events") == 1);
	REQUIRE_INT(gauge(&s, "backlog_events"), ==, 2);
	REQUIRE_INT(gauge(&s, "dead_events"), ==, 1);
	REQUIRE_INT(gauge(&s, "skipped_events"), ==, 1);
	REQUIRE_INT(gauge(&s, "blocked_aggregates"), ==, 1);
	REQUIRE_INT(gauge(&s, "processing_events"), ==, 0);
	REQUIRE_INT(gauge(&s, "expired_leases"), ==, 0);
	REQUIRE(gauge(&s, "oldest_dead_age_seconds") > 0);
	REQUIRE(gauge(&s, "oldest_unsent_age_seconds") > 0);
	REQUIRE(gauge(&s, "sample_age_seconds") >= 0);
	WAIT_FOR(5000, daemon_metric(s.d, "outboxd_broker_up{broker=\"main\"}") == 1);
	REQUIRE_INT(daemon_metric(s.d, "outboxd_broker_blocked{broker=\"main\"}"), ==, 0);
	/* a source that cannot be counted has no counts */
	REQUIRE_INT(daemon_metric(s.d, "outboxd_backlog_events{source=\"s1\"}"), ==, -1);
	WAIT_FOR(5000, daemon_metric(s.d, "outboxd_sample_age_seconds{source=\"s1\"}") > 1);

	env_sleep_ms(500); /* the page is made several times a second */
	REQUIRE_INT(
		daemon_get(s.d, "/status", command_last.out, sizeof(command_last.out)), ==, 200);
	o = command_json();
	list = json_member(o, "sources");
	REQUIRE_INT(json_object_array_length(list), ==, 2); /* one each, whatever its workers */
	for (size_t i = 0; i < ARRAY_LEN(members); i++)
		(void)json_member(json_object_array_get_idx(list, 0), members[i]);
	REQUIRE_INT(json_number(json_object_array_get_idx(list, 0), "held"), ==, 1);
	require_text(json_text(json_object_array_get_idx(list, 0), "leader"), "admin/");
	REQUIRE(json_member(json_object_array_get_idx(list, 1), "held") == NULL);
	REQUIRE(!json_object_get_boolean(json_member(json_object_array_get_idx(list, 1), "up")));
	list = json_member(o, "brokers");
	REQUIRE_INT(json_object_array_length(list), ==, 1);
	REQUIRE_STR(json_text(json_object_array_get_idx(list, 0), "name"), "main");
	(void)json_member(json_object_array_get_idx(list, 0), "up");
	(void)json_member(json_object_array_get_idx(list, 0), "blocked");
	json_object_put(o);

	/* gone: absent, and the age grows */
	db_exec(s.rig.db, "RENAME TABLE %s.outbox_event TO %s.away", s.rig.schema[0].name,
		s.rig.schema[0].name);
	WAIT_FOR(20000, gauge(&s, "held_events") == -1);
	REQUIRE_INT(gauge(&s, "backlog_events"), ==, -1);
	WAIT_FOR(20000, gauge(&s, "sample_age_seconds") > 6);
	db_exec(s.rig.db, "RENAME TABLE %s.away TO %s.outbox_event", s.rig.schema[0].name,
		s.rig.schema[0].name);
	WAIT_FOR(40000, gauge(&s, "held_events") == 1);
	WAIT_FOR(2000, gauge(&s, "sample_age_seconds") < 6);
	/* reloads hand the configuration over */
	for (int i = 0; i < 5; i++)
		daemon_signal(s.d, SIGHUP);
	s.conf.sources = 1;
	daemon_configure(s.d, &s.conf);
	daemon_signal(s.d, SIGHUP);
	WAIT_FOR(20000, daemon_metric(s.d, "outboxd_sample_age_seconds{source=\"s1\"}") == -1);
	WAIT_FOR(20000, gauge(&s, "held_events") == 1);
	daemon_stop(s.d);
	stage_close(&s);
}
END_TEST

/* --- alert rules ---------------------------------------------------------------------------- */

START_TEST(every_metric_in_the_alert_rules_exists)
{
	static char page[400000];
	struct stage s;
	char path[600], *rules;
	regex_t name;
	regmatch_t m;
	unsigned seen = 0;

	stage_open(&s, "aggregate");
	daemon_start(s.d);
	daemon_wait_ready(s.d, true);
	WAIT_FOR(20000, gauge(&s, "backlog_events") == 0);
	REQUIRE_INT(daemon_get(s.d, "/metrics", page, sizeof(page)), ==, 200);
	snprintf(path, sizeof(path), "%s/conf/outboxd.rules.yaml", env_get()->repository);
	rules = env_read_file(path);
	REQUIRE(rules != NULL);
	REQUIRE(regcomp(&name, "outboxd_[a-z_]+", REG_EXTENDED) == 0);
	for (const char *at = rules; regexec(&name, at, 1, &m, 0) == 0; at += m.rm_eo) {
		char family[200];

		snprintf(family, sizeof(family), "# TYPE %.*s ", (int)(m.rm_eo - m.rm_so),
			at + m.rm_so);
		if (strstr(page, family) == NULL)
			FAIL("the rules name a metric that is not there: %s", family + 7);
		seen++;
	}
	REQUIRE_INT(seen, >, 10);
	regfree(&name);
	free(rules);
	daemon_stop(s.d);
	stage_close(&s);
}
END_TEST

RIG_MAIN("administration", 120, status_counts_every_state_and_says_what_is_blocked,
	no_lease_makes_its_owner_the_leader,
	status_names_the_leader_and_fails_for_a_source_that_is_away,
	events_lists_rows_by_state_class_aggregate_and_trace,
	explain_says_of_every_state_why_and_what_next, explain_reads_the_status_as_the_relay_does,
	explain_says_that_somebody_has_the_row_locked,
	explain_says_how_to_end_a_lease_that_no_relay_writes,
	preview_shows_the_messages_and_claims_nothing,
	requeue_gives_dead_rows_a_fresh_budget_and_leaves_the_skipped_alone,
	requeue_of_many_goes_in_batches_and_keeps_their_number,
	what_a_later_event_has_overtaken_is_requeued_by_force_only,
	skip_lets_the_aggregate_go_and_refuses_what_is_sent_or_held,
	with_json_a_failure_is_an_object_with_its_error,
	of_several_sources_the_one_that_could_not_be_purged_is_in_the_list,
	every_change_leaves_a_line_in_syslog,
	behind_a_skipped_event_everything_flows_in_order_at_once,
	a_requeued_event_goes_first_and_what_waited_follows_in_order,
	changes_made_all_the_time_beside_a_relay_lose_double_and_reorder_nothing,
	a_monitoring_account_may_look_and_nothing_else,
	the_daemon_counts_its_tables_and_never_shows_old_counts_as_new,
	every_metric_in_the_alert_rules_exists)

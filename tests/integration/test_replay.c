/* `outboxd replay` against real servers: what it sends, in which order, what it refuses, and how it
 * ends when something is in its way. */
#include "support/command.h"
#include "support/fake_broker.h"
#include "support/proxy.h"
#include "support/rig.h"

#include <check.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

struct stage {
	struct rig rig;
	struct conf conf;
	struct daemon *d; /* never started: its configuration is used */
};

static void stage_open(struct stage *s)
{
	rig_open(&s->rig, 1);
	rig_conf(&s->rig, &s->conf);
	s->conf.ordering = "aggregate";
	s->d = daemon_new("replay");
	daemon_configure(s->d, &s->conf);
}

static void stage_close(struct stage *s)
{
	daemon_free(s->d);
	rig_close(&s->rig);
}

/* A sent event; `set` are further assignments. */
static void add(struct stage *s, const char *event_id, const char *aggregate, const char *set)
{
	const char *name = s->rig.schema[0].name;

	db_exec(s->rig.db,
		"INSERT INTO %s.outbox_event SET event_id='%s',aggregate_type='order',"
		"aggregate_id='%s',event_type='created',payload='{}',created_at=NOW(6),"
		"status='SENT',sent_at=NOW(6)",
		name, event_id, aggregate);
	if (set[0] != '\0')
		db_exec(s->rig.db, "UPDATE %s.outbox_event SET %s WHERE event_id='%s'", name, set,
			event_id);
}

/* `count` sent events "e<n>", n from 1, of `aggregates` aggregates. */
static void add_many(struct stage *s, unsigned count, unsigned aggregates)
{
	db_exec(s->rig.db, "SET SESSION %s=100000",
		env_get()->mariadb ? "max_recursive_iterations" : "cte_max_recursion_depth");
	db_exec(s->rig.db,
		"INSERT INTO %s.outbox_event (event_id,aggregate_type,aggregate_id,event_type,"
		"payload,status,sent_at,created_at) WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL "
		"SELECT i+1 FROM n WHERE i<%u) SELECT CONCAT('e',i),'order',CONCAT('a',i MOD %u),"
		"'created','{}','SENT',NOW(6),NOW(6)-INTERVAL 1 HOUR+INTERVAL i MICROSECOND FROM n",
		s->rig.schema[0].name, count, aggregates);
}

static char *fingerprint(struct stage *s)
{
	return db_text(s->rig.db,
		"SELECT SHA2(GROUP_CONCAT(CONCAT_WS('|',id,event_id,status,retry_count,"
		"IFNULL(next_retry_at,'-'),IFNULL(locked_by,'-'),IFNULL(sent_at,'-'),"
		"IFNULL(last_error,'-')) ORDER BY id),256) FROM %s.outbox_event",
		s->rig.schema[0].name);
}

static size_t drain(struct stage *s, size_t at_least)
{
	WAIT_FOR(10000, mq_drain(s->rig.mq, s->rig.queue, &s->rig.inbox) == 0 &&
				s->rig.inbox.count >= at_least);
	return s->rig.inbox.count;
}

static void require_counts(int64_t matched, int64_t changed)
{
	struct json_object *o = command_json();

	if (json_number(o, "matched") != matched || json_number(o, "changed") != changed)
		FAIL("matched and changed should be %" PRId64 " and %" PRId64 ": %s", matched,
			changed, command_last.out);
	json_object_put(o);
}

static int64_t resume_id(void)
{
	struct json_object *o = command_json();
	int64_t id = json_number(o, "after_id");

	json_object_put(o);
	return id;
}

/* --- what it sends -------------------------------------------------------------------------- */

START_TEST(named_events_are_published_again_marked_and_the_table_stays_as_it_is)
{
	struct stage s;
	struct json_object *o, *ids;
	char *before, *after;

	stage_open(&s);
	add(&s, "sent-1", "x", "payload='{\"n\": 7}',trace_id='t-1'");
	add(&s, "sent-2", "x", "");
	add(&s, "sent-3", "y", "");
	before = fingerprint(&s);
	command_run(s.d, "replay", "--json", "sent-2", "sent-1", "sent-2", NULL);
	require_status(0);
	o = command_json();
	REQUIRE_STR(json_text(o, "source"), "s0");
	REQUIRE_INT(json_number(o, "matched"), ==, 2);
	REQUIRE_INT(json_number(o, "changed"), ==, 2);
	REQUIRE(!json_object_get_boolean(json_member(o, "dry_run")));
	ids = json_member(o, "event_ids");
	REQUIRE_INT(json_object_array_length(ids), ==, 2);
	REQUIRE_STR(json_object_get_string(json_object_array_get_idx(ids, 0)), "sent-1");
	json_object_put(o);
	REQUIRE_INT(drain(&s, 2), ==, 2);
	for (unsigned i = 0; i < 2; i++) {
		const struct message *m = &s.rig.inbox.messages[i];
		const struct message_header *h = message_header(m, "x-outboxd-replay");

		REQUIRE_STR(m->message_id, i == 0 ? "sent-1" : "sent-2");
		REQUIRE_STR(m->routing_key, "order.created");
		REQUIRE_INT(m->delivery_mode, ==, 2);
		REQUIRE(h != NULL && h->kind == 't');
		REQUIRE_STR(h->text, "true");
	}
	REQUIRE_STR(s.rig.inbox.messages[0].body, "{\"n\": 7}");
	REQUIRE_STR(message_header(&s.rig.inbox.messages[0], "trace_id")->text, "t-1");
	after = fingerprint(&s);
	REQUIRE_STR(after, before);
	free(before);
	free(after);
	stage_close(&s);
}
END_TEST

START_TEST(events_are_chosen_by_time_type_and_aggregate)
{
	struct stage s;

	stage_open(&s);
	add(&s, "early", "x", "sent_at='2026-01-02 03:04:05.5'");
	add(&s, "at", "x", "sent_at='2026-01-02 04:00:00'");
	add(&s, "late", "y", "sent_at='2026-01-02 05:00:00',event_type='changed'");
	add(&s, "now", "X", "event_type='changed'");
	add(&s, "unsent", "x", "status='PENDING',sent_at=NULL");
	db_exec(s.rig.db, "UPDATE %s.outbox_event SET created_at='2026-01-01 00:00:00'",
		s.rig.schema[0].name);
#define DRY "replay", "--json", "--dry-run", "--force"
	command_run(s.d, DRY, "--since", "2026-01-02T04:00:00Z", NULL);
	require_counts(3, 0);
	command_run(s.d, DRY, "--until", "2026-01-02T05:00:00+01:00", NULL);
	require_counts(1, 0);
	require_text(command_last.out, "\"early\"");
	command_run(s.d, DRY, "--since", "2026-01-02T03:04:05.5Z", "--until",
		"2026-01-02T05:00:00Z", NULL);
	require_counts(2, 0);
	command_run(s.d, DRY, "--type", "changed", NULL);
	require_counts(2, 0);
	command_run(s.d, DRY, "--type", "Changed", NULL);
	require_counts(0, 0);
	require_status(0);
	command_run(s.d, DRY, "--aggregate", "order/x", NULL);
	require_counts(2, 0);
	require_text(command_last.out, "[\"early\",\"at\"]");
	command_run(s.d, DRY, "--aggregate", "order/x", "--since", "2026-01-02T04:00:00Z", NULL);
	require_counts(1, 0);
	REQUIRE_INT(mq_drain(s.rig.mq, s.rig.queue, &s.rig.inbox), ==, 0);
	/* not dry, and without the option that lets old ones pass */
	command_run(s.d, "replay", "--json", "--type", "changed", NULL);
	require_status(1);
	require_counts(2, 1);
	command_run(s.d, "replay", "--json", "--type", "changed", "--max-age", "9999d", NULL);
	require_status(0);
	require_counts(2, 2);
	REQUIRE_INT(drain(&s, 3), ==, 3);
	stage_close(&s);
}
END_TEST

START_TEST(what_cannot_be_meant_is_refused)
{
	struct stage s;

	stage_open(&s);
	add(&s, "sent-1", "x", "");
	add(&s, "old-1", "x", "sent_at=NOW(6)-INTERVAL 8 DAY");
	add(&s, "new-1", "x", "status='PENDING',sent_at=NULL");
	command_run(s.d, "replay", "--json", "sent-1", "nosuch", NULL);
	require_status(1);
	require_counts(1, 1);
	require_text(command_last.err, "nosuch: there is no such event");
	command_run(s.d, "replay", "--json", "new-1", NULL);
	require_status(1);
	require_counts(1, 0);
	require_text(command_last.err, "it is PENDING");
	command_run(s.d, "replay", "--json", "old-1", NULL);
	require_status(1);
	require_counts(1, 0);
	require_text(command_last.err, "old-1: it was sent too long ago: see --max-age");
	add(&s, "unknown-1", "x", "sent_at=NULL");
	command_run(s.d, "replay", "--json", "unknown-1", NULL);
	require_status(1);
	require_counts(1, 0);
	require_text(command_last.out, "\"refused\":1");
	require_text(command_last.err, "unknown-1: it has no sent_at");
	command_run(s.d, "replay", "--dry-run", "--type", "created", NULL);
	require_status(1);
	require_text(command_last.out, "1 refused: without sent_at");
	require_text(command_last.out, "1 refused: sent longer ago");
	command_run(s.d, "replay", "--json", "old-1", "--force", NULL);
	require_status(0);
	require_counts(1, 1);
	command_run(s.d, "replay", "--source", "nosuch", "sent-1", NULL);
	require_status(2);
	command_run(s.d, "replay", NULL);
	require_status(2);
	command_run(s.d, "replay", "--type", "created", "sent-1", NULL);
	require_status(2);
	command_run(s.d, "replay", "--since", "yesterday", NULL);
	require_status(2);
	require_text(command_last.err, "2026-01-02T03:04:05Z");
	command_run(s.d, "replay", "--archive", "sent-1", NULL);
	require_status(1);
	require_text(command_last.err, "archive_table");
	command_run(s.d, "replay", "--type", "created", "--after-id", "999999", NULL);
	require_status(1);
	require_text(command_last.err, "no such row");
	REQUIRE_INT(drain(&s, 2), ==, 2);
	stage_close(&s);
}
END_TEST

START_TEST(each_aggregate_comes_in_its_order_whatever_the_ids_say)
{
	enum { EVENTS = 3000, AGGREGATES = 7 };
	struct stage s;
	uint64_t latest[AGGREGATES] = { 0 };

	stage_open(&s);
	add_many(&s, EVENTS, AGGREGATES);
	/* the first in the table is the last in time, and so on */
	db_exec(s.rig.db,
		"UPDATE %s.outbox_event SET created_at=NOW(6)-INTERVAL 2 HOUR+INTERVAL (10000-"
		"CAST(SUBSTRING(event_id,2) AS SIGNED)) SECOND_MICROSECOND",
		s.rig.schema[0].name);
	command_run(s.d, "replay", "--json", "--type", "created", NULL);
	require_status(0);
	require_counts(EVENTS, EVENTS);
	REQUIRE_INT(drain(&s, EVENTS), ==, EVENTS);
	for (size_t i = 0; i < s.rig.inbox.count; i++) {
		uint64_t n = strtoull(s.rig.inbox.messages[i].message_id + 1, NULL, 10);
		uint64_t *last = &latest[n % AGGREGATES];

		if (*last != 0 && n >= *last)
			FAIL("e%" PRIu64 " came after e%" PRIu64, n, *last);
		*last = n;
	}
	stage_close(&s);
}
END_TEST

START_TEST(the_archive_is_replayed_from_its_own_table)
{
	struct stage s;
	char path[600], *ddl;

	snprintf(path, sizeof(path), "%s/sql/outbox_event_archive.sql", env_get()->repository);
	stage_open(&s);
	ddl = env_read_file(path);
	db_exec(s.rig.db, "USE %s; %s", s.rig.schema[0].name, ddl);
	free(ddl);
	db_exec(s.rig.db, "GRANT SELECT ON %s.outbox_event_archive TO '%s'@'%%'",
		s.rig.schema[0].name, s.rig.schema[0].user);
	add(&s, "kept", "x", "");
	db_exec(s.rig.db,
		"INSERT INTO %s.outbox_event_archive SET "
		"id=1,event_id='archived',aggregate_type='order',"
		"aggregate_id='x',event_type='created',payload='{}',status='SENT',sent_at=NOW(6)",
		s.rig.schema[0].name);
	s.conf.source[0].more = "    retention: { archive_table: outbox_event_archive }\n";
	daemon_configure(s.d, &s.conf);
	command_run(s.d, "replay", "--json", "--archive", "--type", "created", NULL);
	require_status(0);
	require_counts(1, 1);
	require_text(command_last.out, "\"archived\"");
	command_run(s.d, "replay", "--json", "--archive", "kept", NULL);
	require_status(1);
	REQUIRE_INT(drain(&s, 1), ==, 1);
	db_exec(s.rig.db, "DROP TABLE %s.outbox_event_archive", s.rig.schema[0].name);
	command_run(s.d, "replay", "--archive", "--type", "created", NULL);
	require_status(1);
	require_text(command_last.err, "outbox_event_archive: the archive table does not exist");
	require_text(command_last.err, "`outboxd schema --archive`");
	stage_close(&s);
}
END_TEST

/* --- failures ------------------------------------------------------------------------------- */

START_TEST(an_event_that_fails_is_named_and_holds_back_only_its_own_aggregate)
{
	struct stage s;
	struct json_object *o, *failed;

	stage_open(&s);
	add(&s, "good-1", "x", "");
	add(&s, "lost-1", "x", "event_type='unwanted'");
	add(&s, "behind-1", "x", "");
	add(&s, "other-1", "y", "");
	mq_unbind(s.rig.mq, s.rig.queue, s.rig.exchange, "#");
	mq_bind(s.rig.mq, s.rig.queue, s.rig.exchange, "order.created");
	command_run(s.d, "replay", "--json", "--since", "2020-01-01T00:00:00Z", NULL);
	require_status(1);
	require_counts(4, 2);
	o = command_json();
	failed = json_member(o, "failed");
	REQUIRE_INT(json_object_array_length(failed), ==, 2);
	json_object_put(o);
	require_text(command_last.out, "{\"event_id\":\"lost-1\",\"reason\":\"UNROUTABLE: 312");
	require_text(command_last.out, "{\"event_id\":\"behind-1\",\"reason\":\"WAITING");
	require_text(command_last.err, "lost-1: UNROUTABLE");
	REQUIRE_INT(drain(&s, 2), ==, 2);
	REQUIRE(inbox_count(&s.rig.inbox, "good-1") == 1);
	REQUIRE(inbox_count(&s.rig.inbox, "other-1") == 1);
	stage_close(&s);
}
END_TEST

/* Deletes rows from "e<n>" on while a replay is at work that has come to the second at least. */
static void delete_from(struct stage *s, unsigned n)
{
	WAIT_FOR(10000, mq_depth(s->rig.mq, s->rig.queue) > 1);
	db_exec(s->rig.db,
		"DELETE FROM %s.outbox_event WHERE CAST(SUBSTRING(event_id,2) AS SIGNED)>=%u",
		s->rig.schema[0].name, n);
}

START_TEST(rows_that_retention_takes_meanwhile_are_counted_and_the_status_says_so)
{
	struct stage s;
	struct json_object *o;

	stage_open(&s);
	add_many(&s, 60, 7);
	(void)command_begin(s.d, "replay", "--json", "--type", "created", "--rate", "40", NULL);
	delete_from(&s, 51);
	command_end();
	require_status(1);
	require_counts(60, 50);
	o = command_json();
	REQUIRE_INT(json_number(o, "gone"), ==, 10);
	REQUIRE_INT(json_object_array_length(json_member(o, "missing")), ==, 0);
	json_object_put(o);
	/* a row that is there, or --after-id would refuse it */
	REQUIRE_INT(resume_id(), ==,
		db_int(s.rig.db, "SELECT id FROM %s.outbox_event WHERE event_id='e50'",
			s.rig.schema[0].name));
	stage_close(&s);
}
END_TEST

START_TEST(named_events_that_are_missing_are_listed_and_of_many_the_first)
{
	struct stage s;
	struct json_object *o, *missing;
#define FIVE(x) x "1", x "2", x "3", x "4", x "5"

	stage_open(&s);
	add_many(&s, 5, 1);
	(void)command_begin(s.d, "replay", "--json", "--rate", "2", "e1", "nosuch", "e2", "e3",
		"e4", "e5", NULL);
	delete_from(&s, 4);
	command_end();
	require_status(1);
	require_counts(5, 3);
	require_text(command_last.err, "e4: it is not there any more");
	o = command_json();
	REQUIRE_INT(json_number(o, "gone"), ==, 2);
	missing = json_member(o, "missing");
	REQUIRE_STR(json_object_to_json_string_ext(missing, 0), "[\"nosuch\",\"e4\",\"e5\"]");
	json_object_put(o);
	command_run(s.d, "replay", "--json", FIVE("a"), FIVE("b"), FIVE("c"), FIVE("d"), FIVE("f"),
		NULL);
	require_status(1);
	require_text(command_last.err, "d5: there is no such event");
	require_text(command_last.err, "further missing events are not named");
	REQUIRE(strstr(command_last.err, "f1") == NULL);
	o = command_json();
	REQUIRE_INT(json_object_array_length(json_member(o, "missing")), ==, 25);
	json_object_put(o);
	stage_close(&s);
}
END_TEST

START_TEST(a_missing_exchange_ends_it_at_the_first_event)
{
	struct stage s;

	stage_open(&s);
	add_many(&s, 300, 300);
	s.conf.source[0].exchange = "no.such.exchange";
	daemon_configure(s.d, &s.conf);
	command_run(s.d, "replay", "--json", "--type", "created", NULL);
	require_status(1);
	require_text(command_last.err, "404 NOT_FOUND");
	require_text(command_last.err, "from the beginning");
	require_text(command_last.out, "\"changed\":0");
	stage_close(&s);
}
END_TEST

START_TEST(it_ends_when_nothing_arrives_any_more_rather_than_failing_event_by_event)
{
	struct stage s;
	struct json_object *o;

	stage_open(&s);
	add_many(&s, 500, 500);
	mq_unbind(s.rig.mq, s.rig.queue, s.rig.exchange, "#");
	command_run(s.d, "replay", "--json", "--type", "created", NULL);
	require_status(1);
	require_text(command_last.err, "all failed");
	o = command_json();
	REQUIRE_INT(json_number(o, "changed"), ==, 0);
	REQUIRE_INT(json_object_array_length(json_member(o, "failed")), >=, 50);
	REQUIRE(json_member(o, "after_id") == NULL);
	json_object_put(o);
	stage_close(&s);
}
END_TEST

static enum fake_verdict judge(void *arg, const struct fake_message *m)
{
	(void)arg;
	if (strcmp(m->message_id, "nacked") == 0)
		return FAKE_NACK;
	if (strcmp(m->message_id, "closes") == 0)
		return FAKE_CLOSE_403;
	if (strcmp(m->message_id, "held") == 0)
		return FAKE_HOLD;
	return FAKE_ACK;
}

static void use_broker(struct stage *s, unsigned port)
{
	s->conf.brokers = 1;
	s->conf.broker[0] = (struct conf_broker){ .name = "main", .port = port };
	daemon_configure(s->d, &s->conf);
}

START_TEST(nacks_and_closed_channels_are_told_apart_for_each_event)
{
	struct stage s;
	const struct fake_rules rules = { .judge = judge };
	struct fake_broker *b = fake_broker_start(&rules);

	stage_open(&s);
	s.conf.source[0].exchange = "x-{aggregate_id}"; /* of one row's own: its channel alone */
	use_broker(&s, fake_broker_port(b));
	add(&s, "good-1", "a", "");
	add(&s, "nacked", "b", "");
	add(&s, "closes", "c", "");
	add(&s, "good-2", "d", "");
	add(&s, "good-3", "d", "");
	command_run(s.d, "replay", "--json", "--type", "created", NULL);
	require_status(1);
	require_counts(5, 3);
	require_text(command_last.out, "{\"event_id\":\"nacked\",\"reason\":\"NACKED: ");
	require_text(command_last.out, "{\"event_id\":\"closes\",\"reason\":\"REFUSED: 403 ");
	for (unsigned i = 0; i < 5; i++) {
		static const char *const all[] = { "good-1", "nacked", "closes", "good-2",
			"good-3" };

		REQUIRE_INT(fake_broker_count(b, all[i]), ==, 1);
	}
	stage_close(&s);
	fake_broker_stop(b);
}
END_TEST

START_TEST(an_event_without_a_confirm_is_neither_sent_nor_failed)
{
	struct stage s;
	const struct fake_rules rules = { .judge = judge };
	struct fake_broker *b = fake_broker_start(&rules);
	struct json_object *o;

	stage_open(&s);
	s.conf.confirm_ms = 1000;
	use_broker(&s, fake_broker_port(b));
	add(&s, "good-1", "a", "");
	add(&s, "held", "b", "");
	add(&s, "good-2", "c", "");
	command_run(s.d, "replay", "--json", "--type", "created", NULL);
	require_status(1);
	o = command_json();
	REQUIRE_INT(json_number(o, "changed"), ==, 2);
	REQUIRE_INT(json_number(o, "unconfirmed"), ==, 1);
	REQUIRE_INT(json_object_array_length(json_member(o, "failed")), ==, 0);
	json_object_put(o);
	/* whoever goes on begins with the one nobody knows of */
	REQUIRE_INT(resume_id(), ==,
		db_int(s.rig.db, "SELECT id FROM %s.outbox_event WHERE event_id='good-1'",
			s.rig.schema[0].name));
	stage_close(&s);
	fake_broker_stop(b);
}
END_TEST

START_TEST(a_broker_that_is_blocked_is_waited_for)
{
	struct stage s;
	const struct fake_rules rules = { 0 };
	struct fake_broker *b = fake_broker_start(&rules);
	struct fake_stats stats;
	pid_t pid;

	stage_open(&s);
	s.conf.confirm_ms = 1000;
	use_broker(&s, fake_broker_port(b));
	add_many(&s, 300, 3);
	pid = command_begin(s.d, "replay", "--json", "--type", "created", "--rate", "100", NULL);
	WAIT_FOR(10000, (fake_broker_stats(b, &stats), stats.messages > 20));
	fake_broker_block(b, true, "low on memory");
	env_sleep_ms(1500); /* longer than confirm_timeout: that is what is tried here */
	fake_broker_stats(b, &stats);
	REQUIRE_INT(stats.messages, <, 300);
	REQUIRE(kill(pid, 0) == 0);
	fake_broker_block(b, false, NULL);
	command_end();
	require_status(0);
	require_counts(300, 300);
	stage_close(&s);
	fake_broker_stop(b);
}
END_TEST

START_TEST(a_replay_leaves_a_line_in_syslog_and_a_dry_run_none)
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
	stage_open(&s);
	add(&s, "sent-1", "x", "");
	command_run(s.d, "replay", "--dry-run", "--type", "created", NULL);
	REQUIRE_INT(recv(fd, line, sizeof(line) - 1, 0), <, 0);
	command_run(s.d, "replay", "--type", "created", "--reason", "lost\nqueue", NULL);
	n = recv(fd, line, sizeof(line) - 1, 0);
	unlink("/dev/log");
	REQUIRE_INT(n, >, 0);
	line[n] = '\0';
	require_text(line, "<29>"); /* daemon.notice */
	require_text(line, "command=replay source=s0 changed=1 reason=\"lost?queue\"");
	require_text(line, "type=created event_ids=sent-1");
	close(fd);
	stage_close(&s);
}
END_TEST

/* --- interrupted, and going on -------------------------------------------------------------- */

START_TEST(interrupted_it_waits_for_confirms_and_goes_on_later_without_a_gap_or_a_duplicate)
{
	enum { EVENTS = 400 };
	struct stage s;
	char after[32];
	pid_t pid;
	size_t first;

	stage_open(&s);
	add_many(&s, EVENTS, 13);
	pid = command_begin(s.d, "replay", "--json", "--type", "created", "--rate", "200", NULL);
	WAIT_FOR(10000, mq_depth(s.rig.mq, s.rig.queue) > 20);
	REQUIRE(kill(pid, SIGINT) == 0);
	command_end();
	require_status(1);
	require_text(command_last.err, "interrupted");
	require_text(command_last.err, "--after-id");
	snprintf(after, sizeof(after), "%" PRId64, resume_id());
	first = drain(&s, 1);
	REQUIRE(first < EVENTS);
	command_run(s.d, "replay", "--json", "--type", "created", "--after-id", after, NULL);
	require_status(0);
	require_counts((int64_t)(EVENTS - first), (int64_t)(EVENTS - first));
	REQUIRE_INT(drain(&s, EVENTS), ==, EVENTS);
	for (unsigned i = 1; i <= EVENTS; i++) {
		char id[16];

		snprintf(id, sizeof(id), "e%u", i);
		REQUIRE_INT(inbox_count(&s.rig.inbox, id), ==, 1);
	}
	stage_close(&s);
}
END_TEST

START_TEST(killed_outright_it_has_left_a_row_to_go_on_from_on_standard_error)
{
	enum { EVENTS = 120 };
	struct stage s;
	const char *line;
	char after[32];
	unsigned long long id;
	pid_t pid;
	size_t first;

	stage_open(&s);
	add_many(&s, EVENTS, 13);
	pid = command_begin(s.d, "replay", "--type", "created", "--rate", "20", NULL);
	WAIT_FOR(10000, mq_depth(s.rig.mq, s.rig.queue) > 35);
	REQUIRE(kill(pid, SIGKILL) == 0);
	command_end();
	require_status(128 + SIGKILL);
	line = strstr(command_last.err, "confirmed, up to row ");
	if (line == NULL || sscanf(line, "confirmed, up to row %llu", &id) != 1)
		FAIL("no row in: %s", command_last.err);
	/* a file is not filled with them */
	REQUIRE(strstr(line + 1, "confirmed, up to row ") == NULL);
	snprintf(after, sizeof(after), "%llu", id);
	first = drain(&s, 1);
	REQUIRE(first < EVENTS);
	command_run(s.d, "replay", "--json", "--type", "created", "--after-id", after, NULL);
	require_status(0);
	drain(&s, EVENTS);
	for (unsigned i = 1; i <= EVENTS; i++) {
		char name[16];

		snprintf(name, sizeof(name), "e%u", i);
		REQUIRE_INT(inbox_count(&s.rig.inbox, name), >=, 1);
	}
	REQUIRE_INT(s.rig.inbox.count, <, EVENTS + first); /* it did not begin anew */
	stage_close(&s);
}
END_TEST

START_TEST(after_a_lost_connection_it_says_where_to_go_on_and_nothing_is_missing)
{
	enum { EVENTS = 2000 };
	struct stage s;
	struct proxy *p = proxy_start(env_get()->mq_host, env_get()->mq_port);
	char after[32];

	stage_open(&s);
	add_many(&s, EVENTS, 100);
	use_broker(&s, proxy_port(p));
	proxy_cut_after(p, 100000);
	command_run(s.d, "replay", "--json", "--type", "created", NULL);
	require_status(1);
	require_text(command_last.out, "\"error\":\"");
	snprintf(after, sizeof(after), "%" PRId64, resume_id());
	REQUIRE(drain(&s, 1) < EVENTS);
	command_run(s.d, "replay", "--json", "--type", "created", "--after-id", after, NULL);
	require_status(0);
	drain(&s, EVENTS);
	for (unsigned i = 1; i <= EVENTS; i++) {
		char id[16];

		snprintf(id, sizeof(id), "e%u", i);
		REQUIRE_INT(inbox_count(&s.rig.inbox, id), >=, 1);
	}
	stage_close(&s);
	proxy_stop(p);
}
END_TEST

START_TEST(a_page_costs_the_same_wherever_it_lies_and_nothing_is_sorted)
{
	enum { EVENTS = 5000 };
	struct stage s;
	int64_t statements, sorted, examined;

	if (env_get()->mariadb)
		return; /* has no performance schema by default */
	stage_open(&s);
	add_many(&s, EVENTS, 100);
	/* which is full after some hundred schemas */
	db_exec(s.rig.db, "TRUNCATE TABLE performance_schema.events_statements_summary_by_digest");
	command_run(s.d, "replay", "--json", "--dry-run", "--since", "2020-01-01T00:00:00Z", NULL);
	require_counts(EVENTS, 0);
#define DIGEST                                                                                     \
	" FROM performance_schema.events_statements_summary_by_digest WHERE SCHEMA_NAME='%s' AND " \
	"DIGEST_TEXT LIKE '%%`sent_at`%%ORDER BY `created_at`%%'"
	statements = db_int(s.rig.db, "SELECT SUM(COUNT_STAR)" DIGEST, s.rig.schema[0].name);
	sorted = db_int(s.rig.db, "SELECT SUM(SUM_SORT_ROWS)" DIGEST, s.rig.schema[0].name);
	examined = db_int(s.rig.db, "SELECT SUM(SUM_ROWS_EXAMINED)" DIGEST, s.rig.schema[0].name);
	REQUIRE_INT(statements, ==, EVENTS / 1000 + 1);
	REQUIRE_INT(sorted, ==, 0);
	REQUIRE_INT(examined, <=, EVENTS + statements);
	stage_close(&s);
}
END_TEST

RIG_MAIN("replay", 60, named_events_are_published_again_marked_and_the_table_stays_as_it_is,
	events_are_chosen_by_time_type_and_aggregate, what_cannot_be_meant_is_refused,
	each_aggregate_comes_in_its_order_whatever_the_ids_say,
	the_archive_is_replayed_from_its_own_table,
	an_event_that_fails_is_named_and_holds_back_only_its_own_aggregate,
	rows_that_retention_takes_meanwhile_are_counted_and_the_status_says_so,
	named_events_that_are_missing_are_listed_and_of_many_the_first,
	a_missing_exchange_ends_it_at_the_first_event,
	it_ends_when_nothing_arrives_any_more_rather_than_failing_event_by_event,
	nacks_and_closed_channels_are_told_apart_for_each_event,
	an_event_without_a_confirm_is_neither_sent_nor_failed,
	a_broker_that_is_blocked_is_waited_for, a_replay_leaves_a_line_in_syslog_and_a_dry_run_none,
	interrupted_it_waits_for_confirms_and_goes_on_later_without_a_gap_or_a_duplicate,
	killed_outright_it_has_left_a_row_to_go_on_from_on_standard_error,
	after_a_lost_connection_it_says_where_to_go_on_and_nothing_is_missing,
	a_page_costs_the_same_wherever_it_lies_and_nothing_is_sorted)

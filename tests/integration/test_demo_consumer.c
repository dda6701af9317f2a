/* The consumer that README shows as an example, behind the daemon: what it applies and what not. */
#include "support/command.h"
#include "support/rig.h"

#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

struct demo {
	struct rig rig;
	struct daemon *daemon;
	pid_t consumer;
	char output[120], queue[60];
	unsigned handled; /* messages so far */
};

/* Lines of its output that begin so. */
static unsigned lines(const struct demo *t, const char *with)
{
	char *text = env_read_file(t->output);
	unsigned n = 0;

	for (const char *line = text; line != NULL && *line != '\0';) {
		const char *end = strchr(line, '\n');

		n += strncmp(line, with, strlen(with)) == 0;
		line = end != NULL ? end + 1 : NULL;
	}
	free(text);
	return n;
}

static void load(struct demo *t, const char *file)
{
	char path[700], *sql;

	snprintf(path, sizeof(path), "%s/%s", env_get()->repository, file);
	sql = env_read_file(path);
	REQUIRE(sql != NULL);
	db_exec(t->rig.db, "USE %s; %s", t->rig.schema[0].name, sql);
	free(sql);
}

static void start_consumer(struct demo *t)
{
	const struct env *env = env_get();
	char program[700], db_port[16], mq_port[16], db_password[160], mq_password[160], text[300];
	ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 40);

	REQUIRE(n > 0);
	program[n] = '\0'; /* .../tests/it/NAME */
	for (int i = 0; i < 3; i++)
		*strrchr(program, '/') = '\0';
	strcat(program, "/tools/demo_consumer");
	snprintf(db_port, sizeof(db_port), "%u", env->db_port);
	snprintf(mq_port, sizeof(mq_port), "%u", env->mq_port);
	snprintf(t->output, sizeof(t->output), "%s/consumer.out", t->daemon->dir);
	snprintf(db_password, sizeof(db_password), "%s/db.pass", t->daemon->dir);
	snprintf(mq_password, sizeof(mq_password), "%s/mq.pass", t->daemon->dir);
	snprintf(text, sizeof(text), "%s\n", env->db_password);
	env_write_file(db_password, text);
	snprintf(text, sizeof(text), "%s\n", env->mq_password);
	env_write_file(mq_password, text);
	env_write_file(t->output, "");
	t->consumer = fork();
	REQUIRE(t->consumer >= 0);
	if (t->consumer == 0) {
		int out = open(t->output, O_WRONLY | O_APPEND);

		prctl(PR_SET_PDEATHSIG, SIGKILL); /* not to outlive a test that failed */
		dup2(out, 1);
		dup2(out, 2);
		execl(program, program, env->db_host, db_port, env->db_user, db_password,
			t->rig.schema[0].name, env->mq_host, mq_port, env->mq_user, mq_password,
			t->rig.exchange, t->queue, (char *)NULL);
		_exit(127);
	}
	WAIT_FOR(10000, lines(t, "ready") == 1);
}

static void start(struct demo *t)
{
	struct conf c;

	*t = (struct demo){ 0 };
	rig_open(&t->rig, 1);
	load(t, "sql/inbox_event.sql");
	load(t, "tests/demo/inventory.sql");
	snprintf(t->queue, sizeof(t->queue), "%s.demo", t->rig.queue);
	rig_conf(&t->rig, &c);
	t->daemon = daemon_new("demo");
	daemon_configure(t->daemon, &c);
	start_consumer(t);
	daemon_start(t->daemon);
	daemon_wait_ready(t->daemon, true);
}

/* `tally`: of its last line, without the times. */
static void finish(struct demo *t, const char *tally)
{
	int status;

	REQUIRE(kill(t->consumer, SIGTERM) == 0);
	REQUIRE(waitpid(t->consumer, &status, 0) == t->consumer);
	if (lines(t, tally) != 1)
		FAIL("no \"%s\" in\n%s", tally, env_read_file(t->output));
	REQUIRE_INT(status, ==, 0);
	daemon_stop(t->daemon);
	daemon_free(t->daemon);
	mq_delete_queue(t->rig.mq, t->queue);
	rig_close(&t->rig);
}

static void add(
	struct demo *t, const char *id, const char *type, const char *aggregate, unsigned version)
{
	db_exec(t->rig.db,
		"INSERT INTO %s.outbox_event (event_id,aggregate_type,aggregate_id,"
		"aggregate_version,event_type,payload) VALUES ('%s','order','%s',%u,'%s','{}')",
		t->rig.schema[0].name, id, aggregate, version, type);
	rig_wait_sent(&t->rig, 0, 10000);
}

/* Sends it, and waits until the consumer has done with it. */
static void send(
	struct demo *t, const char *id, const char *type, const char *aggregate, unsigned version)
{
	add(t, id, type, aggregate, version);
	t->handled++;
	WAIT_FOR(10000, lines(t, "#") == t->handled);
}

static void require_effect(struct demo *t, const char *aggregate, int events, int version)
{
	const char *s = t->rig.schema[0].name;

	REQUIRE_INT(db_int(t->rig.db, "SELECT events FROM %s.effect WHERE aggregate_id='%s'", s,
			    aggregate),
		==, events);
	REQUIRE_INT(db_int(t->rig.db, "SELECT last_version FROM %s.effect WHERE aggregate_id='%s'",
			    s, aggregate),
		==, version);
}

static int64_t reconciled(struct demo *t, const char *where)
{
	return db_int(t->rig.db, "SELECT COUNT(*) FROM %s.reconciliation WHERE %s",
		t->rig.schema[0].name, where);
}

START_TEST(what_the_inbox_does_not_know_the_version_and_the_state_do)
{
	struct demo t;

	start(&t);
	send(&t, "d1", "created", "A", 1);
	send(&t, "d2", "paid", "A", 2);
	send(&t, "d3", "shipped", "A", 3);
	require_effect(&t, "A", 3, 3);
	send(&t, "d2bis", "paid", "A", 2); /* under another id */
	send(&t, "d3bis", "shipped", "A", 3);
	send(&t, "d1bis", "created", "A", 1);
	require_effect(&t, "A", 3, 3);
	db_exec(t.rig.db, "DELETE FROM %s.inbox_event WHERE event_id='d2'", t.rig.schema[0].name);
	for (unsigned i = 0; i < 2; i++) { /* forgotten, then not */
		command_run(t.daemon, "replay", "d2", NULL);
		require_status(0);
		t.handled++;
		WAIT_FOR(10000, lines(&t, "#") == t.handled);
	}
	require_effect(&t, "A", 3, 3);
	REQUIRE_INT(reconciled(&t, "1"), ==, 0);
	/* what cannot be */
	send(&t, "d4", "created", "A", 4);
	send(&t, "b2", "paid", "B", 2);
	require_effect(&t, "A", 3, 3);
	REQUIRE_INT(reconciled(&t, "event_id='d4' AND version=4 AND last_version=3"), ==, 1);
	REQUIRE_INT(reconciled(&t, "event_id='b2' AND version=2 AND last_version=-1"), ==, 1);
	REQUIRE_INT(
		db_int(t.rig.db, "SELECT COUNT(*) FROM %s.effect", t.rig.schema[0].name), ==, 1);
	send(&t, "d5", "returned", "A", 5);
	require_effect(&t, "A", 4, 5);
	finish(&t, "received=11 applied=4 given_back=0 rolled_back=0 swallowed=1 outdated=4 "
		   "forbidden=2 refused=0 ");
}
END_TEST

START_TEST(what_is_too_long_is_so_in_characters)
{
	struct demo t;
	char id[2 * 65 + 1] = "";

	start(&t);
	db_exec(t.rig.db,
		"ALTER TABLE %s.outbox_event MODIFY event_id VARCHAR(80) COLLATE utf8mb4_bin NOT "
		"NULL",
		t.rig.schema[0].name);
	for (unsigned i = 0; i < 64; i++)
		strcat(id, "ä");
	send(&t, id, "created", "A", 1);
	require_effect(&t, "A", 1, 1);
	REQUIRE_INT(db_int(t.rig.db, "SELECT COUNT(*) FROM %s.inbox_event WHERE event_id='%s'",
			    t.rig.schema[0].name, id),
		==, 1);
	strcat(id, "ä");
	add(&t, id, "created", "B", 1);
	send(&t, "last", "created", "C", 1);
	REQUIRE_INT(
		db_int(t.rig.db, "SELECT COUNT(*) FROM %s.effect", t.rig.schema[0].name), ==, 2);
	finish(&t, "received=3 applied=2 given_back=0 rolled_back=0 swallowed=0 outdated=0 "
		   "forbidden=0 refused=1 ");
}
END_TEST

RIG_MAIN("demo consumer", 60, what_the_inbox_does_not_know_the_version_and_the_state_do,
	what_is_too_long_is_so_in_characters)

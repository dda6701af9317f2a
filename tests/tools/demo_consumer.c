/* demo_consumer.c: a consumer for which a message that comes twice counts once; example code for
 * whoever writes one.
 *
 *	demo_consumer DB_HOST DB_PORT DB_USER DB_PASSWORD_FILE DATABASE
 *		AMQP_HOST AMQP_PORT AMQP_USER AMQP_PASSWORD_FILE EXCHANGE QUEUE
 *
 * Delivery is at least once: whatever dies at the wrong moment, broker, relay or consumer, makes a
 * message come again. So for each message, in one transaction of the consumer's own database:
 *
 *	INSERT IGNORE the event's id into the inbox
 *	new: the effect		had already: nothing
 *	COMMIT, and only then acknowledge
 *
 * A crash before COMMIT undoes both, a crash after it is a redelivery that finds the id.
 *
 * The inbox cannot see everything, and forgets, so what is new to it is held against the row of the
 * thing, which is locked first:
 *
 *	business key	one row for one thing, whatever the ids of its events
 *	row version	not newer than the last applied: old news, no effect
 *	state check	created once and first, then changed; what cannot be has no effect
 *			and goes to the table `reconciliation`, for people
 *
 * Declares its queue, and the exchange, then consumes until TERM. To show what is promised above,
 * some messages are given back after COMMIT instead of acknowledged, as if it had died just then,
 * and some transactions are rolled back and repeated, as after a deadlock: at once, for what goes
 * back to the queue comes after what was delivered meanwhile. Last line: "received=N applied=N
 * given_back=N rolled_back=N swallowed=N outdated=N forbidden=N refused=N p50_us=N max_us=N", the
 * times being those of handling a message. */
#include "base/str.h"

#include <mysql.h>

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

#if __has_include(<rabbitmq-c/amqp.h>)
#include <rabbitmq-c/amqp.h>
#include <rabbitmq-c/tcp_socket.h>
#else
#include <amqp.h>
#include <amqp_tcp_socket.h>
#endif

#define CONSUMER "inventory" /* each consumer of an inbox has its own name and its own effects */
#define ID_MAX 64            /* characters, of the inbox's column */
#define PREFETCH 50
#define GIVE_BACK_EVERY 25
#define ROLL_BACK_EVERY 40
#define TIMES_MAX 100000

struct consumer {
	MYSQL *db;
	amqp_connection_state_t mq;
	unsigned received, applied, given_back, rolled_back, swallowed, outdated, forbidden,
		refused;
	uint32_t times_us[TIMES_MAX]; /* of the first messages */
	unsigned times;
};

enum outcome { APPLIED, HAD_ALREADY, OUTDATED, FORBIDDEN, ROLLED_BACK };

#define ESCAPED(characters) (2 * 4 * (characters) + 1) /* as the escaping function demands */

/* What is used of a message; texts are escaped for SQL. */
struct event {
	char id[ESCAPED(ID_MAX)];
	char type[ESCAPED(128)];
	char source[ESCAPED(64)];
	char aggregate_type[ESCAPED(64)];
	char aggregate_id[ESCAPED(128)];
	int64_t version;
};

static volatile sig_atomic_t stop;

static void on_signal(int signal)
{
	(void)signal;
	stop = 1;
}

static void die(const char *what, const char *why)
{
	fprintf(stderr, "demo_consumer: %s: %s\n", what, why);
	exit(1);
}

static void read_password(const char *path, char *out, size_t size)
{
	FILE *f = fopen(path, "r");

	if (f == NULL || fgets(out, (int)size, f) == NULL)
		die(path, f == NULL ? strerror(errno) : "empty");
	out[strcspn(out, "\n")] = '\0';
	fclose(f);
}

/* --- database --- */

static void connect_database(struct consumer *c, char **arg)
{
	char password[256];

	read_password(arg[3], password, sizeof(password));
	c->db = mysql_init(NULL);
	/* Messages are UTF-8; taken for another character set, an id would be longer than it is. */
	if (c->db == NULL || mysql_options(c->db, MYSQL_SET_CHARSET_NAME, "utf8mb4") != 0 ||
		mysql_real_connect(c->db, arg[0], arg[2], password, arg[4],
			(unsigned)strtoul(arg[1], NULL, 10), NULL, 0) == NULL)
		die("database", c->db != NULL ? mysql_error(c->db) : "out of memory");
}

static unsigned long long run(struct consumer *c, const char *sql)
{
	if (mysql_query(c->db, sql) != 0)
		die(sql, mysql_error(c->db));
	return mysql_affected_rows(c->db);
}

/* The last version of the thing that was applied; -1: there is no such thing yet. Locks it. */
static int64_t last_version(struct consumer *c, const struct event *ev)
{
	char sql[4096];
	int64_t version = -1;
	MYSQL_RES *rows;
	MYSQL_ROW row;

	snprintf(sql, sizeof(sql),
		"SELECT last_version FROM effect WHERE source='%s' AND aggregate_type='%s'"
		" AND aggregate_id='%s' FOR UPDATE",
		ev->source, ev->aggregate_type, ev->aggregate_id);
	(void)run(c, sql);
	rows = mysql_store_result(c->db);
	if (rows == NULL)
		die(sql, mysql_error(c->db));
	row = mysql_fetch_row(rows);
	if (row != NULL)
		version = strtoll(row[0], NULL, 10);
	mysql_free_result(rows);
	return version;
}

/* What may follow what. The version first: to what is old the state of now says nothing. */
static enum outcome judge(const struct event *ev, int64_t last)
{
	bool creates = strcmp(ev->type, "created") == 0, exists = last >= 0;

	if (exists && ev->version <= last)
		return OUTDATED;
	return creates != exists ? APPLIED : FORBIDDEN;
}

static void reconcile(struct consumer *c, const struct event *ev, int64_t last)
{
	char sql[4096];

	snprintf(sql, sizeof(sql),
		"INSERT INTO reconciliation (event_id, consumer_name, source, aggregate_type,"
		" aggregate_id, event_type, version, last_version) VALUES ('%s', '" CONSUMER
		"', '%s', '%s', '%s', '%s', %" PRId64 ", %" PRId64 ")",
		ev->id, ev->source, ev->aggregate_type, ev->aggregate_id, ev->type, ev->version,
		last);
	run(c, sql);
}

/* The effect: how many events of a thing there were, and which was the last. */
static void take_effect(struct consumer *c, const struct event *ev)
{
	char sql[4096];

	snprintf(sql, sizeof(sql),
		"INSERT INTO effect (source, aggregate_type, aggregate_id, events, last_version)"
		" VALUES ('%s', '%s', '%s', 1, %" PRId64 ")"
		" ON DUPLICATE KEY UPDATE events = events + 1, last_version = %" PRId64,
		ev->source, ev->aggregate_type, ev->aggregate_id, ev->version, ev->version);
	run(c, sql);
}

/* One transaction: the event is noted, and has its effect, or none, or is kept for people. */
static enum outcome apply(struct consumer *c, const struct event *ev, bool fails)
{
	enum outcome how = HAD_ALREADY;
	char sql[4096];

	run(c, "START TRANSACTION");
	snprintf(sql, sizeof(sql),
		"INSERT IGNORE INTO inbox_event"
		" (event_id, consumer_name, event_type, status, processed_at)"
		" VALUES ('%s', '" CONSUMER "', '%s', 'PROCESSED', NOW(6))",
		ev->id, ev->type);
	if (run(c, sql) == 1) {
		int64_t last = last_version(c, ev);

		how = judge(ev, last);
		if (how == APPLIED)
			take_effect(c, ev);
		else if (how == FORBIDDEN)
			reconcile(c, ev, last);
		if (fails) {
			run(c, "ROLLBACK");
			return ROLLED_BACK;
		}
	}
	run(c, "COMMIT");
	return how;
}

/* --- broker --- */

static void must(amqp_rpc_reply_t reply, const char *what)
{
	if (reply.reply_type == AMQP_RESPONSE_LIBRARY_EXCEPTION)
		die(what, amqp_error_string2(reply.library_error));
	if (reply.reply_type != AMQP_RESPONSE_NORMAL)
		die(what, "refused by the broker");
}

static void connect_broker(struct consumer *c, char **arg)
{
	const char *exchange = arg[4];
	amqp_bytes_t queue = amqp_cstring_bytes(arg[5]);
	char password[256];
	amqp_socket_t *socket;

	read_password(arg[3], password, sizeof(password));
	c->mq = amqp_new_connection();
	socket = c->mq != NULL ? amqp_tcp_socket_new(c->mq) : NULL;
	if (socket == NULL || amqp_socket_open(socket, arg[0], (int)strtol(arg[1], NULL, 10)) != 0)
		die("broker", "cannot connect");
	must(amqp_login(c->mq, "/", 0, 131072, 0, AMQP_SASL_METHOD_PLAIN, arg[2], password),
		"login");
	amqp_channel_open(c->mq, 1);
	must(amqp_get_rpc_reply(c->mq), "channel");
	amqp_exchange_declare(c->mq, 1, amqp_cstring_bytes(exchange), amqp_cstring_bytes("topic"),
		false, true /* durable */, false, false, amqp_empty_table);
	must(amqp_get_rpc_reply(c->mq), "exchange");
	amqp_queue_declare(
		c->mq, 1, queue, false, true /* durable */, false, false, amqp_empty_table);
	must(amqp_get_rpc_reply(c->mq), "queue");
	amqp_queue_bind(c->mq, 1, queue, amqp_cstring_bytes(exchange), amqp_cstring_bytes("#"),
		amqp_empty_table);
	must(amqp_get_rpc_reply(c->mq), "binding");
	/* Unacknowledged messages at a time; without a limit the broker would send everything. */
	amqp_basic_qos(c->mq, 1, 0, PREFETCH, false);
	must(amqp_get_rpc_reply(c->mq), "qos");
	amqp_basic_consume(c->mq, 1, queue, amqp_empty_bytes, false, false /* we acknowledge */,
		false, amqp_empty_table);
	must(amqp_get_rpc_reply(c->mq), "consume");
}

static const amqp_field_value_t *header(const amqp_basic_properties_t *p, const char *name)
{
	if (!(p->_flags & AMQP_BASIC_HEADERS_FLAG))
		return NULL;
	for (int i = 0; i < p->headers.num_entries; i++) {
		const amqp_table_entry_t *e = &p->headers.entries[i];

		if (e->key.len == strlen(name) && memcmp(e->key.bytes, name, e->key.len) == 0)
			return &e->value;
	}
	return NULL;
}

/* Escapes `from` into ESCAPED(max) bytes; false if it has more characters, or is not UTF-8. */
static bool take(struct consumer *c, amqp_bytes_t from, char *to, size_t max)
{
	const char *text = from.bytes;
	size_t characters = 0;

	for (size_t at = 0, n; at < from.len; at += n) {
		n = utf8_sequence(text + at, from.len - at);
		if (n == 0 || ++characters > max)
			return false;
	}
	mysql_real_escape_string(c->db, to, text, from.len);
	return true;
}

static bool take_header(struct consumer *c, const amqp_basic_properties_t *p, const char *name,
	char *to, size_t max)
{
	const amqp_field_value_t *v = header(p, name);

	return v != NULL && v->kind == AMQP_FIELD_KIND_UTF8 && take(c, v->value.bytes, to, max);
}

/* False: not a message we can tell apart from others, or place among them. An id longer than the
 * column above all: INSERT IGNORE would cut it, and take two different events for one. */
static bool read_event(struct consumer *c, const amqp_basic_properties_t *p, struct event *ev)
{
	const amqp_field_value_t *version = header(p, "aggregate_version");

	*ev = (struct event){ 0 };
	if (version == NULL || version->kind != AMQP_FIELD_KIND_I64 || version->value.i64 < 0)
		return false;
	ev->version = version->value.i64;
	return (p->_flags & AMQP_BASIC_MESSAGE_ID_FLAG) && p->message_id.len > 0 &&
	       take(c, p->message_id, ev->id, ID_MAX) && (p->_flags & AMQP_BASIC_TYPE_FLAG) &&
	       take(c, p->type, ev->type, 128) && take_header(c, p, "source", ev->source, 64) &&
	       take_header(c, p, "aggregate_type", ev->aggregate_type, 64) &&
	       take_header(c, p, "aggregate_id", ev->aggregate_id, 128);
}

static void show(const struct consumer *c, const amqp_envelope_t *m, const struct event *ev,
	const char *outcome)
{
	printf("#%-5u %-18.*s %s %s v%" PRId64 "  %.*s  %s\n", c->received, (int)m->routing_key.len,
		(char *)m->routing_key.bytes, ev->source, ev->aggregate_id, ev->version,
		(int)(m->message.body.len < 60 ? m->message.body.len : 60),
		(char *)m->message.body.bytes, outcome);
}

static void handle(struct consumer *c, const amqp_envelope_t *m)
{
	static const char *const words[] = { [APPLIED] = "applied",
		[HAD_ALREADY] = "had already: no effect (sent again)",
		[OUTDATED] = "older than what was applied: no effect",
		[FORBIDDEN] = "cannot be: no effect, kept for reconciliation" };
	const char *outcome;
	struct event ev;
	enum outcome how;

	c->received++;
	if (!read_event(c, &m->message.properties, &ev)) {
		/* Would never get better: not back to the queue, but to a dead-letter exchange, if
		 * the queue has one. */
		c->refused++;
		amqp_basic_reject(c->mq, 1, m->delivery_tag, false);
		return;
	}
	how = apply(c, &ev, c->received % ROLL_BACK_EVERY == 0);
	if (how == ROLLED_BACK) {
		c->rolled_back++;
		how = apply(c, &ev, false);
	}
	outcome = how == HAD_ALREADY && m->redelivered ? "had already: no effect (redelivered)"
						       : words[how];
	c->applied += how == APPLIED;
	c->swallowed += how == HAD_ALREADY;
	c->outdated += how == OUTDATED;
	c->forbidden += how == FORBIDDEN;
	if (how == APPLIED && c->received % GIVE_BACK_EVERY == 0) {
		c->given_back++;
		outcome = "applied, but given back as if we had died before the acknowledgement";
		amqp_basic_reject(c->mq, 1, m->delivery_tag, true);
	} else {
		amqp_basic_ack(c->mq, 1, m->delivery_tag, false);
	}
	show(c, m, &ev, outcome);
}

static int64_t now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static int by_time(const void *a, const void *b)
{
	const uint32_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static void tell(struct consumer *c)
{
	qsort(c->times_us, c->times, sizeof(c->times_us[0]), by_time);
	printf("received=%u applied=%u given_back=%u rolled_back=%u swallowed=%u outdated=%u "
	       "forbidden=%u refused=%u p50_us=%u max_us=%u\n",
		c->received, c->applied, c->given_back, c->rolled_back, c->swallowed, c->outdated,
		c->forbidden, c->refused, c->times > 0 ? c->times_us[c->times / 2] : 0,
		c->times > 0 ? c->times_us[c->times - 1] : 0);
}

int main(int argc, char **argv)
{
	struct sigaction sa = { .sa_handler = on_signal };
	static struct consumer c;

	if (argc != 12) {
		fprintf(stderr,
			"usage: demo_consumer DB_HOST DB_PORT DB_USER DB_PASSWORD_FILE DATABASE\n"
			"       AMQP_HOST AMQP_PORT AMQP_USER AMQP_PASSWORD_FILE EXCHANGE QUEUE\n");
		return 2;
	}
	sigaction(SIGTERM, &sa, NULL);
	sigaction(SIGINT, &sa, NULL);
	setvbuf(stdout, NULL, _IOLBF, 0);
	connect_database(&c, argv + 1);
	connect_broker(&c, argv + 6);
	printf("ready\n");
	while (!stop) {
		struct timeval timeout = { .tv_usec = 200000 };
		amqp_envelope_t envelope;
		amqp_rpc_reply_t reply;
		int64_t began_us;

		/* Otherwise the library keeps the memory of every message it has seen. */
		amqp_maybe_release_buffers(c.mq);
		reply = amqp_consume_message(c.mq, &envelope, &timeout, 0);
		if (reply.reply_type == AMQP_RESPONSE_LIBRARY_EXCEPTION &&
			reply.library_error == AMQP_STATUS_TIMEOUT)
			continue;
		must(reply, "consume");
		began_us = now_us();
		handle(&c, &envelope);
		if (c.times < TIMES_MAX)
			c.times_us[c.times++] = (uint32_t)(now_us() - began_us);
		amqp_destroy_envelope(&envelope);
	}
	tell(&c);
	amqp_connection_close(c.mq, AMQP_REPLY_SUCCESS);
	amqp_destroy_connection(c.mq);
	mysql_close(c.db);
	mysql_library_end();
	return 0;
}

/* e2e_consumer: the consumer of `make e2e`: demo_consumer.c with many messages to a transaction.
 *
 *	e2e_consumer SCHEMA QUEUE SEED [BREAK]
 *
 * In one transaction all messages that have come, up to BATCH, are noted in the inbox, and those
 * that are new and newer than their thing have their effect: a row each in `effect`, which has no
 * unique key that would hide a second one. Then they are acknowledged, or now and then given back
 * as if it had died just then. Whatever goes wrong ends the program; it is started again.
 *
 * BREAK, to see that the judge sees it: "defences" has neither inbox nor version guard, "ack"
 * acknowledges before the transaction. */
#include "amqp/rabbitmq.h"
#include "base/buf.h"
#include "base/rng.h"
#include "support/db.h"

#if __has_include(<rabbitmq-c/tcp_socket.h>)
#include <rabbitmq-c/tcp_socket.h>
#else
#include <amqp_tcp_socket.h>
#endif

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#define BATCH 200
#define PREFETCH 400
#define GIVE_BACK_ONE_IN 40
#define AGGREGATES_MAX 100000
#define TRIES 20

struct event {
	uint64_t n, aggregate, version;
	bool is_new, applied, gap;
};

struct consumer {
	struct db *db;
	amqp_connection_state_t mq;
	const char *queue;
	bool no_defences, early_ack;
	struct event events[BATCH];
	unsigned count;
	uint64_t last_tag;
	unsigned inbox, guard, redelivered, strange;
	struct buf sql;
};

/* Of the batch's things: the last version that had its effect, and how many are new. */
static uint64_t version_of[AGGREGATES_MAX];
static unsigned effects_of[AGGREGATES_MAX];

/* --- the transaction ------------------------------------------------------------------------ */

static unsigned run(struct consumer *c)
{
	return db_try(c->db, "%s", c->sql.data);
}

static void add_note(struct consumer *c, unsigned i)
{
	buf_addf(&c->sql, "%s('e-%" PRIu64 "','e2e','changed','PROCESSED',NOW(6))",
		i > 0 ? "," : "", c->events[i].n);
}

#define NOTE                                                                                       \
	"INSERT IGNORE INTO inbox_event (event_id,consumer_name,event_type,status,processed_at) "  \
	"VALUES "

/* All at once; if not all of them were new, one by one. */
static unsigned note(struct consumer *c)
{
	unsigned code;

	for (unsigned i = 0; i < c->count; i++)
		c->events[i].is_new = true;
	if (c->no_defences)
		return 0;
	buf_reset(&c->sql);
	buf_adds(&c->sql, NOTE);
	for (unsigned i = 0; i < c->count; i++)
		add_note(c, i);
	code = run(c);
	if (code != 0 || db_int(c->db, "SELECT ROW_COUNT()") == c->count)
		return code;
	db_exec(c->db, "ROLLBACK; START TRANSACTION");
	for (unsigned i = 0; i < c->count && code == 0; i++) {
		struct event *e = &c->events[i];

		code = db_try(
			c->db, NOTE "('e-%" PRIu64 "','e2e','changed','PROCESSED',NOW(6))", e->n);
		e->is_new = code == 0 && db_int(c->db, "SELECT ROW_COUNT()") == 1;
		c->inbox += code == 0 && !e->is_new;
	}
	return code;
}

static void on_thing(void *arg, const struct db_row *row)
{
	(void)arg;
	version_of[strtoull(row->value[0], NULL, 10)] = strtoull(row->value[1], NULL, 10);
}

static void read_things(struct consumer *c)
{
	buf_reset(&c->sql);
	buf_adds(&c->sql, "SELECT id,version FROM thing WHERE id IN (");
	for (unsigned i = 0; i < c->count; i++) {
		uint64_t a = c->events[i].aggregate;

		version_of[a] = 0;
		effects_of[a] = 0;
		buf_addf(&c->sql, "%s%" PRIu64, i > 0 ? "," : "", a);
	}
	buf_adds(&c->sql, ") FOR UPDATE");
	db_rows(c->db, on_thing, NULL, "%s", c->sql.data);
}

/* An older event than the last has no effect; one beyond the next is out of order. */
static unsigned decide(struct consumer *c)
{
	unsigned effects = 0;

	for (unsigned i = 0; i < c->count; i++) {
		struct event *e = &c->events[i];
		uint64_t last = version_of[e->aggregate];
		bool old = e->version <= last && !c->no_defences;

		c->guard += e->is_new && old;
		e->applied = e->is_new && !old;
		e->gap = e->version > last + 1;
		if (!e->applied)
			continue;
		version_of[e->aggregate] = e->version > last ? e->version : last;
		effects_of[e->aggregate]++;
		effects++;
	}
	return effects;
}

static unsigned write_effects(struct consumer *c)
{
	const char *comma = "";

	buf_reset(&c->sql);
	buf_adds(&c->sql, "INSERT INTO effect (n,out_of_order,queue) VALUES ");
	for (unsigned i = 0; i < c->count; i++) {
		if (!c->events[i].applied)
			continue;
		buf_addf(&c->sql, "%s(%" PRIu64 ",%d,'%s')", comma, c->events[i].n,
			c->events[i].gap, c->queue);
		comma = ",";
	}
	buf_adds(&c->sql, "; INSERT INTO thing (id,version,events) VALUES ");
	comma = "";
	for (unsigned i = 0; i < c->count; i++) {
		uint64_t a = c->events[i].aggregate;

		if (effects_of[a] == 0)
			continue;
		buf_addf(&c->sql, "%s(%" PRIu64 ",%" PRIu64 ",%u)", comma, a, version_of[a],
			effects_of[a]);
		comma = ",";
		effects_of[a] = 0;
	}
	buf_adds(&c->sql, " ON DUPLICATE KEY UPDATE version=VALUES(version),"
			  "events=events+VALUES(events)");
	return run(c);
}

static bool apply_once(struct consumer *c)
{
	c->inbox = c->guard = 0;
	db_exec(c->db, "START TRANSACTION");
	if (note(c) != 0)
		return false;
	read_things(c);
	if (decide(c) > 0 && write_effects(c) != 0)
		return false;
	return db_try(c->db,
		       "UPDATE tally SET received=received+%u,by_inbox=by_inbox+%u,"
		       "by_guard=by_guard+%u,redelivered=redelivered+%u,strange=strange+%u "
		       "WHERE queue='%s'; COMMIT",
		       c->count + c->strange, c->inbox, c->guard, c->redelivered, c->strange,
		       c->queue) == 0;
}

/* A deadlock is nobody's fault. */
static void apply(struct consumer *c)
{
	for (int i = 0; i < TRIES; i++) {
		if (apply_once(c))
			return;
		db_exec(c->db, "ROLLBACK");
		env_sleep_ms(10);
	}
	FAIL("the transaction fails again and again");
}

/* --- messages ------------------------------------------------------------------------------- */

static void must(amqp_rpc_reply_t reply, const char *what)
{
	if (reply.reply_type != AMQP_RESPONSE_NORMAL)
		FAIL("broker: %s", what);
}

static void subscribe(struct consumer *c)
{
	const struct env *env = env_get();
	amqp_socket_t *socket;

	c->mq = amqp_new_connection();
	socket = c->mq != NULL ? amqp_tcp_socket_new(c->mq) : NULL;
	if (socket == NULL || amqp_socket_open(socket, env->mq_host, (int)env->mq_port) != 0)
		FAIL("broker: cannot connect");
	must(amqp_login(c->mq, "/", 0, 131072, 0, AMQP_SASL_METHOD_PLAIN, env->mq_user,
		     env->mq_password),
		"login");
	amqp_channel_open(c->mq, 1);
	must(amqp_get_rpc_reply(c->mq), "channel");
	amqp_basic_qos(c->mq, 1, 0, PREFETCH, false);
	must(amqp_get_rpc_reply(c->mq), "qos");
	amqp_basic_consume(c->mq, 1, amqp_cstring_bytes(c->queue), amqp_empty_bytes, false, false,
		false, amqp_empty_table);
	must(amqp_get_rpc_reply(c->mq), "consume");
}

/* Texts of messages have no end of their own. */
static uint64_t number(const char *text, size_t len)
{
	uint64_t n = 0;

	for (size_t i = 0; i < len; i++) {
		if (text[i] < '0' || text[i] > '9')
			return UINT64_MAX;
		n = n * 10 + (uint64_t)(text[i] - '0');
	}
	return len > 0 && len < 16 ? n : UINT64_MAX;
}

static bool read_event(const amqp_basic_properties_t *p, struct event *e)
{
	const char *id = p->message_id.bytes;

	*e = (struct event){ .aggregate = UINT64_MAX };
	if (p->message_id.len < 3 || id[0] != 'e' || id[1] != '-')
		return false;
	e->n = number(id + 2, p->message_id.len - 2);
	for (int i = 0; i < p->headers.num_entries; i++) {
		const amqp_table_entry_t *h = &p->headers.entries[i];

		if (h->key.len == strlen("aggregate_id") &&
			memcmp(h->key.bytes, "aggregate_id", h->key.len) == 0 &&
			h->value.kind == AMQP_FIELD_KIND_UTF8)
			e->aggregate = number(h->value.value.bytes.bytes, h->value.value.bytes.len);
		if (h->key.len == strlen("aggregate_version") &&
			memcmp(h->key.bytes, "aggregate_version", h->key.len) == 0 &&
			h->value.kind == AMQP_FIELD_KIND_I64)
			e->version = (uint64_t)h->value.value.i64;
	}
	return e->n != UINT64_MAX && e->aggregate < AGGREGATES_MAX && e->version > 0;
}

/* False: none within a while. */
static bool take(struct consumer *c, int64_t wait_us)
{
	struct timeval timeout = { .tv_usec = wait_us };
	amqp_envelope_t m;
	amqp_rpc_reply_t reply = amqp_consume_message(c->mq, &m, &timeout, 0);

	if (reply.reply_type == AMQP_RESPONSE_LIBRARY_EXCEPTION &&
		reply.library_error == AMQP_STATUS_TIMEOUT)
		return false;
	must(reply, "consume");
	c->last_tag = m.delivery_tag;
	c->redelivered += m.redelivered;
	if (read_event(&m.message.properties, &c->events[c->count]))
		c->count++;
	else
		c->strange++;
	amqp_destroy_envelope(&m);
	return true;
}

static void turn(struct consumer *c, struct rng *rng)
{
	bool back;

	amqp_maybe_release_buffers(c->mq);
	c->count = c->redelivered = c->strange = 0;
	if (!take(c, 200000))
		return;
	while (c->count < BATCH && take(c, 3000))
		;
	if (c->early_ack)
		amqp_basic_ack(c->mq, 1, c->last_tag, true);
	if (c->count + c->strange > 0)
		apply(c);
	if (c->early_ack)
		return;
	back = rng_below(rng, GIVE_BACK_ONE_IN) == 0;
	if ((back ? amqp_basic_nack(c->mq, 1, c->last_tag, true, true)
		  : amqp_basic_ack(c->mq, 1, c->last_tag, true)) != AMQP_STATUS_OK)
		FAIL("broker: cannot acknowledge");
}

int main(int argc, char **argv)
{
	static struct consumer c;
	struct rng rng;

	if (argc < 4) {
		fprintf(stderr, "usage: e2e_consumer SCHEMA QUEUE SEED [BREAK]\n");
		return 2;
	}
	c.queue = argv[2];
	rng.state = strtoull(argv[3], NULL, 10);
	c.no_defences = argc > 4 && strcmp(argv[4], "defences") == 0;
	c.early_ack = argc > 4 && strcmp(argv[4], "ack") == 0;
	c.db = db_open();
	db_exec(c.db, "USE %s; SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", argv[1]);
	subscribe(&c);
	for (;;)
		turn(&c, &rng);
}

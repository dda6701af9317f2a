#include "support/mq.h"

#include "amqp/rabbitmq.h"
#include "base/buf.h"

#if __has_include(<rabbitmq-c/tcp_socket.h>)
#include <rabbitmq-c/tcp_socket.h>
#else
#include <amqp_tcp_socket.h>
#endif

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct mq {
	amqp_connection_state_t c;
	amqp_channel_t channel;
};

static void disconnect(struct mq *mq)
{
	if (mq->c != NULL)
		amqp_destroy_connection(mq->c);
	mq->c = NULL;
}

static const char *why(amqp_rpc_reply_t r)
{
	static char text[300];

	if (r.reply_type == AMQP_RESPONSE_LIBRARY_EXCEPTION)
		return amqp_error_string2(r.library_error);
	if (r.reply_type == AMQP_RESPONSE_SERVER_EXCEPTION &&
		r.reply.id == AMQP_CHANNEL_CLOSE_METHOD) {
		amqp_channel_close_t *m = r.reply.decoded;

		snprintf(text, sizeof(text), "%u %.*s", m->reply_code, (int)m->reply_text.len,
			(char *)m->reply_text.bytes);
		return text;
	}
	return "broker closed the connection";
}

static bool connect_once(struct mq *mq)
{
	const struct env *env = env_get();
	struct timeval timeout = { 10, 0 };
	amqp_socket_t *socket;

	mq->c = amqp_new_connection();
	socket = amqp_tcp_socket_new(mq->c);
	amqp_set_handshake_timeout(mq->c, &timeout);
	if (socket == NULL ||
		amqp_socket_open_noblock(socket, env->mq_host, (int)env->mq_port, &timeout) != 0 ||
		amqp_login(mq->c, "/", 0, 131072, 0, AMQP_SASL_METHOD_PLAIN, env->mq_user,
			env->mq_password)
				.reply_type != AMQP_RESPONSE_NORMAL) {
		disconnect(mq);
		return false;
	}
	mq->channel = 1;
	amqp_channel_open(mq->c, 1);
	if (amqp_get_rpc_reply(mq->c).reply_type != AMQP_RESPONSE_NORMAL) {
		disconnect(mq);
		return false;
	}
	return true;
}

void mq_reopen(struct mq *mq, int64_t ms)
{
	int64_t until = env_now_us() + ms * US_PER_MS;

	disconnect(mq);
	while (!connect_once(mq)) {
		if (env_now_us() > until)
			FAIL("no connection to the broker within %" PRId64 " ms", ms);
		env_sleep_ms(50);
	}
}

struct mq *mq_open(void)
{
	struct mq *mq = calloc(1, sizeof(*mq));

	if (mq == NULL)
		FAIL("out of memory");
	mq_reopen(mq, 10000);
	return mq;
}

void mq_close(struct mq *mq)
{
	if (mq == NULL)
		return;
	if (mq->c != NULL)
		amqp_connection_close(mq->c, AMQP_REPLY_SUCCESS);
	disconnect(mq);
	free(mq);
}

static void must(struct mq *mq, const char *what, const char *name)
{
	amqp_rpc_reply_t r = amqp_get_rpc_reply(mq->c);

	if (r.reply_type != AMQP_RESPONSE_NORMAL)
		FAIL("%s %s: %s", what, name, why(r));
	amqp_maybe_release_buffers(mq->c);
}

static amqp_bytes_t bytes(const char *text)
{
	return amqp_cstring_bytes(text);
}

void mq_declare_exchange(struct mq *mq, const char *name, const char *type)
{
	amqp_exchange_declare(
		mq->c, mq->channel, bytes(name), bytes(type), 0, 1, 0, 0, amqp_empty_table);
	must(mq, "exchange.declare", name);
}

void mq_declare_exchange_over(struct mq *mq, const char *name, const char *over)
{
	amqp_table_entry_t entry = { .key = bytes("alternate-exchange"),
		.value = { .kind = AMQP_FIELD_KIND_UTF8, .value.bytes = bytes(over) } };
	amqp_table_t arguments = { 1, &entry };

	amqp_exchange_declare(
		mq->c, mq->channel, bytes(name), bytes("topic"), 0, 1, 0, 0, arguments);
	must(mq, "exchange.declare", name);
}

void mq_declare_exchange_internal(struct mq *mq, const char *name)
{
	amqp_exchange_declare(
		mq->c, mq->channel, bytes(name), bytes("topic"), 0, 1, 0, 1, amqp_empty_table);
	must(mq, "exchange.declare", name);
}

void mq_delete_exchange(struct mq *mq, const char *name)
{
	amqp_exchange_delete(mq->c, mq->channel, bytes(name), 0);
	must(mq, "exchange.delete", name);
}

void mq_declare_queue(struct mq *mq, const char *name)
{
	amqp_table_entry_t entry = { .key = bytes("x-expires"),
		.value = { .kind = AMQP_FIELD_KIND_I32, .value.i32 = 3600000 } };
	amqp_table_t arguments = { 1, &entry };

	amqp_queue_declare(mq->c, mq->channel, bytes(name), 0, 1, 0, 0, arguments);
	must(mq, "queue.declare", name);
}

void mq_declare_queue_limited(struct mq *mq, const char *name, unsigned most)
{
	amqp_table_entry_t entries[] = {
		{ .key = bytes("x-expires"),
			.value = { .kind = AMQP_FIELD_KIND_I32, .value.i32 = 3600000 } },
		{ .key = bytes("x-max-length"),
			.value = { .kind = AMQP_FIELD_KIND_I32, .value.i32 = (int32_t)most } },
		{ .key = bytes("x-overflow"),
			.value = { .kind = AMQP_FIELD_KIND_UTF8,
				.value.bytes = bytes("reject-publish") } },
	};
	amqp_table_t arguments = { ARRAY_LEN(entries), entries };

	amqp_queue_declare(mq->c, mq->channel, bytes(name), 0, 1, 0, 0, arguments);
	must(mq, "queue.declare", name);
}

void mq_declare_queue_single(struct mq *mq, const char *name)
{
	amqp_table_entry_t entries[] = {
		{ .key = bytes("x-expires"),
			.value = { .kind = AMQP_FIELD_KIND_I32, .value.i32 = 3600000 } },
		{ .key = bytes("x-single-active-consumer"),
			.value = { .kind = AMQP_FIELD_KIND_BOOLEAN, .value.boolean = 1 } },
	};
	amqp_table_t arguments = { ARRAY_LEN(entries), entries };

	amqp_queue_declare(mq->c, mq->channel, bytes(name), 0, 1, 0, 0, arguments);
	must(mq, "queue.declare", name);
}

void mq_declare_queue_with(
	struct mq *mq, const char *name, bool durable, const char *const *arguments)
{
	amqp_table_entry_t entries[10];
	amqp_table_t table = { 0, entries };

	for (; *arguments != NULL; arguments += 2) {
		amqp_table_entry_t *e = &entries[table.num_entries++];
		char *end;

		e->key = bytes(arguments[0]);
		e->value.kind = AMQP_FIELD_KIND_I64;
		e->value.value.i64 = strtoll(arguments[1], &end, 10);
		if (*end != '\0') {
			e->value.kind = AMQP_FIELD_KIND_UTF8;
			e->value.value.bytes = bytes(arguments[1]);
		}
	}
	amqp_queue_declare(mq->c, mq->channel, bytes(name), 0, durable, 0, 0, table);
	must(mq, "queue.declare", name);
}

bool mq_queue_exists(struct mq *mq, const char *name)
{
	amqp_rpc_reply_t r;

	amqp_queue_declare(mq->c, mq->channel, bytes(name), 1, 1, 0, 0, amqp_empty_table);
	r = amqp_get_rpc_reply(mq->c);
	if (r.reply_type == AMQP_RESPONSE_NORMAL)
		return true;
	if (r.reply_type != AMQP_RESPONSE_SERVER_EXCEPTION || strncmp(why(r), "404", 3) != 0)
		FAIL("queue.declare (passive) %s: %s", name, why(r));
	mq_reopen(mq, 5000); /* the channel is gone */
	return false;
}

void mq_delete_queue(struct mq *mq, const char *name)
{
	amqp_queue_delete(mq->c, mq->channel, bytes(name), 0, 0);
	must(mq, "queue.delete", name);
}

void mq_bind(struct mq *mq, const char *queue, const char *exchange, const char *key)
{
	amqp_queue_bind(
		mq->c, mq->channel, bytes(queue), bytes(exchange), bytes(key), amqp_empty_table);
	must(mq, "queue.bind", queue);
}

void mq_unbind(struct mq *mq, const char *queue, const char *exchange, const char *key)
{
	amqp_queue_unbind(
		mq->c, mq->channel, bytes(queue), bytes(exchange), bytes(key), amqp_empty_table);
	must(mq, "queue.unbind", queue);
}

int64_t mq_depth(struct mq *mq, const char *queue)
{
	amqp_queue_declare_ok_t *ok =
		amqp_queue_declare(mq->c, mq->channel, bytes(queue), 1, 1, 0, 0, amqp_empty_table);
	int64_t depth;

	must(mq, "queue.declare (passive)", queue);
	depth = ok->message_count;
	return depth;
}

static char *copy(const void *data, size_t len)
{
	char *text = malloc(len + 1);

	if (text == NULL)
		FAIL("out of memory");
	memcpy(text, data, len);
	text[len] = '\0';
	return text;
}

static char *copy_bytes(amqp_bytes_t b)
{
	return copy(b.len > 0 ? b.bytes : "", b.len);
}

static void show_value(struct buf *b, const amqp_field_value_t *v)
{
	switch (v->kind) {
	case AMQP_FIELD_KIND_UTF8:
	case AMQP_FIELD_KIND_BYTES:
		buf_add(b, v->value.bytes.bytes, v->value.bytes.len);
		break;
	case AMQP_FIELD_KIND_BOOLEAN:
		buf_adds(b, v->value.boolean ? "true" : "false");
		break;
	case AMQP_FIELD_KIND_I8:
		buf_addf(b, "%d", v->value.i8);
		break;
	case AMQP_FIELD_KIND_I16:
		buf_addf(b, "%d", v->value.i16);
		break;
	case AMQP_FIELD_KIND_I32:
		buf_addf(b, "%" PRId32, v->value.i32);
		break;
	case AMQP_FIELD_KIND_I64:
	case AMQP_FIELD_KIND_TIMESTAMP:
		buf_addf(b, "%" PRId64, v->value.i64);
		break;
	case AMQP_FIELD_KIND_F64:
		buf_addf(b, "%.15g", v->value.f64);
		break;
	case AMQP_FIELD_KIND_ARRAY:
		buf_addc(b, '[');
		for (int i = 0; i < v->value.array.num_entries; i++) {
			if (i > 0)
				buf_addc(b, ',');
			buf_addf(b, "%c:", v->value.array.entries[i].kind);
			show_value(b, &v->value.array.entries[i]);
		}
		buf_addc(b, ']');
		break;
	case AMQP_FIELD_KIND_TABLE:
		buf_addc(b, '{');
		for (int i = 0; i < v->value.table.num_entries; i++) {
			const amqp_table_entry_t *e = &v->value.table.entries[i];

			buf_addf(b, "%s%.*s=%c:", i > 0 ? "," : "", (int)e->key.len,
				(char *)e->key.bytes, e->value.kind);
			show_value(b, &e->value);
		}
		buf_addc(b, '}');
		break;
	default:
		buf_addc(b, '?');
	}
}

static void keep_headers(struct message *m, const amqp_table_t *t)
{
	m->headers = calloc((size_t)t->num_entries + 1, sizeof(m->headers[0]));
	if (m->headers == NULL)
		FAIL("out of memory");
	for (int i = 0; i < t->num_entries; i++) {
		struct message_header *h = &m->headers[m->header_count++];
		struct buf b = { 0 };

		h->name = copy_bytes(t->entries[i].key);
		h->kind = (char)t->entries[i].value.kind;
		show_value(&b, &t->entries[i].value);
		h->text = copy(b.data != NULL ? b.data : "", b.len);
		buf_fini(&b);
	}
}

static void keep(struct inbox *in, const amqp_envelope_t *e)
{
	const amqp_basic_properties_t *p = &e->message.properties;
	struct message *m;

	if (in->count == in->cap) {
		in->cap = in->cap == 0 ? 1024 : in->cap * 2;
		in->messages = realloc(in->messages, in->cap * sizeof(in->messages[0]));
		if (in->messages == NULL)
			FAIL("out of memory");
	}
	m = &in->messages[in->count++];
	*m = (struct message){ .redelivered = e->redelivered };
	if (p->_flags & AMQP_BASIC_MESSAGE_ID_FLAG)
		m->message_id = copy_bytes(p->message_id);
	if (in->no_bodies)
		return;
	m->exchange = copy_bytes(e->exchange);
	m->routing_key = copy_bytes(e->routing_key);
	if (p->_flags & AMQP_BASIC_TYPE_FLAG)
		m->type = copy_bytes(p->type);
	if (p->_flags & AMQP_BASIC_APP_ID_FLAG)
		m->app_id = copy_bytes(p->app_id);
	if (p->_flags & AMQP_BASIC_CONTENT_TYPE_FLAG)
		m->content_type = copy_bytes(p->content_type);
	if (p->_flags & AMQP_BASIC_TIMESTAMP_FLAG)
		m->timestamp = p->timestamp;
	if (p->_flags & AMQP_BASIC_DELIVERY_MODE_FLAG)
		m->delivery_mode = p->delivery_mode;
	if (p->_flags & AMQP_BASIC_HEADERS_FLAG)
		keep_headers(m, &p->headers);
	m->body = copy_bytes(e->message.body);
	m->len = e->message.body.len;
}

/* Reads `count` messages over a connection of its own; what it was sent beyond goes back. */
static void take(const char *queue, struct inbox *into, int64_t count)
{
	struct mq own = { 0 }, *mq = &own;
	amqp_channel_t ch = 1;
	struct timeval timeout = { 20, 0 };

	mq_reopen(mq, 10000);
	amqp_basic_qos(mq->c, ch, 0, 500, 0);
	must(mq, "basic.qos", queue);
	amqp_basic_consume(mq->c, ch, bytes(queue), amqp_empty_bytes, 0, 0, 0, amqp_empty_table);
	must(mq, "basic.consume", queue);
	for (int64_t i = 0; i < count; i++) {
		amqp_envelope_t e;
		amqp_rpc_reply_t r;

		amqp_maybe_release_buffers_on_channel(mq->c, ch);
		r = amqp_consume_message(mq->c, &e, &timeout, 0);
		if (r.reply_type != AMQP_RESPONSE_NORMAL)
			FAIL("queue %s: %" PRId64 " of %" PRId64 " messages, then: %s", queue, i,
				count, why(r));
		keep(into, &e);
		if (i % 200 == 199 || i == count - 1)
			amqp_basic_ack(mq->c, ch, e.delivery_tag, 1);
		amqp_destroy_envelope(&e);
	}
	amqp_connection_close(mq->c, AMQP_REPLY_SUCCESS);
	disconnect(mq);
}

size_t mq_drain(struct mq *mq, const char *queue, struct inbox *into)
{
	size_t before = into->count;

	for (int64_t depth; (depth = mq_depth(mq, queue)) > 0;)
		take(queue, into, depth);
	return into->count - before;
}

void inbox_fini(struct inbox *in)
{
	for (size_t i = 0; i < in->count; i++) {
		struct message *m = &in->messages[i];

		for (unsigned h = 0; h < m->header_count; h++) {
			free(m->headers[h].name);
			free(m->headers[h].text);
		}
		free(m->headers);
		free(m->exchange);
		free(m->routing_key);
		free(m->message_id);
		free(m->type);
		free(m->app_id);
		free(m->content_type);
		free(m->body);
	}
	free(in->messages);
	*in = (struct inbox){ 0 };
}

const struct message *inbox_find(const struct inbox *in, const char *message_id)
{
	for (size_t i = 0; i < in->count; i++)
		if (in->messages[i].message_id != NULL &&
			strcmp(in->messages[i].message_id, message_id) == 0)
			return &in->messages[i];
	return NULL;
}

unsigned inbox_count(const struct inbox *in, const char *message_id)
{
	unsigned n = 0;

	for (size_t i = 0; i < in->count; i++)
		n += in->messages[i].message_id != NULL &&
		     strcmp(in->messages[i].message_id, message_id) == 0;
	return n;
}

const struct message_header *message_header(const struct message *m, const char *name)
{
	for (unsigned i = 0; i < m->header_count; i++)
		if (strcmp(m->headers[i].name, name) == 0)
			return &m->headers[i];
	return NULL;
}

void mq_control(const char *const *words)
{
	const char *argv[12] = { env_get()->rabbitmqctl };
	char out[4000];

	if (argv[0] == NULL)
		FAIL("OUTBOXD_TEST_RABBITMQCTL is not set");
	for (size_t i = 0; words[i] != NULL && i + 2 < ARRAY_LEN(argv); i++)
		argv[i + 1] = words[i];
	if (env_run(out, sizeof(out), argv) != 0)
		FAIL("rabbitmqctl %s %s: %s", words[0], words[1], out);
}

void mq_alarm(bool on)
{
	const char *set[] = { "eval",
		"rabbit_alarm:set_alarm({{resource_limit, memory, node()}, []}).", NULL };
	const char *clear[] = { "eval",
		"rabbit_alarm:clear_alarm({resource_limit, memory, node()}).", NULL };

	if (on)
		env_mark("alarm", true);
	mq_control(on ? set : clear);
	if (!on)
		env_mark("alarm", false);
}

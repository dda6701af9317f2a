#include "amqp/publisher.h"

#include "amqp/confirms.h"
#include "amqp/connection.h"
#include "amqp/queue_args.h"
#include "sys/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* Written as soon as that much is collected, not only in pump(): the broker need not wait for the
 * end of a large batch. */
#define WRITE_AT 65536

/* Channel numbers on the wire. They are used again and again: the broker frees one with close-ok,
 * and so do we. */
#define WIRE(ch) ((uint16_t)((ch) + 1))
#define WIRE_CHECK ((uint16_t)(CHANNELS + 1))

/* Of an abandoned channel only the broker still thinks that it is open. */
enum channel_state { SHUT, OPENING, OPEN, ABANDONED };

struct amqp_channel {
	enum channel_state state;
	struct confirms confirms;
	/* A basic.return is under way: its header and then body frames follow. */
	enum { NO_RETURN, WANT_HEADER, WANT_BODY } incoming;
	uint64_t body_left;
	uint16_t return_code;
	char return_text[256];
	size_t return_text_len;
};

struct amqp_publisher {
	struct publisher base;
	struct connection connection;
	struct amqp_channel channels[CHANNELS];
	bool dead; /* finished, but not closed yet */
};

static struct amqp_publisher *self(struct publisher *p)
{
	return container_of(p, struct amqp_publisher, base);
}

static const struct amqp_publisher *self_const(const struct publisher *p)
{
	union {
		const struct publisher *in;
		struct publisher *out;
	} u = { .in = p };

	return self(u.out);
}

/* ---- what the broker says ---- */

static void on_confirmed(void *arg, const struct confirmed *m)
{
	struct amqp_publisher *p = arg;
	enum outcome how = OUTCOME_ACK;

	if (m->returned)
		how = OUTCOME_RETURNED;
	else if (!m->ack)
		how = OUTCOME_NACK;
	p->base.events.outcome(p->base.events.arg, m->cookie, how, m->code, m->text);
}

static void forget(struct amqp_channel *ch)
{
	confirms_reset(&ch->confirms);
	ch->incoming = NO_RETURN;
}

/* Without the answer the number stays taken, and opening it again ends the connection. */
static int answer_close(struct amqp_publisher *p, uint16_t wire, struct err *e)
{
	amqp_channel_close_ok_t ok = { 0 };

	if (connection_method(&p->connection, wire, AMQP_CHANNEL_CLOSE_OK_METHOD, &ok, e) < 0)
		return -1;
	connection_write(&p->connection);
	return 0;
}

static int on_channel_closed(
	struct amqp_publisher *p, enum channel which, const amqp_channel_close_t *m, struct err *e)
{
	struct amqp_channel *ch = &p->channels[which];
	bool was_open = ch->state == OPEN;
	char text[256];

	if (answer_close(p, WIRE(which), e) < 0)
		return -1;
	ch->state = SHUT;
	forget(ch);
	if (was_open) {
		snprintf(text, sizeof(text), "%.*s", (int)m->reply_text.len,
			m->reply_text.len > 0 ? (const char *)m->reply_text.bytes : "");
		p->base.events.channel_closed(p->base.events.arg, which, m->reply_code, text);
	}
	return 0;
}

static void on_return(struct amqp_channel *ch, const amqp_basic_return_t *m)
{
	size_t n = m->reply_text.len < sizeof(ch->return_text) ? m->reply_text.len
							       : sizeof(ch->return_text);

	ch->incoming = WANT_HEADER;
	ch->return_code = m->reply_code;
	if (n > 0)
		memcpy(ch->return_text, m->reply_text.bytes, n);
	ch->return_text_len = n;
}

static int on_method(
	struct amqp_publisher *p, enum channel which, const struct frame *f, struct err *e)
{
	uint32_t id;
	void *method = codec_decode(&p->connection.codec, f, &id, e);

	if (method == NULL)
		return -1;
	if (id == AMQP_CHANNEL_CLOSE_METHOD)
		return on_channel_closed(p, which, method, e);
	if (id == AMQP_BASIC_RETURN_METHOD && p->channels[which].state == OPEN)
		on_return(&p->channels[which], method);
	else
		p->connection.strange++;
	return 0;
}

static int on_return_header(struct amqp_channel *ch, const struct frame *f, struct err *e)
{
	struct slice id;

	if (codec_content_header(f, &ch->body_left, &id, e) < 0)
		return -1;
	ch->incoming = ch->body_left > 0 ? WANT_BODY : NO_RETURN;
	confirms_returned(&ch->confirms, id, ch->return_code,
		(struct slice){ ch->return_text, ch->return_text_len });
	return 0;
}

static void on_return_body(struct amqp_channel *ch, const struct frame *f)
{
	if (f->payload.len < ch->body_left) {
		ch->body_left -= f->payload.len;
	} else {
		ch->body_left = 0;
		ch->incoming = NO_RETURN;
	}
}

/* The channel that amqp_check_exchange() and amqp_queue_ttl() open for a moment, and numbers we
 * never use. */
static int on_other_channel(struct amqp_publisher *p, const struct frame *f, struct err *e)
{
	uint32_t id = 0;

	if (f->type == AMQP_FRAME_METHOD && codec_decode(&p->connection.codec, f, &id, e) == NULL)
		return -1;
	if (id == AMQP_CHANNEL_CLOSE_METHOD)
		return answer_close(p, f->channel, e);
	p->connection.strange++;
	return 0;
}

static int on_frame(void *arg, const struct frame *f, struct err *e)
{
	struct amqp_publisher *p = arg;
	struct amqp_channel *ch;
	uint64_t tag;
	bool multiple, ack;

	if (f->channel > CHANNELS)
		return on_other_channel(p, f, e);
	ch = &p->channels[f->channel - 1];
	if (codec_is_confirm(f, &tag, &multiple, &ack)) {
		/* Late ones, for a channel that is gone, mean nothing any more. */
		if (ch->state == OPEN)
			confirms_settle(&ch->confirms, tag, multiple, ack, on_confirmed, p);
		return 0;
	}
	if (f->type == AMQP_FRAME_METHOD)
		return on_method(p, (enum channel)(f->channel - 1), f, e);
	if (f->type == AMQP_FRAME_HEADER && ch->incoming == WANT_HEADER)
		return on_return_header(ch, f, e);
	if (f->type == AMQP_FRAME_BODY && ch->incoming == WANT_BODY)
		on_return_body(ch, f);
	else
		p->connection.strange++;
	return 0;
}

static void on_blocked(void *arg, bool on, const char *reason)
{
	struct amqp_publisher *p = arg;

	if (p->base.events.blocked != NULL)
		p->base.events.blocked(p->base.events.arg, on, reason);
}

/* ---- the port ---- */

/* Whatever went wrong, the connection is finished. */
static int finished(struct amqp_publisher *p, struct err *e)
{
	p->dead = true;
	if (e->kind != ERR_CONFIG)
		e->kind = ERR_LINK;
	if (p->base.peer[0] != '\0')
		err_wrap(e, "%s", p->base.peer);
	return -1;
}

static int not_connected(struct err *e)
{
	return err_set(e, ERR_LINK, ENOTCONN, "not connected");
}

static int open_channel(
	struct amqp_publisher *p, uint16_t wire, bool confirm, int64_t deadline_us, struct err *e)
{
	amqp_channel_open_t open = { 0 };
	amqp_confirm_select_t select = { 0 };

	if (connection_call(&p->connection, wire, AMQP_CHANNEL_OPEN_METHOD, &open,
		    AMQP_CHANNEL_OPEN_OK_METHOD, deadline_us, e) < 0)
		return err_wrap(e, "open a channel");
	if (confirm && connection_call(&p->connection, wire, AMQP_CONFIRM_SELECT_METHOD, &select,
			       AMQP_CONFIRM_SELECT_OK_METHOD, deadline_us, e) < 0)
		return err_wrap(e, "confirm mode");
	return 0;
}

static int close_channel(
	struct amqp_publisher *p, uint16_t wire, int64_t deadline_us, struct err *e)
{
	amqp_channel_close_t m = { .reply_code = AMQP_REPLY_SUCCESS,
		.reply_text = codec_bytes(SLICE_LIT("again")) };

	return connection_call(&p->connection, wire, AMQP_CHANNEL_CLOSE_METHOD, &m,
		AMQP_CHANNEL_CLOSE_OK_METHOD, deadline_us, e);
}

static int open_confirmed(
	struct amqp_publisher *p, struct amqp_channel *ch, int64_t deadline_us, struct err *e)
{
	ch->state = OPENING;
	forget(ch);
	if (open_channel(p, WIRE(ch - p->channels), true, deadline_us, e) < 0) {
		ch->state = SHUT;
		return -1;
	}
	ch->state = OPEN;
	return 0;
}

static void op_close(struct publisher *base)
{
	struct amqp_publisher *p = self(base);

	connection_close(&p->connection, !p->dead);
	for (int i = 0; i < CHANNELS; i++) {
		p->channels[i].state = SHUT;
		forget(&p->channels[i]);
	}
	p->dead = false;
}

static int op_connect(struct publisher *base, struct err *e)
{
	struct amqp_publisher *p = self(base);
	int64_t timeout = p->connection.conf->connect_timeout_us;
	int64_t deadline = clock_mono_us() + timeout;

	op_close(base);
	base->peer[0] = '\0';
	if (connection_open(&p->connection, e) < 0)
		goto fail;
	snprintf(base->peer, sizeof(base->peer), "%s", p->connection.peer);
	if (p->connection.channel_max < CHANNELS) {
		err_set(e, ERR_CONFIG, 0, "%s: the broker allows %u channels, %d are needed",
			base->peer, p->connection.channel_max, CHANNELS);
		goto fail;
	}
	/* However long the search took: the broker that was found gets a fair chance. */
	if (deadline < clock_mono_us() + timeout / 4)
		deadline = clock_mono_us() + timeout / 4;
	for (int i = 0; i < CHANNELS; i++) {
		if (open_confirmed(p, &p->channels[i], deadline, e) < 0) {
			finished(p, e);
			goto fail;
		}
	}
	return 0;
fail:
	p->dead = true;
	op_close(base);
	return -1;
}

static int op_send(struct publisher *base, enum channel which, const struct envelope *env,
	void *cookie, struct err *e)
{
	struct amqp_publisher *p = self(base);
	struct connection *c = &p->connection;
	struct amqp_channel *ch = &p->channels[which];
	struct codec_size size;

	if (p->dead || !connection_is_open(c))
		return not_connected(e);
	if (ch->state != OPEN)
		return err_set(e, ERR_AGAIN, 0, "the channel is closed");
	if (env->body.len > c->conf->max_message_size)
		return err_set(e, ERR_REFUSED, 0,
			"TOO_LARGE: %zu bytes, max_message_size allows %" PRIu64, env->body.len,
			c->conf->max_message_size);
	if (codec_measure(env, c->frame_max, &size, e) < 0)
		return -1;
	if (!connection_has_room(c, size.total)) {
		connection_write(c);
		if (!connection_has_room(c, size.total))
			return err_set(e, ERR_AGAIN, 0, "the broker does not read fast enough");
	}
	if (confirms_reserve(&ch->confirms, env->message_id.len) < 0)
		return err_set(e, ERR_AGAIN, ENOMEM, "out of memory");
	if (codec_publish(&c->codec, &c->out, WIRE(which), env, c->frame_max, &size, e) < 0) {
		if (e->kind == ERR_NOMEM)
			e->kind = ERR_AGAIN;
		return -1;
	}
	confirms_sent(&ch->confirms, cookie, env->message_id);
	if (connection_pending(c) >= WRITE_AT)
		connection_write(c);
	return 0;
}

static int op_pump(struct publisher *base, struct err *e)
{
	struct amqp_publisher *p = self(base);

	if (p->dead || !connection_is_open(&p->connection))
		return not_connected(e);
	connection_write(&p->connection);
	if (connection_read(&p->connection, e) < 0)
		return finished(p, e);
	return 0;
}

static void op_abandon(struct publisher *base, enum channel which)
{
	struct amqp_channel *ch = &self(base)->channels[which];

	if (ch->state == OPEN)
		ch->state = ABANDONED;
	forget(ch);
}

static int op_reopen(struct publisher *base, enum channel which, struct err *e)
{
	struct amqp_publisher *p = self(base);
	struct amqp_channel *ch = &p->channels[which];
	int64_t deadline = clock_mono_us() + p->connection.conf->connect_timeout_us;

	if (p->dead || !connection_is_open(&p->connection))
		return not_connected(e);
	if (ch->state == OPEN || ch->state == ABANDONED) {
		ch->state = SHUT;
		forget(ch);
		if (close_channel(p, WIRE(which), deadline, e) < 0)
			return finished(p, e);
	}
	if (open_confirmed(p, ch, deadline, e) < 0)
		return finished(p, e);
	return 0;
}

static size_t op_max_header_bytes(const struct publisher *base)
{
	return codec_max_header_bytes(self_const(base)->connection.frame_max);
}

static int op_fd(const struct publisher *base)
{
	return self_const(base)->connection.stream.fd;
}

static bool op_wants_write(const struct publisher *base)
{
	const struct amqp_publisher *p = self_const(base);

	return !p->dead && connection_pending(&p->connection) > 0;
}

static int64_t op_next_pump_us(const struct publisher *base)
{
	return connection_next_us(&self_const(base)->connection);
}

static void op_free(struct publisher *base)
{
	struct amqp_publisher *p = base != NULL ? self(base) : NULL;

	if (p == NULL)
		return;
	op_close(base);
	for (int i = 0; i < CHANNELS; i++)
		confirms_fini(&p->channels[i].confirms);
	connection_fini(&p->connection);
	free(p);
}

static const struct publisher_ops ops = {
	.connect = op_connect,
	.close = op_close,
	.send = op_send,
	.pump = op_pump,
	.abandon = op_abandon,
	.reopen = op_reopen,
	.max_header_bytes = op_max_header_bytes,
	.fd = op_fd,
	.wants_write = op_wants_write,
	.next_pump_us = op_next_pump_us,
	.free = op_free,
};

int amqp_global_init(struct err *e)
{
	return tls_global_init(e);
}

int amqp_publisher_new(struct publisher **out, const struct broker_conf *conf,
	const char *connection_name, struct guard *guard, struct err *e)
{
	struct amqp_publisher *p = calloc(1, sizeof(*p));

	if (p == NULL)
		return err_set(e, ERR_NOMEM, errno, "broker %s", conf->name);
	p->base.ops = &ops;
	connection_init(&p->connection, conf, connection_name, guard);
	p->connection.events = (struct connection_events){
		.frame = on_frame,
		.blocked = on_blocked,
		.arg = p,
	};
	*out = &p->base;
	return 0;
}

/* One call over a channel of its own. ERR_REFUSED: the broker closed that, nothing else. */
static int call_aside(struct amqp_publisher *p, uint32_t id, void *method, uint32_t reply,
	int64_t deadline_us, struct err *e)
{
	if (p->connection.channel_max < WIRE_CHECK)
		return err_set(e, ERR_AGAIN, 0, "the broker allows no third channel");
	if (open_channel(p, WIRE_CHECK, false, deadline_us, e) < 0)
		return finished(p, e);
	if (connection_call(&p->connection, WIRE_CHECK, id, method, reply, deadline_us, e) < 0)
		return e->kind == ERR_REFUSED ? -1 : finished(p, e);
	if (close_channel(p, WIRE_CHECK, deadline_us, e) < 0)
		return finished(p, e);
	return 0;
}

int amqp_check_exchange(struct publisher *base, const char *exchange, struct err *e)
{
	struct amqp_publisher *p = self(base);
	amqp_exchange_declare_t m = {
		.exchange = codec_bytes(slice_str(exchange)),
		.type = codec_bytes(SLICE_LIT("")),
		.passive = 1,
	};
	int64_t deadline = clock_mono_us() + p->connection.conf->connect_timeout_us;

	if (p->dead || !connection_is_open(&p->connection))
		return not_connected(e);
	if (m.exchange.len == 0)
		return 0; /* the default exchange is always there, and must not be asked for */
	if (m.exchange.len > UINT8_MAX)
		return err_set(e, ERR_REFUSED, 0, "the name is longer than 255 bytes");
	return call_aside(
		p, AMQP_EXCHANGE_DECLARE_METHOD, &m, AMQP_EXCHANGE_DECLARE_OK_METHOD, deadline, e);
}

static int declare_queue(
	struct amqp_publisher *p, amqp_queue_declare_t *m, int64_t deadline_us, struct err *e)
{
	return call_aside(
		p, AMQP_QUEUE_DECLARE_METHOD, m, AMQP_QUEUE_DECLARE_OK_METHOD, deadline_us, e);
}

int amqp_queue_ttl(struct publisher *base, const char *queue, int64_t *ttl_us, struct err *e)
{
	struct amqp_publisher *p = self(base);
	amqp_queue_declare_t m = { .queue = codec_bytes(slice_str(queue)), .passive = 1 };
	int64_t deadline = clock_mono_us() + p->connection.conf->connect_timeout_us, ttl_ms;
	enum queue_args_next next = QUEUE_ARGS_AGAIN;
	struct queue_args args;

	if (p->dead || !connection_is_open(&p->connection))
		return not_connected(e);
	if (declare_queue(p, &m, deadline, e) < 0)
		return -1;
	queue_args_init(&args);
	while (next == QUEUE_ARGS_AGAIN) {
		queue_args_declare(&args, slice_str(queue), &m);
		if (declare_queue(p, &m, deadline, e) == 0)
			return err_set(e, ERR_REFUSED, 0,
				"the broker compares no x-message-ttl of this queue: is it a "
				"stream?");
		if (e->kind != ERR_REFUSED || e->code != AMQP_PRECONDITION_FAILED)
			return -1;
		next = queue_args_refused(&args, slice_str(e->text), &ttl_ms);
	}
	if (next != QUEUE_ARGS_DONE)
		return -1;
	*ttl_us = ttl_ms < 0 ? AMQP_NO_TTL : ttl_ms * US_PER_MS;
	return 0;
}

void amqp_publisher_oddities(const struct publisher *base, struct amqp_oddities *out)
{
	const struct amqp_publisher *p = self_const(base);

	*out = (struct amqp_oddities){ .strange_frames = p->connection.strange };
	for (int i = 0; i < CHANNELS; i++) {
		out->duplicate_acks += p->channels[i].confirms.duplicates;
		out->unknown_acks += p->channels[i].confirms.unknown;
		out->unknown_returns += p->channels[i].confirms.unknown_returns;
	}
}

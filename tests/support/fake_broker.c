#include "fake_broker.h"

#include "base/buf.h"
#include "base/rng.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CONNECTIONS 64
#define CHANNEL_NUMBERS 17
#define FRAME_END 0xCE

enum { METHOD = 1, HEADER = 2, BODY = 3, HEARTBEAT = 8 };

/* class << 16 | method */
enum {
	CONNECTION_START = 10 << 16 | 10,
	CONNECTION_START_OK = 10 << 16 | 11,
	CONNECTION_TUNE = 10 << 16 | 30,
	CONNECTION_TUNE_OK = 10 << 16 | 31,
	CONNECTION_OPEN = 10 << 16 | 40,
	CONNECTION_OPEN_OK = 10 << 16 | 41,
	CONNECTION_CLOSE = 10 << 16 | 50,
	CONNECTION_CLOSE_OK = 10 << 16 | 51,
	CONNECTION_BLOCKED = 10 << 16 | 60,
	CONNECTION_UNBLOCKED = 10 << 16 | 61,
	CHANNEL_OPEN = 20 << 16 | 10,
	CHANNEL_OPEN_OK = 20 << 16 | 11,
	CHANNEL_CLOSE = 20 << 16 | 40,
	CHANNEL_CLOSE_OK = 20 << 16 | 41,
	EXCHANGE_DECLARE = 40 << 16 | 10,
	EXCHANGE_DECLARE_OK = 40 << 16 | 11,
	BASIC_PUBLISH = 60 << 16 | 40,
	BASIC_RETURN = 60 << 16 | 50,
	BASIC_ACK = 60 << 16 | 80,
	BASIC_NACK = 60 << 16 | 120,
	CONFIRM_SELECT = 85 << 16 | 10,
	CONFIRM_SELECT_OK = 85 << 16 | 11,
};

struct settled {
	uint64_t tag;
	bool ack;
};

struct list_of {
	struct settled *items;
	size_t count, cap;
};

struct channel {
	bool open, confirm, closing;
	uint64_t next_tag;
	/* the content under way */
	enum { IDLE, WANT_HEADER, WANT_BODY } content;
	struct fake_message message;
	struct buf header, body;
	uint64_t body_left;
	struct list_of waiting, held;
};

struct connection {
	int fd; /* -1: unused */
	unsigned id;
	enum { GREETING, LOGIN, TUNING, OPENING, RUNNING, CLOSING } stage;
	struct buf in, out;
	uint64_t bytes_read;
	unsigned frame_max, heartbeat;
	int64_t said_us;
	bool drop; /* close once `out` is written */
	struct channel channels[CHANNEL_NUMBERS];
};

struct fake_broker {
	pthread_t thread;
	pthread_mutex_t lock;
	struct fake_rules rules;
	struct fake_stats stats;
	struct connection connections[CONNECTIONS];
	struct rng rng;
	struct buf ids; /* every message id and a newline */
	int listener, wake;
	uint16_t port;
	bool stop;
};

static void must(bool ok, const char *what)
{
	if (!ok) {
		fprintf(stderr, "fake broker: %s: %s\n", what, strerror(errno));
		abort();
	}
}

static int64_t now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * US_PER_SEC + t.tv_nsec / 1000;
}

/* ---- bytes ---- */

static void put(struct buf *b, uint64_t v, int bytes)
{
	for (int i = bytes - 1; i >= 0; i--)
		buf_addc(b, (char)(v >> (8 * i) & 0xFF));
}

static void put_short(struct buf *b, const char *s)
{
	size_t n = strlen(s) < 255 ? strlen(s) : 255;

	put(b, n, 1);
	buf_add(b, s, n);
}

static void put_long(struct buf *b, const void *data, size_t n)
{
	put(b, n, 4);
	buf_add(b, data, n);
}

struct reader {
	const unsigned char *p, *end;
};

static uint64_t get(struct reader *r, int bytes)
{
	uint64_t v = 0;

	for (int i = 0; i < bytes; i++)
		v = v << 8 | (r->p < r->end ? *r->p++ : 0);
	return v;
}

static void get_text(struct reader *r, size_t n, char *out, size_t size)
{
	size_t take = n < (size_t)(r->end - r->p) ? n : (size_t)(r->end - r->p);
	size_t keep = take < size - 1 ? take : size - 1;

	memcpy(out, r->p, keep);
	out[keep] = '\0';
	r->p += take;
}

static void get_short(struct reader *r, char out[256])
{
	get_text(r, (size_t)get(r, 1), out, 256);
}

static void frame(struct connection *c, int type, unsigned channel, const void *payload, size_t n)
{
	put(&c->out, (uint64_t)type, 1);
	put(&c->out, channel, 2);
	put_long(&c->out, payload, n);
	put(&c->out, FRAME_END, 1);
}

/* Starts a method's payload. */
static struct buf method(uint32_t id)
{
	struct buf b = { 0 };

	put(&b, id, 4);
	return b;
}

static void send_method(struct connection *c, unsigned channel, struct buf *b)
{
	frame(c, METHOD, channel, b->data, b->len);
	buf_fini(b);
}

static void violation(struct fake_broker *b, const char *what)
{
	b->stats.violations++;
	snprintf(b->stats.violation, sizeof(b->stats.violation), "%s", what);
}

/* ---- closing ---- */

static void reset_channel(struct channel *ch)
{
	buf_fini(&ch->header);
	buf_fini(&ch->body);
	free(ch->waiting.items);
	free(ch->held.items);
	*ch = (struct channel){ 0 };
}

static void end(struct fake_broker *b, struct connection *c, bool reset)
{
	struct linger abrupt = { .l_onoff = 1, .l_linger = 0 };

	if (c->fd < 0)
		return;
	if (reset)
		setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &abrupt, sizeof(abrupt));
	close(c->fd);
	if (c->stage == RUNNING)
		b->stats.connected--;
	c->fd = -1;
	buf_fini(&c->in);
	buf_fini(&c->out);
	for (int i = 0; i < CHANNEL_NUMBERS; i++)
		reset_channel(&c->channels[i]);
}

static void close_channel(struct connection *c, unsigned n, unsigned code, const char *text)
{
	struct buf m = method(CHANNEL_CLOSE);

	put(&m, code, 2);
	put_short(&m, text);
	put(&m, BASIC_PUBLISH, 4);
	send_method(c, n, &m);
	reset_channel(&c->channels[n]);
	c->channels[n].closing = true;
}

static void close_connection(
	struct fake_broker *b, struct connection *c, unsigned code, const char *text)
{
	struct buf m = method(CONNECTION_CLOSE);

	put(&m, code, 2);
	put_short(&m, text);
	put(&m, 0, 4);
	send_method(c, 0, &m);
	if (c->stage == RUNNING)
		b->stats.connected--;
	c->stage = CLOSING;
}

/* ---- confirms ---- */

static void add(struct list_of *l, uint64_t tag, bool ack)
{
	if (l->count == l->cap) {
		l->cap = l->cap > 0 ? l->cap * 2 : 64;
		l->items = realloc(l->items, l->cap * sizeof(*l->items));
		must(l->items != NULL, "memory");
	}
	l->items[l->count++] = (struct settled){ tag, ack };
}

static void confirm(struct connection *c, unsigned n, uint64_t tag, bool multiple, bool ack)
{
	struct buf m = method(ack ? BASIC_ACK : BASIC_NACK);

	put(&m, tag, 8);
	put(&m, multiple, 1);
	send_method(c, n, &m);
}

static void confirm_one(struct fake_broker *b, struct connection *c, unsigned n, struct settled s)
{
	confirm(c, n, s.tag, false, s.ack);
	if (b->rules.repeat_acks) {
		confirm(c, n, s.tag, false, s.ack);
		confirm(c, n, s.tag + 1000000, false, true);
	}
}

static int by_tag(const void *a, const void *b)
{
	const struct settled *x = a, *y = b;

	return x->tag < y->tag ? -1 : x->tag > y->tag;
}

static bool any_below(const struct list_of *l, uint64_t tag)
{
	for (size_t i = 0; i < l->count; i++)
		if (l->items[i].tag < tag)
			return true;
	return false;
}

static void answer_multiple(struct connection *c, unsigned n, struct channel *ch)
{
	struct list_of *l = &ch->waiting;

	qsort(l->items, l->count, sizeof(*l->items), by_tag);
	for (size_t i = 0; i < l->count;) {
		size_t j = i;

		while (j + 1 < l->count && l->items[j + 1].ack == l->items[i].ack &&
			!any_below(&ch->held, l->items[j + 1].tag))
			j++;
		confirm(c, n, l->items[j].tag, j > i, l->items[j].ack);
		i = j + 1;
	}
}

static void shuffle(struct fake_broker *b, struct list_of *l)
{
	for (size_t i = l->count; i > 1; i--) {
		size_t j = (size_t)rng_below(&b->rng, i);
		struct settled s = l->items[i - 1];

		l->items[i - 1] = l->items[j];
		l->items[j] = s;
	}
}

static void answer(struct fake_broker *b, struct connection *c, unsigned n)
{
	struct channel *ch = &c->channels[n];
	struct list_of *l = &ch->waiting;

	switch (b->rules.ack_order) {
	case FAKE_FORWARD:
		for (size_t i = 0; i < l->count; i++)
			confirm_one(b, c, n, l->items[i]);
		break;
	case FAKE_SHUFFLE:
	case FAKE_REVERSE:
		if (b->rules.ack_order == FAKE_SHUFFLE)
			shuffle(b, l);
		for (size_t i = l->count; i > 0; i--)
			confirm_one(b, c, n, l->items[i - 1]);
		break;
	case FAKE_MULTIPLE:
		answer_multiple(c, n, ch);
		break;
	}
	l->count = 0;
}

static void answer_all(struct fake_broker *b, struct connection *c)
{
	for (unsigned n = 1; n < CHANNEL_NUMBERS; n++)
		if (c->channels[n].waiting.count > 0)
			answer(b, c, n);
}

/* ---- publishes ---- */

static enum fake_verdict by_names(const struct fake_message *m)
{
	static const struct {
		const char *prefix;
		enum fake_verdict verdict;
	} keys[] = {
		{ "return", FAKE_RETURN },
		{ "nack", FAKE_NACK },
		{ "hold", FAKE_HOLD },
		{ "drop", FAKE_DROP },
		{ "die", FAKE_CUT },
	};

	if (strcmp(m->exchange, "missing") == 0)
		return FAKE_CLOSE_404;
	if (strcmp(m->exchange, "forbidden") == 0)
		return FAKE_CLOSE_403;
	for (size_t i = 0; i < ARRAY_LEN(keys); i++)
		if (strncmp(m->routing_key, keys[i].prefix, strlen(keys[i].prefix)) == 0)
			return keys[i].verdict;
	return FAKE_ACK;
}

static void send_return(struct connection *c, unsigned n, struct channel *ch)
{
	struct buf m = method(BASIC_RETURN);
	size_t piece = c->frame_max - 8;

	put(&m, 312, 2);
	put_short(&m, "NO_ROUTE");
	put_short(&m, ch->message.exchange);
	put_short(&m, ch->message.routing_key);
	send_method(c, n, &m);
	frame(c, HEADER, n, ch->header.data, ch->header.len);
	for (size_t at = 0; at < ch->body.len; at += piece)
		frame(c, BODY, n, ch->body.data + at,
			ch->body.len - at < piece ? ch->body.len - at : piece);
}

static void on_message(struct fake_broker *b, struct connection *c, unsigned n)
{
	struct channel *ch = &c->channels[n];
	struct fake_message *m = &ch->message;
	enum fake_verdict v;

	ch->content = IDLE;
	m->channel = n;
	m->connection = c->id;
	m->tag = ++ch->next_tag;
	m->nth = ++b->stats.messages;
	b->stats.bytes += ch->body.len;
	buf_adds(&b->ids, m->message_id);
	buf_addc(&b->ids, '\n');
	v = b->rules.judge != NULL ? b->rules.judge(b->rules.judge_arg, m) : by_names(m);
	switch (v) {
	case FAKE_RETURN:
	case FAKE_RETURN_THEN_NACK:
		send_return(c, n, ch);
		add(&ch->waiting, m->tag, v == FAKE_RETURN);
		break;
	case FAKE_ACK:
	case FAKE_NACK:
		add(&ch->waiting, m->tag, v == FAKE_ACK);
		break;
	case FAKE_HOLD:
		add(&ch->held, m->tag, true);
		break;
	case FAKE_DROP:
		break;
	case FAKE_CLOSE_404:
		close_channel(c, n, 404, "NOT_FOUND - no exchange 'missing' in vhost '/'");
		return;
	case FAKE_CLOSE_403:
		close_channel(c, n, 403, "ACCESS_REFUSED - access to exchange refused");
		return;
	case FAKE_CLOSE_CONNECTION:
		close_connection(b, c, 320, "CONNECTION_FORCED - broker forced connection closure");
		return;
	case FAKE_CUT:
		end(b, c, true);
		return;
	}
	if (ch->waiting.count > 0 && ch->waiting.count >= b->rules.ack_batch)
		answer(b, c, n);
}

static void on_publish(struct fake_broker *b, struct channel *ch, struct reader *r)
{
	if (ch->content != IDLE)
		violation(b, "a publish inside another");
	memset(&ch->message, 0, sizeof(ch->message));
	get(r, 2);
	get_short(r, ch->message.exchange);
	get_short(r, ch->message.routing_key);
	ch->message.mandatory = get(r, 1) & 1;
	ch->content = WANT_HEADER;
	buf_reset(&ch->header);
	buf_reset(&ch->body);
}

static void on_header(struct fake_broker *b, struct connection *c, unsigned n, struct reader r)
{
	struct channel *ch = &c->channels[n];
	char skip[256];
	uint64_t flags;

	if (ch->content != WANT_HEADER)
		violation(b, "a content header without a publish");
	buf_add(&ch->header, r.p, (size_t)(r.end - r.p));
	get(&r, 4);
	ch->body_left = ch->message.body_size = get(&r, 8);
	flags = get(&r, 2);
	if (flags & 1 << 15)
		get_short(&r, skip);
	if (flags & 1 << 14)
		get_short(&r, skip);
	if (flags & 1 << 13)
		get_text(&r, (size_t)get(&r, 4), skip, sizeof(skip));
	if (flags & 1 << 12)
		ch->message.delivery_mode = (uint8_t)get(&r, 1);
	if (flags & 1 << 11)
		get(&r, 1);
	for (int bit = 10; bit >= 8; bit--)
		if (flags & 1 << bit)
			get_short(&r, skip);
	if (flags & 1 << 7)
		get_short(&r, ch->message.message_id);
	ch->content = WANT_BODY;
	if (ch->body_left == 0)
		on_message(b, c, n);
}

static void on_body(struct fake_broker *b, struct connection *c, unsigned n, struct reader r)
{
	struct channel *ch = &c->channels[n];
	size_t size = (size_t)(r.end - r.p);

	if (ch->content != WANT_BODY || size > ch->body_left) {
		violation(b, "a body frame nobody announced");
		return;
	}
	buf_add(&ch->body, r.p, size);
	ch->body_left -= size;
	if (ch->body_left == 0)
		on_message(b, c, n);
}

/* ---- methods ---- */

static void on_channel_method(
	struct fake_broker *b, struct connection *c, unsigned n, uint32_t id, struct reader r)
{
	struct channel *ch = &c->channels[n];
	struct buf m;

	switch (id) {
	case CHANNEL_OPEN:
		if (ch->open || ch->closing) {
			violation(b, "channel number still in use");
			close_connection(b, c, 504, "CHANNEL_ERROR - second 'channel.open' seen");
			return;
		}
		ch->open = true;
		b->stats.channels_opened++;
		m = method(CHANNEL_OPEN_OK);
		put(&m, 0, 4);
		send_method(c, n, &m);
		return;
	case CHANNEL_CLOSE:
		b->stats.channels_closed_by_client++;
		if (b->rules.ignore_close)
			return;
		answer(b, c, n);
		if (!ch->closing)
			reset_channel(ch);
		m = method(CHANNEL_CLOSE_OK);
		send_method(c, n, &m);
		return;
	case CHANNEL_CLOSE_OK:
		if (!ch->closing)
			violation(b, "channel.close-ok to nothing");
		b->stats.channel_close_oks++;
		reset_channel(ch);
		return;
	case CONFIRM_SELECT:
		ch->confirm = true;
		m = method(CONFIRM_SELECT_OK);
		send_method(c, n, &m);
		return;
	case EXCHANGE_DECLARE: {
		char name[256];

		get(&r, 2);
		get_short(&r, name);
		if (strcmp(name, "missing") == 0) {
			close_channel(c, n, 404, "NOT_FOUND - no exchange 'missing' in vhost '/'");
			return;
		}
		m = method(EXCHANGE_DECLARE_OK);
		send_method(c, n, &m);
		return;
	}
	case BASIC_PUBLISH:
		if (!ch->confirm)
			violation(b, "a publish on a channel without confirms");
		on_publish(b, ch, &r);
		return;
	default:
		violation(b, "a method the fake does not know");
	}
}

/* The value of a text entry at the top of the table, which is a plain scan: good enough for a
 * client that is ours. */
static void find_text(const char *table, size_t n, const char *name, char *out, size_t size)
{
	size_t len = strlen(name);

	for (size_t i = 0; i + len + 6 < n; i++) {
		if ((unsigned char)table[i] == len && memcmp(table + i + 1, name, len) == 0 &&
			table[i + 1 + len] == 'S') {
			struct reader r = { (const unsigned char *)table + i + 2 + len,
				(const unsigned char *)table + n };

			get_text(&r, (size_t)get(&r, 4), out, size);
			return;
		}
	}
}

static void on_login(struct fake_broker *b, struct connection *c, struct reader r)
{
	struct buf m;
	size_t n = (size_t)get(&r, 4);
	char skip[256], response[8192];
	size_t len;
	const char *password;

	find_text((const char *)r.p, n, "connection_name", b->stats.client_name,
		sizeof(b->stats.client_name));
	find_text((const char *)r.p, n, "product", b->stats.client_product,
		sizeof(b->stats.client_product));
	r.p += n;
	get_short(&r, skip);
	len = (size_t)get(&r, 4);
	must(len < sizeof(response), "login too long");
	get_text(&r, len, response, sizeof(response));
	password = response + 1 + strlen(response + 1) + 1;
	if (b->rules.login_close_code != 0) {
		close_connection(b, c, b->rules.login_close_code, "told so");
		return;
	}
	if (b->rules.password != NULL && strcmp(password, b->rules.password) != 0) {
		close_connection(b, c, 403,
			"ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN");
		return;
	}
	m = method(CONNECTION_TUNE);
	put(&m, b->rules.channel_max, 2);
	put(&m,
		b->rules.frame_max_none   ? 0
		: b->rules.frame_max != 0 ? b->rules.frame_max
					  : 131072,
		4);
	put(&m, b->rules.heartbeat, 2);
	send_method(c, 0, &m);
	c->stage = TUNING;
}

static void on_connection_method(
	struct fake_broker *b, struct connection *c, uint32_t id, struct reader r)
{
	struct buf m;
	char vhost[256];

	switch (id) {
	case CONNECTION_START_OK:
		on_login(b, c, r);
		return;
	case CONNECTION_TUNE_OK:
		b->stats.client_channel_max = (unsigned)get(&r, 2);
		b->stats.client_frame_max = c->frame_max = (unsigned)get(&r, 4);
		b->stats.client_heartbeat = c->heartbeat = (unsigned)get(&r, 2);
		if (b->rules.frame_max != 0 && c->frame_max > b->rules.frame_max)
			violation(b, "frame_max above the offer");
		c->stage = OPENING;
		return;
	case CONNECTION_OPEN:
		get_short(&r, vhost);
		if (b->rules.vhost != NULL && strcmp(vhost, b->rules.vhost) != 0) {
			close_connection(b, c, 530, "NOT_ALLOWED - vhost not found");
			return;
		}
		m = method(CONNECTION_OPEN_OK);
		put(&m, 0, 1);
		send_method(c, 0, &m);
		c->stage = RUNNING;
		b->stats.connected++;
		return;
	case CONNECTION_CLOSE:
		if (b->rules.ignore_close)
			return;
		m = method(CONNECTION_CLOSE_OK);
		send_method(c, 0, &m);
		c->drop = true;
		return;
	case CONNECTION_CLOSE_OK:
		b->stats.connection_close_oks++;
		c->drop = true;
		return;
	default:
		violation(b, "a connection method the fake does not know");
	}
}

static void on_frame(
	struct fake_broker *b, struct connection *c, int type, unsigned n, struct reader r)
{
	uint32_t id;

	if (type == HEARTBEAT) {
		b->stats.heartbeats++;
		return;
	}
	if (n >= CHANNEL_NUMBERS) {
		violation(b, "channel number out of range");
		return;
	}
	id = type == METHOD ? (uint32_t)get(&r, 4) : 0;
	if (n == 0) {
		on_connection_method(b, c, id, r);
		return;
	}
	if (c->stage == CLOSING)
		return;
	if (c->channels[n].closing && id != CHANNEL_CLOSE_OK && id != CHANNEL_CLOSE &&
		id != CHANNEL_OPEN)
		return;
	if (!c->channels[n].open && !c->channels[n].closing && id != CHANNEL_OPEN) {
		violation(b, "a frame on a closed channel");
		close_connection(b, c, 504, "CHANNEL_ERROR - expected 'channel.open'");
		return;
	}
	if (type == METHOD)
		on_channel_method(b, c, n, id, r);
	else if (type == HEADER)
		on_header(b, c, n, r);
	else
		on_body(b, c, n, r);
}

static void send_start(struct fake_broker *b, struct connection *c)
{
	struct buf table = { 0 };
	struct buf m = method(CONNECTION_START);

	put_short(&table, "product");
	buf_addc(&table, 'S');
	put_long(&table, "Fake", 4);
	put_short(&table, "version");
	buf_addc(&table, 'S');
	put_long(&table, "1.0", 3);
	put_short(&table, "capabilities");
	buf_addc(&table, 'F');
	put_long(&table, "\x12publisher_confirmst\x01", 21);
	put(&m, 0, 1);
	put(&m, 9, 1);
	put_long(&m, table.data, table.len);
	if (b->rules.no_plain)
		put_long(&m, "EXTERNAL PLAINER", 16);
	else
		put_long(&m, "AMQPLAIN PLAIN", 14);
	put_long(&m, "en_US", 5);
	send_method(c, 0, &m);
	buf_fini(&table);
	c->stage = LOGIN;
}

static void consume(struct fake_broker *b, struct connection *c)
{
	size_t at = 0;

	if (c->stage == GREETING) {
		if (c->in.len < 8)
			return;
		if (memcmp(c->in.data, "AMQP\0\0\x09\x01", 8) != 0)
			violation(b, "no AMQP greeting");
		at = 8;
		send_start(b, c);
	}
	while (c->fd >= 0 && c->in.len - at >= 8) {
		struct reader r = { (const unsigned char *)c->in.data + at,
			(const unsigned char *)c->in.data + c->in.len };
		int type = (int)get(&r, 1);
		unsigned channel = (unsigned)get(&r, 2);
		size_t size = (size_t)get(&r, 4);

		if (c->frame_max != 0 && size + 8 > c->frame_max)
			violation(b, "a frame above frame_max");
		if (c->in.len - at < size + 8)
			break;
		if (r.p[size] != FRAME_END)
			violation(b, "a frame without its end");
		r.end = r.p + size;
		at += size + 8;
		on_frame(b, c, type, channel, r);
	}
	if (c->fd < 0)
		return;
	memmove(c->in.data, c->in.data + at, c->in.len - at);
	c->in.len -= at;
}

/* ---- the thread ---- */

static void accept_one(struct fake_broker *b)
{
	int fd = accept4(b->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	struct connection *c = NULL;

	if (fd < 0)
		return;
	for (int i = 0; i < CONNECTIONS && c == NULL; i++)
		if (b->connections[i].fd < 0)
			c = &b->connections[i];
	must(c != NULL, "too many connections");
	*c = (struct connection){
		.fd = fd, .id = (unsigned)++b->stats.accepted, .said_us = now_us()
	};
	if (b->rules.banner != NULL)
		buf_add(&c->out, b->rules.banner, b->rules.banner_len);
	c->drop = b->rules.hang_up;
}

static bool stalled(const struct fake_broker *b, const struct connection *c)
{
	return b->rules.stall_after > 0 && c->bytes_read >= b->rules.stall_after;
}

static void read_some(struct fake_broker *b, struct connection *c)
{
	char data[65536];
	size_t room = sizeof(data);
	ssize_t n;

	if (b->rules.stall_after > 0 && b->rules.stall_after - c->bytes_read < room)
		room = (size_t)(b->rules.stall_after - c->bytes_read);
	n = recv(c->fd, data, room, MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		end(b, c, false);
		return;
	}
	c->bytes_read += (uint64_t)n;
	if (b->rules.silent || b->rules.hang_up || b->rules.banner != NULL)
		return;
	buf_add(&c->in, data, (size_t)n);
	consume(b, c);
}

static void write_some(struct fake_broker *b, struct connection *c)
{
	while (c->out.len > 0) {
		ssize_t n = send(c->fd, c->out.data, c->out.len, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (n < 0) {
			end(b, c, false);
			return;
		}
		c->said_us = now_us();
		memmove(c->out.data, c->out.data + n, c->out.len - (size_t)n);
		c->out.len -= (size_t)n;
	}
	if (c->drop)
		end(b, c, false);
}

static void tick(struct fake_broker *b, struct connection *c, bool quiet)
{
	if (quiet)
		answer_all(b, c);
	if (c->stage == RUNNING && c->heartbeat > 0 && !b->rules.mute &&
		now_us() - c->said_us > c->heartbeat * US_PER_SEC / 2)
		frame(c, HEARTBEAT, 0, "", 0);
}

static void *run(void *arg)
{
	struct fake_broker *b = arg;
	struct pollfd p[CONNECTIONS + 2];

	pthread_mutex_lock(&b->lock);
	while (!b->stop) {
		int n;

		p[0] = (struct pollfd){ .fd = b->listener, .events = POLLIN };
		p[1] = (struct pollfd){ .fd = b->wake, .events = POLLIN };
		for (int i = 0; i < CONNECTIONS; i++) {
			struct connection *c = &b->connections[i];

			p[i + 2] = (struct pollfd){ .fd = c->fd,
				.events = (short)((stalled(b, c) ? 0 : POLLIN) |
						  (c->out.len > 0 || c->drop ? POLLOUT : 0)) };
		}
		pthread_mutex_unlock(&b->lock);
		n = poll(p, CONNECTIONS + 2, 5);
		pthread_mutex_lock(&b->lock);
		if (p[1].revents & POLLIN) {
			uint64_t v;

			must(read(b->wake, &v, sizeof(v)) == sizeof(v), "eventfd");
		}
		for (int i = 0; i < CONNECTIONS; i++) {
			struct connection *c = &b->connections[i];

			if (c->fd < 0 || c->fd != p[i + 2].fd)
				continue;
			if (p[i + 2].revents & (POLLIN | POLLHUP | POLLERR) && !stalled(b, c))
				read_some(b, c);
			if (c->fd >= 0)
				tick(b, c, n == 0);
			if (c->fd >= 0)
				write_some(b, c);
		}
		if (p[0].revents & POLLIN)
			accept_one(b);
	}
	pthread_mutex_unlock(&b->lock);
	return NULL;
}

static void wake(struct fake_broker *b)
{
	uint64_t one = 1;

	must(write(b->wake, &one, sizeof(one)) == sizeof(one), "eventfd");
}

struct fake_broker *fake_broker_start(const struct fake_rules *rules)
{
	struct fake_broker *b = calloc(1, sizeof(*b));
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(a);

	must(b != NULL, "memory");
	for (int i = 0; i < CONNECTIONS; i++)
		b->connections[i].fd = -1;
	if (rules != NULL)
		b->rules = *rules;
	b->rng.state = b->rules.seed;
	pthread_mutex_init(&b->lock, NULL);
	b->wake = eventfd(0, EFD_CLOEXEC);
	b->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	must(b->wake >= 0 && b->listener >= 0, "socket");
	must(bind(b->listener, (struct sockaddr *)&a, sizeof(a)) == 0, "bind");
	must(listen(b->listener, 64) == 0, "listen");
	must(getsockname(b->listener, (struct sockaddr *)&a, &len) == 0, "getsockname");
	b->port = ntohs(a.sin_port);
	must(pthread_create(&b->thread, NULL, run, b) == 0, "thread");
	return b;
}

void fake_broker_stop(struct fake_broker *b)
{
	if (b == NULL)
		return;
	pthread_mutex_lock(&b->lock);
	b->stop = true;
	pthread_mutex_unlock(&b->lock);
	wake(b);
	pthread_join(b->thread, NULL);
	for (int i = 0; i < CONNECTIONS; i++)
		end(b, &b->connections[i], true);
	close(b->listener);
	close(b->wake);
	buf_fini(&b->ids);
	pthread_mutex_destroy(&b->lock);
	free(b);
}

uint16_t fake_broker_port(const struct fake_broker *b)
{
	return b->port;
}

void fake_broker_rules(struct fake_broker *b, const struct fake_rules *rules)
{
	pthread_mutex_lock(&b->lock);
	b->rules = *rules;
	b->rng.state = rules->seed;
	pthread_mutex_unlock(&b->lock);
	wake(b);
}

/* Does something to every connection that is logged in. */
#define FOR_EACH(b, c, statement)                                                                  \
	do {                                                                                       \
		pthread_mutex_lock(&(b)->lock);                                                    \
		for (int i_ = 0; i_ < CONNECTIONS; i_++) {                                         \
			struct connection *c = &(b)->connections[i_];                              \
			if (c->fd >= 0 && c->stage == RUNNING) {                                   \
				statement;                                                         \
			}                                                                          \
		}                                                                                  \
		pthread_mutex_unlock(&(b)->lock);                                                  \
		wake(b);                                                                           \
	} while (0)

static void release(struct connection *c)
{
	for (unsigned n = 1; n < CHANNEL_NUMBERS; n++) {
		struct list_of *l = &c->channels[n].held;

		for (size_t i = 0; i < l->count; i++)
			confirm(c, n, l->items[i].tag, false, true);
		l->count = 0;
	}
}

void fake_broker_release(struct fake_broker *b)
{
	FOR_EACH(b, c, release(c));
}

static void block(struct connection *c, bool on, const char *reason)
{
	struct buf m = method(on ? CONNECTION_BLOCKED : CONNECTION_UNBLOCKED);

	if (on)
		put_short(&m, reason);
	send_method(c, 0, &m);
}

void fake_broker_block(struct fake_broker *b, bool on, const char *reason)
{
	FOR_EACH(b, c, block(c, on, reason));
}

void fake_broker_close_channel(
	struct fake_broker *b, unsigned channel, unsigned code, const char *text)
{
	FOR_EACH(b, c, if (c->channels[channel].open) close_channel(c, channel, code, text));
}

void fake_broker_close_connection(struct fake_broker *b, unsigned code, const char *text)
{
	FOR_EACH(b, c, close_connection(b, c, code, text));
}

void fake_broker_cut(struct fake_broker *b)
{
	FOR_EACH(b, c, end(b, c, true));
}

void fake_broker_confirm(
	struct fake_broker *b, unsigned channel, uint64_t tag, bool multiple, bool ack)
{
	FOR_EACH(b, c, if (c->channels[channel].open) confirm(c, channel, tag, multiple, ack));
}

void fake_broker_raw(struct fake_broker *b, const void *data, size_t len)
{
	FOR_EACH(b, c, buf_add(&c->out, data, len));
}

void fake_broker_stats(struct fake_broker *b, struct fake_stats *out)
{
	pthread_mutex_lock(&b->lock);
	*out = b->stats;
	pthread_mutex_unlock(&b->lock);
}

unsigned fake_broker_count(struct fake_broker *b, const char *message_id)
{
	size_t n = strlen(message_id);
	unsigned count = 0;

	pthread_mutex_lock(&b->lock);
	for (const char *p = b->ids.data; p != NULL && *p != '\0'; p = strchr(p, '\n') + 1)
		count += strncmp(p, message_id, n) == 0 && p[n] == '\n';
	pthread_mutex_unlock(&b->lock);
	return count;
}

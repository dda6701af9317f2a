#include "amqp/connection.h"

#include "sys/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FRAME_MAX_WANTED 131072
#define CHANNEL_MAX_WANTED 16
#define OUT_MAX ((size_t)1 << 20)
#define READ_MAX ((size_t)16 << 20) /* in one call; what is left waits for the next */
#define CLOSE_US US_PER_SEC

void connection_init(
	struct connection *c, const struct broker_conf *conf, const char *name, struct guard *guard)
{
	*c = (struct connection){
		.conf = conf,
		.name = name,
		.guard = guard,
		.stream = STREAM_CLOSED,
	};
	codec_init(&c->codec);
}

/* The output has held the password. */
static void drop_output(struct connection *c)
{
	if (c->out.data != NULL)
		explicit_bzero(c->out.data, c->out.cap);
	buf_reset(&c->out);
	c->written = 0;
}

static void disconnect(struct connection *c)
{
	stream_close(&c->stream);
	buf_reset(&c->out);
	buf_shrink(&c->out, OUT_MAX);
	buf_reset(&c->in);
	c->written = c->parsed = 0;
	c->write_error = (struct err){ 0 };
	c->unread = false;
}

void connection_fini(struct connection *c)
{
	disconnect(c);
	buf_fini(&c->out);
	buf_fini(&c->in);
	codec_fini(&c->codec);
}

bool connection_is_open(const struct connection *c)
{
	return c->stream.fd >= 0;
}

/* ---- out ---- */

size_t connection_pending(const struct connection *c)
{
	return c->out.len - c->written;
}

bool connection_has_room(const struct connection *c, size_t bytes)
{
	size_t pending = connection_pending(c);

	return pending == 0 || (bytes <= OUT_MAX && pending <= OUT_MAX - bytes);
}

int connection_method(
	struct connection *c, uint16_t channel, uint32_t id, void *method, struct err *e)
{
	return codec_method(&c->out, channel, id, method, e);
}

void connection_write(struct connection *c)
{
	if (!connection_is_open(c) || c->write_error.kind != ERR_NONE)
		return;
	while (c->written < c->out.len) {
		ssize_t n = stream_write(&c->stream, c->out.data + c->written,
			c->out.len - c->written, &c->write_error);

		if (n <= 0)
			break;
		c->written += (size_t)n;
		c->said_us = clock_mono_us();
	}
	if (c->written == c->out.len) {
		buf_reset(&c->out);
		buf_shrink(&c->out, 2 * OUT_MAX);
		c->written = 0;
	} else if (c->written > OUT_MAX / 2) {
		/* Moves at most as much as was written since the last time. */
		if (c->out.len - c->written <= c->written) {
			memcpy(c->out.data, c->out.data + c->written, c->out.len - c->written);
			c->out.len -= c->written;
			c->written = 0;
		}
	}
}

/* ---- in ---- */

/* 1: *f, which lives until the next call; 0: nothing by the deadline; -1. Writes while it waits. */
static int next_frame(struct connection *c, int64_t deadline_us, struct frame *f, struct err *e)
{
	for (;;) {
		struct slice have = { c->in.data + c->parsed, c->in.len - c->parsed };
		size_t used = 0;
		int found = codec_frame(have, c->frame_max, f, &used, e);
		ssize_t n;

		if (found != 0) {
			c->parsed += used;
			return found;
		}
		memmove(c->in.data, have.ptr, have.len);
		c->in.len = have.len;
		c->parsed = 0;
		n = stream_read(&c->stream, c->in.data + c->in.len, c->frame_max - c->in.len, e);
		if (n < 0)
			return -1;
		if (n > 0) {
			c->in.len += (size_t)n;
			c->heard_us = clock_mono_us();
			continue;
		}
		if (deadline_us == 0)
			return 0;
		connection_write(c);
		if (c->write_error.kind != ERR_NONE) {
			*e = c->write_error;
			return -1;
		}
		n = stream_wait(&c->stream, connection_pending(c) > 0, deadline_us, e);
		if (n <= 0)
			return (int)n;
	}
}

static int refused_text(
	struct err *e, enum err_kind kind, unsigned code, const char *what, amqp_bytes_t text)
{
	return err_set(e, kind, (long)code, "%s: %u %.*s", what, code,
		(int)(text.len < 255 ? text.len : 255),
		text.len > 0 ? (const char *)text.bytes : "");
}

static int closed_by_broker(struct connection *c, const amqp_connection_close_t *m, struct err *e)
{
	amqp_connection_close_ok_t ok = { 0 };
	struct err ignored;

	refused_text(e, ERR_LINK, m->reply_code,
		m->reply_code == AMQP_CONNECTION_FORCED
			? "the broker is shutting down, or an operator closed the connection"
			: "the broker closed the connection",
		m->reply_text);
	if (connection_method(c, 0, AMQP_CONNECTION_CLOSE_OK_METHOD, &ok, &ignored) == 0)
		connection_write(c);
	return -1;
}

static void text_of(amqp_bytes_t b, char *out, size_t size)
{
	size_t n = b.len < size - 1 ? b.len : size - 1;

	if (n > 0)
		memcpy(out, b.bytes, n);
	out[n] = '\0';
}

static int on_connection_method(struct connection *c, const struct frame *f, struct err *e)
{
	uint32_t id;
	void *method = codec_decode(&c->codec, f, &id, e);

	if (method == NULL)
		return -1;
	switch (id) {
	case AMQP_CONNECTION_CLOSE_METHOD:
		return closed_by_broker(c, method, e);
	case AMQP_CONNECTION_BLOCKED_METHOD: {
		const amqp_connection_blocked_t *m = method;
		char reason[256];

		text_of(m->reason, reason, sizeof(reason));
		if (c->events.blocked != NULL)
			c->events.blocked(c->events.arg, true, reason);
		return 0;
	}
	case AMQP_CONNECTION_UNBLOCKED_METHOD:
		if (c->events.blocked != NULL)
			c->events.blocked(c->events.arg, false, "");
		return 0;
	default:
		c->strange++;
		return 0;
	}
}

static int dispatch(struct connection *c, const struct frame *f, struct err *e)
{
	if (f->type == AMQP_FRAME_HEARTBEAT)
		return 0;
	if (f->channel != 0)
		return c->events.frame(c->events.arg, f, e);
	if (f->type == AMQP_FRAME_METHOD)
		return on_connection_method(c, f, e);
	c->strange++;
	return 0;
}

static int heartbeat(struct connection *c, struct err *e)
{
	int64_t now;

	if (c->heartbeat_us == 0)
		return 0;
	now = clock_mono_us();
	if (now - c->heard_us >= 2 * c->heartbeat_us)
		return err_set(e, ERR_LINK, ETIMEDOUT,
			"nothing heard from the broker for %" PRId64 " s",
			(now - c->heard_us) / US_PER_SEC);
	/* Bytes that wait for room are a sign of life of their own; and nothing may come between
	 * the halves of a frame. */
	if (now - c->said_us >= c->heartbeat_us / 2 && connection_pending(c) == 0) {
		if (codec_heartbeat(&c->out) < 0)
			return err_set(e, ERR_LINK, ENOMEM, "out of memory");
		connection_write(c);
	}
	return 0;
}

int connection_read(struct connection *c, struct err *e)
{
	size_t total = 0;
	struct frame f;
	int found;

	c->unread = false;
	while ((found = next_frame(c, 0, &f, e)) > 0) {
		if (dispatch(c, &f, e) < 0)
			return -1;
		total += f.payload.len;
		if (total > READ_MAX) {
			c->unread = true;
			break;
		}
	}
	if (found < 0)
		return -1;
	if (c->write_error.kind != ERR_NONE) {
		*e = c->write_error;
		return -1;
	}
	return heartbeat(c, e);
}

int64_t connection_next_us(const struct connection *c)
{
	int64_t silent, speak;

	if (!connection_is_open(c))
		return TIME_NEVER;
	if (c->unread || c->write_error.kind != ERR_NONE)
		return 0;
	if (c->heartbeat_us == 0)
		return TIME_NEVER;
	silent = c->heard_us + 2 * c->heartbeat_us;
	speak = connection_pending(c) > 0 ? TIME_NEVER : c->said_us + c->heartbeat_us / 2;
	return silent < speak ? silent : speak;
}

/* ---- calls ---- */

static void enter(struct connection *c, int64_t deadline_us)
{
	if (c->guard != NULL)
		guard_enter(c->guard, c->stream.fd, deadline_us + US_PER_SEC);
}

static void leave(struct connection *c)
{
	if (c->guard != NULL)
		(void)guard_leave(c->guard);
}

static uint32_t method_id(const struct frame *f)
{
	const unsigned char *p = (const unsigned char *)f->payload.ptr;

	return f->type == AMQP_FRAME_METHOD
		       ? (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3]
		       : 0;
}

static int channel_refused(struct connection *c, const struct frame *f, struct err *e)
{
	uint32_t id;
	const amqp_channel_close_t *m = codec_decode(&c->codec, f, &id, e);

	if (m == NULL)
		return -1;
	refused_text(e, ERR_REFUSED, m->reply_code, "the broker closed the channel", m->reply_text);
	return 0;
}

static int await(
	struct connection *c, uint16_t channel, uint32_t reply, int64_t deadline_us, struct err *e)
{
	struct frame f;
	int found;

	while ((found = next_frame(c, deadline_us, &f, e)) > 0) {
		struct err why;

		if (f.channel == channel && method_id(&f) == reply)
			return 0;
		if (f.channel != channel || method_id(&f) != AMQP_CHANNEL_CLOSE_METHOD) {
			if (dispatch(c, &f, e) < 0)
				return -1;
			continue;
		}
		if (channel_refused(c, &f, &why) < 0 || dispatch(c, &f, &why) < 0) {
			*e = why;
			return -1;
		}
		/* Our close and the broker's crossed: the channel is closed, and its number free
		 * once the broker has our answer, which goes before all we send now. Its own answer
		 * RabbitMQ 4 may leave out; one that comes is passed over. */
		if (reply == AMQP_CHANNEL_CLOSE_OK_METHOD)
			return 0;
		*e = why;
		return -1;
	}
	if (found == 0)
		return err_set(e, ERR_LINK, ETIMEDOUT, "no answer from the broker in time");
	return -1;
}

int connection_call(struct connection *c, uint16_t channel, uint32_t id, void *method,
	uint32_t reply, int64_t deadline_us, struct err *e)
{
	int rc;

	if (connection_method(c, channel, id, method, e) < 0)
		return -1;
	enter(c, deadline_us);
	rc = await(c, channel, reply, deadline_us, e);
	leave(c);
	return rc;
}

void connection_close(struct connection *c, bool politely)
{
	int64_t now = clock_mono_us();
	int64_t lately = c->heartbeat_us > 0 ? c->heartbeat_us : 10 * US_PER_SEC;
	amqp_connection_close_t m = { .reply_code = AMQP_REPLY_SUCCESS,
		.reply_text = codec_bytes(SLICE_LIT("bye")) };
	struct err e;
	struct frame f;

	if (!connection_is_open(c))
		return;
	if (politely && connection_pending(c) == 0 && c->write_error.kind == ERR_NONE &&
		now - c->heard_us <= lately &&
		connection_method(c, 0, AMQP_CONNECTION_CLOSE_METHOD, &m, &e) == 0) {
		enter(c, now + CLOSE_US);
		while (next_frame(c, now + CLOSE_US, &f, &e) > 0) {
			if (method_id(&f) == AMQP_CONNECTION_CLOSE_OK_METHOD)
				break;
		}
		leave(c);
	}
	disconnect(c);
}

/* ---- logging in ---- */

/* The method `want`, which must be next; NULL: it was not. */
static void *expect(struct connection *c, uint32_t want, int64_t deadline_us, struct err *e)
{
	struct frame f;
	uint32_t id = 0;
	void *method;
	int found;

	do {
		found = next_frame(c, deadline_us, &f, e);
		if (found < 0)
			return NULL;
		if (found == 0) {
			err_set(e, ERR_LINK, ETIMEDOUT, "no answer from the broker in time");
			return NULL;
		}
	} while (f.type == AMQP_FRAME_HEARTBEAT);
	if (f.type != AMQP_FRAME_METHOD) {
		err_set(e, ERR_LINK, AMQP_STATUS_WRONG_METHOD, "the broker sent no method");
		return NULL;
	}
	method = codec_decode(&c->codec, &f, &id, e);
	if (method == NULL || id == want)
		return method;
	if (id == AMQP_CONNECTION_CLOSE_METHOD)
		closed_by_broker(c, method, e);
	else
		err_set(e, ERR_LINK, AMQP_STATUS_WRONG_METHOD,
			"the broker answered 0x%" PRIx32 " instead of 0x%" PRIx32, id, want);
	return NULL;
}

/* The peer's first bytes were no AMQP frame: says what they look like. */
static int wrong_protocol(const struct connection *c, struct err *e)
{
	const char *p = c->in.data;
	size_t n = c->in.len;

	if (n >= 8 && memcmp(p, "AMQP", 4) == 0)
		return err_set(e, ERR_CONFIG, EPROTO,
			"the broker speaks AMQP %d.%d.%d only, not 0-9-1", p[5], p[6], p[7]);
	if (n >= 5 && memcmp(p, "HTTP/", 5) == 0)
		return err_set(e, ERR_CONFIG, EPROTO, "an HTTP server answers, no AMQP broker");
	if (n >= 2 && p[0] == 0x15 && p[1] == 0x03)
		return err_set(e, ERR_CONFIG, EPROTO,
			"the port speaks TLS: set tls.mode, or use the plain port");
	return err_set(e, ERR_CONFIG, EPROTO, "whatever answers does not speak AMQP");
}

static int read_start(
	struct connection *c, int64_t deadline_us, struct server_start *s, struct err *e)
{
	const char *perhaps = c->stream.tls == NULL ? " (a TLS port, or no AMQP at all?)" : "";
	struct frame f;
	int found = next_frame(c, deadline_us, &f, e);

	if (found < 0 && c->in.len > 0 &&
		(e->code == AMQP_STATUS_BAD_AMQP_DATA || c->in.data[0] != AMQP_FRAME_METHOD))
		return wrong_protocol(c, e);
	if (found < 0)
		return err_wrap(e, "before the AMQP handshake%s", perhaps);
	if (found == 0)
		return err_set(e, ERR_LINK, ETIMEDOUT, "connected, but no AMQP greeting in time%s",
			perhaps);
	if (codec_connection_start(&f, s, e) < 0)
		return wrong_protocol(c, e);
	if (s->major != 0 || s->minor != 9)
		return err_set(e, ERR_CONFIG, EPROTO, "the broker speaks AMQP %u-%u, not 0-9",
			s->major, s->minor);
	if (!s->plain)
		return err_set(
			e, ERR_CONFIG, 0, "the broker does not offer the login mechanism PLAIN");
	return 0;
}

static amqp_table_entry_t text_entry(const char *key, const char *value)
{
	return (amqp_table_entry_t){
		.key = codec_bytes(slice_str(key)),
		.value = { .kind = AMQP_FIELD_KIND_UTF8,
			.value = { .bytes = codec_bytes(slice_str(value)) } },
	};
}

static amqp_table_entry_t true_entry(const char *key)
{
	return (amqp_table_entry_t){
		.key = codec_bytes(slice_str(key)),
		.value = { .kind = AMQP_FIELD_KIND_BOOLEAN, .value = { .boolean = 1 } },
	};
}

static int send_login(struct connection *c, struct err *e)
{
	amqp_table_entry_t can[] = {
		true_entry("publisher_confirms"),
		true_entry("basic.nack"),
		true_entry("connection.blocked"),
		true_entry("consumer_cancel_notify"),
		true_entry("authentication_failure_close"),
	};
	amqp_table_entry_t properties[] = {
		text_entry("product", "outboxd"),
		text_entry("version", OUTBOXD_VERSION),
		text_entry("platform", "C"),
		text_entry("connection_name", c->name),
		{ .key = codec_bytes(SLICE_LIT("capabilities")),
			.value = { .kind = AMQP_FIELD_KIND_TABLE,
				.value = { .table = { ARRAY_LEN(can), can } } } },
	};
	amqp_connection_start_ok_t m = {
		.client_properties = { ARRAY_LEN(properties), properties },
		.mechanism = codec_bytes(SLICE_LIT("PLAIN")),
		.locale = codec_bytes(SLICE_LIT("en_US")),
	};
	struct buf password = { 0 }, login = { 0 };
	int rc = -1;

	if (secret_read(&c->conf->password, &password, e) < 0) {
		err_wrap(e, "password");
		goto out;
	}
	if (buf_reserve(&login, password.len + strlen(c->conf->username) + 2) < 0) {
		err_set(e, ERR_NOMEM, ENOMEM, "out of memory");
		goto out;
	}
	buf_addc(&login, '\0');
	buf_adds(&login, c->conf->username);
	buf_addc(&login, '\0');
	buf_add_slice(&login, buf_slice(&password));
	m.response = codec_bytes(buf_slice(&login));
	rc = connection_method(c, 0, AMQP_CONNECTION_START_OK_METHOD, &m, e);
	connection_write(c);
out:
	secret_wipe(&password);
	secret_wipe(&login);
	buf_fini(&password);
	buf_fini(&login);
	return rc;
}

static int tune(struct connection *c, const amqp_connection_tune_t *offer, struct err *e)
{
	int64_t wanted = (c->conf->heartbeat_us + US_PER_SEC - 1) / US_PER_SEC;
	amqp_connection_tune_ok_t m = {
		.channel_max = CHANNEL_MAX_WANTED,
		.frame_max = FRAME_MAX_WANTED,
		.heartbeat = (uint16_t)(wanted < UINT16_MAX ? wanted : UINT16_MAX),
	};

	if (offer->channel_max != 0 && offer->channel_max < m.channel_max)
		m.channel_max = offer->channel_max;
	if (offer->frame_max != 0 && offer->frame_max < m.frame_max)
		m.frame_max = offer->frame_max;
	if (offer->heartbeat != 0 && offer->heartbeat < m.heartbeat)
		m.heartbeat = offer->heartbeat;
	if (m.frame_max < FRAME_MAX_FLOOR)
		return err_set(e, ERR_CONFIG, 0,
			"the broker allows frames of %u bytes, at least %d are needed", m.frame_max,
			FRAME_MAX_FLOOR);
	c->channel_max = m.channel_max;
	c->heartbeat_us = m.heartbeat * US_PER_SEC;
	if (connection_method(c, 0, AMQP_CONNECTION_TUNE_OK_METHOD, &m, e) < 0)
		return -1;
	c->frame_max = m.frame_max;
	return 0;
}

/* A refusal that the operator has to mend, or one that passes? */
static int login_refused(const char *what, struct err *e)
{
	bool passes = strstr(e->text, "limit (") != NULL;

	if (e->kind != ERR_LINK || passes)
		return err_wrap(e, "%s", what);
	switch (e->code) {
	case AMQP_ACCESS_REFUSED:
	case AMQP_NOT_ALLOWED:
	case AMQP_INVALID_PATH:
	case AMQP_NOT_FOUND:
		e->kind = ERR_CONFIG;
		break;
	default:
		break;
	}
	return err_wrap(e, "%s", what);
}

static int log_in(struct connection *c, int64_t deadline_us, struct err *e)
{
	struct server_start s = { 0 };
	amqp_connection_open_t open = { .virtual_host = codec_bytes(slice_str(c->conf->vhost)) };
	const amqp_connection_tune_t *offer;

	if (strlen(c->conf->vhost) > UINT8_MAX)
		return err_set(e, ERR_CONFIG, 0, "vhost: longer than 255 bytes");
	if (buf_add(&c->out, "AMQP\0\0\x09\x01", 8) < 0)
		return err_set(e, ERR_NOMEM, ENOMEM, "out of memory");
	connection_write(c);
	if (read_start(c, deadline_us, &s, e) < 0)
		return -1;
	snprintf(c->peer + strlen(c->peer), sizeof(c->peer) - strlen(c->peer), " (%.*s %.*s)",
		(int)s.product.len, s.product.ptr != NULL ? s.product.ptr : "", (int)s.version.len,
		s.version.ptr != NULL ? s.version.ptr : "");
	if (send_login(c, e) < 0)
		return -1;
	offer = expect(c, AMQP_CONNECTION_TUNE_METHOD, deadline_us, e);
	if (offer == NULL)
		return login_refused("login", e);
	drop_output(c);
	if (tune(c, offer, e) < 0)
		return -1;
	if (connection_method(c, 0, AMQP_CONNECTION_OPEN_METHOD, &open, e) < 0)
		return -1;
	connection_write(c);
	if (expect(c, AMQP_CONNECTION_OPEN_OK_METHOD, deadline_us, e) == NULL) {
		char what[300];

		snprintf(what, sizeof(what), "vhost %s", c->conf->vhost);
		return login_refused(what, e);
	}
	return 0;
}

/* ---- finding a broker ---- */

static int attempt(struct connection *c, const struct endpoint *host, const struct addrinfo *a,
	int64_t deadline_us, struct err *e)
{
	char where[160];
	char address[NI_MAXHOST] = "";

	disconnect(c);
	c->frame_max = FRAME_MAX_WANTED;
	c->heartbeat_us = 0;
	if (buf_reserve(&c->in, FRAME_MAX_WANTED) < 0)
		return err_set(e, ERR_NOMEM, ENOMEM, "out of memory");
	snprintf(where, sizeof(where), strchr(host->host, ':') != NULL ? "[%s]:%u" : "%s:%u",
		host->host, host->port);
	snprintf(c->peer, sizeof(c->peer), "%s", where);
	if (stream_connect(&c->stream, a->ai_addr, a->ai_addrlen, deadline_us, e) < 0)
		goto fail;
	if (c->conf->tls.mode != TLS_DISABLED &&
		stream_start_tls(&c->stream, &c->conf->tls, host->host, deadline_us, e) < 0)
		goto fail;
	c->heard_us = c->said_us = clock_mono_us();
	if (log_in(c, deadline_us, e) < 0)
		goto fail;
	return 0;
fail:
	drop_output(c);
	disconnect(c);
	getnameinfo(a->ai_addr, a->ai_addrlen, address, sizeof(address), NULL, 0, NI_NUMERICHOST);
	if (strcmp(address, host->host) != 0)
		return err_wrap(e, "%s (%s)", where, address);
	return err_wrap(e, "%s", where);
}

static int resolve(const struct endpoint *host, struct addrinfo **list, struct err *e)
{
	struct addrinfo hint = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV };
	char port[8];
	int rc;

	snprintf(port, sizeof(port), "%u", host->port);
	rc = getaddrinfo(host->host, port, &hint, list);
	if (rc != 0)
		return err_set(e, ERR_LINK, rc, "%s: %s", host->host,
			rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc));
	return 0;
}

/* The state of one connection_open(). */
struct search {
	int64_t deadline_us;
	int64_t least_us; /* less than this is no fair chance */
	struct err worst; /* what to report if all fail: ERR_CONFIG before others, else the last */
	bool stop;
};

static void failed(struct search *s, const struct err *e)
{
	if (s->worst.kind != ERR_CONFIG || e->kind == ERR_CONFIG)
		s->worst = *e;
}

/* A login or vhost that was refused is not tried again elsewhere: that only locks accounts. */
static bool is_final(const struct err *e)
{
	return e->kind == ERR_NOMEM ||
	       (e->kind == ERR_CONFIG &&
		       (e->code == AMQP_ACCESS_REFUSED || e->code == AMQP_NOT_ALLOWED));
}

/* Tries addresses [first, last) of the host. 0: connected. */
static int try_host(
	struct connection *c, size_t index, size_t first, size_t last, bool more, struct search *s)
{
	const struct endpoint *host = &c->conf->hosts[index];
	struct addrinfo *list = NULL;
	struct err e = { 0 };
	size_t i = 0;
	int rc = -1;

	c->next_host = (index + 1) % c->conf->host_count;
	c->next_address = 0;
	if (resolve(host, &list, &e) < 0) {
		failed(s, &e);
		return -1;
	}
	for (struct addrinfo *a = list; a != NULL && i < last && rc < 0 && !s->stop;
		a = a->ai_next, i++) {
		int64_t left = s->deadline_us - clock_mono_us();

		if (i < first)
			continue;
		if (left < s->least_us && s->worst.kind != ERR_NONE) {
			s->stop = true;
			break;
		}
		if (a->ai_next != NULL) {
			c->next_host = index;
			c->next_address = i + 1;
		} else {
			c->next_host = (index + 1) % c->conf->host_count;
			c->next_address = 0;
		}
		if (more || a->ai_next != NULL)
			left /= 2;
		rc = attempt(c, host, a, clock_mono_us() + left, &e);
		if (rc < 0) {
			failed(s, &e);
			s->stop = is_final(&e);
		} else {
			c->next_host = index;
			c->next_address = i;
		}
	}
	freeaddrinfo(list);
	return rc;
}

int connection_open(struct connection *c, struct err *e)
{
	int64_t timeout = c->conf->connect_timeout_us;
	struct search s = {
		.deadline_us = clock_mono_us() + timeout,
		.least_us = timeout / 16,
	};
	size_t count = c->conf->host_count;
	size_t from = c->next_host < count ? c->next_host : 0;
	size_t skipped = c->next_address;
	int rc = -1;

	connection_close(c, false);
	if (count == 0)
		return err_set(e, ERR_CONFIG, 0, "no hosts");
	if (c->guard != NULL)
		guard_enter(c->guard, -1, s.deadline_us + US_PER_SEC);
	for (size_t k = 0; k < count && rc < 0 && !s.stop; k++)
		rc = try_host(c, (from + k) % count, k == 0 ? skipped : 0, SIZE_MAX,
			k + 1 < count || skipped > 0, &s);
	if (rc < 0 && !s.stop && skipped > 0)
		rc = try_host(c, from, 0, skipped, false, &s);
	if (c->guard != NULL)
		(void)guard_leave(c->guard);
	if (rc < 0) {
		*e = s.worst;
		if (e->kind == ERR_NONE)
			err_set(e, ERR_LINK, 0, "no address left to try");
	}
	return rc;
}

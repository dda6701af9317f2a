/* connection.h: one AMQP connection: finding a broker, logging in, frames in and out, heartbeats.
 * Channels and their meaning are publisher.c's.
 *
 * Output is collected in a buffer and written when the socket takes it, so that appending never
 * blocks and a frame is never left half written by a call that gave up. Input is read into a buffer
 * of one frame and handed out frame by frame. Nothing waits except connection_open(),
 * connection_call() and connection_close(), each up to a deadline. */
#ifndef OUTBOXD_AMQP_CONNECTION_H
#define OUTBOXD_AMQP_CONNECTION_H

#include "amqp/codec.h"
#include "amqp/stream.h"
#include "config/config.h"
#include "sys/guard.h"

struct addrinfo;

/* What the broker says on its own account, while we read. */
struct connection_events {
	/* A frame of a channel above 0. -1: the connection is finished. */
	int (*frame)(void *arg, const struct frame *f, struct err *e);
	void (*blocked)(void *arg, bool on, const char *reason);
	void *arg;
};

struct connection {
	const struct broker_conf *conf; /* borrowed */
	const char *name;               /* borrowed: what the broker lists us as */
	struct guard *guard;            /* borrowed, may be NULL */
	struct connection_events events;

	struct stream stream;
	struct codec codec;
	struct buf out; /* the first `written` bytes are gone already */
	size_t written;
	struct err write_error; /* kind is ERR_NONE while writing works */
	struct buf in;          /* len bytes read, the first `parsed` handed out */
	size_t parsed;
	bool unread; /* the last connection_read() stopped before the end */

	size_t frame_max;
	unsigned channel_max;
	int64_t heartbeat_us; /* 0: none */
	int64_t heard_us, said_us;

	size_t next_host, next_address; /* where the next connection_open() begins */
	char peer[160];                 /* "mq1:5672 (RabbitMQ 3.10.8)" */

	uint64_t strange; /* frames nobody asked for */
};

void connection_init(struct connection *c, const struct broker_conf *conf, const char *name,
	struct guard *guard);
void connection_fini(struct connection *c);

/* Tries the hosts, and each address of a name, in turn until one lets us in, within
 * connect_timeout altogether: while others are left, an attempt gets half of what remains, and the
 * next call goes on behind the last one tried, so that one that swallows everything never hides the
 * others. ERR_CONFIG: login, vhost or TLS verification refused, or something that is no AMQP
 * answers; ERR_LINK: all else. */
int connection_open(struct connection *c, struct err *e) MUST_CHECK;
bool connection_is_open(const struct connection *c);

/* `politely`: says goodbye and waits for the answer for up to a second, if the broker was heard
 * lately and nothing waits to be written: what was not sent yet had better not be sent now, when
 * nobody waits for its outcome any more. */
void connection_close(struct connection *c, bool politely);

/* Bytes that wait to be written. */
size_t connection_pending(const struct connection *c);
/* Room for that many more without the buffer growing beyond its usual bound (an empty buffer takes
 * anything). */
bool connection_has_room(const struct connection *c, size_t bytes);

/* Appends the method, never blocks. */
int connection_method(struct connection *c, uint16_t channel, uint32_t id, void *method,
	struct err *e) MUST_CHECK;

/* Writes what the socket takes. A failure is kept in write_error and reported by the next
 * connection_read(), once everything that arrived before is handed out. */
void connection_write(struct connection *c);

/* Hands out everything that has arrived; heartbeats. -1: the connection is finished. */
int connection_read(struct connection *c, struct err *e) MUST_CHECK;

/* Sends a method and waits for `reply` on its channel, up to the deadline, handing out all other
 * frames. ERR_REFUSED: the broker closed the channel over it; that frame was handed out. */
int connection_call(struct connection *c, uint16_t channel, uint32_t id, void *method,
	uint32_t reply, int64_t deadline_us, struct err *e) MUST_CHECK;

/* When connection_read() wants to be called at the latest. */
int64_t connection_next_us(const struct connection *c);

#endif

/* publisher.h: one AMQP connection with two confirmed channels, as the relay sees it; the port that
 * lib/amqp implements for real and the simulation implements with a fake.
 *
 * One channel closed over one message throws away everything unconfirmed behind it. So messages to
 * exchanges proven by a confirm on this connection go over CHANNEL_FAST; the first one to an
 * exchange, and every row sent again after a closure, goes alone over CHANNEL_QUARANTINE.
 *
 * Calls come from the relay's thread only. connect(), reopen() and close() block, bounded by
 * connect_timeout; send() and pump() never do. Events run inside pump() and reopen() only, never
 * inside send(). */
#ifndef OUTBOXD_PUBLISHER_H
#define OUTBOXD_PUBLISHER_H

#include "base/err.h"
#include "message/envelope.h"

#include <stdbool.h>

enum channel { CHANNEL_FAST, CHANNEL_QUARANTINE, CHANNELS };

enum outcome { OUTCOME_ACK, OUTCOME_NACK, OUTCOME_RETURNED };

struct publisher_events {
	/* Exactly one for each message sent, unless its channel or the connection goes first. A
	 * return is reported when the ack or nack behind it arrives, as OUTCOME_RETURNED with the
	 * broker's reply code and text. */
	void (*outcome)(void *arg, void *cookie, enum outcome how, unsigned code, const char *text);
	/* The broker closed the channel: every message open on it has an unknown outcome, none will
	 * be reported. The channel cannot be used until reopen(). */
	void (*channel_closed)(void *arg, enum channel ch, unsigned code, const char *text);
	void (*blocked)(void *arg, bool on, const char *reason);
	void *arg;
};

struct publisher;

struct publisher_ops {
	/* Connects to the hosts in turn, logs in, opens both channels in confirm mode. Kinds:
	 * ERR_LINK: cannot be reached, or broke; ERR_CONFIG: login, vhost or TLS verification
	 * refused. */
	int (*connect)(struct publisher *p, struct err *e);
	/* Politely where that is quick, else not; every open message is forgotten without an event.
	 */
	void (*close)(struct publisher *p);
	/* Copies *env. 0: it is on its way, one outcome is owed for `cookie`. -1 with nothing sent
	 * and nothing owed: ERR_AGAIN no room at the moment; ERR_REFUSED this message does not fit
	 * the protocol's or the connection's limits
	 * ("INVALID: ..." or "TOO_LARGE: ..."); ERR_LINK the connection is finished. */
	int (*send)(struct publisher *p, enum channel ch, const struct envelope *env, void *cookie,
		struct err *e);
	/* Writes what waits, reads all that has arrived, reports it. -1: the connection is finished
	 * (ERR_LINK). */
	int (*pump)(struct publisher *p, struct err *e);
	/* From now on nothing is heard of what is open on the channel, whatever the broker still
	 * says about it: the caller may use those cookies for something else. The channel cannot be
	 * used until reopen(). Never blocks. */
	void (*abandon)(struct publisher *p, enum channel ch);
	/* Closes the channel if it is open, opens it again in confirm mode; what was open on it is
	 * forgotten without an event. */
	int (*reopen)(struct publisher *p, enum channel ch, struct err *e);
	/* After connect(): the largest header table a message may have on this connection. */
	size_t (*max_header_bytes)(const struct publisher *p);
	/* For the loop: the socket, or -1; whether output waits for room; when pump() wants to be
	 * called at the latest (heartbeats), monotonic. */
	int (*fd)(const struct publisher *p);
	bool (*wants_write)(const struct publisher *p);
	int64_t (*next_pump_us)(const struct publisher *p);
	void (*free)(struct publisher *p);
};

struct publisher {
	const struct publisher_ops *ops;
	struct publisher_events events;
	char peer[160]; /* "mq1:5672 (RabbitMQ 3.10.8)", empty until the first connect */
};

#endif

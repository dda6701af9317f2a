/* fake_broker.h: an AMQP 0-9-1 broker that does what a test tells it, right or wrong, on a loopback
 * port and a thread of its own. It takes publishes and answers them; it has no queues. It shares no
 * code with lib/amqp, so that a mistake there is not mirrored here.
 *
 *	struct fake_broker *b = fake_broker_start(&(struct fake_rules){ .ack_order = FAKE_REVERSE
 *});
 *	... connect to 127.0.0.1:fake_broker_port(b) ...
 *	fake_broker_stop(b);
 *
 * Unless rules.judge says otherwise a message is judged by its names: exchange "missing" and
 * "forbidden" close the channel with 404 and 403; a routing key that starts with "return" is
 * returned, then confirmed; "nack", "hold" (until fake_broker_release()) and "drop" (never) do what
 * they say, "die" cuts the connection. All else is confirmed. All functions may be called from any
 * thread. Failures of the fake itself abort: it is a test. */
#ifndef OUTBOXD_TESTS_FAKE_BROKER_H
#define OUTBOXD_TESTS_FAKE_BROKER_H

#include "base/base.h"

#include <stdbool.h>

struct fake_broker;

enum fake_verdict {
	FAKE_ACK,
	FAKE_NACK,
	FAKE_RETURN, /* then ack */
	FAKE_RETURN_THEN_NACK,
	FAKE_HOLD,
	FAKE_DROP,
	FAKE_CLOSE_404, /* the channel */
	FAKE_CLOSE_403,
	FAKE_CLOSE_CONNECTION, /* 320 */
	FAKE_CUT,              /* reset, without a word */
};

struct fake_message {
	char exchange[256], routing_key[256], message_id[256];
	uint8_t delivery_mode;
	bool mandatory;
	unsigned channel; /* as on the wire */
	unsigned connection;
	uint64_t tag;
	uint64_t body_size;
	uint64_t nth; /* of all messages, from 1 */
};

enum fake_order { FAKE_FORWARD, FAKE_REVERSE, FAKE_SHUFFLE, FAKE_MULTIPLE };

struct fake_rules {
	/* ---- before and while logging in */
	const char *banner; /* answered to whoever connects, instead of AMQP */
	size_t banner_len;
	bool hang_up;        /* close at once (after the banner, if any) */
	bool silent;         /* accept, read, never answer */
	unsigned frame_max;  /* offered; 0: 131072 */
	bool frame_max_none; /* offer 0, no limit */
	unsigned channel_max;
	unsigned heartbeat; /* offered, seconds; 0: none */
	bool mute;          /* never send a heartbeat */
	bool no_plain;      /* offer other mechanisms only */
	const char *password;
	const char *vhost;
	unsigned login_close_code; /* answer the login with connection.close of this code */

	/* ---- publishing */
	enum fake_verdict (*judge)(void *arg, const struct fake_message *m);
	void *judge_arg;
	enum fake_order ack_order;
	unsigned ack_batch;   /* collected before they are answered in ack_order; 0: each at once. A
				 pause of the client answers what was collected. */
	uint64_t seed;        /* of FAKE_SHUFFLE */
	bool repeat_acks;     /* each ack twice, and one of a tag never sent */
	uint64_t stall_after; /* bytes read of a connection; then no more, until the rules change */
	bool ignore_close;    /* never answer channel.close or connection.close */
};

struct fake_broker *fake_broker_start(const struct fake_rules *rules);
void fake_broker_stop(struct fake_broker *b);
uint16_t fake_broker_port(const struct fake_broker *b);

void fake_broker_rules(struct fake_broker *b, const struct fake_rules *rules);

/* Ack everything held. */
void fake_broker_release(struct fake_broker *b);
/* On every connection. */
void fake_broker_block(struct fake_broker *b, bool on, const char *reason);
void fake_broker_close_channel(
	struct fake_broker *b, unsigned channel, unsigned code, const char *text);
void fake_broker_close_connection(struct fake_broker *b, unsigned code, const char *text);
void fake_broker_cut(struct fake_broker *b);
/* Any ack or nack, true or not. */
void fake_broker_confirm(
	struct fake_broker *b, unsigned channel, uint64_t tag, bool multiple, bool ack);
/* Any bytes, to every connection. */
void fake_broker_raw(struct fake_broker *b, const void *data, size_t len);

struct fake_stats {
	uint64_t accepted;  /* connections */
	unsigned connected; /* now, logged in */
	uint64_t messages, bytes;
	uint64_t heartbeats;
	uint64_t channels_opened, channels_closed_by_client, channel_close_oks,
		connection_close_oks;
	unsigned client_frame_max, client_heartbeat, client_channel_max;
	char client_name[256], client_product[64];
	uint64_t violations; /* of the protocol, by the client; the last one: */
	char violation[128];
};
void fake_broker_stats(struct fake_broker *b, struct fake_stats *out);

/* How often a message with this id arrived. */
unsigned fake_broker_count(struct fake_broker *b, const char *message_id);

#endif

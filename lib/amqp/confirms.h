/* confirms.h: which messages of one channel still wait for the broker's word. Pure: knows delivery
 * tags and message ids, no socket and no library.
 *
 *	  settled    open (#), returned (r), settled early (.)    not sent yet
 *	|-----------|###.##r##.#############.####################|
 *	        head^                                        sent^
 *
 * Tags are given out as 1, 2, 3, ... as the broker counts them. A slot is remembered from its tag's
 * sending until it and every tag before it is settled. Zero-initialised is empty and valid.
 *
 * Acks may be merged, out of order, repeated or wrong; whatever the broker says, each message is
 * reported at most once, and only by an ack or nack that covers its tag. */
#ifndef OUTBOXD_AMQP_CONFIRMS_H
#define OUTBOXD_AMQP_CONFIRMS_H

#include "base/slice.h"

#include <stdbool.h>

/* Distinct reply texts of returns that are remembered; RabbitMQ has two. Further ones lose only
 * their text. */
#define CONFIRMS_REASONS 8

struct confirms_slot {
	void *cookie;
	uint64_t id_at; /* where its message id starts, counted over all ids ever stored */
	uint16_t code;  /* of the return */
	uint8_t id_len;
	uint8_t reason; /* of the return: index into reasons, CONFIRMS_REASONS for none */
	bool open;
	bool returned;
};

struct confirms {
	struct confirms_slot *slots; /* ring, indexed by tag & (cap - 1) */
	size_t cap;                  /* 0 or a power of two */
	uint64_t head;               /* every tag up to this one is settled; the next is open */
	uint64_t sent;               /* highest tag given out */
	uint64_t cursor;             /* the next return is looked for behind this tag */
	size_t open;
	char *ids; /* ring of bytes */
	size_t ids_cap;
	uint64_t ids_head, ids_end;
	struct {
		uint16_t code;
		char text[126];
	} reasons[CONFIRMS_REASONS];
	uint8_t reason_count;
	/* What a correct broker never does; kept over confirms_reset(). */
	uint64_t duplicates;      /* acks of tags already settled */
	uint64_t unknown;         /* acks of tags never given out */
	uint64_t unknown_returns; /* returns of ids not outstanding */
};

struct confirmed {
	void *cookie;
	bool ack; /* false: nack */
	bool returned;
	uint16_t code; /* of the return, else 0 */
	const char *text;
};

/* May call confirms_reserve() and confirms_sent(), nothing else. */
typedef void confirms_cb(void *arg, const struct confirmed *m);

void confirms_fini(struct confirms *c);

/* A channel opened anew: tags start at 1 again, what was outstanding is forgotten. */
void confirms_reset(struct confirms *c);

/* Room for one more message whose id has `id_len` bytes (at most 255); -1: out of memory. After 0
 * the next confirms_sent() cannot fail. */
int confirms_reserve(struct confirms *c, size_t id_len);

/* The next message goes out: copies the id, returns its tag. */
uint64_t confirms_sent(struct confirms *c, void *cookie, struct slice message_id);

/* The broker returned the message with this id; its ack or nack is still to come. Returns come in
 * the order of sending, so equal ids are told apart. */
void confirms_returned(
	struct confirms *c, struct slice message_id, uint16_t code, struct slice text);

/* basic.ack or basic.nack. `multiple`: every open tag up to and including `tag`; tag 0: all. */
void confirms_settle(
	struct confirms *c, uint64_t tag, bool multiple, bool ack, confirms_cb *cb, void *arg);

#endif

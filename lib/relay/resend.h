/* resend.h: publishes rows once, without a table behind it: what `outboxd replay` and `outboxd
 * check --probe` are made of. The same messages, channels and port (publisher.h) as a relay's, and
 * the same order: rows of one aggregate go one after the other, the next when the one before is
 * confirmed. Nothing is tried twice, except what was on a channel that the broker closed over
 * something else.
 *
 * Pure: no clock, no socket. One thread. */
#ifndef OUTBOXD_RESEND_H
#define OUTBOXD_RESEND_H

#include "config/config.h"
#include "message/row.h"
#include "relay/publisher.h"

struct resend;

struct resend_conf {
	const struct source_conf *source; /* borrowed */
	const char *marker;               /* a header set to true on each message */
	const char *expiration;           /* the message's, in milliseconds; NULL: none */
	uint64_t seed;                    /* of the hash of aggregates */
	/* Once for each row added, unless it was dropped: confirmed and not returned, or not, and
	 * why: "UNROUTABLE: ...". From inside resend_turn() only. */
	void (*done)(void *arg, uint64_t id, struct slice event_id, const char *failure);
	void *arg;
};

/* Borrows the publisher, which must be connected, and takes its events over. */
int resend_new(struct resend **out, const struct resend_conf *conf, struct publisher *p,
	struct err *e) MUST_CHECK;
void resend_free(struct resend *r); /* takes NULL */

/* How many rows may be added now. */
unsigned resend_room(const struct resend *r);
/* Copies the row. Rows of one aggregate that are added before the next turn go by (created_at, id),
 * whatever order they were added in. -1: out of memory. */
int resend_add(struct resend *r, const struct row *row, struct err *e) MUST_CHECK;

/* Rows not done yet; of them, those that are at the broker. */
unsigned resend_left(const struct resend *r);
unsigned resend_unconfirmed(const struct resend *r);
/* Rows added and not sent are dropped without a word. */
void resend_drop(struct resend *r);

/* The broker does not read at the moment, and says why; else NULL. */
const char *resend_blocked(const struct resend *r);

/* Sends what can be sent, reads what has come. -1: over; what is still at the broker has an unknown
 * outcome. *next_us: when it wants to be called again at the latest, or when the publisher's socket
 * is ready. */
int resend_turn(struct resend *r, int64_t now_us, int64_t *next_us, struct err *e) MUST_CHECK;

#endif

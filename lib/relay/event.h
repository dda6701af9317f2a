/* event.h: one claimed row in the relay's window, from claim to settlement, and the pool such
 * events live in. */
#ifndef OUTBOXD_EVENT_H
#define OUTBOXD_EVENT_H

#include "base/buf.h"
#include "base/list.h"
#include "relay/publisher.h"
#include "relay/store.h"

#include <stdbool.h>

enum event_state {
	EVENT_FREE,      /* in the pool */
	EVENT_CLAIMED,   /* ours, not sent */
	EVENT_PUBLISHED, /* sent, outcome open */
	EVENT_UNKNOWN,   /* sent, and its channel or connection went: it goes again */
	EVENT_CONFIRMED, /* acked and not returned; SENT is yet to be written */
	EVENT_FAILED,    /* charged, or finally refused; RETRY or DEAD is yet to be written */
	EVENT_RELEASED,  /* never sent; what it was is yet to be written */
	EVENT_SETTLED,   /* written */
	EVENT_LOST,      /* our guarded write matched no row: another relay's now */
	EVENT_STATES,
};

struct lane;

struct event {
	struct list link; /* in the list of its state, or in its lane's queue */
	enum event_state state;
	enum row_class origin;
	enum channel channel; /* PUBLISHED: the one it went over */
	bool alone;           /* goes over the quarantine channel, nobody beside it */
	bool queued_alone;    /* in the relay's list of those that wait for that channel */
	bool sent_before;   /* may already have reached the broker: by us or by a relay that died */
	unsigned timeouts;  /* how often it was sent and no confirm came in time, at least */
	unsigned takeovers; /* see struct row_sink */
	struct lane *lane;  /* ordered sources: its aggregate; else NULL */
	int64_t lease_end_us; /* our own monotonic count, from before the claim or renewal was sent
			       */
	int64_t published_us;
	uint64_t exchange;     /* hash of its exchange, once it was built */
	int64_t settled_by_us; /* when its verdict was reached */
	enum settle_kind verdict;
	int64_t delay_us; /* SETTLE_RETRY, SETTLE_HOLD */
	bool lost;        /* PUBLISHED, but no longer ours: its outcome is awaited and dropped */
	bool again;       /* its verdict may already stand: the outcome of a COMMIT was lost */
	char *error;      /* RETRY, DEAD: "CLASS: words"; owned */
	struct row row;   /* slices into text */
	size_t bytes;     /* what it counts for in max_in_flight_bytes */
	char *text;
	size_t text_cap;
};

/* Moves the state along the table of allowed moves; anything else is our own bug and asserts. */
void event_move(struct event *ev, enum event_state to);
const char *event_state_name(enum event_state s);

/* A pool of at most `max` events whose memory is used again. */
struct event_pool {
	struct list free;
	unsigned allocated, used, max;
	size_t extra_count; /* extra columns a row carries */
	size_t bytes;       /* of all used events */
};

void event_pool_init(struct event_pool *p, unsigned max, size_t extra_count);
void event_pool_fini(struct event_pool *p); /* all events must be back */
/* A copy of the row as a CLAIMED event in no list; NULL: no memory, or `max` are in use. */
struct event *event_new(struct event_pool *p, const struct row *row);
/* Takes an event that is in no list. */
void event_free(struct event_pool *p, struct event *ev);

/* Replaces the event's error text; cut where memory runs out (never fails). */
void event_set_error(struct event *ev, const char *fmt, ...) PRINTF(2, 3);

#endif

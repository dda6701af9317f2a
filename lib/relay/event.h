/* event.h: one claimed row in the relay's window, from claim to settlement, and the pool such
 * events live in. */
#ifndef OUTBOXD_EVENT_H
#define OUTBOXD_EVENT_H

#include "base/buf.h"
#include "base/list.h"
#include "base/place.h"
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

/* The columns an event keeps, in this order; then those the route asked for. */
enum event_part {
	PART_EVENT_ID,
	PART_AGGREGATE_TYPE,
	PART_AGGREGATE_ID,
	PART_EVENT_TYPE,
	PART_PAYLOAD,
	PART_AGGREGATE_VERSION,
	PART_TRACE_ID,
	PART_TRACEPARENT,
	PART_TRACESTATE,
	PART_HEADERS,
	EVENT_PARTS,
};

/* Thousands of these make up most of a relay's memory: the row is kept as places in one block of
 * text, not as slices. */
struct event {
	struct list link;      /* in the list of its state, or in its lane's queue */
	uint8_t state;         /* enum event_state */
	uint8_t origin;        /* enum row_class */
	uint8_t channel;       /* enum channel; PUBLISHED: the one it went over */
	uint8_t verdict;       /* enum settle_kind */
	bool alone : 1;        /* goes over the quarantine channel, nobody beside it */
	bool queued_alone : 1; /* in the relay's list of those that wait for that channel */
	bool sent_before : 1;  /* may have reached the broker, by us or by a relay that died */
	bool lost : 1;         /* PUBLISHED, but not ours: its outcome is awaited and dropped */
	bool cut : 1;          /* see struct row's payload_cut */
	bool hazard : 1;       /* later ones of its aggregate went before it */
	bool again : 1;        /* its verdict may stand: the outcome of a COMMIT was lost */
	bool left : 1;      /* its verdict could not be written: locked by somebody, or refused */
	uint16_t timeouts;  /* how often no confirm came in time, at least */
	uint32_t takeovers; /* see struct row_sink */
	uint32_t retry_count;
	uint64_t id;
	int64_t created_us;
	struct lane *lane;    /* ordered sources: its aggregate; else NULL */
	int64_t lease_end_us; /* our own monotonic count, from before the claim was sent */
	int64_t since_us;     /* PUBLISHED: when it was sent; settling: when its verdict fell */
	uint64_t exchange;    /* hash of its exchange, once it was built */
	int64_t delay_us;     /* SETTLE_RETRY, SETTLE_HOLD */
	char *error;          /* RETRY, DEAD, HOLD: "CLASS: words"; owned */
	struct event_place *places; /* EVENT_PARTS and the extra ones, then the text */
	size_t size;                /* of that block */
};

static inline struct place event_place(const struct event *ev)
{
	return (struct place){ ev->created_us, ev->id };
}

static inline bool event_before(const struct event *a, const struct event *b)
{
	return place_before(event_place(a), event_place(b));
}

/* Lists that mostly are in order already; they are then left alone. */
void events_sort_by_place(struct event **list, size_t count);
void events_sort_by_id(struct event **list, size_t count);

/* What the event takes in memory; counts for max_in_flight_bytes. */
size_t event_bytes(const struct event *ev);

struct slice event_part(const struct event *ev, enum event_part part);

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
/* The row again; *row and extra point into the event. */
void event_row(const struct event_pool *p, const struct event *ev, struct row *row,
	struct slice extra[ROW_EXTRA_MAX]);
/* Takes an event that is in no list. */
void event_free(struct event_pool *p, struct event *ev);

/* Replaces the event's error text; cut where memory runs out (never fails). */
void event_set_error(struct event *ev, const char *fmt, ...) PRINTF(2, 3);

#endif

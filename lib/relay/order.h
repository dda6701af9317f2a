/* order.h: what an ordered relay remembers of aggregates. Two tables, keyed by a 64-bit hash of
 * (aggregate_type, aggregate_id), by bytes; two aggregates that should ever collide merely wait for
 * each other.
 *
 * Lanes: aggregates with events in the window. At most one event of a lane, its head, is out at the
 * broker; the others queue behind it by (created_at, id).
 *
 * Barred: how many rows of an aggregate stand unsent in the table where the FRESH scan does not see
 * them (RETRY, DEAD, held, another owner's). A cache, never proof: it may be too high after others
 * changed rows, and then costs a question more; where it is not 0, the table is asked before a row
 * of that aggregate goes or is held. It is the one part of a relay's memory that grows with the
 * number of aggregates in trouble: 16 bytes each, at most two thirds full. */
#ifndef OUTBOXD_ORDER_H
#define OUTBOXD_ORDER_H

#include "base/list.h"
#include "base/place.h"
#include "base/slice.h"

#include <stdbool.h>
#include <stdint.h>

struct event;

struct lane {
	struct lane *next; /* hash chain */
	uint64_t hash;
	struct event *head;
	struct list queue;
	unsigned events;     /* whose `lane` this is */
	uint64_t asked_in;   /* the last claim in which the table was asked about one of them */
	struct event *asked; /* the first of them in that claim */
	unsigned holding;    /* those of them whose HOLD is decided, not yet written */
	struct event *held;  /* the last of those */
	struct place passed; /* the latest one confirmed, in the aggregate's order; id 0: none */
	/* The release of rows that wait in the table, page by page. */
	struct list drain; /* in order.drain */
	char *type, *id;   /* the aggregate's name, owned; NULL: there is none to be made */
	size_t type_len, id_len;
	struct place walk;     /* how far it has come */
	int64_t walk_after_us; /* the next page is due then in any case */
	unsigned released;     /* by the last page, and not claimed yet */
	bool waits;            /* for another owner's row */
};

struct barred {
	uint64_t hash; /* 0: slot free */
	uint64_t rows : 62;
	uint64_t headed : 1; /* see barred_load() */
	uint64_t walked : 1; /* see barred_walked() */
};

struct order {
	uint64_t seed;
	struct lane **buckets;
	size_t bucket_mask;
	size_t lane_count;
	struct barred *slots;
	size_t slot_mask;
	size_t barred_count;
	struct list drain; /* lanes */
};

/* `window`: about how many lanes there will be at most. 0, or -1 without memory. */
int order_init(struct order *o, unsigned window, uint64_t seed);
void order_fini(struct order *o);

uint64_t order_hash(const struct order *o, struct slice type, struct slice id);

struct lane *lane_find(const struct order *o, uint64_t hash);
/* NULL without memory. */
struct lane *lane_get(struct order *o, uint64_t hash);
void lane_attach(struct lane *lane, struct event *ev);
/* The event leaves its lane; the lane goes if nothing needs it any more. */
void lane_detach(struct order *o, struct event *ev);
/* Asks for the release of the rows that wait behind this place; where that goes on already, it goes
 * on from where it is. 0, or -1 without memory. */
int lane_drain(struct order *o, struct lane *lane, struct slice type, struct slice id,
	struct place behind);
/* The row at this place waits as well: the walk must not have passed it. */
void lane_drain_from(struct lane *lane, struct place at);
bool lane_drains(const struct lane *lane);
void lane_drained(struct order *o, struct lane *lane);
/* Puts the event in its place among those queued, by (created_at, id). */
void lane_queue(struct lane *lane, struct event *ev);

/* Rows known to bar the aggregate. */
uint64_t barred_rows(const struct order *o, uint64_t hash);
/* 0, or -1 without memory. */
int barred_add(struct order *o, uint64_t hash);
/* The same, for what is read after the leader's lock was won. `heads`: it is neither being worked
 * on nor waiting for another row. */
int barred_load(struct order *o, uint64_t hash, bool heads);
/* Since rows were barred last, a walk behind what was passed has begun, and met nothing that bars
 * the rest: no row waits there. Whatever is counted all the same others have changed, or it stands
 * before what was passed. */
bool barred_walked(const struct order *o, uint64_t hash);
void barred_set_walked(struct order *o, uint64_t hash, bool walked);
/* Of its rows none `heads`: what waits there may wait for nothing. */
bool barred_headless(const struct order *o, uint64_t hash);
void barred_sub(struct order *o, uint64_t hash, uint64_t rows);
void barred_clear(struct order *o);

#endif

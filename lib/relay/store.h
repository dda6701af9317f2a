/* store.h: a source's outbox table as the relay sees it; the port that lib/mysql implements for
 * real and the simulation implements with a fake.
 *
 * All calls block, bounded by the source's connect_timeout and query_timeout, and come from the
 * relay's thread only; settle_begin() alone leaves the waiting to the caller. Each write is one
 * short transaction of its own, fenced: it names the rows, the owner and the state, and what
 * matches no row was lost to another relay. Times in the table are the database's; spans of time go
 * in as microseconds.
 *
 * Error kinds: ERR_LINK: the connection is finished, close() and connect() again; ERR_RETRY: rolled
 * back (deadlock, lock wait), the connection is good; ERR_CONFIG: the schema, a privilege or the
 * account is at fault; ERR_NOMEM. After any -1 from a write the rows are as they were, except where
 * the outcome of COMMIT itself is unknown. */
#ifndef OUTBOXD_STORE_H
#define OUTBOXD_STORE_H

#include "base/err.h"
#include "base/place.h"
#include "message/row.h"

#include <stdbool.h>

/* What last_error of a row that waits begins with; the event_id of the head follows. */
#define WAITING_BEHIND "WAITING: behind "

/* The classes of claimable rows; each is a statement of its own. */
enum row_class {
	ROW_FRESH,   /* PENDING, next_retry_at NULL */
	ROW_DUE,     /* PENDING, next_retry_at reached: held for a while, and now back */
	ROW_RETRY,   /* RETRY, next_retry_at NULL or reached */
	ROW_EXPIRED, /* PROCESSING under another owner, lease over, or without owner or lease */
	ROW_CLASSES,
};

/* What an idle poll sees, in one plain SELECT without a transaction. */
struct store_look {
	bool leads;               /* this connection holds the source's lock; unordered: true */
	bool exists[ROW_CLASSES]; /* ROW_EXPIRED only if asked for */
	int64_t next_due_us;      /* until the next delayed row is due; TIME_NEVER: none */
	int64_t now_us;           /* the database's clock, microseconds since 1970 UTC */
};

struct claim_spec {
	unsigned limit[ROW_CLASSES]; /* at most so many of each; 0: the class is not looked at */
	unsigned total;              /* at most so many in all; RETRY, DUE, EXPIRED, then FRESH */
	int64_t lease_us;
	int64_t since_us; /* ROW_FRESH only from this created_at on; 0: all */
	bool nowait; /* of ROW_FRESH none is skipped: where somebody has locked one, the claim is
			refused; without, ordered sources pay for knowing whom they skip */
};

/* Takes the claimed rows one by one; *row is valid during the call only. `takeovers` is how many
 * times in a row the row's lease has expired under its owners, this time included; 0 unless the
 * class is ROW_EXPIRED. 0: taken. 1: no room for it: neither this row nor any that follows is
 * claimed. -1: the claim rolls back. */
struct row_sink {
	int (*row)(void *arg, enum row_class class, const struct row *row, unsigned takeovers);
	/* Ordered sources: a row that sorts before the last FRESH one taken, but that somebody else
	 * has locked just now, so that it was skipped: its aggregate must wait. */
	int (*skipped)(void *arg, const struct row *key);
	/* NULL, or called every few milliseconds while the server is at work: broker and
	 * second session need not wait for it. Nothing is decided yet of the rows that were taken.
	 * Of the store it may call settle_begin() and settle_end(). */
	void (*meanwhile)(void *arg);
	void *arg;
};

enum settle_kind {
	SETTLE_SENT,    /* confirmed */
	SETTLE_RETRY,   /* charged: retry_count as given, due after delay_us */
	SETTLE_DEAD,    /* retry_count as given */
	SETTLE_RELEASE, /* never sent: PENDING or RETRY by its retry_count, the rest as it was */
	SETTLE_HOLD,    /* like RELEASE, but not before delay_us, for the reason in `error` */
};

struct settle {
	uint64_t id;
	enum settle_kind kind;
	uint32_t retry_count; /* to be written: RETRY and DEAD */
	int64_t delay_us;     /* RETRY and HOLD: next_retry_at = now + delay_us */
	const char *error;    /* "CLASS: words": RETRY, DEAD, HOLD; cut to 1,024 characters */
	bool again;           /* may stand already from an earlier try: then it is no loss */
	bool lost;            /* out: no row matched owner and state */
	bool left; /* out: ours, and as it was: somebody has it locked, or it is refused */
};

/* What renew() came to. */
enum lease_fate {
	LEASE_RENEWED,
	LEASE_LOST,
	LEASE_LOCKED, /* as it was: somebody has the row locked */
};

enum order_head {
	HEAD_READY,      /* PENDING or RETRY, and due: but somebody has locked it just now */
	HEAD_RETRY,      /* charged; it goes again when it is due */
	HEAD_WAITING,    /* waits itself, behind another one */
	HEAD_DELAYED,    /* PENDING with next_retry_at, not because it waits */
	HEAD_PROCESSING, /* another owner's */
	HEAD_OWNED,      /* PROCESSING under this very owner */
	HEAD_DEAD,       /* only an operator moves it */
};

/* The place of a row in its aggregate's order, and what stands before it. */
struct order_probe {
	struct place at;
	struct slice aggregate_type, aggregate_id;
	bool look_behind; /* is it overtaken? */
	/* out: the nearest earlier row of the aggregate that is neither SENT nor passed by */
	struct place head_at;   /* id 0: none, the way is free */
	char head_event_id[65]; /* its event_id; where it waits itself, that of the row it waits for
				 */
	enum order_head head;   /* what it is */
	int64_t head_due_us;    /* until it can be claimed; 0: now; TIME_NEVER: not by itself */
	bool overtaken;         /* look_behind: a later row of the aggregate has been sent */
};

/* Along the rows of an aggregate, in their order: those that wait become claimable. The walk stops
 * before a row that bars what comes behind it. */
struct order_walk {
	struct slice aggregate_type, aggregate_id;
	unsigned limit;    /* at most so many are released in a call, and 1,000 looked at */
	struct place at;   /* in: from behind this place; out: the last row seen */
	unsigned released; /* out */
	unsigned fresh;    /* out: those of them that are ROW_FRESH now; the others are ROW_RETRY */
	bool ended;        /* out: the aggregate has no more rows */
	bool barred;       /* out: such a row was met: DEAD, RETRY, delayed for a reason of its own,
			      another owner's */
	enum order_head by; /* barred: what it is, and how long until it can be claimed */
	int64_t due_us;
};

/* Where a page of barred() ended; opaque to the relay. */
struct barred_cursor {
	unsigned stage;
	bool started;
	char next_retry_at[32], created_at[32];
	uint64_t id;
};

struct store;

struct store_ops {
	/* Connects, sets and verifies the session, reads the table's columns; then store->peer
	 * names the server for logs. */
	int (*connect)(struct store *s, struct err *e);
	/* Takes a store that is not connected; never blocks for long. */
	void (*close)(struct store *s);
	int (*look)(struct store *s, bool expired_too, struct store_look *out, struct err *e);
	/* Marks rows PROCESSING under the owner and hands them to the sink, each class in its own
	 * order: FRESH by (created_at, id). On -1 nothing may be published of what the sink got;
	 * *unknown tells that the rows may nevertheless stand as claimed, to be released once the
	 * database can be reached. ERR_AGAIN: an ordered source is led by another relay now;
	 * ERR_REFUSED: `nowait`, and somebody has locked a row. */
	int (*claim)(struct store *s, const struct claim_spec *spec, const struct row_sink *sink,
		bool *unknown, struct err *e);
	/* Any mixture of kinds in one transaction, ids ascending; in several where a row is
	 * refused. 0: all are written but those lost or left; where one is left that is refused, *e
	 * tells why. On -1 *unknown tells that some may be written: call again with `again` set. */
	int (*settle)(
		struct store *s, struct settle *list, size_t count, bool *unknown, struct err *e);
	/* Writes a batch of SENT beside: on a second session, opened when it is first wanted, so
	 * that other calls go on meanwhile. Ids ascending. 0: under way, settle_end() tells how it
	 * went, and there is no second one until then. -1: nothing was written. */
	int (*settle_begin)(struct store *s, const uint64_t *ids, size_t count, struct err *e);
	/* 1: not answered yet. 0: all of them are written. -1: some may be: settle() finds out,
	 * with `again` set. Never blocks for long. */
	int (*settle_end)(struct store *s, struct err *e);
	/* Readable when settle_end() has something to tell; -1: there is no such thing. */
	int (*settle_fd)(const struct store *s);
	/* locked_until = now + lease for rows still PROCESSING under the owner; out: what became of
	 * each. Ids ascending. */
	int (*renew)(struct store *s, const uint64_t *ids, enum lease_fate *out, size_t count,
		int64_t lease_us, struct err *e);

	/* Ordered sources only. */

	/* Fills the out part of each probe. `pass_dead`: DEAD rows bar nobody; those of class
	 * SKIPPED never do. */
	int (*predecessors)(struct store *s, struct order_probe *list, size_t count, bool pass_dead,
		struct err *e);
	/* A page of the walk, in one short transaction; then *w tells how far it came. On -1 *w is
	 * as it was, though rows may have been released. */
	int (*release_waiting)(
		struct store *s, struct order_walk *w, bool pass_dead, struct err *e);
	/* Reports every row that may bar its aggregate: RETRY, delayed PENDING, PROCESSING, and
	 * DEAD unless `pass_dead`. PROCESSING comes first: while pages are read, the relay that led
	 * before may still move its rows from there to any of the others. Delayed PENDING rows come
	 * last. `heads`: it waits for no other row, and nobody is at work on it. In pages: call
	 * with *cursor zeroed, again while *more. */
	int (*barred)(struct store *s, bool pass_dead, struct barred_cursor *cursor, bool *more,
		void (*row)(void *arg, const struct row *key, enum order_head what), void *arg,
		struct err *e);
	/* The place of the last row, in the order of all, that has been sent, those dated in the
	 * future apart; id 0: none. */
	int (*last_sent)(struct store *s, struct place *out, struct err *e);
	void (*free)(struct store *s);
};

struct store {
	const struct store_ops *ops;
	char peer[160]; /* "db1:3306 (8.0.36)", empty until the first connect */
};

#endif

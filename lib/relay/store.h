/* store.h: a source's outbox table as the relay sees it; the port that lib/mysql implements for
 * real and the simulation implements with a fake.
 *
 * All calls block, bounded by the source's connect_timeout and query_timeout, and come from the
 * relay's thread only. Each write is one short transaction of its own, fenced: it names the rows,
 * the owner and the state, and what matches no row was lost to another relay. Times in the table
 * are the database's; spans of time go in as microseconds.
 *
 * Error kinds: ERR_LINK: the connection is finished, close() and connect() again; ERR_RETRY: rolled
 * back (deadlock, lock wait, read-only for a moment), the connection is good; ERR_CONFIG: the
 * schema, a privilege or the account is at fault; ERR_NOMEM. After any -1 from a write the rows are
 * as they were, except where the outcome of COMMIT itself is unknown. */
#ifndef OUTBOXD_STORE_H
#define OUTBOXD_STORE_H

#include "base/err.h"
#include "message/row.h"

#include <stdbool.h>

/* The classes of claimable rows; each is a statement of its own. */
enum row_class {
	ROW_FRESH,   /* PENDING, next_retry_at NULL */
	ROW_DUE,     /* PENDING, next_retry_at reached: released with a delay, or held behind a head
			that moved */
	ROW_RETRY,   /* RETRY, next_retry_at NULL or reached */
	ROW_EXPIRED, /* PROCESSING, lease over, or without owner or lease */
	ROW_CLASSES,
};

/* What an idle poll sees, in one plain SELECT without a transaction. */
struct store_look {
	bool leads; /* ordered sources: this connection holds the source's lock; others: true */
	bool exists[ROW_CLASSES]; /* ROW_EXPIRED only if asked for */
	int64_t next_due_us; /* until the next row not yet due becomes due; TIME_NEVER if there is
				none */
};

struct claim_spec {
	unsigned limit[ROW_CLASSES]; /* at most so many rows of each class; 0: the class is not
					looked at */
	unsigned total; /* at most so many rows in all; taken RETRY, DUE, EXPIRED, FRESH */
	int64_t lease_us;
};

/* Takes the claimed rows one by one; *row is valid during the call only. `takeovers` is how many
 * times in a row the row's lease has expired under its owners, this time included; 0 unless the
 * class is ROW_EXPIRED. Returning -1 (out of memory) makes the claim roll back. */
struct row_sink {
	int (*row)(void *arg, enum row_class class, const struct row *row, unsigned takeovers);
	void *arg;
};

enum settle_kind {
	SETTLE_SENT,    /* confirmed */
	SETTLE_RETRY,   /* charged: retry_count + 1, due after delay_us */
	SETTLE_DEAD,    /* retry_count as given */
	SETTLE_RELEASE, /* never sent: back to PENDING or RETRY by its retry_count, nothing else
			   changed */
};

struct settle {
	uint64_t id;
	enum settle_kind kind;
	uint32_t retry_count; /* to be written, RETRY and DEAD */
	int64_t delay_us;     /* RETRY */
	const char
		*error; /* "CLASS: words", RETRY and DEAD; cut to the column's 1,024 characters */
	bool again; /* an earlier try may have been committed: what already stands as wanted is no
		       loss */
	bool lost;  /* out: no row matched owner and state */
};

struct store;

struct store_ops {
	/* Connects, sets and verifies the session, reads the table's columns. `name_and_address` of
	 * the server is then in store->peer for logs. */
	int (*connect)(struct store *s, struct err *e);
	void (*close)(
		struct store *s); /* takes a store that is not connected, never blocks for long */
	int (*look)(struct store *s, bool expired_too, struct store_look *out, struct err *e);
	/* Marks rows PROCESSING under the owner and hands them to the sink, each class in its own
	 * order: FRESH by (created_at, id). On -1 nothing may be published of what the sink got;
	 * *unknown tells that the rows may nevertheless stand as claimed, to be released when the
	 * database can be reached. */
	int (*claim)(struct store *s, const struct claim_spec *spec, const struct row_sink *sink,
		bool *unknown, struct err *e);
	/* Any mixture of kinds in one transaction, ids ascending. On -1 *unknown tells that COMMIT
	 * itself may have worked: call again with `again` set. */
	int (*settle)(
		struct store *s, struct settle *list, size_t count, bool *unknown, struct err *e);
	/* locked_until = now + lease for rows still PROCESSING under the owner; lost[i] tells those
	 * that are not. Ids ascending. */
	int (*renew)(struct store *s, const uint64_t *ids, bool *lost, size_t count,
		int64_t lease_us, struct err *e);
	void (*free)(struct store *s);
};

struct store {
	const struct store_ops *ops;
	char peer[160]; /* "db1:3306 (8.0.36)", empty until the first connect */
};

#endif

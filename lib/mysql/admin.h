/* admin.h: what the administrative commands ask of a source's table, and change in it. A connection
 * of its own beside any relay's; reads are plain and take no lock, but for admin_locked(). Every
 * change is a short transaction that locks the rows it names, looks at them again, and writes only
 * those that still are what they were when somebody decided about them: a relay at work is never
 * contradicted. */
#ifndef OUTBOXD_MYSQL_ADMIN_H
#define OUTBOXD_MYSQL_ADMIN_H

#include "mysql/gauges.h"
#include "mysql/store_impl.h"
#include "relay/store.h"

struct admin {
	const struct source_conf *conf;
	struct session *session;
	struct outbox_table table;
	char lock[LOCK_NAME_MAX];
	struct buf text;
};

/* Connects and reads the table. `conf` and the extra columns (for admin_preview()) are borrowed;
 * `program` names the command to the server. On -1 *a need not be closed. */
int admin_open(struct admin *a, const struct source_conf *conf, const char *const *extra,
	size_t extra_count, const char *program, struct err *e) MUST_CHECK;
/* The same for another table of that database: the archive. */
int admin_open_table(struct admin *a, const struct source_conf *conf, const char *table,
	const char *const *extra, size_t extra_count, const char *program,
	struct err *e) MUST_CHECK;
void admin_close(struct admin *a); /* takes a zero-initialised one */

/* --- looking -------------------------------------------------------------------------------- */

/* A row of some answer; values live during the call. -1 with *e: no more. */
struct admin_sink {
	int (*row)(void *arg, const struct slice *values, unsigned count, struct err *e);
	void *arg;
};

int admin_sample(struct admin *a, struct table_sample *out, struct err *e) MUST_CHECK;

/* Who leads an ordered source. */
struct admin_leader {
	uint64_t connection; /* of the session that holds the source's lock; 0: nobody */
	char owner[129];     /* the relay's name, and */
	char from[120];      /* its address: where the account may know them; else empty */
};
int admin_leader(struct admin *a, struct admin_leader *out, struct err *e) MUST_CHECK;

/* Who holds leases: owner or NULL, rows, how many of them expired, microseconds the longest has
 * left. */
int admin_holders(
	struct admin *a, unsigned limit, const struct admin_sink *sink, struct err *e) MUST_CHECK;

/* DEAD rows that bar their aggregate, the oldest first: event_id, aggregate_type, aggregate_id,
 * last_error, created_at. Of one aggregate there may be several. */
int admin_blocking(
	struct admin *a, unsigned limit, const struct admin_sink *sink, struct err *e) MUST_CHECK;

struct admin_filter {
	const char *status;                        /* NULL: any */
	const char *class;                         /* NULL: any */
	struct slice aggregate_type, aggregate_id; /* ptr NULL: any */
	const char *trace_id;                      /* NULL: any */
	unsigned limit;
	bool payload;
};
#define ADMIN_COLUMNS_MAX 24
/* The columns of admin_list(), in its order; returns how many. */
unsigned admin_columns(
	const struct admin *a, bool payload, const char *names[static ADMIN_COLUMNS_MAX]);
/* Rows as they stand, in an order that an index gives: unsent ones by state, SENT ones the newest
 * first, those of one aggregate in its order. */
int admin_list(struct admin *a, const struct admin_filter *f, const struct admin_sink *sink,
	struct err *e) MUST_CHECK;

/* One row, by itself. Zero-initialised is valid. */
struct admin_row {
	uint64_t id;
	int64_t created_us;
	char *event_id, *aggregate_type, *aggregate_id, *last_error; /* owned; NULL: NULL */
	char status[33], owner[140];
	char state[11]; /* the status the relay takes it for; empty: none that it knows */
	uint32_t retry_count;
	char created_at[32], next_retry_at[32], locked_until[32], sent_at[32]; /* empty: NULL */
	int64_t due_in_us;     /* until next_retry_at; negative: since */
	int64_t lease_left_us; /* until locked_until; negative: since */
	bool has_owner;
};
void admin_row_fini(struct admin_row *r);
/* id 0: not found. */
int admin_find(
	struct admin *a, const char *event_id, struct admin_row *out, struct err *e) MUST_CHECK;

/* The row an aggregate really waits for: the first unsent one before this one that is not passed
 * by. id 0: none, the way is free. *between: unsent rows from there on, before this one. */
int admin_head(struct admin *a, const struct admin_row *row, struct admin_row *head,
	uint64_t *between, struct err *e) MUST_CHECK;

/* Some other transaction has the row locked, and for longer than a claim takes. Waits for no lock
 * and keeps none; false, too, where the account or the server cannot tell. */
int admin_locked(struct admin *a, uint64_t id, bool *out, struct err *e) MUST_CHECK;

/* A later event of its aggregate is SENT: this one would come after it. */
int admin_overtaken(
	struct admin *a, const struct admin_row *row, bool *out, struct err *e) MUST_CHECK;

/* FRESH rows that are claimed before this one; counted up to ADMIN_BACKLOG_MAX. */
#define ADMIN_BACKLOG_MAX 100000
int admin_backlog(
	struct admin *a, const struct admin_row *row, uint64_t *out, struct err *e) MUST_CHECK;

/* The rows that the next claim would take, or as many of them as there are up to `limit`, as it
 * would read them. *row lives during the call. */
int admin_preview(struct admin *a, unsigned limit,
	int (*row)(void *arg, enum row_class class, const struct row *row, struct err *e),
	void *arg, struct err *e) MUST_CHECK;

/* DEAD of class SKIPPED. */
bool admin_is_skipped(const struct admin_row *row);
/* A relay holds it, and its lease is not over. */
bool admin_is_leased(const struct admin_row *row);

/* --- sent rows, to be replayed ----------------------------------------------------------------
 *
 * Walked in the order (created_at, id), page by page from the place of the last row looked at, by
 * an index that gives this order: that of the aggregate where one is named, else the claim index,
 * in which the SENT rows are one range. So a page costs the same wherever it lies. */

struct sent_filter {
	int64_t since_us,
		until_us;       /* of sent_at, the latter exclusive; INT64_MIN, INT64_MAX: any */
	const char *event_type; /* NULL: any */
	struct slice aggregate_type, aggregate_id; /* ptr NULL: any */
};

/* Where the producer writes created_at itself: it may be as much later than sent_at. What is
 * further ahead is not found by until_us. */
#define SENT_SLACK_US (INT64_C(24) * 3600 * US_PER_SEC)

struct sent_key {
	int64_t created_us;
	uint64_t id;
	int64_t age_us; /* since sent_at; INT64_MAX: nobody knows */
	char status[33];
};

/* Zero-initialised: at the beginning. */
struct sent_walk {
	bool begun, ended;
	int64_t created_us;
	uint64_t id;
};

/* The next rows that match, at most `room` looked at: `*count` may be 0 before the end. */
int admin_sent_page(struct admin *a, const struct sent_filter *f, struct sent_walk *walk,
	struct sent_key *out, size_t room, size_t *count, struct err *e) MUST_CHECK;

/* One row, whatever its status; id 0: there is none. */
int admin_sent_named(
	struct admin *a, const char *event_id, struct sent_key *out, struct err *e) MUST_CHECK;
int admin_sent_place(struct admin *a, uint64_t id, struct sent_key *out, struct err *e) MUST_CHECK;

/* Rows that are SENT and have a next_retry_at all the same, as no relay leaves them: pages by the
 * claim index pass them by. */
int admin_sent_strays(struct admin *a, bool *out, struct err *e) MUST_CHECK;

/* These rows, at most SQL_IDS_MAX, in no particular order; without those that are not SENT any
 * more. *row lives during the call. */
int admin_sent_rows(struct admin *a, const struct sent_key *keys, size_t count,
	int (*row)(void *arg, const struct row *row, struct err *e), void *arg,
	struct err *e) MUST_CHECK;

/* --- changing ------------------------------------------------------------------------------- */

struct admin_key {
	int64_t created_us;
	uint64_t id;
};
struct admin_keys {
	struct admin_key *list;
	size_t count, cap;
};
void admin_keys_fini(struct admin_keys *k);

/* What may be requeued: rows of this status ("DEAD", "RETRY") and, unless NULL, class; SKIPPED ones
 * only where they are meant. */
struct admin_pick {
	const char *status, *class;
	bool skipped_too;
};

/* Adds all of them, sorted by (created_at, id). */
int admin_pick_all(struct admin *a, const struct admin_pick *pick, struct admin_keys *out,
	struct err *e) MUST_CHECK;

enum admin_outcome {
	ADMIN_CHANGED,
	ADMIN_UNKNOWN, /* there is no such row (any more) */
	ADMIN_STATE,   /* its state or class is not what was asked for (any more) */
	ADMIN_LEASED,  /* a relay holds it */
	ADMIN_SENT,
	ADMIN_OVERTAKEN, /* a later event of its aggregate is SENT: only with force */
	ADMIN_ALREADY,   /* it was so before */
	ADMIN_OUTCOMES,
};

struct admin_change {
	bool force, dry_run;
	/* Once for each row, after the transaction is over. */
	void (*done)(void *arg, const struct admin_row *before, enum admin_outcome how);
	void *arg;
	uint64_t released; /* out: rows behind them that need not wait any more; added up */
};

/* At most so many rows in one transaction of admin_requeue(). */
#define ADMIN_BATCH 100
/* These rows become PENDING with a fresh budget, and the first of those that wait right behind them
 * claimable; the relay sees to the rest once these are sent. On -1 nothing was changed, except that
 * *unknown tells of a COMMIT without an answer. Deadlocks and the like are tried again. */
int admin_requeue(struct admin *a, const struct admin_pick *pick, const struct admin_key *keys,
	size_t count, struct admin_change *change, bool *unknown, struct err *e) MUST_CHECK;

/* The row becomes DEAD for good and passes its aggregate. */
int admin_skip(struct admin *a, const char *event_id, const char *reason,
	struct admin_change *change, bool *unknown, struct err *e) MUST_CHECK;

#endif

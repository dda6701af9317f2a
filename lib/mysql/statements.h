/* statements.h: the text of every statement the relay runs. Pure: text goes into a buffer, nothing
 * is sent. A failed allocation shows as buf->failed, to be looked at once at the end.
 *
 * Each class of claimable rows is a statement of its own that reads the claim index (status,
 * next_retry_at, created_at) in index order, so that its cost is that of the rows it returns.
 * Writes address primary keys, ascending, at most SQL_IDS_MAX in a statement: with more, or without
 * FORCE INDEX (PRIMARY), the optimizer changes over to the claim index and a temporary table. */
#ifndef OUTBOXD_MYSQL_STATEMENTS_H
#define OUTBOXD_MYSQL_STATEMENTS_H

#include "base/buf.h"
#include "relay/store.h"

#define SQL_IDS_MAX 500
#define SQL_ERROR_CHARS 1024

enum time_column { TIME_CREATED, TIME_NEXT_RETRY, TIME_LOCKED, TIME_SENT, TIME_COLUMNS };

enum optional_column {
	OPTIONAL_AGGREGATE_VERSION,
	OPTIONAL_TRACE_ID,
	OPTIONAL_TRACEPARENT,
	OPTIONAL_TRACESTATE,
	OPTIONAL_HEADERS,
	OPTIONAL_COLUMNS,
};

extern const char *const time_column_name[TIME_COLUMNS];
extern const char *const optional_column_name[OPTIONAL_COLUMNS];

/* What characters a column can hold. */
enum repertoire { REPERTOIRE_ASCII, REPERTOIRE_BMP, REPERTOIRE_UNICODE };

/* An outbox table as it was found. Names are quoted already. */
struct outbox_table {
	char name[600];            /* `shop`.`outbox_event` */
	char claim_index[300];     /* `idx_outbox_claim` */
	char aggregate_index[300]; /* empty: there is none */
	bool aggregate_binary[2];  /* aggregate_type, aggregate_id: bytes, not text */
	bool id_signed;
	bool payload_json;               /* of MySQL's type JSON, not text */
	unsigned fraction[TIME_COLUMNS]; /* digits of the second, 0 to 6 */
	bool on_update[TIME_COLUMNS];    /* moves with every UPDATE unless told otherwise */
	bool has[OPTIONAL_COLUMNS];
	const char *const *extra; /* names of further columns to be read */
	size_t extra_count;
	size_t error_chars; /* length of last_error, at most SQL_ERROR_CHARS */
	enum repertoire error_repertoire;
	bool delete_sent; /* wanted: what is sent is deleted instead of marked */
};

/* Where a value stands in a row of sql_claim_select(). Optional columns follow in the order of
 * their enumeration, those the table has; then the extra ones; then, for ROW_EXPIRED, locked_by. */
enum claim_value {
	CLAIM_ID,
	CLAIM_CREATED,
	CLAIM_RETRY_COUNT,
	CLAIM_EVENT_ID,
	CLAIM_AGGREGATE_TYPE,
	CLAIM_AGGREGATE_ID,
	CLAIM_EVENT_TYPE,
	CLAIM_PAYLOAD,
	CLAIM_LAST_ERROR,
	CLAIM_VALUES,
};

/* Where a value stands in the row of sql_look(); sql_assert() gives the first four. */
enum look_value {
	LOOK_CONNECTION,
	LOOK_ZONE,
	LOOK_ISOLATION,
	LOOK_LEADS,
	LOOK_READ_ONLY,
	LOOK_NOW,
	LOOK_EXISTS,
	LOOK_DUE_PENDING = LOOK_EXISTS + ROW_CLASSES,
	LOOK_DUE_RETRY,
	LOOK_VALUES,
};

/* `name`, backticks inside doubled; false if it does not fit. */
bool sql_quote_name(char *out, size_t size, const char *name);
bool sql_table_name(char *out, size_t size, const char *schema, const char *table);
void sql_add_name(struct buf *b, const char *name);
void sql_add_id(struct buf *b, const struct outbox_table *t, uint64_t id);
/* `id` IN (...) */
void sql_add_ids(struct buf *b, const struct outbox_table *t, const uint64_t *ids, size_t count);
/* These rows as `o`, to select from or delete from, each found by its primary key and no other
 * touched. With IN (...) a DELETE reads, and waits for, every row of the table where that looks
 * cheaper, whatever index is forced. */
void sql_add_rows(struct buf *b, const struct outbox_table *t, const uint64_t *ids, size_t count);

/* A time as a literal, 'YYYY-MM-DD hh:mm:ss.ffffff' in UTC. */
void sql_add_time(struct buf *b, int64_t us);

/* 'text', for a session whose character set is utf8mb4 and whose sql_mode lacks
 * NO_BACKSLASH_ESCAPES: no byte of a UTF-8 sequence is special. */
void sql_add_string(struct buf *b, struct slice text);

/* The same of an error text: cut to the column's length in characters, whatever it cannot hold
 * replaced, so that a settle never fails over its wording. */
void sql_add_error(struct buf *b, const struct outbox_table *t, const char *text);

/* The session's promises, asked again: connection id, time zone, isolation, leadership. `lock` is
 * the name of the source's lock, NULL without; `isolation` the name of the variable. */
void sql_assert(struct buf *b, const char *isolation, const char *lock);

/* The idle poll: one plain SELECT. Takes the lock if it is free. */
void sql_look(struct buf *b, const struct outbox_table *t, const char *owner, const char *isolation,
	const char *lock, bool expired_too);

/* One class of rows. `since_us` bounds created_at of ROW_FRESH from below, here and in what
 * follows; 0: no bound. */
void sql_claim_select(struct buf *b, const struct outbox_table *t, const char *owner,
	enum row_class class, unsigned limit, int64_t since_us);
/* The end of it: the rows are locked. Those that others have locked are left out, or, `nowait`, one
 * is enough for the statement to fail. */
void sql_lock_rows(struct buf *b, bool nowait);

/* The same values of those of these rows that are SENT, in the order of their ids; at most
 * SQL_IDS_MAX ids. */
void sql_events(struct buf *b, const struct outbox_table *t, const uint64_t *ids, size_t count);

/* Id and created_at of the first FRESH rows, in their order, locked or not: from the index alone.
 */
void sql_fresh_keys(struct buf *b, const struct outbox_table *t, unsigned limit, int64_t since_us);

/* Id, created_at, event_id, aggregate_type, aggregate_id of those of these rows that are not SENT.
 */
void sql_keys(struct buf *b, const struct outbox_table *t, const uint64_t *ids, size_t count);

/* Marks rows just selected: `owner` is quoted already. At most SQL_IDS_MAX ids. */
void sql_claim_update(struct buf *b, const struct outbox_table *t, const char *owner,
	int64_t lease_us, const uint64_t *ids, size_t count);

/* The same for rows whose lease has expired: last_error says how often and from whom. */
struct takeover {
	uint64_t id;
	unsigned times;
	char from[140]; /* the former owner, empty if there was none */
};
void sql_takeover_update(struct buf *b, const struct outbox_table *t, const char *owner,
	int64_t lease_us, const struct takeover *list, size_t count);

/* Writes back `count` settles of one kind, at most SQL_IDS_MAX, fenced by owner and state; deletes
 * the rows where they are SENT and the table wants that. */
void sql_settle(struct buf *b, const struct outbox_table *t, const char *owner,
	enum settle_kind kind, const struct settle *const *list, size_t count);

void sql_renew(struct buf *b, const struct outbox_table *t, const char *owner, int64_t lease_us,
	const uint64_t *ids, size_t count);

/* Who has these rows: id, whether state and owner are ours, status, retry_count. */
void sql_held(struct buf *b, const struct outbox_table *t, const char *owner, const uint64_t *ids,
	size_t count);

#endif

/* statements_order.h: the statements that keep the order of aggregates. Pure, like statements.h.
 * Aggregates are found through the index on (aggregate_type, aggregate_id, created_at), whose
 * collation may make different ones equal, and told apart by their bytes. */
#ifndef OUTBOXD_MYSQL_STATEMENTS_ORDER_H
#define OUTBOXD_MYSQL_STATEMENTS_ORDER_H

#include "mysql/statements.h"

/* A time as a literal, 'YYYY-MM-DD hh:mm:ss.ffffff' in UTC. */
void sql_add_time(struct buf *b, int64_t us);

/* The condition that a row is of this aggregate: first what the index can use, then the same by
 * bytes. */
void sql_add_aggregate(
	struct buf *b, const struct outbox_table *t, struct slice type, struct slice id);

/* Where a value stands in a row of sql_before(). */
enum before_value {
	BEFORE_ID,
	BEFORE_CREATED,
	BEFORE_EVENT_ID,
	BEFORE_STATUS,
	BEFORE_SKIPPED,
	BEFORE_OWNED,
	BEFORE_RETRY_IN,
	BEFORE_LEASE_LEFT,
	BEFORE_WAITING, /* behind a head: delayed, and last_error says so */
};

/* The rows of an aggregate just before a place in its order, the nearest first. */
void sql_before(struct buf *b, const struct outbox_table *t, const char *owner,
	struct slice aggregate_type, struct slice aggregate_id, int64_t created_us, uint64_t id,
	unsigned limit);
/* The last rows of an aggregate, the last first. */
void sql_last(struct buf *b, const struct outbox_table *t, const char *owner,
	struct slice aggregate_type, struct slice aggregate_id, unsigned limit);

/* Waiting rows become claimable at once; at most SQL_IDS_MAX. */
void sql_release_waiting(
	struct buf *b, const struct outbox_table *t, const uint64_t *ids, size_t count);

/* Stages of reading all rows that may bar their aggregate, each a range of the claim index. */
#define SQL_BARRED_STAGES 6
/* One page of a stage, after the cursor's place: id, created_at, event_id, aggregate_type,
 * aggregate_id, next_retry_at. `stage` below SQL_BARRED_STAGES; the last ones are the DEAD rows,
 * from SQL_BARRED_DEAD on. */
#define SQL_BARRED_DEAD 5
void sql_barred(struct buf *b, const struct outbox_table *t, const struct barred_cursor *cursor,
	unsigned limit);

#endif

/* statements_order.h: the statements that keep the order of aggregates. Pure, like statements.h.
 * Aggregates are found through the index on (aggregate_type, aggregate_id, created_at), whose
 * collation may make different ones equal, and told apart by their bytes. */
#ifndef OUTBOXD_MYSQL_STATEMENTS_ORDER_H
#define OUTBOXD_MYSQL_STATEMENTS_ORDER_H

#include "mysql/statements.h"

/* The condition that a row is of this aggregate: first what the index can use, then the same by
 * bytes. */
void sql_add_aggregate(
	struct buf *b, const struct outbox_table *t, struct slice type, struct slice id);

/* Where a value stands in a row of sql_before() and sql_behind(). */
enum walk_value {
	WALK_ID,
	WALK_CREATED,
	WALK_EVENT_ID,
	WALK_STATUS,
	WALK_SKIPPED,
	WALK_OWNED,
	WALK_DELAYED,
	WALK_RETRY_IN,
	WALK_LEASE_LEFT,
	WALK_BEHIND, /* the event_id it waits for; NULL unless it waits */
	WALK_VALUES,
};

/* The rows of an aggregate just before, or just behind, a place in its order, the nearest first. */
void sql_before(struct buf *b, const struct outbox_table *t, const char *owner,
	struct slice aggregate_type, struct slice aggregate_id, struct place at, unsigned limit);
void sql_behind(struct buf *b, const struct outbox_table *t, const char *owner,
	struct slice aggregate_type, struct slice aggregate_id, struct place at, unsigned limit);

/* Whether one of the next rows behind that place has been sent: 1 or NULL. A step, not a search:
 * where more than `limit` rows stand unsent behind it, it says no. */
void sql_overtaken(struct buf *b, const struct outbox_table *t, struct slice aggregate_type,
	struct slice aggregate_id, struct place at, unsigned limit);

/* Waiting rows become claimable at once; at most SQL_IDS_MAX. */
void sql_release_waiting(
	struct buf *b, const struct outbox_table *t, const uint64_t *ids, size_t count);

/* Stages of reading all rows that may bar their aggregate, each a range of the claim index. */
#define SQL_BARRED_STAGES 6
/* One page of a stage, after the cursor's place: id, created_at, event_id, aggregate_type,
 * aggregate_id, next_retry_at, last_error. `stage` below SQL_BARRED_STAGES; SQL_BARRED_DEAD reads
 * the DEAD rows. */
#define SQL_BARRED_DEAD 4
void sql_barred(struct buf *b, const struct outbox_table *t, const struct barred_cursor *cursor,
	unsigned limit);

/* What the rows of a stage are, those apart that wait. */
enum order_head sql_barred_head(unsigned stage);

/* id and created_at of the last row, in the order of all, that has been sent; those dated in the
 * future apart. */
void sql_last_sent(struct buf *b, const struct outbox_table *t);

#endif

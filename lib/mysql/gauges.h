/* gauges.h: how a source's table stands, counted. Each count reads one range of the claim index, at
 * most looking up the rows of a state that is small unless something is wrong; SENT rows are never
 * touched. Plain reads without locks, each bounded by query_timeout. */
#ifndef OUTBOXD_MYSQL_GAUGES_H
#define OUTBOXD_MYSQL_GAUGES_H

#include "config/config.h"
#include "mysql/session.h"
#include "mysql/statements.h"

/* A number that could not be had in time is -1; the others are as good as ever. Ages are
 * microseconds, 0 where there is no such row. */
struct table_sample {
	int64_t pending, retry, processing;
	int64_t dead;                /* without skipped */
	int64_t skipped;             /* DEAD of class SKIPPED */
	int64_t held;                /* of pending: waiting behind the head of their aggregate */
	int64_t blocked_aggregates;  /* with a DEAD row that bars them; 0 where none can */
	int64_t expired_leases;      /* of processing */
	int64_t oldest_unsent_us;    /* since created_at; DEAD apart */
	int64_t oldest_claimable_us; /* since it could be claimed: a delayed row counts from its
					next_retry_at, a lost one from the end of its lease */
	int64_t oldest_dead_us;      /* since created_at */
};

/* In one statement; where that takes too long, one for each count, with the session's time anew.
 * -1: nothing could be counted. */
int gauges_read(struct session *c, const struct outbox_table *t, const struct source_conf *conf,
	struct table_sample *out, struct err *e) MUST_CHECK;

/* Adds `"pending":1,...`, the inside of an object: counts, and ages in seconds, under the names
 * that `outboxd status --json` and /status give them; what is not known is null. NULL: all are
 * null. */
void gauges_add_json(struct buf *b, const struct table_sample *s);

/* The statements, for tests of their plans: 0 to GAUGES_STATEMENTS - 1. */
#define GAUGES_STATEMENTS 7
void sql_gauge(struct buf *b, const struct outbox_table *t, unsigned which);
/* Those of the set (bits) in one statement, each a row that begins with its number. */
void sql_gauges(struct buf *b, const struct outbox_table *t, unsigned set);

/* `column` (aggregate_type: 0, aggregate_id: 1) as bytes. */
void sql_add_aggregate_bytes(struct buf *b, const struct outbox_table *t, unsigned column);

#endif

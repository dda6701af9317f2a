/* row.h: one outbox row as read from the table. All slices are borrowed; ptr == NULL is SQL NULL or
 * a column the table does not have. Times are microseconds since 1970-01-01 UTC by the database's
 * clock. */
#ifndef OUTBOXD_ROW_H
#define OUTBOXD_ROW_H

#include "base/slice.h"

#include <stdbool.h>

/* Columns that a {column:NAME} template names beyond the known ones, in the order of the route's
 * list. */
#define ROW_EXTRA_MAX 16

struct row {
	uint64_t id;
	int64_t created_us;
	uint32_t retry_count;
	struct slice event_id;
	struct slice aggregate_type;
	struct slice aggregate_id;
	struct slice event_type;
	struct slice payload; /* the column's bytes, untouched */
	bool payload_cut;     /* the server did not give it: larger than its max_allowed_packet */
	struct slice last_error;
	/* optional columns */
	struct slice aggregate_version;
	struct slice trace_id;
	struct slice traceparent;
	struct slice tracestate;
	struct slice headers;      /* JSON text */
	const struct slice *extra; /* as many as the route asked for; NULL when it asked for none */
};

#endif

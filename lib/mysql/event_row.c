#include "mysql/event_row.h"

#include "mysql/values.h"

int event_row_read(const struct outbox_table *t, const struct slice *v, struct row *out,
	struct slice *extra, struct err *e)
{
	struct slice *const optional[OPTIONAL_COLUMNS] = {
		[OPTIONAL_AGGREGATE_VERSION] = &out->aggregate_version,
		[OPTIONAL_TRACE_ID] = &out->trace_id,
		[OPTIONAL_TRACEPARENT] = &out->traceparent,
		[OPTIONAL_TRACESTATE] = &out->tracestate,
		[OPTIONAL_HEADERS] = &out->headers,
	};
	unsigned at = CLAIM_VALUES;

	*out = (struct row){
		.created_us = value_time_us(v[CLAIM_CREATED]),
		.retry_count = value_count(v[CLAIM_RETRY_COUNT]),
		.event_id = v[CLAIM_EVENT_ID],
		.aggregate_type = v[CLAIM_AGGREGATE_TYPE],
		.aggregate_id = v[CLAIM_AGGREGATE_ID],
		.event_type = v[CLAIM_EVENT_TYPE],
		.payload = v[CLAIM_PAYLOAD],
		/* MySQL gives an empty text, and a warning, where a JSON value's text would exceed
		 * max_allowed_packet; no JSON value is that by itself. */
		.payload_cut = t->payload_json && v[CLAIM_PAYLOAD].ptr != NULL &&
			       v[CLAIM_PAYLOAD].len == 0,
		.last_error = v[CLAIM_LAST_ERROR],
		.extra = t->extra_count > 0 ? extra : NULL,
	};
	for (unsigned i = 0; i < OPTIONAL_COLUMNS; i++)
		if (t->has[i])
			*optional[i] = v[at++];
	for (size_t i = 0; i < t->extra_count; i++)
		extra[i] = v[at++];
	if (!value_id(v[CLAIM_ID], &out->id))
		return err_set(e, ERR_CONFIG, 0, "id is not an integer: %.*s",
			(int)(v[CLAIM_ID].len > 40 ? 40 : v[CLAIM_ID].len),
			v[CLAIM_ID].ptr != NULL ? v[CLAIM_ID].ptr : "NULL");
	return 0;
}

/* route.h: how rows of one source become messages: compiled templates and body format.
 *
 * A template is literal text with placeholders {event_id} {event_type} {aggregate_type}
 * {aggregate_id} {source} {column:NAME}; "{{" and "}}" stand for the braces themselves. Column
 * names know no case, as in MySQL. {column:payload} and the columns the relay itself writes
 * (status, retry_count, last_error, ...) are refused: the one has no limit, the others would make
 * the message of a second attempt another one.
 *
 * What columns may put into an exchange or a routing key: values go in as they are, dots, '*' and
 * '#' included (in a publish they are plain text). Refused per row (INVALID) are NULL, the empty
 * value and control characters, each of which would route somewhere else in silence, and a result
 * of more than 255 bytes or that is not UTF-8. An exchange is never empty, so nothing reaches the
 * broker's default exchange; a routing key may be, if its template is. In a header's value anything
 * goes; one whose template meets a NULL is left out of that message. */
#ifndef OUTBOXD_ROUTE_H
#define OUTBOXD_ROUTE_H

#include "base/buf.h"
#include "base/err.h"
#include "message/envelope.h"
#include "message/row.h"

#define ROUTE_SHORTSTR_MAX 255       /* bytes of exchange, routing key, header name, ... */
#define ROUTE_HEADERS_DEPTH_MAX 16   /* levels in a row's headers, the object itself being one */
#define ROUTE_PAYLOAD_DEPTH_MAX 1000 /* levels in a payload that goes into an envelope */

/* BODY_PAYLOAD: the payload column's bytes; SQL NULL is an empty body.
 * BODY_ENVELOPE: a JSON object around it, see envelope_build(); SQL NULL is "payload":null.
 * BODY_CLOUDEVENTS: as BODY_PAYLOAD, with the CloudEvents 1.0 attributes as cloudEvents_* headers.
 */
enum body_format { BODY_PAYLOAD, BODY_ENVELOPE, BODY_CLOUDEVENTS };

struct route_header {
	const char *name;
	const char *template;
};

/* What to compile; only borrowed during route_new(). */
struct route_conf {
	const char *source;
	const char *exchange;
	const char *routing_key;
	const struct route_header *headers;
	size_t header_count;
	enum body_format body;
	bool mandatory;
	bool persistent;
	uint64_t max_message_size; /* bytes of body */
	size_t max_header_bytes; /* of the encoded header table; the connection's frame_max decides
				  */
	const char *marker;      /* NULL, or a header set to true on every message:
				    "x-outboxd-replay", "x-outboxd-probe" */
};

struct route;

/* ERR_CONFIG says which of the templates is wrong, where and what is allowed. */
int route_new(struct route **out, const struct route_conf *conf, struct err *e) MUST_CHECK;
/* Takes NULL. Envelopes built with the route must not be used any more. */
void route_free(struct route *r);

/* Checks a template alone; the message says what is wrong and at which character. Used by the
 * configuration. Names that {column:NAME} may not take (payload) are refused here as well. */
int route_check_template(const char *template, struct err *e) MUST_CHECK;

/* Checks the name of a configured header: 1 to 255 bytes of UTF-8 without control characters, and
 * none that the relay sets on every message itself (aggregate_type, aggregate_id, source,
 * x-outboxd-*; with BODY_CLOUDEVENTS its cloudEvents_* ones). */
int route_check_header_name(const char *name, enum body_format body, struct err *e) MUST_CHECK;

/* The columns beyond the known ones that templates need: the store selects them, in this order,
 * into row.extra. Known columns (event_id, aggregate_version, ...) named by {column:...} are not
 * listed again. No name holds a backquote. */
size_t route_extra_columns(const struct route *r, const char *const **names);

/* True when the exchange is literal text ({source} counts as such): a missing exchange is then a
 * fault of the route, not of one row. */
bool route_exchange_fixed(const struct route *r);

/* Scratch memory for one envelope after another; zero-initialised is valid. It keeps what ordinary
 * rows need, so that these stop allocating, and gives the rest back at the next build or
 * envelope_arena_reset(). */
struct envelope_arena {
	struct buf text;      /* expanded templates, unescaped header strings */
	struct buf body;      /* of BODY_ENVELOPE */
	struct field *fields; /* header fields, nested ones too */
	size_t field_count, field_cap;
};
/* Forgets the last envelope and frees memory that an outlier made it take. */
void envelope_arena_reset(struct envelope_arena *a);
void envelope_arena_fini(struct envelope_arena *a);

/* Builds the message of `row` into *env. Overwrites what the arena held. 0; or -1 with kind
 * ERR_REFUSED and a text that starts with the failure class, "INVALID: ..." or "TOO_LARGE: ...",
 * naming the property, its length and its limit, never a value: such a row can never be published
 * as it is. -1 with ERR_NOMEM: nothing is wrong with the row. On -1 *env is untouched.
 *
 * The same row gives the same message at every attempt: nothing depends on retry_count, last_error
 * or a clock.
 *
 * Properties. message_id is event_id, neither NULL nor empty; type is event_type, absent when NULL.
 * Both: at most 255 bytes of UTF-8 without NUL. timestamp is created_at in seconds, 0 before 1970.
 *
 * Headers, first come first served, so that no name is there twice:
 * 1. what the relay sets: aggregate_type, aggregate_id, source; aggregate_version (an integer if it
 *    is the plain text of an int64), trace_id, traceparent, tracestate where the row has them;
 *    cloudEvents_*; the route's marker;
 * 2. the configured headers, always strings;
 * 3. the pairs of the row's `headers` object, except aggregate_type, aggregate_id, source and all
 *    that starts with x-outboxd- or cloudEvents_, whose names are the relay's even where it does
 *not use them. Of equal names within one object the last counts. A traceparent there passes if the
 *    table has no such column.
 * JSON in `headers` becomes: string FIELD_STRING (\u0000 included), true and false FIELD_BOOL, an
 * integer FIELD_INT, or FIELD_DOUBLE beyond int64, a number with fraction or exponent FIELD_DOUBLE,
 * list FIELD_ARRAY, object FIELD_TABLE; null is left out, in lists too. SQL NULL and a JSON null
 *are no headers. INVALID: what is not a JSON object, more than ROUTE_HEADERS_DEPTH_MAX levels, a
 *name over 255 bytes or with a NUL, half a surrogate pair, a number that no finite double can hold
 *(the broker can't read an infinity).
 *
 * The body of BODY_ENVELOPE, without blanks, absent values null:
 *	{"eventId":,"eventType":,"aggregateType":,"aggregateId":,"aggregateVersion":,
 *	 "occurredAt":,"traceId":,"payload":}
 * aggregateVersion is a number if it is the plain text of an integer, occurredAt is created_at in
 * RFC 3339, UTC, always six digits of microseconds. The payload's bytes are embedded untouched, and
 * INVALID if they are not JSON (RFC 8259) or nested beyond ROUTE_PAYLOAD_DEPTH_MAX levels.
 *
 * BODY_CLOUDEVENTS adds cloudEvents_specversion "1.0", _id, _type (an empty event_type is INVALID),
 * _source "/outboxd/SOURCE" (percent-encoded), _subject (aggregate_id), _time, _traceparent and
 * _tracestate; attributes whose column is NULL or empty are left out. */
int envelope_build(struct envelope *env, struct envelope_arena *a, const struct route *r,
	const struct row *row, struct err *e) MUST_CHECK;

#endif

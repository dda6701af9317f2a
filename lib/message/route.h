/* route.h: how rows of one source become messages: compiled templates and body format.
 *
 * A template is literal text with placeholders {event_id} {event_type} {aggregate_type}
 * {aggregate_id} {source} {column:NAME}; "{{" and "}}" stand for the braces themselves. */
#ifndef OUTBOXD_ROUTE_H
#define OUTBOXD_ROUTE_H

#include "base/buf.h"
#include "base/err.h"
#include "message/envelope.h"
#include "message/row.h"

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
};

struct route;

int route_new(struct route **out, const struct route_conf *conf, struct err *e) MUST_CHECK;
void route_free(struct route *r);

/* Checks a template alone; the message says what is wrong and at which character. Used by the
 * configuration. Names that {column:NAME} may not take (payload) are refused here as well. */
int route_check_template(const char *template, struct err *e) MUST_CHECK;

/* The columns beyond the known ones that templates need: the store selects them, in this order,
 * into row.extra. Known columns (event_id, aggregate_version, ...) named by {column:...} are not
 * listed again. */
size_t route_extra_columns(const struct route *r, const char *const **names);

/* True when the exchange is literal text: a missing exchange is then a fault of the route, not of
 * one row. */
bool route_exchange_fixed(const struct route *r);

/* Scratch memory for one envelope after another; zero-initialised is valid. */
struct envelope_arena {
	struct buf text;      /* expanded templates, rendered bodies; may move while building */
	struct field *fields; /* header fields, nested ones too */
	size_t field_count, field_cap;
};
void envelope_arena_fini(struct envelope_arena *a);

/* Builds the message of `row` into *env. Overwrites what the arena held. 0; or -1 with kind
 * ERR_REFUSED and a text that starts with the failure class, "INVALID: ..." or "TOO_LARGE: ...",
 * naming the property, its length and its limit: such a row can never be published as it is. -1
 * with ERR_NOMEM: nothing is wrong with the row. */
int envelope_build(struct envelope *env, struct envelope_arena *a, const struct route *r,
	const struct row *row, struct err *e) MUST_CHECK;

#endif

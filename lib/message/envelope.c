#include "message/envelope.h"

#include "base/str.h"
#include "message/json.h"
#include "message/route_priv.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* What the arena keeps between messages. */
#define KEEP_BYTES (256 * 1024)
#define KEEP_FIELDS 4096

/* Headers the relay may set on one message, the configured ones aside. */
#define OWN_HEADERS_MAX 16

/* Below this many members, comparing each name with each other one beats sorting. */
#define FEW_MEMBERS 16

/* Marks in the builder's stack; never in a finished envelope. */
enum { FIELD_NULL = FIELD_TABLE + 1, FIELD_SHADOWED };

#define TIME_TEXT sizeof("2025-06-01T12:34:56.000000Z")

static void put_digits(char *out, size_t count, unsigned value)
{
	for (; count > 0; value /= 10)
		out[--count] = (char)('0' + value % 10);
}

/* RFC 3339, UTC. False: a year that has not four digits. */
static bool time_text(int64_t us, char out[TIME_TEXT])
{
	int64_t sec = us / US_PER_SEC, micro = us % US_PER_SEC, day, rest;
	int64_t era, year_of_era, day_of_year, year;
	unsigned day_of_era, month, mday;

	if (micro < 0) {
		micro += US_PER_SEC;
		sec--;
	}
	day = sec / 86400;
	rest = sec % 86400;
	if (rest < 0) {
		rest += 86400;
		day--;
	}
	/* Days to a date of the proleptic Gregorian calendar, years starting in March (Hinnant). */
	day += 719468;
	era = (day >= 0 ? day : day - 146096) / 146097;
	day_of_era = (unsigned)(day - era * 146097);
	year_of_era =
		(day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
	day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
	month = (unsigned)((5 * day_of_year + 2) / 153);
	mday = (unsigned)(day_of_year - (153 * (int64_t)month + 2) / 5 + 1);
	month = month < 10 ? month + 3 : month - 9;
	year = year_of_era + era * 400 + (month <= 2);
	if (year < 0 || year > 9999)
		return false;
	memcpy(out, "0000-00-00T00:00:00.000000Z", TIME_TEXT);
	put_digits(out, 4, (unsigned)year);
	put_digits(out + 5, 2, month);
	put_digits(out + 8, 2, mday);
	put_digits(out + 11, 2, (unsigned)(rest / 3600));
	put_digits(out + 14, 2, (unsigned)(rest / 60 % 60));
	put_digits(out + 17, 2, (unsigned)(rest % 60));
	put_digits(out + 20, 6, (unsigned)micro);
	return true;
}

/* "0", "-7", "42": what JSON and a reader of numbers agree on; of any length. */
static bool plain_integer(struct slice s)
{
	size_t i = s.len > 0 && s.ptr[0] == '-', digits = s.len - i;

	if (digits == 0 || (s.ptr[i] == '0' && s.len > 1))
		return false;
	for (; i < s.len; i++) {
		if (s.ptr[i] < '0' || s.ptr[i] > '9')
			return false;
	}
	return true;
}

/* "-0" is 0 here; JSON may say so. */
static bool to_int64(struct slice s, int64_t *out)
{
	bool negative = s.len > 0 && s.ptr[0] == '-';
	uint64_t v;

	if (!str_to_u64((struct slice){ s.ptr + negative, s.len - negative }, &v))
		return false;
	if (v > (uint64_t)INT64_MAX + negative)
		return false;
	*out = negative ? -(int64_t)(v - (v > 0)) - (v > 0) : (int64_t)v;
	return true;
}

static int property(struct slice s, const char *what, struct err *e)
{
	if (s.len > ROUTE_SHORTSTR_MAX)
		return err_set(e, ERR_REFUSED, 0, "INVALID: %s is %zu bytes, limit %d", what, s.len,
			ROUTE_SHORTSTR_MAX);
	if (s.len > 0 && memchr(s.ptr, '\0', s.len) != NULL)
		return err_set(e, ERR_REFUSED, 0, "INVALID: %s holds a NUL byte", what);
	if (!is_utf8(s))
		return err_set(e, ERR_REFUSED, 0, "INVALID: %s is not UTF-8", what);
	return 0;
}

static int address(struct slice *out, const struct template *t, const char *what,
	const struct row *row, struct buf *text, struct err *e)
{
	size_t len = 0;

	if (template_fixed(t)) {
		*out = template_literal(t);
		return 0;
	}
	for (size_t i = 0; i < t->count; i++) {
		const char *column = t->parts[i].column, *fault = NULL;
		struct slice s = template_value(&t->parts[i], row);

		len += s.len;
		if (column == NULL)
			continue;
		if (s.ptr == NULL)
			fault = "is NULL";
		else if (s.len == 0)
			fault = "is empty";
		else if (s.len <= ROUTE_SHORTSTR_MAX && has_control(s))
			fault = "holds a control character";
		if (fault != NULL)
			return err_set(e, ERR_REFUSED, 0, "INVALID: %s: column %s %s", what, column,
				fault);
	}
	if (len > ROUTE_SHORTSTR_MAX)
		return err_set(e, ERR_REFUSED, 0, "INVALID: %s is %zu bytes, limit %d", what, len,
			ROUTE_SHORTSTR_MAX);
	*out = template_expand(t, row, text);
	if (!is_utf8(*out))
		return err_set(e, ERR_REFUSED, 0, "INVALID: %s is not UTF-8", what);
	return 0;
}

static struct field *field_named(struct field *fields, size_t count, struct slice name)
{
	for (size_t i = 0; i < count; i++) {
		if (slice_eq(fields[i].name, name))
			return &fields[i];
	}
	return NULL;
}

static void add_string(struct envelope *env, struct slice name, struct slice value)
{
	if (value.ptr == NULL)
		return;
	env->headers[env->header_count++] =
		(struct field){ .name = name, .type = FIELD_STRING, .string = value };
}

static void add_own_headers(struct envelope *env, const struct route *r, const struct row *row)
{
	int64_t version;

	add_string(env, SLICE_LIT("aggregate_type"), row->aggregate_type);
	add_string(env, SLICE_LIT("aggregate_id"), row->aggregate_id);
	add_string(env, SLICE_LIT("source"), slice_str(r->source));
	if (plain_integer(row->aggregate_version) && to_int64(row->aggregate_version, &version))
		env->headers[env->header_count++] =
			(struct field){ .name = SLICE_LIT("aggregate_version"),
				.type = FIELD_INT,
				.integer = version };
	else
		add_string(env, SLICE_LIT("aggregate_version"), row->aggregate_version);
	add_string(env, SLICE_LIT("trace_id"), row->trace_id);
	add_string(env, SLICE_LIT("traceparent"), row->traceparent);
	add_string(env, SLICE_LIT("tracestate"), row->tracestate);
	if (r->marker != NULL)
		env->headers[env->header_count++] = (struct field){
			.name = slice_str(r->marker), .type = FIELD_BOOL, .boolean = true
		};
}

static int created_text(const struct row *row, char out[TIME_TEXT], struct err *e)
{
	if (!time_text(row->created_us, out))
		return err_set(
			e, ERR_REFUSED, 0, "INVALID: created_at is outside the years 0000 to 9999");
	return 0;
}

/* Attributes are Unicode strings, and none is empty (CloudEvents 1.0, "Type System"). */
static int add_attribute(struct envelope *env, struct slice name, struct slice value,
	const char *column, struct err *e)
{
	if (value.len == 0)
		return 0;
	if (!is_utf8(value))
		return err_set(
			e, ERR_REFUSED, 0, "INVALID: %s (%s) is not UTF-8", name.ptr, column);
	add_string(env, name, value);
	return 0;
}

static int add_cloudevents(struct envelope *env, struct buf *text, const struct route *r,
	const struct row *row, struct err *e)
{
	char created[TIME_TEXT];
	size_t from = text->len;

	if (row->event_type.len == 0)
		return err_set(e, ERR_REFUSED, 0,
			"INVALID: cloudEvents_type (event_type) is %s: CloudEvents need a type",
			row->event_type.ptr == NULL ? "NULL" : "empty");
	if (created_text(row, created, e) < 0)
		return -1;
	buf_add(text, created, sizeof(created) - 1);
	add_string(env, SLICE_LIT("cloudEvents_specversion"), SLICE_LIT("1.0"));
	add_string(env, SLICE_LIT("cloudEvents_id"), row->event_id);
	add_string(env, SLICE_LIT("cloudEvents_source"), slice_str(r->source_uri));
	add_string(env, SLICE_LIT("cloudEvents_type"), row->event_type);
	add_string(env, SLICE_LIT("cloudEvents_time"),
		(struct slice){ text->data + from, sizeof(created) - 1 });
	if (add_attribute(env, SLICE_LIT("cloudEvents_subject"), row->aggregate_id, "aggregate_id",
		    e) < 0)
		return -1;
	if (add_attribute(env, SLICE_LIT("cloudEvents_traceparent"), row->traceparent,
		    "traceparent", e) < 0)
		return -1;
	return add_attribute(
		env, SLICE_LIT("cloudEvents_tracestate"), row->tracestate, "tracestate", e);
}

static void add_configured(
	struct envelope *env, struct buf *text, const struct route *r, const struct row *row)
{
	size_t own = env->header_count, len;

	for (size_t i = 0; i < r->header_count; i++) {
		const struct configured_header *h = &r->headers[i];
		struct slice name = slice_str(h->name);

		if (!template_length(&h->value, row, &len) ||
			field_named(env->headers, own, name) != NULL)
			continue;
		add_string(env, name, template_expand(&h->value, row, text));
	}
}

/* Reads the row's headers once through without keeping anything: are they what they should be, and
 * how many values must there be room for? */
static int count_values(struct slice headers, const struct route *r, size_t *count, struct err *e)
{
	struct json_reader j;
	enum json_token token;
	size_t n = 0, limit = r->max_header_bytes / 2; /* no value takes less than 2 bytes */

	*count = 0;
	if (headers.ptr == NULL)
		return 0;
	json_begin(&j, headers, ROUTE_HEADERS_DEPTH_MAX);
	token = json_next(&j);
	if (token == JSON_NULL) {
		token = json_next(&j);
		if (token == JSON_END)
			return 0;
	}
	if (token != JSON_OBJECT && token != JSON_ERROR)
		return err_set(e, ERR_REFUSED, 0, "INVALID: headers are not a JSON object");
	while (token != JSON_END && token != JSON_ERROR) {
		token = json_next(&j);
		n += token != JSON_NAME && token != JSON_OBJECT_END && token != JSON_ARRAY_END &&
		     token != JSON_END;
	}
	if (j.too_deep)
		return err_set(e, ERR_REFUSED, 0,
			"INVALID: headers: byte %zu: objects and lists nested deeper than %d "
			"levels",
			j.error_byte, ROUTE_HEADERS_DEPTH_MAX);
	if (token == JSON_ERROR)
		return err_set(e, ERR_REFUSED, 0, "INVALID: headers are not JSON: byte %zu: %s",
			j.error_byte, j.error);
	/* Bounds the memory that one row can ask for. */
	if (n > limit)
		return err_set(e, ERR_REFUSED, 0,
			"INVALID: headers hold %zu values, more than fit in %zu bytes, the limit",
			n, r->max_header_bytes);
	*count = n;
	return 0;
}

static int name_order(const struct field *a, const struct field *b)
{
	size_t len = a->name.len < b->name.len ? a->name.len : b->name.len;
	int by_bytes = len > 0 ? memcmp(a->name.ptr, b->name.ptr, len) : 0;

	if (by_bytes != 0)
		return by_bytes;
	return (a->name.len > b->name.len) - (a->name.len < b->name.len);
}

static int index_order(const void *left, const void *right, void *items)
{
	uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
	int by_name = name_order((const struct field *)items + a, (const struct field *)items + b);

	return by_name != 0 ? by_name : (a > b) - (a < b);
}

/* Of members with equal names the last one stands. */
static int shadow_duplicates(struct field *items, size_t count, struct err *e)
{
	uint32_t *order;

	if (count <= FEW_MEMBERS) {
		for (size_t i = 0; i + 1 < count; i++) {
			if (field_named(items + i + 1, count - i - 1, items[i].name) != NULL)
				items[i].type = (enum field_type)FIELD_SHADOWED;
		}
		return 0;
	}
	order = malloc(count * sizeof(*order));
	if (order == NULL)
		return err_set(e, ERR_NOMEM, 0, "headers: no memory");
	for (size_t i = 0; i < count; i++)
		order[i] = (uint32_t)i;
	qsort_r(order, count, sizeof(*order), index_order, items);
	for (size_t i = 0; i + 1 < count; i++) {
		if (slice_eq(items[order[i]].name, items[order[i + 1]].name))
			items[order[i]].type = (enum field_type)FIELD_SHADOWED;
	}
	free(order);
	return 0;
}

/* The values of open objects and arrays wait on the stack; when one is closed, its values move to
 * the pool, where they lie next to each other for good. */
struct builder {
	struct envelope *env;
	struct buf *text;
	struct field *stack;
	size_t top;
	struct field *pool; /* grows downwards */
	struct {
		size_t base;
		struct slice name;
	} level[ROUTE_HEADERS_DEPTH_MAX];
	unsigned depth;
};

static bool kept(const struct field *f)
{
	return (int)f->type != FIELD_NULL && (int)f->type != FIELD_SHADOWED;
}

/* RabbitMQ takes CC and BCC for more routing keys, and closes the channel over any other type: the
 * messages beside it would go twice. In a list it skips what is no string, and nobody hears. */
static int check_copies(const struct field *f, struct err *e)
{
	bool good = f->type == FIELD_ARRAY;

	if (!slice_eq(f->name, SLICE_LIT("CC")) && !slice_eq(f->name, SLICE_LIT("BCC")))
		return 0;
	for (size_t i = 0; good && i < f->many.count; i++)
		good = f->many.items[i].type == FIELD_STRING;
	if (good)
		return 0;
	return err_set(e, ERR_REFUSED, 0,
		"INVALID: headers: %.*s is not a list of strings: to RabbitMQ it means more "
		"routing keys",
		(int)f->name.len, f->name.ptr);
}

/* The pairs of the row's object itself. */
static int close_root(struct builder *b, struct err *e)
{
	size_t before = b->env->header_count;

	for (size_t i = 0; i < b->top; i++) {
		const struct field *f = &b->stack[i];

		if (!kept(f) || route_name_reserved(f->name) ||
			field_named(b->env->headers, before, f->name) != NULL)
			continue;
		if (check_copies(f, e) < 0)
			return -1;
		b->env->headers[b->env->header_count++] = *f;
	}
	return 0;
}

static int close_level(struct builder *b, bool object, struct field *f, struct err *e)
{
	size_t base = b->level[--b->depth].base, count = b->top - base;
	struct field *items = b->stack + base;

	if (object && shadow_duplicates(items, count, e) < 0)
		return -1;
	if (b->depth == 0)
		return close_root(b, e);
	f->name = b->level[b->depth].name;
	f->type = object ? FIELD_TABLE : FIELD_ARRAY;
	f->many.count = 0;
	for (size_t i = count; i > 0; i--) {
		if (!kept(&items[i - 1]))
			continue;
		*--b->pool = items[i - 1];
		f->many.count++;
	}
	f->many.items = b->pool;
	b->top = base;
	return 0;
}

static int string_value(
	struct builder *b, const struct json_reader *j, struct slice *out, struct err *e)
{
	char *to = b->text->data + b->text->len;
	size_t len;

	if (!j->escaped) {
		*out = j->text;
		return 0;
	}
	if (!json_unescape(j->text, to, &len))
		return err_set(e, ERR_REFUSED, 0,
			"INVALID: headers: byte %zu: a \\u escape is half of a surrogate pair",
			(size_t)(j->text.ptr - j->start) + 1);
	b->text->len += len;
	*out = (struct slice){ to, len };
	return 0;
}

static int name_value(
	struct builder *b, const struct json_reader *j, struct slice *out, struct err *e)
{
	size_t byte = (size_t)(j->text.ptr - j->start) + 1;

	if (string_value(b, j, out, e) < 0)
		return -1;
	if (out->len > ROUTE_SHORTSTR_MAX)
		return err_set(e, ERR_REFUSED, 0,
			"INVALID: headers: byte %zu: a name is %zu bytes, limit %d", byte, out->len,
			ROUTE_SHORTSTR_MAX);
	if (out->len > 0 && memchr(out->ptr, '\0', out->len) != NULL)
		return err_set(e, ERR_REFUSED, 0,
			"INVALID: headers: byte %zu: a name holds a NUL byte", byte);
	return 0;
}

/* strtod() stops where the number does: the object's brace is still to come. The process never
 * leaves the C locale, so the point is a point. */
static int number_value(const struct json_reader *j, bool integer, struct field *f, struct err *e)
{
	if (integer && to_int64(j->text, &f->integer)) {
		f->type = FIELD_INT;
		return 0;
	}
	f->type = FIELD_DOUBLE;
	f->real = strtod(j->text.ptr, NULL);
	if (!isfinite(f->real))
		return err_set(e, ERR_REFUSED, 0,
			"INVALID: headers: byte %zu: a number beyond the range of a double",
			(size_t)(j->text.ptr - j->start) + 1);
	return 0;
}

/* count_values() has been through the same text: it is an object and there is room. */
static int read_headers(struct builder *b, struct slice headers, struct err *e)
{
	struct json_reader j;
	struct slice name = { 0 };

	json_begin(&j, headers, ROUTE_HEADERS_DEPTH_MAX);
	for (;;) {
		struct field f = { .name = name };
		enum json_token token = json_next(&j);

		switch (token) {
		case JSON_ERROR:
		case JSON_END:
			return 0;
		case JSON_NAME:
			if (name_value(b, &j, &name, e) < 0)
				return -1;
			continue;
		case JSON_OBJECT:
		case JSON_ARRAY:
			b->level[b->depth].base = b->top;
			b->level[b->depth++].name = name;
			name = (struct slice){ 0 };
			continue;
		case JSON_OBJECT_END:
		case JSON_ARRAY_END:
			if (close_level(b, token == JSON_OBJECT_END, &f, e) < 0)
				return -1;
			if (b->depth == 0)
				return 0;
			break;
		case JSON_STRING:
			f.type = FIELD_STRING;
			if (string_value(b, &j, &f.string, e) < 0)
				return -1;
			break;
		case JSON_INTEGER:
		case JSON_FRACTION:
			if (number_value(&j, token == JSON_INTEGER, &f, e) < 0)
				return -1;
			break;
		case JSON_TRUE:
		case JSON_FALSE:
			f.type = FIELD_BOOL;
			f.boolean = token == JSON_TRUE;
			break;
		case JSON_NULL:
			f.type = (enum field_type)FIELD_NULL;
			break;
		}
		b->stack[b->top++] = f;
		name = (struct slice){ 0 };
	}
}

/* RabbitMQ's errata to AMQP 0-9-1: a table is its length in 4 bytes, then for each field its name
 * (a length of 1 byte), its type (1 byte) and its value; an array likewise, without names. */
static size_t encoded_bytes(const struct field *items, size_t count, bool named)
{
	size_t n = 4;

	for (size_t i = 0; i < count; i++) {
		const struct field *f = &items[i];

		n += 1 + (named ? 1 + f->name.len : 0);
		switch (f->type) {
		case FIELD_STRING:
			n += 4 + f->string.len;
			break;
		case FIELD_BOOL:
			n += 1;
			break;
		case FIELD_INT:
		case FIELD_DOUBLE:
			n += 8;
			break;
		case FIELD_ARRAY:
		case FIELD_TABLE:
			n += encoded_bytes(f->many.items, f->many.count, f->type == FIELD_TABLE);
			break;
		}
	}
	return n;
}

static int too_large(uint64_t size, const struct route *r, struct err *e)
{
	return err_set(e, ERR_REFUSED, 0, "TOO_LARGE: body of %" PRIu64 " bytes, limit %" PRIu64,
		size, r->max_message_size);
}

static int add_member(
	struct buf *b, const char *before, struct slice value, const char *column, struct err *e)
{
	buf_adds(b, before);
	if (value.ptr == NULL) {
		buf_adds(b, "null");
		return 0;
	}
	if (!is_utf8(value))
		return err_set(e, ERR_REFUSED, 0,
			"INVALID: %s is not UTF-8, which the envelope must be", column);
	buf_addc(b, '"');
	if (has_control(value) || memchr(value.ptr, '"', value.len) != NULL ||
		memchr(value.ptr, '\\', value.len) != NULL)
		buf_add_json(b, value);
	else
		buf_add_slice(b, value);
	buf_addc(b, '"');
	return 0;
}

static int check_payload(struct slice payload, struct err *e)
{
	struct json_reader j;
	enum json_token token;

	json_begin(&j, payload, ROUTE_PAYLOAD_DEPTH_MAX);
	do {
		token = json_next(&j);
	} while (token != JSON_END && token != JSON_ERROR);
	if (j.too_deep)
		return err_set(e, ERR_REFUSED, 0,
			"INVALID: payload: byte %zu: objects and lists nested deeper than %d "
			"levels",
			j.error_byte, ROUTE_PAYLOAD_DEPTH_MAX);
	if (token == JSON_ERROR)
		return err_set(e, ERR_REFUSED, 0,
			"INVALID: payload is not JSON, which the envelope needs: byte %zu: %s",
			j.error_byte, j.error);
	return 0;
}

static int build_body(struct slice *out, struct buf *b, const struct route *r,
	const struct row *row, struct err *e)
{
	struct slice payload = row->payload;
	char created[TIME_TEXT];
	uint64_t size;

	if (created_text(row, created, e) < 0)
		return -1;
	if (payload.ptr == NULL)
		payload = SLICE_LIT("null");
	if (add_member(b, "{\"eventId\":", row->event_id, "event_id", e) < 0 ||
		add_member(b, ",\"eventType\":", row->event_type, "event_type", e) < 0 ||
		add_member(b, ",\"aggregateType\":", row->aggregate_type, "aggregate_type", e) <
			0 ||
		add_member(b, ",\"aggregateId\":", row->aggregate_id, "aggregate_id", e) < 0)
		return -1;
	if (plain_integer(row->aggregate_version)) {
		buf_adds(b, ",\"aggregateVersion\":");
		buf_add_slice(b, row->aggregate_version);
	} else if (add_member(b, ",\"aggregateVersion\":", row->aggregate_version,
			   "aggregate_version", e) < 0) {
		return -1;
	}
	buf_adds(b, ",\"occurredAt\":\"");
	buf_add(b, created, sizeof(created) - 1);
	if (add_member(b, "\",\"traceId\":", row->trace_id, "trace_id", e) < 0)
		return -1;
	buf_adds(b, ",\"payload\":");
	/* What is too large is known before it is read or copied. */
	size = (uint64_t)b->len + payload.len + 1;
	if (size > r->max_message_size)
		return too_large(size, r, e);
	if (check_payload(payload, e) < 0)
		return -1;
	buf_reserve(b, payload.len + 1);
	buf_add_slice(b, payload);
	buf_addc(b, '}');
	if (b->failed)
		return err_set(e, ERR_NOMEM, 0, "body of %" PRIu64 " bytes: no memory", size);
	*out = buf_slice(b);
	return 0;
}

void envelope_arena_reset(struct envelope_arena *a)
{
	buf_reset(&a->text);
	buf_shrink(&a->text, KEEP_BYTES);
	buf_reset(&a->body);
	buf_shrink(&a->body, KEEP_BYTES);
	a->field_count = 0;
	if (a->field_cap > KEEP_FIELDS) {
		free(a->fields);
		a->fields = NULL;
		a->field_cap = 0;
	}
}

void envelope_arena_fini(struct envelope_arena *a)
{
	buf_fini(&a->text);
	buf_fini(&a->body);
	free(a->fields);
	*a = (struct envelope_arena){ 0 };
}

/* All the text and fields a message can need, so that neither moves while slices point into it. */
static int reserve(struct envelope_arena *a, const struct route *r, const struct row *row,
	size_t values, struct err *e)
{
	size_t fields = OWN_HEADERS_MAX + r->header_count + 2 * values;
	size_t bytes = 2 * ROUTE_SHORTSTR_MAX + TIME_TEXT, len;

	for (size_t i = 0; i < r->header_count; i++) {
		if (!template_fixed(&r->headers[i].value) &&
			template_length(&r->headers[i].value, row, &len))
			bytes += len;
	}
	if (values > 0)
		bytes += row->headers.len;
	if (buf_reserve(&a->text, bytes) < 0)
		return err_set(e, ERR_NOMEM, 0, "message text of %zu bytes: no memory", bytes);
	if (fields > a->field_cap) {
		struct field *grown = malloc(fields * sizeof(*grown));

		if (grown == NULL)
			return err_set(e, ERR_NOMEM, 0, "%zu header fields: no memory", fields);
		free(a->fields);
		a->fields = grown;
		a->field_cap = fields;
	}
	a->field_count = fields;
	return 0;
}

static int build_headers(struct envelope *env, struct envelope_arena *a, const struct route *r,
	const struct row *row, size_t values, struct err *e)
{
	struct builder b;

	env->headers = a->fields;
	add_own_headers(env, r, row);
	if (r->body == BODY_CLOUDEVENTS && add_cloudevents(env, &a->text, r, row, e) < 0)
		return -1;
	add_configured(env, &a->text, r, row);
	if (values > 0) {
		b.env = env;
		b.text = &a->text;
		b.stack = a->fields + a->field_count - values;
		b.pool = b.stack;
		b.top = b.depth = 0;
		if (read_headers(&b, row->headers, e) < 0)
			return -1;
	}
	env->header_bytes = encoded_bytes(env->headers, env->header_count, true);
	if (env->header_bytes > r->max_header_bytes)
		return err_set(e, ERR_REFUSED, 0,
			"INVALID: headers are %zu bytes encoded, limit %zu", env->header_bytes,
			r->max_header_bytes);
	return 0;
}

int envelope_build(struct envelope *env, struct envelope_arena *a, const struct route *r,
	const struct row *row, struct err *e)
{
	struct envelope out = {
		.message_id = row->event_id,
		.type = row->event_type,
		.content_type = SLICE_LIT("application/json"),
		.app_id = SLICE_LIT("outboxd"),
		.timestamp = row->created_us > 0 ? (uint64_t)(row->created_us / US_PER_SEC) : 0,
		.delivery_mode = r->delivery_mode,
		.mandatory = r->mandatory,
		.body = row->payload,
	};
	size_t values;

	envelope_arena_reset(a);
	if (row->event_id.len == 0)
		return err_set(e, ERR_REFUSED, 0, "INVALID: message_id (event_id) is %s",
			row->event_id.ptr == NULL ? "NULL" : "empty");
	if (property(row->event_id, "message_id (event_id)", e) < 0 ||
		property(row->event_type, "type (event_type)", e) < 0)
		return -1;
	if (row->payload_cut)
		return err_set(e, ERR_REFUSED, 0,
			"TOO_LARGE: the payload cannot be read: it is larger than the database "
			"server's max_allowed_packet; raise that, then requeue");
	if (r->body != BODY_ENVELOPE && row->payload.len > r->max_message_size)
		return too_large(row->payload.len, r, e);
	if (count_values(row->headers, r, &values, e) < 0 || reserve(a, r, row, values, e) < 0)
		return -1;
	if (address(&out.exchange, &r->exchange, "exchange", row, &a->text, e) < 0 ||
		address(&out.routing_key, &r->routing_key, "routing_key", row, &a->text, e) < 0)
		return -1;
	if (build_headers(&out, a, r, row, values, e) < 0)
		return -1;
	if (row->payload.ptr == NULL)
		out.body = SLICE_LIT("");
	if (r->body == BODY_ENVELOPE && build_body(&out.body, &a->body, r, row, e) < 0)
		return -1;
	*env = out;
	return 0;
}

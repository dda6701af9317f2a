#include "amqp/codec.h"

#include <errno.h>
#include <inttypes.h>

/* connection.start-ok is the largest we send: client properties and the login. */
#define METHOD_ROOM 16384

void codec_init(struct codec *c)
{
	init_amqp_pool(&c->pool, 4096);
}

void codec_fini(struct codec *c)
{
	empty_amqp_pool(&c->pool);
}

static void put16(char *p, uint16_t v)
{
	p[0] = (char)(v >> 8);
	p[1] = (char)(v & 0xFF);
}

static void put32(char *p, uint32_t v)
{
	put16(p, (uint16_t)(v >> 16));
	put16(p + 2, (uint16_t)(v & 0xFFFF));
}

static void put64(char *p, uint64_t v)
{
	put32(p, (uint32_t)(v >> 32));
	put32(p + 4, (uint32_t)(v & UINT32_MAX));
}

static uint16_t get16(const char *p)
{
	return (uint16_t)((unsigned char)p[0] << 8 | (unsigned char)p[1]);
}

static uint32_t get32(const char *p)
{
	return (uint32_t)get16(p) << 16 | get16(p + 2);
}

static uint64_t get64(const char *p)
{
	return (uint64_t)get32(p) << 32 | get32(p + 4);
}

/* ---- frames out ---- */

static int no_memory(struct err *e)
{
	return err_set(e, ERR_NOMEM, ENOMEM, "out of memory");
}

/* Writes head and end around `size` payload bytes that already stand behind the head. Room for them
 * is the caller's. */
static void close_frame(struct buf *out, uint8_t type, uint16_t channel, size_t size)
{
	char *p = out->data + out->len;

	p[0] = (char)type;
	put16(p + 1, channel);
	put32(p + 3, (uint32_t)size);
	p[FRAME_HEAD + size] = (char)AMQP_FRAME_END;
	out->len += size + FRAME_OVERHEAD;
	out->data[out->len] = '\0';
}

static char *payload(struct buf *out)
{
	return out->data + out->len + FRAME_HEAD;
}

int codec_method(struct buf *out, uint16_t channel, uint32_t id, void *method, struct err *e)
{
	int size;

	if (buf_reserve(out, METHOD_ROOM + FRAME_OVERHEAD) < 0)
		return no_memory(e);
	put32(payload(out), id);
	size = amqp_encode_method(
		id, method, (amqp_bytes_t){ .len = METHOD_ROOM - 4, .bytes = payload(out) + 4 });
	if (size < 0)
		return err_set(e, ERR_REFUSED, size, "INVALID: method 0x%" PRIx32 ": %s", id,
			amqp_error_string2(size));
	close_frame(out, AMQP_FRAME_METHOD, channel, (size_t)size + 4);
	return 0;
}

int codec_heartbeat(struct buf *out)
{
	if (buf_reserve(out, FRAME_OVERHEAD) < 0)
		return -1;
	close_frame(out, AMQP_FRAME_HEARTBEAT, 0, 0);
	return 0;
}

/* ---- a message out ---- */

static int check_short(const char *what, struct slice s, struct err *e)
{
	if (s.len > UINT8_MAX)
		return err_set(e, ERR_REFUSED, 0,
			"INVALID: %s has %zu bytes, the protocol allows 255", what, s.len);
	return 0;
}

/* Adds the encoded size of a table's entries or an array's values. */
static int fields_size(const struct field *f, size_t count, bool named, unsigned depth,
	size_t *size, struct err *e)
{
	if (depth > FIELD_DEPTH_MAX)
		return err_set(e, ERR_REFUSED, 0, "INVALID: headers are nested more than %d deep",
			FIELD_DEPTH_MAX);
	for (size_t i = 0; i < count; i++) {
		if (named) {
			if (check_short("the name of a header", f[i].name, e) < 0)
				return -1;
			*size += 1 + f[i].name.len;
		}
		*size += 1;
		switch (f[i].type) {
		case FIELD_STRING:
			*size += 4 + f[i].string.len;
			break;
		case FIELD_BOOL:
			*size += 1;
			break;
		case FIELD_INT:
		case FIELD_DOUBLE:
			*size += 8;
			break;
		case FIELD_ARRAY:
		case FIELD_TABLE:
			*size += 4;
			if (fields_size(f[i].many.items, f[i].many.count, f[i].type == FIELD_TABLE,
				    depth + 1, size, e) < 0)
				return -1;
			break;
		}
	}
	return 0;
}

static size_t short_size(struct slice s)
{
	return s.ptr != NULL ? 1 + s.len : 0;
}

/* class, weight, body size, property flags */
#define CONTENT_HEAD (2 + 2 + 8 + 2)

static int content_header_size(
	const struct envelope *env, size_t frame_max, size_t *size, struct err *e)
{
	size_t table = 4;
	size_t rest = CONTENT_HEAD + short_size(env->content_type) + short_size(env->message_id) +
		      short_size(env->type) + short_size(env->app_id) +
		      short_size(env->expiration) + 1 /* delivery mode */ + 8 /* timestamp */;

	if (check_short("the message id", env->message_id, e) < 0 ||
		check_short("the message type", env->type, e) < 0 ||
		check_short("the content type", env->content_type, e) < 0 ||
		check_short("the app id", env->app_id, e) < 0 ||
		check_short("the expiration", env->expiration, e) < 0 ||
		fields_size(env->headers, env->header_count, true, 1, &table, e) < 0)
		return -1;
	if (rest + table > frame_max - FRAME_OVERHEAD)
		return err_set(e, ERR_REFUSED, 0,
			"TOO_LARGE: headers of %zu bytes, %zu fit a frame of this connection",
			table, frame_max - FRAME_OVERHEAD - rest);
	*size = rest + table;
	return 0;
}

int codec_measure(
	const struct envelope *env, size_t frame_max, struct codec_size *size, struct err *e)
{
	size_t piece = frame_max - FRAME_OVERHEAD;

	if (check_short("the exchange", env->exchange, e) < 0 ||
		check_short("the routing key", env->routing_key, e) < 0 ||
		content_header_size(env, frame_max, &size->header, e) < 0)
		return -1;
	size->total = FRAME_OVERHEAD + 4 + 2 + 1 + env->exchange.len + 1 + env->routing_key.len +
		      1 + FRAME_OVERHEAD + size->header + env->body.len +
		      (env->body.len + piece - 1) / piece * FRAME_OVERHEAD;
	return 0;
}

static int to_table(struct codec *c, const struct field *f, size_t count, amqp_table_t *table);

static int to_value(struct codec *c, const struct field *f, amqp_field_value_t *v)
{
	switch (f->type) {
	case FIELD_STRING:
		v->kind = AMQP_FIELD_KIND_UTF8;
		v->value.bytes = codec_bytes(f->string);
		return 0;
	case FIELD_BOOL:
		v->kind = AMQP_FIELD_KIND_BOOLEAN;
		v->value.boolean = f->boolean;
		return 0;
	case FIELD_INT:
		v->kind = AMQP_FIELD_KIND_I64;
		v->value.i64 = f->integer;
		return 0;
	case FIELD_DOUBLE:
		v->kind = AMQP_FIELD_KIND_F64;
		v->value.f64 = f->real;
		return 0;
	case FIELD_TABLE:
		v->kind = AMQP_FIELD_KIND_TABLE;
		return to_table(c, f->many.items, f->many.count, &v->value.table);
	case FIELD_ARRAY:
		break;
	}
	v->kind = AMQP_FIELD_KIND_ARRAY;
	v->value.array = (amqp_array_t){ .num_entries = (int)f->many.count };
	if (f->many.count == 0)
		return 0;
	v->value.array.entries =
		amqp_pool_alloc(&c->pool, f->many.count * sizeof(*v->value.array.entries));
	if (v->value.array.entries == NULL)
		return -1;
	for (size_t i = 0; i < f->many.count; i++) {
		if (to_value(c, &f->many.items[i], &v->value.array.entries[i]) < 0)
			return -1;
	}
	return 0;
}

static int to_table(struct codec *c, const struct field *f, size_t count, amqp_table_t *table)
{
	*table = (amqp_table_t){ .num_entries = (int)count };
	if (count == 0)
		return 0;
	table->entries = amqp_pool_alloc(&c->pool, count * sizeof(*table->entries));
	if (table->entries == NULL)
		return -1;
	for (size_t i = 0; i < count; i++) {
		table->entries[i].key = codec_bytes(f[i].name);
		if (to_value(c, &f[i], &table->entries[i].value) < 0)
			return -1;
	}
	return 0;
}

static int put_content_header(struct codec *c, struct buf *out, uint16_t channel,
	const struct envelope *env, size_t exact, struct err *e)
{
	amqp_basic_properties_t props = {
		._flags = AMQP_BASIC_DELIVERY_MODE_FLAG | AMQP_BASIC_TIMESTAMP_FLAG |
			  AMQP_BASIC_HEADERS_FLAG,
		.delivery_mode = env->delivery_mode,
		.timestamp = env->timestamp,
		.content_type = codec_bytes(env->content_type),
		.message_id = codec_bytes(env->message_id),
		.type = codec_bytes(env->type),
		.app_id = codec_bytes(env->app_id),
		.expiration = codec_bytes(env->expiration),
	};
	char *p = payload(out);
	int size;

	if (env->content_type.ptr != NULL)
		props._flags |= AMQP_BASIC_CONTENT_TYPE_FLAG;
	if (env->message_id.ptr != NULL)
		props._flags |= AMQP_BASIC_MESSAGE_ID_FLAG;
	if (env->type.ptr != NULL)
		props._flags |= AMQP_BASIC_TYPE_FLAG;
	if (env->app_id.ptr != NULL)
		props._flags |= AMQP_BASIC_APP_ID_FLAG;
	if (env->expiration.ptr != NULL)
		props._flags |= AMQP_BASIC_EXPIRATION_FLAG;
	recycle_amqp_pool(&c->pool);
	if (to_table(c, env->headers, env->header_count, &props.headers) < 0)
		return no_memory(e);
	put16(p, AMQP_BASIC_CLASS);
	put16(p + 2, 0);
	put64(p + 4, env->body.len);
	size = amqp_encode_properties(
		AMQP_BASIC_CLASS, &props, (amqp_bytes_t){ .len = exact - 12, .bytes = p + 12 });
	if (size < 0)
		return err_set(e, ERR_REFUSED, size, "INVALID: properties cannot be encoded: %s",
			amqp_error_string2(size));
	close_frame(out, AMQP_FRAME_HEADER, channel, (size_t)size + 12);
	return 0;
}

static void put_short(char **p, struct slice s)
{
	*(*p)++ = (char)s.len;
	if (s.len > 0)
		memcpy(*p, s.ptr, s.len);
	*p += s.len;
}

int codec_publish(struct codec *c, struct buf *out, uint16_t channel, const struct envelope *env,
	size_t frame_max, const struct codec_size *size, struct err *e)
{
	size_t piece = frame_max - FRAME_OVERHEAD;
	size_t start = out->len;
	char *p;

	if (buf_reserve(out, size->total) < 0)
		return no_memory(e);

	/* basic.publish by hand: nothing in it can fail any more. */
	p = payload(out);
	put32(p, AMQP_BASIC_PUBLISH_METHOD);
	put16(p + 4, 0);
	p += 6;
	put_short(&p, env->exchange);
	put_short(&p, env->routing_key);
	*p++ = env->mandatory ? 1 : 0;
	close_frame(out, AMQP_FRAME_METHOD, channel, (size_t)(p - payload(out)));

	if (put_content_header(c, out, channel, env, size->header, e) < 0) {
		out->len = start;
		return -1;
	}
	for (size_t at = 0; at < env->body.len; at += piece) {
		size_t n = env->body.len - at < piece ? env->body.len - at : piece;

		memcpy(payload(out), env->body.ptr + at, n);
		close_frame(out, AMQP_FRAME_BODY, channel, n);
	}
	return 0;
}

size_t codec_max_header_bytes(size_t frame_max)
{
	size_t rest = FRAME_OVERHEAD + CONTENT_HEAD + 4 * 256 + 1 + 8;

	return frame_max > rest + 4 ? frame_max - rest : 4;
}

/* ---- frames in ---- */

static int malformed(struct err *e, const char *what)
{
	return err_set(e, ERR_LINK, AMQP_STATUS_BAD_AMQP_DATA, "malformed AMQP: %s", what);
}

int codec_frame(struct slice in, size_t frame_max, struct frame *f, size_t *used, struct err *e)
{
	size_t size;

	if (in.len < FRAME_HEAD)
		return 0;
	f->type = (uint8_t)in.ptr[0];
	f->channel = get16(in.ptr + 1);
	size = get32(in.ptr + 3);
	if (f->type != AMQP_FRAME_METHOD && f->type != AMQP_FRAME_HEADER &&
		f->type != AMQP_FRAME_BODY && f->type != AMQP_FRAME_HEARTBEAT)
		return malformed(e, "unknown frame type");
	if (size > frame_max - FRAME_OVERHEAD)
		return malformed(e, "frame larger than agreed");
	if (in.len < size + FRAME_OVERHEAD)
		return 0;
	if ((unsigned char)in.ptr[FRAME_HEAD + size] != AMQP_FRAME_END)
		return malformed(e, "frame without its end");
	if (f->type == AMQP_FRAME_METHOD && size < 4)
		return malformed(e, "method frame too short");
	f->payload = (struct slice){ in.ptr + FRAME_HEAD, size };
	*used = size + FRAME_OVERHEAD;
	return 1;
}

void *codec_decode(struct codec *c, const struct frame *f, uint32_t *id, struct err *e)
{
	void *method = NULL;
	int res;

	*id = get32(f->payload.ptr);
	recycle_amqp_pool(&c->pool);
	res = amqp_decode_method(*id, &c->pool,
		codec_bytes((struct slice){ f->payload.ptr + 4, f->payload.len - 4 }), &method);
	if (res < 0) {
		malformed(e, amqp_error_string2(res));
		return NULL;
	}
	return method;
}

bool codec_is_confirm(const struct frame *f, uint64_t *tag, bool *multiple, bool *ack)
{
	uint32_t id;

	if (f->type != AMQP_FRAME_METHOD || f->payload.len != 4 + 8 + 1)
		return false;
	id = get32(f->payload.ptr);
	if (id != AMQP_BASIC_ACK_METHOD && id != AMQP_BASIC_NACK_METHOD)
		return false;
	*tag = get64(f->payload.ptr + 4);
	*multiple = (f->payload.ptr[12] & 1) != 0;
	*ack = id == AMQP_BASIC_ACK_METHOD;
	return true;
}

/* A cursor over bytes a peer sent. `bad` sticks. */
struct reader {
	const char *p, *end;
	bool bad;
};

static struct slice take(struct reader *r, size_t n)
{
	struct slice s = { r->p, n };

	if (r->bad || (size_t)(r->end - r->p) < n) {
		r->bad = true;
		return (struct slice){ "", 0 };
	}
	r->p += n;
	return s;
}

static uint8_t take8(struct reader *r)
{
	struct slice s = take(r, 1);

	return r->bad ? 0 : (uint8_t)s.ptr[0];
}

static uint32_t take32(struct reader *r)
{
	struct slice s = take(r, 4);

	return r->bad ? 0 : get32(s.ptr);
}

static struct slice take_short(struct reader *r)
{
	return take(r, take8(r));
}

static struct slice take_long(struct reader *r)
{
	return take(r, take32(r));
}

int codec_content_header(
	const struct frame *f, uint64_t *body_size, struct slice *message_id, struct err *e)
{
	struct reader r = { f->payload.ptr, f->payload.ptr + f->payload.len, false };
	struct slice head = take(&r, CONTENT_HEAD);
	uint16_t flags;

	if (r.bad)
		return malformed(e, "content header too short");
	*body_size = get64(head.ptr + 4);
	*message_id = (struct slice){ NULL, 0 };
	flags = get16(head.ptr + 12);
	if (flags & AMQP_BASIC_CONTENT_TYPE_FLAG)
		take_short(&r);
	if (flags & AMQP_BASIC_CONTENT_ENCODING_FLAG)
		take_short(&r);
	if (flags & AMQP_BASIC_HEADERS_FLAG)
		take_long(&r);
	if (flags & AMQP_BASIC_DELIVERY_MODE_FLAG)
		take8(&r);
	if (flags & AMQP_BASIC_PRIORITY_FLAG)
		take8(&r);
	if (flags & AMQP_BASIC_CORRELATION_ID_FLAG)
		take_short(&r);
	if (flags & AMQP_BASIC_REPLY_TO_FLAG)
		take_short(&r);
	if (flags & AMQP_BASIC_EXPIRATION_FLAG)
		take_short(&r);
	if (flags & AMQP_BASIC_MESSAGE_ID_FLAG)
		*message_id = take_short(&r);
	return r.bad ? malformed(e, "content header cut short") : 0;
}

/* Steps over one field value; inner tables and arrays by their length. */
static struct slice take_value(struct reader *r)
{
	switch (take8(r)) {
	case 't':
	case 'b':
	case 'B':
		return take(r, 1);
	case 's':
	case 'u':
		return take(r, 2);
	case 'I':
	case 'i':
	case 'f':
		return take(r, 4);
	case 'L':
	case 'l':
	case 'd':
	case 'T':
		return take(r, 8);
	case 'D':
		return take(r, 5);
	case 'S':
	case 'x':
	case 'A':
	case 'F':
		return take_long(r);
	case 'V':
		return take(r, 0);
	default:
		r->bad = true;
		return (struct slice){ "", 0 };
	}
}

int codec_connection_start(const struct frame *f, struct server_start *s, struct err *e)
{
	struct reader r = { f->payload.ptr, f->payload.ptr + f->payload.len, false };
	struct reader table;
	struct slice properties, mechanisms;

	*s = (struct server_start){ 0 };
	if (f->type != AMQP_FRAME_METHOD || take32(&r) != AMQP_CONNECTION_START_METHOD)
		return malformed(e, "the first frame is no connection.start");
	s->major = take8(&r);
	s->minor = take8(&r);
	properties = take_long(&r);
	mechanisms = take_long(&r);
	take_long(&r); /* locales */
	if (r.bad)
		return malformed(e, "connection.start cut short");
	table = (struct reader){ properties.ptr, properties.ptr + properties.len, false };
	while (!table.bad && table.p < table.end) {
		struct slice name = take_short(&table);
		struct slice value = take_value(&table);

		if (table.bad)
			return malformed(e, "server properties");
		if (slice_eq(name, SLICE_LIT("product")))
			s->product = value;
		else if (slice_eq(name, SLICE_LIT("version")))
			s->version = value;
	}
	while (mechanisms.len > 0) {
		const char *space = memchr(mechanisms.ptr, ' ', mechanisms.len);
		size_t n = space != NULL ? (size_t)(space - mechanisms.ptr) : mechanisms.len;

		if (slice_eq((struct slice){ mechanisms.ptr, n }, SLICE_LIT("PLAIN")))
			s->plain = true;
		n += space != NULL;
		mechanisms.ptr += n;
		mechanisms.len -= n;
	}
	return 0;
}

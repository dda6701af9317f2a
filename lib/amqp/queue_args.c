#include "amqp/queue_args.h"

#include "amqp/codec.h"
#include "base/str.h"

#include <stdlib.h>

#define TTL "x-message-ttl"
/* A thousand years: what is longer is as good as for ever, and sums of it must not overflow. */
#define TTL_MS_MAX INT64_C(31536000000000)

static struct slice from(struct slice s, size_t at)
{
	return (struct slice){ s.ptr + at, s.len - at };
}

/* Behind the first or the last `word`; an absent slice: there is none. */
static struct slice behind(struct slice s, const char *word, bool last)
{
	size_t n = strlen(word);
	struct slice found = { 0 };

	for (size_t i = 0; i + n <= s.len; i++) {
		if (memcmp(s.ptr + i, word, n) != 0)
			continue;
		found = from(s, i + n);
		if (!last)
			break;
	}
	return found;
}

static bool copy(char *out, size_t size, struct slice s)
{
	if (s.ptr == NULL || s.len >= size)
		return false;
	memcpy(out, s.ptr, s.len);
	out[s.len] = '\0';
	return true;
}

/* "'VALUE'" or "the value 'VALUE' of type 'TYPE'"; the value may hold quotes of its own. */
static bool parse_current(struct slice s, struct queue_arg *out)
{
	struct slice type;

	if (slice_starts(s, "the value "))
		s = from(s, strlen("the value "));
	while (s.len > 0 && strchr(".\r\n ", s.ptr[s.len - 1]) != NULL)
		s.len--;
	if (s.len < 2 || s.ptr[0] != '\'' || s.ptr[s.len - 1] != '\'')
		return false;
	s = (struct slice){ s.ptr + 1, s.len - 2 };
	type = behind(s, "' of type '", true);
	if (type.ptr != NULL) {
		if (!copy(out->type, sizeof(out->type), type))
			return false;
		s.len -= type.len + strlen("' of type '");
	}
	return copy(out->value, sizeof(out->value), s);
}

bool queue_arg_parse(struct slice refusal, struct queue_arg *out)
{
	struct slice name = behind(refusal, "inequivalent arg '", false), rest, current;

	*out = (struct queue_arg){ 0 };
	rest = behind(name, "'", false);
	/* The queue's name comes in between, and may be anything: the last one is the broker's. */
	current = behind(behind(rest, ": received ", false), " but current is ", true);
	if (rest.ptr == NULL || current.ptr == NULL)
		return false;
	name.len -= rest.len + 1;
	if (!copy(out->name, sizeof(out->name), name))
		return false;
	if (slice_starts(current, "none"))
		return true;
	out->has = true;
	return parse_current(current, out);
}

void queue_args_init(struct queue_args *q)
{
	*q = (struct queue_args){ .durable = true };
}

static amqp_table_entry_t number(const char *name, int64_t value)
{
	return (amqp_table_entry_t){
		.key = codec_bytes(slice_str(name)),
		.value = { .kind = AMQP_FIELD_KIND_I64, .value = { .i64 = value } },
	};
}

static amqp_table_entry_t entry(const struct queue_arg *a)
{
	amqp_table_entry_t e = number(a->name, strtoll(a->value, NULL, 10));

	if (strcmp(a->type, "bool") == 0) {
		e.value.kind = AMQP_FIELD_KIND_BOOLEAN;
		e.value.value.boolean = strcmp(a->value, "true") == 0;
	} else if (strcmp(a->type, "longstr") == 0) {
		e.value.kind = AMQP_FIELD_KIND_UTF8;
		e.value.value.bytes = codec_bytes(slice_str(a->value));
	}
	return e;
}

void queue_args_declare(struct queue_args *q, struct slice queue, amqp_queue_declare_t *m)
{
	q->entries[0] = number(TTL, -1); /* always: this is what keeps it from creating one */
	for (size_t i = 0; i < q->count; i++)
		q->entries[i + 1] = entry(&q->known[i]);
	*m = (amqp_queue_declare_t){
		.queue = codec_bytes(queue),
		.durable = q->durable,
		.auto_delete = q->auto_delete,
		.arguments = { (int)q->count + 1, q->entries },
	};
}

/* `flag` becomes what the queue has, once. */
static enum queue_args_next flip(bool *flag, const struct queue_arg *a)
{
	bool now = strcmp(a->value, "true") == 0;

	if (*flag == now)
		return QUEUE_ARGS_STUCK;
	*flag = now;
	return QUEUE_ARGS_AGAIN;
}

static enum queue_args_next take_ttl(const struct queue_arg *a, int64_t *ttl_ms)
{
	uint64_t ms;

	if (!a->has) {
		*ttl_ms = -1;
		return QUEUE_ARGS_DONE;
	}
	if (!str_to_u64(slice_str(a->value), &ms))
		return QUEUE_ARGS_STUCK;
	*ttl_ms = ms < TTL_MS_MAX ? (int64_t)ms : TTL_MS_MAX;
	return QUEUE_ARGS_DONE;
}

enum queue_args_next queue_args_refused(struct queue_args *q, struct slice refusal, int64_t *ttl_ms)
{
	struct queue_arg a;

	if (!queue_arg_parse(refusal, &a))
		return QUEUE_ARGS_STUCK;
	if (strcmp(a.name, TTL) == 0)
		return take_ttl(&a, ttl_ms);
	if (strcmp(a.name, "durable") == 0)
		return flip(&q->durable, &a);
	if (strcmp(a.name, "auto_delete") == 0)
		return flip(&q->auto_delete, &a);
	for (size_t i = 0; i < q->count; i++)
		if (strcmp(q->known[i].name, a.name) == 0)
			return QUEUE_ARGS_STUCK; /* given as told, and still it differs */
	/* RabbitMQ 4 compares it with the virtual host's default, and tells no type. */
	if (a.has && a.type[0] == '\0' && strcmp(a.name, "x-queue-type") == 0)
		str_copy(a.type, sizeof(a.type), "longstr");
	if (!a.has || a.type[0] == '\0' || q->count == QUEUE_ARGS_MAX)
		return QUEUE_ARGS_STUCK;
	q->known[q->count++] = a;
	return QUEUE_ARGS_AGAIN;
}

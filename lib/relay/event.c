#include "relay/event.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An event whose text grew beyond this gives the memory back when it returns to the pool. */
#define TEXT_KEEP 4096

#define TO(s) (1u << (s))
/* clang-format off */
static const struct {
	const char *name;
	unsigned next;
} rule[EVENT_STATES] = {
	[EVENT_FREE]      = { "free",      TO(EVENT_CLAIMED) },
	[EVENT_CLAIMED]   = { "claimed",   TO(EVENT_PUBLISHED) | TO(EVENT_FAILED) | TO(EVENT_RELEASED) | TO(EVENT_LOST) },
	[EVENT_PUBLISHED] = { "published", TO(EVENT_CONFIRMED) | TO(EVENT_FAILED) | TO(EVENT_UNKNOWN) | TO(EVENT_RELEASED) | TO(EVENT_LOST) },
	[EVENT_UNKNOWN]   = { "unknown",   TO(EVENT_PUBLISHED) | TO(EVENT_FAILED) | TO(EVENT_RELEASED) | TO(EVENT_LOST) },
	[EVENT_CONFIRMED] = { "confirmed", TO(EVENT_SETTLED) | TO(EVENT_LOST) },
	[EVENT_FAILED]    = { "failed",    TO(EVENT_SETTLED) | TO(EVENT_LOST) },
	[EVENT_RELEASED]  = { "released",  TO(EVENT_SETTLED) | TO(EVENT_LOST) },
	[EVENT_SETTLED]   = { "settled",   TO(EVENT_FREE) },
	[EVENT_LOST]      = { "lost",      TO(EVENT_FREE) },
};
/* clang-format on */

void event_move(struct event *ev, enum event_state to)
{
	assert(rule[ev->state].next & TO(to));
	ev->state = to;
}

const char *event_state_name(enum event_state s)
{
	return (size_t)s < EVENT_STATES ? rule[s].name : "?";
}

void event_pool_init(struct event_pool *p, unsigned max, size_t extra_count)
{
	*p = (struct event_pool){ .max = max, .extra_count = extra_count };
	list_init(&p->free);
}

void event_pool_fini(struct event_pool *p)
{
	assert(p->used == 0);
	list_each_safe (pos, tmp, &p->free) {
		struct event *ev = container_of(pos, struct event, link);

		free(ev->text);
		free(ev);
	}
	*p = (struct event_pool){ 0 };
}

static struct event *take(struct event_pool *p)
{
	struct event *ev = list_first(&p->free, struct event, link);

	if (p->used >= p->max)
		return NULL;
	if (ev != NULL) {
		list_del(&ev->link);
		return ev;
	}
	ev = calloc(1, sizeof(*ev));
	if (ev == NULL)
		return NULL;
	list_init(&ev->link);
	p->allocated++;
	return ev;
}

/* The slices of a row that an event keeps, in the order they are copied. last_error is the store's
 * business. */
static size_t slices_of(struct row *row, struct slice *out[static 10])
{
	size_t n = 0;

	out[n++] = &row->event_id;
	out[n++] = &row->aggregate_type;
	out[n++] = &row->aggregate_id;
	out[n++] = &row->event_type;
	out[n++] = &row->payload;
	out[n++] = &row->aggregate_version;
	out[n++] = &row->trace_id;
	out[n++] = &row->traceparent;
	out[n++] = &row->tracestate;
	out[n++] = &row->headers;
	return n;
}

static void copy_slice(struct slice *s, char **at)
{
	if (s->ptr == NULL)
		return;
	if (s->len > 0)
		memcpy(*at, s->ptr, s->len);
	s->ptr = *at;
	*at += s->len;
}

struct event *event_new(struct event_pool *p, const struct row *row)
{
	struct event *ev = take(p);
	struct row copy = *row;
	struct slice *parts[10];
	size_t count = slices_of(&copy, parts);
	size_t extra_bytes = row->extra != NULL ? p->extra_count * sizeof(struct slice) : 0;
	size_t need = extra_bytes + 1;
	char *at;

	if (ev == NULL)
		return NULL;
	for (size_t i = 0; i < count; i++)
		need += parts[i]->len;
	for (size_t i = 0; row->extra != NULL && i < p->extra_count; i++)
		need += row->extra[i].len;
	if (need > ev->text_cap) {
		char *text = malloc(need);

		if (text == NULL) {
			list_push_front(&p->free, &ev->link);
			return NULL;
		}
		free(ev->text);
		ev->text = text;
		ev->text_cap = need;
	}
	at = ev->text + extra_bytes;
	for (size_t i = 0; i < count; i++)
		copy_slice(parts[i], &at);
	copy.last_error = (struct slice){ 0 };
	if (row->extra != NULL) {
		struct slice *extra = (struct slice *)(void *)ev->text;

		memcpy(extra, row->extra, extra_bytes);
		for (size_t i = 0; i < p->extra_count; i++)
			copy_slice(&extra[i], &at);
		copy.extra = extra;
	}
	*ev = (struct event){
		.state = EVENT_CLAIMED,
		.row = copy,
		.bytes = need + sizeof(*ev),
		.text = ev->text,
		.text_cap = ev->text_cap,
	};
	list_init(&ev->link);
	p->used++;
	p->bytes += ev->bytes;
	return ev;
}

void event_free(struct event_pool *p, struct event *ev)
{
	assert(list_empty(&ev->link));
	event_move(ev, EVENT_FREE);
	p->used--;
	p->bytes -= ev->bytes;
	free(ev->error);
	ev->error = NULL;
	if (ev->text_cap > TEXT_KEEP) {
		free(ev->text);
		ev->text = NULL;
		ev->text_cap = 0;
	}
	list_push_front(&p->free, &ev->link);
}

void event_set_error(struct event *ev, const char *fmt, ...)
{
	va_list ap;
	char *text = NULL;

	va_start(ap, fmt);
	if (vasprintf(&text, fmt, ap) < 0)
		text = NULL;
	va_end(ap);
	free(ev->error);
	ev->error = text;
}

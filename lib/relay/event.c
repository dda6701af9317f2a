#include "relay/event.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes in the block, which begins with the places itself; a row is never larger than
 * max_allowed_packet, at most 1 GiB. */
struct event_place {
	uint32_t at, len;
};
#define ABSENT UINT32_MAX

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
	ev->state = (uint8_t)to;
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

		free(ev->places);
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

size_t event_bytes(const struct event *ev)
{
	return sizeof(*ev) + ev->size;
}

static void parts_of(const struct row *row, struct slice out[static EVENT_PARTS])
{
	out[PART_EVENT_ID] = row->event_id;
	out[PART_AGGREGATE_TYPE] = row->aggregate_type;
	out[PART_AGGREGATE_ID] = row->aggregate_id;
	out[PART_EVENT_TYPE] = row->event_type;
	out[PART_PAYLOAD] = row->payload;
	out[PART_AGGREGATE_VERSION] = row->aggregate_version;
	out[PART_TRACE_ID] = row->trace_id;
	out[PART_TRACEPARENT] = row->traceparent;
	out[PART_TRACESTATE] = row->tracestate;
	out[PART_HEADERS] = row->headers;
}

static size_t place(struct event_place *places, size_t i, size_t used, struct slice s)
{
	places[i] =
		(struct event_place){ s.ptr != NULL ? (uint32_t)used : ABSENT, (uint32_t)s.len };
	if (s.len > 0)
		memcpy((char *)places + used, s.ptr, s.len);
	return used + s.len;
}

static struct slice part(const struct event *ev, size_t i)
{
	struct event_place at = ev->places[i];

	if (at.at == ABSENT)
		return (struct slice){ 0 };
	return (struct slice){ (const char *)ev->places + at.at, at.len };
}

struct slice event_part(const struct event *ev, enum event_part which)
{
	return part(ev, which);
}

void event_row(const struct event_pool *p, const struct event *ev, struct row *row,
	struct slice extra[ROW_EXTRA_MAX])
{
	*row = (struct row){
		.id = ev->id,
		.created_us = ev->created_us,
		.retry_count = ev->retry_count,
		.event_id = part(ev, PART_EVENT_ID),
		.aggregate_type = part(ev, PART_AGGREGATE_TYPE),
		.aggregate_id = part(ev, PART_AGGREGATE_ID),
		.event_type = part(ev, PART_EVENT_TYPE),
		.payload = part(ev, PART_PAYLOAD),
		.payload_cut = ev->cut,
		.aggregate_version = part(ev, PART_AGGREGATE_VERSION),
		.trace_id = part(ev, PART_TRACE_ID),
		.traceparent = part(ev, PART_TRACEPARENT),
		.tracestate = part(ev, PART_TRACESTATE),
		.headers = part(ev, PART_HEADERS),
		.extra = extra,
	};
	for (size_t i = 0; i < p->extra_count; i++)
		extra[i] = part(ev, EVENT_PARTS + i);
}

struct event *event_new(struct event_pool *p, const struct row *row)
{
	struct event *ev = take(p);
	struct slice parts[EVENT_PARTS];
	size_t extra = row->extra != NULL ? p->extra_count : 0;
	size_t places = (EVENT_PARTS + p->extra_count) * sizeof(struct event_place);
	size_t need = places, used = places;

	if (ev == NULL)
		return NULL;
	parts_of(row, parts);
	for (size_t i = 0; i < EVENT_PARTS; i++)
		need += parts[i].len;
	for (size_t i = 0; i < extra; i++)
		need += row->extra[i].len;
	if (need > ev->size) {
		free(ev->places);
		ev->size = 0;
		ev->places = need < ABSENT ? malloc(need) : NULL;
		if (ev->places == NULL) {
			list_push_front(&p->free, &ev->link);
			return NULL;
		}
		ev->size = need;
	}
	*ev = (struct event){
		.state = EVENT_CLAIMED,
		.retry_count = row->retry_count,
		.id = row->id,
		.created_us = row->created_us,
		.cut = row->payload_cut,
		.places = ev->places,
		.size = ev->size,
	};
	list_init(&ev->link);
	for (size_t i = 0; i < EVENT_PARTS; i++)
		used = place(ev->places, i, used, parts[i]);
	for (size_t i = 0; i < p->extra_count; i++)
		used = place(ev->places, EVENT_PARTS + i, used,
			i < extra ? row->extra[i] : (struct slice){ 0 });
	p->used++;
	p->bytes += event_bytes(ev);
	return ev;
}

void event_free(struct event_pool *p, struct event *ev)
{
	assert(list_empty(&ev->link));
	event_move(ev, EVENT_FREE);
	p->used--;
	p->bytes -= event_bytes(ev);
	free(ev->error);
	ev->error = NULL;
	if (ev->size > TEXT_KEEP) {
		free(ev->places);
		ev->places = NULL;
		ev->size = 0;
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

static int by_place(const void *a, const void *b)
{
	const struct event *const *x = a, *const *y = b;

	if (event_before(*x, *y))
		return -1;
	return event_before(*y, *x);
}

static int by_id(const void *a, const void *b)
{
	const struct event *const *x = a, *const *y = b;

	return ((*x)->id > (*y)->id) - ((*x)->id < (*y)->id);
}

static void sort(struct event **list, size_t count, int (*compare)(const void *, const void *))
{
	for (size_t i = 1; i < count; i++)
		if (compare((const void *)&list[i - 1], (const void *)&list[i]) > 0) {
			qsort((void *)list, count, sizeof(struct event *), compare);
			return;
		}
}

void events_sort_by_place(struct event **list, size_t count)
{
	sort(list, count, by_place);
}

void events_sort_by_id(struct event **list, size_t count)
{
	sort(list, count, by_id);
}

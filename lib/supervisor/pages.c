#include "supervisor/pages.h"

#include "sys/clock.h"

#include <string.h>

/* The process turns while the main thread takes pictures. */
#define ALIVE_US (10 * US_PER_SEC)

void pages_init(struct pages *p, struct metrics *metrics)
{
	*p = (struct pages){ .metrics = metrics, .made_us = clock_mono_us() };
	pthread_mutex_init(&p->lock, NULL);
}

void pages_fini(struct pages *p)
{
	struct buf *all[] = { &p->status, &p->ready, &p->next_status, &p->next_ready, &p->brokers };

	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		buf_fini(all[i]);
	pthread_mutex_destroy(&p->lock);
}

void pages_begin(struct pages *p)
{
	buf_reset(&p->next_status);
	buf_reset(&p->next_ready);
	buf_reset(&p->brokers);
	p->sources = 0;
	p->next_is_ready = true;
	buf_adds(&p->next_status, "{\"sources\":[");
}

static void not_ready(struct pages *p, const char *what, const char *name, const char *why)
{
	p->next_is_ready = false;
	buf_addf(&p->next_ready, "%s %s: %s\n", what, name,
		why[0] != '\0' ? why : "not connected yet");
}

void pages_add(struct pages *p, const struct source_conf *source, const struct relay_view *v)
{
	struct buf *out = &p->next_status;

	if (!v->database_up)
		not_ready(p, "source", source->name, v->database_error);
	if (!v->broker_up)
		not_ready(p, "broker", source->broker->name, v->broker_error);
	if (v->route_open)
		not_ready(p, "route of source", source->name, v->route_error);
	buf_addf(out, "%s{\"name\":\"", p->sources > 0 ? "," : "");
	buf_add_json(out, slice_str(source->name));
	buf_addf(out,
		"\",\"up\":%s,\"leader\":%s,\"route_up\":%s,\"in_flight\":%u,\"window\":%u,"
		"\"published\":%llu,\"failed\":%llu,\"error\":\"",
		v->database_up ? "true" : "false", v->leads ? "true" : "false",
		v->route_open ? "false" : "true", v->in_flight, v->window,
		(unsigned long long)v->published, (unsigned long long)v->failed);
	buf_add_json(out, slice_str(v->database_up ? v->route_error : v->database_error));
	buf_adds(out, "\"}");
	buf_addf(&p->brokers, "%s{\"name\":\"", p->sources > 0 ? "," : "");
	buf_add_json(&p->brokers, slice_str(source->broker->name));
	buf_addf(&p->brokers, "\",\"source\":\"");
	buf_add_json(&p->brokers, slice_str(source->name));
	buf_addf(&p->brokers, "\",\"up\":%s,\"blocked\":%s,\"error\":\"",
		v->broker_up ? "true" : "false", v->blocked ? "true" : "false");
	buf_add_json(&p->brokers, slice_str(v->broker_error));
	buf_adds(&p->brokers, "\"}");
	p->sources++;
}

static void swap(struct buf *a, struct buf *b)
{
	struct buf c = *a;

	*a = *b;
	*b = c;
}

void pages_end(struct pages *p)
{
	buf_adds(&p->next_status, "],\"brokers\":[");
	buf_add_slice(&p->next_status, buf_slice(&p->brokers));
	buf_adds(&p->next_status, "]}\n");
	if (p->next_is_ready)
		buf_adds(&p->next_ready, "ready\n");
	pthread_mutex_lock(&p->lock);
	swap(&p->status, &p->next_status);
	swap(&p->ready, &p->next_ready);
	p->is_ready = p->next_is_ready;
	p->made_us = clock_mono_us();
	pthread_mutex_unlock(&p->lock);
}

unsigned pages_metrics(void *arg, struct buf *out)
{
	struct pages *p = arg;

	return metrics_render(p->metrics, out) < 0 ? 500 : 200;
}

unsigned pages_livez(void *arg, struct buf *out)
{
	struct pages *p = arg;
	int64_t age_us;

	pthread_mutex_lock(&p->lock);
	age_us = clock_mono_us() - p->made_us;
	pthread_mutex_unlock(&p->lock);
	buf_adds(out, age_us < ALIVE_US ? "alive\n" : "the main loop does not turn\n");
	return age_us < ALIVE_US ? 200 : 503;
}

unsigned pages_readyz(void *arg, struct buf *out)
{
	struct pages *p = arg;
	unsigned code;

	pthread_mutex_lock(&p->lock);
	buf_add_slice(out, buf_slice(&p->ready));
	code = p->is_ready ? 200 : 503;
	pthread_mutex_unlock(&p->lock);
	return code;
}

unsigned pages_status(void *arg, struct buf *out)
{
	struct pages *p = arg;

	pthread_mutex_lock(&p->lock);
	buf_add_slice(out, buf_slice(&p->status));
	pthread_mutex_unlock(&p->lock);
	return 200;
}

#include "supervisor/pages.h"

#include "base/str.h"
#include "sys/clock.h"

#include <stdlib.h>
#include <string.h>

/* The process turns while the main thread takes pictures. */
#define ALIVE_US (10 * US_PER_SEC)
/* For so long after a question the status is written with each picture, for the next one. */
#define ASKED_US (2 * US_PER_SEC)
/* A status older than some pictures is none: the next one is waited for. */
#define FRESH_US (300 * US_PER_MS)
#define WAIT_US US_PER_SEC

void pages_init(struct pages *p, struct metrics *metrics)
{
	pthread_condattr_t attr;
	int64_t now_us = clock_mono_us();

	*p = (struct pages){ .metrics = metrics, .made_us = now_us, .asked_us = now_us };
	pthread_mutex_init(&p->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&p->status_made, &attr);
	pthread_condattr_destroy(&attr);
}

static void broker_fini(struct pages *p, struct page_broker *b)
{
	metrics_drop(p->metrics, b->up_gauge);
	metrics_drop(p->metrics, b->blocked_gauge);
	free(b->name);
}

void pages_fini(struct pages *p)
{
	struct buf *all[] = { &p->status, &p->ready, &p->next_status, &p->next_ready };

	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		buf_fini(all[i]);
	for (size_t i = 0; i < p->broker_count; i++)
		broker_fini(p, &p->brokers[i]);
	free(p->brokers);
	free(p->sources);
	pthread_cond_destroy(&p->status_made);
	pthread_mutex_destroy(&p->lock);
}

/* Room for one more; NULL without memory. */
static void *grown(void *list, size_t count, size_t *cap, size_t each)
{
	void *more = list;

	if (count == *cap) {
		more = realloc(list, (*cap * 2 + 8) * each);
		if (more != NULL)
			*cap = *cap * 2 + 8;
	}
	return more;
}

static struct page_broker *find_broker(struct pages *p, const char *name)
{
	for (size_t i = 0; i < p->broker_count; i++)
		if (strcmp(p->brokers[i].name, name) == 0)
			return &p->brokers[i];
	return NULL;
}

static void want_broker(struct pages *p, const char *name)
{
	struct metric_label by_broker[] = { { "broker", name }, { NULL, NULL } };
	struct page_broker *b = find_broker(p, name), *more;

	if (b == NULL) {
		more = grown(p->brokers, p->broker_count, &p->broker_cap, sizeof(*p->brokers));
		if (more == NULL)
			return;
		p->brokers = more;
		b = &p->brokers[p->broker_count];
		*b = (struct page_broker){ .name = strdup(name) };
		if (b->name == NULL)
			return;
		b->up_gauge = metrics_gauge(p->metrics, "broker_up",
			"1 while every relay that uses the broker is connected to it.", by_broker);
		b->blocked_gauge = metrics_gauge(p->metrics, "broker_blocked",
			"1 while the broker does not read what a relay sends: an alarm.",
			by_broker);
		p->broker_count++;
	}
	b->wanted = b->up = true;
	b->blocked = false;
	b->workers = 0;
	b->error[0] = '\0';
}

static void drop_unwanted(struct pages *p)
{
	size_t kept = 0;

	for (size_t i = 0; i < p->broker_count; i++) {
		if (p->brokers[i].wanted)
			p->brokers[kept++] = p->brokers[i];
		else
			broker_fini(p, &p->brokers[i]);
	}
	p->broker_count = kept;
}

void pages_begin(struct pages *p, const struct config *conf)
{
	buf_reset(&p->next_status);
	buf_reset(&p->next_ready);
	p->next_is_ready = true;
	p->source_count = 0;
	for (size_t i = 0; i < p->broker_count; i++)
		p->brokers[i].wanted = false;
	for (size_t i = 0; i < conf->source_count; i++) {
		struct page_source *more =
			grown(p->sources, p->source_count, &p->source_cap, sizeof(*p->sources));

		if (more == NULL)
			return;
		p->sources = more;
		p->sources[p->source_count++] = (struct page_source){ .conf = &conf->sources[i] };
		want_broker(p, conf->sources[i].broker->name);
	}
	drop_unwanted(p);
}

static void not_ready(struct pages *p, const char *what, const char *name, const char *why)
{
	p->next_is_ready = false;
	buf_addf(&p->next_ready, "%s %s: %s\n", what, name,
		why[0] != '\0' ? why : "not connected yet");
}

static void keep_first(char *to, size_t size, const char *text)
{
	if (to[0] == '\0')
		(void)str_copy(to, size, text);
}

static void add_broker(struct pages *p, const char *name, const struct relay_view *v)
{
	struct page_broker *b = find_broker(p, name);

	if (b == NULL)
		return;
	b->workers++;
	b->up &= v->broker_up;
	b->blocked |= v->blocked;
	if (!v->broker_up)
		keep_first(b->error, sizeof(b->error),
			v->broker_error[0] != '\0' ? v->broker_error : "not connected yet");
}

void pages_add(struct pages *p, const struct source_conf *source, const char *owner,
	const struct relay_view *v)
{
	struct page_source *s = NULL;

	for (size_t i = 0; i < p->source_count && s == NULL; i++)
		if (strcmp(p->sources[i].conf->name, source->name) == 0)
			s = &p->sources[i];
	if (s == NULL)
		return; /* on its way out */
	add_broker(p, source->broker->name, v);
	if (v->leads && source->ordering == ORDERING_AGGREGATE)
		keep_first(s->owner, sizeof(s->owner), owner);
	if (s->workers++ == 0) {
		s->view = *v;
		return;
	}
	s->view.database_up &= v->database_up;
	s->view.broker_up &= v->broker_up;
	s->view.blocked |= v->blocked;
	s->view.leads |= v->leads;
	s->view.route_open |= v->route_open;
	s->view.in_flight += v->in_flight;
	s->view.window += v->window;
	s->view.published += v->published;
	s->view.failed += v->failed;
	keep_first(s->view.database_error, sizeof(s->view.database_error), v->database_error);
	keep_first(s->view.broker_error, sizeof(s->view.broker_error), v->broker_error);
	keep_first(s->view.route_error, sizeof(s->view.route_error), v->route_error);
}

static const char *flag(bool b)
{
	return b ? "true" : "false";
}

static void add_text(struct buf *b, const char *name, const char *text)
{
	buf_addf(b, ",\"%s\":", name);
	if (text == NULL || text[0] == '\0') {
		buf_adds(b, "null");
		return;
	}
	buf_addc(b, '"');
	buf_add_json(b, slice_str(text));
	buf_addc(b, '"');
}

/* "": nothing is wrong. */
static const char *source_error(const struct page_source *s)
{
	const struct relay_view *v = &s->view;

	if (s->workers == 0)
		return "not started";
	if (!v->database_up && v->database_error[0] == '\0')
		return "not connected yet";
	return v->database_up ? v->route_error : v->database_error;
}

static void judge_source(struct pages *p, const struct page_source *s)
{
	if (!s->view.database_up)
		not_ready(p, "source", s->conf->name, source_error(s));
	if (s->view.route_open)
		not_ready(p, "route of source", s->conf->name, s->view.route_error);
}

static void judge_broker(struct pages *p, struct page_broker *b)
{
	bool up = b->up && b->workers > 0;

	if (b->workers > 0 && !up)
		not_ready(p, "broker", b->name, b->error);
	metric_set(b->up_gauge, up);
	metric_set(b->blocked_gauge, b->blocked);
}

static void show_source(struct pages *p, const struct page_source *s, struct upkeep *upkeep)
{
	const struct relay_view *v = &s->view;
	struct buf *out = &p->next_status;
	struct table_sample sample;
	int64_t age_us = 0;
	bool sampled = upkeep != NULL && upkeep_sample(upkeep, s->conf->name, &sample, &age_us);

	buf_addf(out, "%s{\"name\":\"", s > p->sources ? "," : "");
	buf_add_json(out, slice_str(s->conf->name));
	buf_addf(out, "\",\"up\":%s", flag(v->database_up));
	add_text(out, "error", source_error(s));
	add_text(out, "leader", s->owner);
	buf_addf(out, ",\"leads\":%s,\"ordering\":\"%s\",",
		flag(s->conf->ordering == ORDERING_AGGREGATE && v->leads),
		s->conf->ordering == ORDERING_AGGREGATE ? "aggregate" : "none");
	gauges_add_json(out, sampled ? &sample : NULL);
	buf_addf(out, ",\"sample_age_seconds\":%.1f,\"broker\":\"", (double)age_us / US_PER_SEC);
	buf_add_json(out, slice_str(s->conf->broker->name));
	buf_addf(out,
		"\",\"route_up\":%s,\"in_flight\":%u,\"window\":%u,\"published\":%llu,"
		"\"failed\":%llu}",
		flag(!v->route_open), v->in_flight, v->window, (unsigned long long)v->published,
		(unsigned long long)v->failed);
}

static void show_broker(struct pages *p, const struct page_broker *b)
{
	struct buf *out = &p->next_status;
	bool up = b->up && b->workers > 0;

	buf_addf(out, "%s{\"name\":\"", b > p->brokers ? "," : "");
	buf_add_json(out, slice_str(b->name));
	buf_addf(out, "\",\"up\":%s,\"blocked\":%s", flag(up), flag(b->blocked));
	add_text(out, "error", b->error);
	buf_addc(out, '}');
}

static void swap(struct buf *a, struct buf *b)
{
	struct buf c = *a;

	*a = *b;
	*b = c;
}

static void write_status(struct pages *p, struct upkeep *upkeep)
{
	buf_adds(&p->next_status, "{\"sources\":[");
	for (size_t i = 0; i < p->source_count; i++)
		show_source(p, &p->sources[i], upkeep);
	buf_adds(&p->next_status, "],\"brokers\":[");
	for (size_t i = 0; i < p->broker_count; i++)
		show_broker(p, &p->brokers[i]);
	buf_adds(&p->next_status, "]}\n");
}

static bool status_wanted(struct pages *p)
{
	int64_t asked_us;

	pthread_mutex_lock(&p->lock);
	asked_us = p->asked_us;
	pthread_mutex_unlock(&p->lock);
	return clock_mono_us() - asked_us < ASKED_US;
}

void pages_end(struct pages *p, struct upkeep *upkeep)
{
	bool wanted = status_wanted(p);

	for (size_t i = 0; i < p->source_count; i++)
		judge_source(p, &p->sources[i]);
	for (size_t i = 0; i < p->broker_count; i++)
		judge_broker(p, &p->brokers[i]);
	if (p->next_is_ready)
		buf_adds(&p->next_ready, "ready\n");
	if (wanted)
		write_status(p, upkeep);
	pthread_mutex_lock(&p->lock);
	swap(&p->ready, &p->next_ready);
	p->is_ready = p->next_is_ready;
	p->made_us = clock_mono_us();
	if (wanted) {
		swap(&p->status, &p->next_status);
		p->status_us = p->made_us;
		pthread_cond_broadcast(&p->status_made);
	}
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
	int64_t now_us = clock_mono_us(), until_us = now_us + WAIT_US;
	const struct timespec until = { .tv_sec = until_us / US_PER_SEC,
		.tv_nsec = until_us % US_PER_SEC * 1000 };
	bool fresh;

	pthread_mutex_lock(&p->lock);
	p->asked_us = now_us;
	while (!(fresh = now_us - p->status_us <= FRESH_US) &&
		pthread_cond_timedwait(&p->status_made, &p->lock, &until) == 0)
		;
	if (fresh)
		buf_add_slice(out, buf_slice(&p->status));
	else
		buf_adds(out, "{\"error\":\"the main loop does not turn\"}\n");
	pthread_mutex_unlock(&p->lock);
	return fresh ? 200 : 503;
}

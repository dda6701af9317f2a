#include "metrics/metrics.h"

#include "base/list.h"
#include "base/str.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX "outboxd_"
#define LABELS_MAX 16
#define ABSENT UINT64_C(0x7FF8A85E47000001) /* the bits of a NaN that nobody computes */
#define HOT_BIT (UINT64_C(1) << 63)

/* One of the two halves of a histogram. */
struct half {
	atomic_uint_fast64_t done; /* observations that are in sum and counts */
	atomic_uint_fast64_t sum;  /* bits of a double */
	atomic_uint_fast64_t *counts;
};

/* How a render sees one instant without making observe() wait (after the Prometheus client for Go):
 * observations go to the hot half; the render swaps the halves with one atomic step, which also
 * tells it how many observations the now cold half will hold, waits for those few that have begun
 * there but not ended, reads it, and adds it to the other. */
struct histogram {
	atomic_uint_fast64_t begun; /* observations, and in the top bit which half is hot */
	struct half half[2];
};

struct family {
	struct list node;
	const char *name, *help;
	enum metric_type type;
	double *buckets;
	size_t bucket_count;
	struct list series; /* sorted by labels */
};

struct metric {
	struct list node;
	struct family *family;
	unsigned references;
	char *labels;               /* as rendered: a="x",b="y" */
	atomic_uint_fast64_t value; /* counter; gauge: bits of a double, or ABSENT */
	struct histogram h;
};

struct metrics {
	pthread_mutex_t lock;
	struct list families; /* sorted by name */
};

static double to_double(uint64_t bits)
{
	double v;

	memcpy(&v, &bits, sizeof(v));
	return v;
}

static uint64_t to_bits(double v)
{
	uint64_t bits;

	memcpy(&bits, &v, sizeof(bits));
	return bits;
}

static void add_double(atomic_uint_fast64_t *bits, double v)
{
	uint_fast64_t old = atomic_load(bits);

	while (!atomic_compare_exchange_weak(bits, &old, to_bits(to_double(old) + v)))
		;
}

/* ---- series ---- */

static void series_free(struct metric *s)
{
	if (s == NULL)
		return;
	free(s->h.half[0].counts);
	free(s->h.half[1].counts);
	free(s->labels);
	free(s);
}

static void family_free(struct family *f)
{
	list_each_safe (at, next, &f->series) {
		list_del(at);
		series_free(container_of(at, struct metric, node));
	}
	free(f->buckets);
	free(f);
}

struct metrics *metrics_new(void)
{
	struct metrics *m = calloc(1, sizeof(*m));

	if (m == NULL)
		return NULL;
	pthread_mutex_init(&m->lock, NULL);
	list_init(&m->families);
	return m;
}

void metrics_free(struct metrics *m)
{
	if (m == NULL)
		return;
	list_each_safe (at, next, &m->families) {
		list_del(at);
		family_free(container_of(at, struct family, node));
	}
	pthread_mutex_destroy(&m->lock);
	free(m);
}

static bool valid_name(const char *name)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_";

	return strspn(name, letters) > 0 &&
	       name[strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"
				 "0123456789")] == '\0';
}

/* The format knows three escapes in label values, and no others. */
static void add_label_value(struct buf *b, struct slice v)
{
	for (size_t i = 0; i < v.len;) {
		size_t n = utf8_sequence(v.ptr + i, v.len - i);

		if (n == 0)
			buf_adds(b, "\xEF\xBF\xBD");
		else if (v.ptr[i] == '\n')
			buf_adds(b, "\\n");
		else if (v.ptr[i] == '"' || v.ptr[i] == '\\')
			buf_addf(b, "\\%c", v.ptr[i]);
		else
			buf_add(b, v.ptr + i, n);
		i += n > 0 ? n : 1;
	}
}

static int by_name(const void *a, const void *b)
{
	const struct metric_label *const *x = a, *const *y = b;

	return strcmp((*x)->name, (*y)->name);
}

static char *render_labels(const struct metric_label *labels)
{
	const struct metric_label *sorted[LABELS_MAX];
	struct buf b = { 0 };
	size_t n = 0;

	for (; labels != NULL && labels->name != NULL; labels++) {
		assert(n < LABELS_MAX && valid_name(labels->name));
		assert(strcmp(labels->name, "le") != 0);
		sorted[n++] = labels;
	}
	if (n > 1)
		qsort(sorted, n, sizeof(*sorted), by_name);
	buf_adds(&b, "");
	for (size_t i = 0; i < n; i++) {
		buf_addf(&b, "%s%s=\"", i > 0 ? "," : "", sorted[i]->name);
		add_label_value(&b, slice_str(sorted[i]->value != NULL ? sorted[i]->value : ""));
		buf_addc(&b, '"');
	}
	if (b.failed) {
		buf_fini(&b);
		return NULL;
	}
	return b.data;
}

static struct family *family_new(struct list *before, const char *name, const char *help,
	enum metric_type type, const double *buckets, size_t count)
{
	struct family *f = calloc(1, sizeof(*f));

	if (f == NULL)
		return NULL;
	assert(valid_name(name));
	*f = (struct family){ .name = name, .help = help, .type = type, .bucket_count = count };
	list_init(&f->series);
	if (count > 0) {
		f->buckets = malloc(count * sizeof(*buckets));
		if (f->buckets == NULL) {
			free(f);
			return NULL;
		}
		memcpy(f->buckets, buckets, count * sizeof(*buckets));
		for (size_t i = 0; i < count; i++)
			assert(isfinite(buckets[i]) && (i == 0 || buckets[i] > buckets[i - 1]));
	}
	list_insert_before(before, &f->node);
	return f;
}

static struct family *find_family(struct metrics *m, const char *name, const char *help,
	enum metric_type type, const double *buckets, size_t count)
{
	struct list *before = &m->families;

	list_each (at, &m->families) {
		struct family *f = container_of(at, struct family, node);
		int order = strcmp(name, f->name);

		if (order == 0) {
			assert(f->type == type && f->bucket_count == count);
			return f;
		}
		if (order < 0) {
			before = at;
			break;
		}
	}
	return family_new(before, name, help, type, buckets, count);
}

static struct metric *series_new(struct family *f, struct list *before, char *labels)
{
	struct metric *s = calloc(1, sizeof(*s));

	if (s == NULL)
		return NULL;
	s->family = f;
	for (int i = 0; i < 2 && f->type == METRIC_HISTOGRAM; i++) {
		s->h.half[i].counts = calloc(f->bucket_count + 1, sizeof(*s->h.half[i].counts));
		if (s->h.half[i].counts == NULL) {
			series_free(s);
			return NULL;
		}
	}
	s->labels = labels;
	list_insert_before(before, &s->node);
	return s;
}

/* Takes over `labels` if it makes a new series of them. */
static struct metric *find_series(struct family *f, char *labels)
{
	struct list *before = &f->series;

	list_each (at, &f->series) {
		struct metric *s = container_of(at, struct metric, node);
		int order = strcmp(labels, s->labels);

		if (order == 0)
			return s;
		if (order < 0) {
			before = at;
			break;
		}
	}
	return series_new(f, before, labels);
}

static struct metric *get(struct metrics *m, const char *name, const char *help,
	const struct metric_label *labels, enum metric_type type, const double *buckets,
	size_t count)
{
	char *text = render_labels(labels);
	struct metric *s = NULL;
	struct family *f;

	if (text == NULL)
		return NULL;
	pthread_mutex_lock(&m->lock);
	f = find_family(m, name, help, type, buckets, count);
	if (f != NULL)
		s = find_series(f, text);
	if (s != NULL)
		s->references++;
	if (s == NULL || s->labels != text)
		free(text);
	pthread_mutex_unlock(&m->lock);
	return s;
}

struct metric *metrics_counter(
	struct metrics *m, const char *name, const char *help, const struct metric_label *labels)
{
	return get(m, name, help, labels, METRIC_COUNTER, NULL, 0);
}

struct metric *metrics_gauge(
	struct metrics *m, const char *name, const char *help, const struct metric_label *labels)
{
	return get(m, name, help, labels, METRIC_GAUGE, NULL, 0);
}

struct metric *metrics_histogram(struct metrics *m, const char *name, const char *help,
	const struct metric_label *labels, const double *buckets, size_t count)
{
	return get(m, name, help, labels, METRIC_HISTOGRAM, buckets, count);
}

void metrics_drop(struct metrics *m, struct metric *s)
{
	if (s == NULL)
		return;
	pthread_mutex_lock(&m->lock);
	assert(s->references > 0);
	if (--s->references == 0) {
		list_del(&s->node);
		series_free(s);
	}
	pthread_mutex_unlock(&m->lock);
}

/* ---- values ---- */

void metric_add(struct metric *s, uint64_t n)
{
	if (s == NULL)
		return;
	assert(s->family->type == METRIC_COUNTER);
	atomic_fetch_add(&s->value, n);
}

void metric_set(struct metric *s, double v)
{
	if (s == NULL)
		return;
	assert(s->family->type == METRIC_GAUGE);
	atomic_store(&s->value, isnan(v) ? to_bits(NAN) : to_bits(v));
}

void metric_absent(struct metric *s)
{
	if (s == NULL)
		return;
	assert(s->family->type == METRIC_GAUGE);
	atomic_store(&s->value, ABSENT);
}

void metric_observe(struct metric *s, double v)
{
	const struct family *f;
	struct half *half;
	size_t i = 0;

	if (s == NULL)
		return;
	f = s->family;
	assert(f->type == METRIC_HISTOGRAM);
	while (i < f->bucket_count && !(v <= f->buckets[i])) /* NaN: +Inf */
		i++;
	half = &s->h.half[atomic_fetch_add(&s->h.begun, 1) >> 63];
	atomic_fetch_add(&half->counts[i], 1);
	add_double(&half->sum, v);
	atomic_fetch_add(&half->done, 1);
}

double metric_value(const struct metric *s)
{
	if (s == NULL)
		return 0;
	switch (s->family->type) {
	case METRIC_COUNTER:
		return (double)atomic_load(&s->value);
	case METRIC_GAUGE:
		return to_double(atomic_load(&s->value));
	case METRIC_HISTOGRAM:
		return (double)(atomic_load(&s->h.begun) & ~HOT_BIT);
	}
	return 0;
}

/* ---- rendering ---- */

/* The shortest text that reads back as the same number. */
static void add_number(struct buf *b, double v)
{
	char text[40];

	if (isnan(v) || isinf(v)) {
		buf_adds(b, isnan(v) ? "NaN" : v > 0 ? "+Inf" : "-Inf");
		return;
	}
	for (int digits = 15; digits <= 17; digits++) {
		snprintf(text, sizeof(text), "%.*g", digits, v);
		if (strtod(text, NULL) == v)
			break;
	}
	buf_adds(b, text);
}

/* The name with its labels, up to the blank before the value. `le` is the bound of a bucket. */
static void add_name(struct buf *b, const struct metric *s, const char *suffix, const double *le)
{
	bool labels = s->labels[0] != '\0';

	buf_addf(b, PREFIX "%s%s", s->family->name, suffix);
	if (labels || le != NULL)
		buf_addc(b, '{');
	buf_adds(b, s->labels);
	if (le != NULL) {
		buf_adds(b, labels ? ",le=\"" : "le=\"");
		add_number(b, *le);
		buf_addc(b, '"');
	}
	buf_adds(b, labels || le != NULL ? "} " : " ");
}

static void add_value(struct buf *b, const struct metric *s)
{
	uint64_t v = atomic_load(&s->value);

	if (s->family->type == METRIC_GAUGE && v == ABSENT)
		return;
	add_name(b, s, "", NULL);
	if (s->family->type == METRIC_COUNTER)
		buf_addf(b, "%" PRIu64, v);
	else
		add_number(b, to_double(v));
	buf_addc(b, '\n');
}

/* Under the registry's lock: one render at a time. */
static struct half *swap_halves(struct histogram *h, uint64_t *total)
{
	uint64_t begun = atomic_fetch_add(&h->begun, HOT_BIT);
	struct half *cold = &h->half[begun >> 63];

	*total = begun & ~HOT_BIT;
	while (atomic_load(&cold->done) != *total)
		sched_yield(); /* an observer stopped between two of its atomic steps */
	return cold;
}

/* The cold half holds everything ever observed; what it holds moves to the hot one. */
static void fold(struct histogram *h, struct half *cold, size_t buckets)
{
	struct half *hot = cold == &h->half[0] ? &h->half[1] : &h->half[0];

	for (size_t i = 0; i <= buckets; i++)
		atomic_fetch_add(&hot->counts[i], atomic_exchange(&cold->counts[i], 0));
	add_double(&hot->sum, to_double(atomic_exchange(&cold->sum, 0)));
	atomic_fetch_add(&hot->done, atomic_exchange(&cold->done, 0));
}

static void add_histogram(struct buf *b, struct metric *s)
{
	const struct family *f = s->family;
	uint64_t total, upto = 0;
	struct half *cold = swap_halves(&s->h, &total);

	for (size_t i = 0; i <= f->bucket_count; i++) {
		double le = i < f->bucket_count ? f->buckets[i] : INFINITY;

		upto += atomic_load(&cold->counts[i]);
		add_name(b, s, "_bucket", &le);
		buf_addf(b, "%" PRIu64 "\n", upto);
	}
	add_name(b, s, "_sum", NULL);
	add_number(b, to_double(atomic_load(&cold->sum)));
	buf_addc(b, '\n');
	add_name(b, s, "_count", NULL);
	buf_addf(b, "%" PRIu64 "\n", total);
	fold(&s->h, cold, f->bucket_count);
}

static void add_head(struct buf *b, const struct family *f)
{
	static const char *const types[] = {
		[METRIC_COUNTER] = "counter",
		[METRIC_GAUGE] = "gauge",
		[METRIC_HISTOGRAM] = "histogram",
	};

	buf_addf(b, "# HELP " PREFIX "%s ", f->name);
	for (const char *p = f->help; *p != '\0'; p++) {
		if (*p == '\n')
			buf_adds(b, "\\n");
		else if (*p == '\\')
			buf_adds(b, "\\\\");
		else
			buf_addc(b, *p);
	}
	buf_addf(b, "\n# TYPE " PREFIX "%s %s\n", f->name, types[f->type]);
}

static void add_family(struct buf *b, struct family *f)
{
	size_t start = b->len, head;

	add_head(b, f);
	head = b->len;
	list_each (at, &f->series) {
		struct metric *s = container_of(at, struct metric, node);

		if (f->type == METRIC_HISTOGRAM)
			add_histogram(b, s);
		else
			add_value(b, s);
	}
	if (b->len == head && !b->failed) { /* nothing to show */
		b->len = start;
		b->data[start] = '\0';
	}
}

int metrics_render(struct metrics *m, struct buf *out)
{
	pthread_mutex_lock(&m->lock);
	list_each (at, &m->families)
		add_family(out, container_of(at, struct family, node));
	pthread_mutex_unlock(&m->lock);
	return out->failed ? -1 : 0;
}

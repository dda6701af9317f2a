/* metrics.h: counters, gauges and histograms in the Prometheus text format 0.0.4. Registration,
 * removal and rendering take a lock; adding, setting and observing are atomic, take none, and are
 * safe from any thread. */
#ifndef OUTBOXD_METRICS_H
#define OUTBOXD_METRICS_H

#include "base/buf.h"

#include <stdbool.h>

struct metrics; /* a registry */
struct metric;  /* one series of it */

enum metric_type { METRIC_COUNTER, METRIC_GAUGE, METRIC_HISTOGRAM };

struct metric_label {
	const char *name; /* NULL ends the list */
	const char *value;
};

struct metrics *metrics_new(void);
void metrics_free(struct metrics *m);

/* The series of that family and those labels, in whatever order; the same pointer when asked again
 * (reference-counted). `name` comes without prefix: "outboxd_" is put before it when rendered.
 * Labels end with a NULL name; label values are copied, `name` and `help` must live as long as the
 * registry. A family has one type, and a histogram the buckets it was first asked for with (upper
 * bounds, ascending, without +Inf; copied). What is not UTF-8 in a label value becomes U+FFFD. NULL
 * only when memory ran out; every metric_*() takes NULL and does nothing. */
struct metric *metrics_counter(
	struct metrics *m, const char *name, const char *help, const struct metric_label *labels);
struct metric *metrics_gauge(
	struct metrics *m, const char *name, const char *help, const struct metric_label *labels);
struct metric *metrics_histogram(struct metrics *m, const char *name, const char *help,
	const struct metric_label *labels, const double *buckets, size_t count);

/* Gives one reference back; the last one removes the series: nobody may use it any more. Takes
 * NULL. */
void metrics_drop(struct metrics *m, struct metric *series);

void metric_add(struct metric *s, uint64_t n); /* counter */
void metric_set(struct metric *s, double v);   /* gauge; before the first set it reads 0 */
void metric_absent(struct metric *s);          /* gauge: leave it out until it is set again */
void metric_observe(struct metric *s, double v);
double metric_value(
	const struct metric *s); /* counter or gauge (absent: NaN); histogram: its count */

/* For Content-Type. */
#define METRICS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* Appends the whole registry as text: families sorted by name, each with HELP and TYPE once, its
 * series sorted by their labels. A family without a series to show (all absent or dropped) is left
 * out. Each histogram is of one instant: buckets, sum and count agree. 0, or -1: out of memory. */
int metrics_render(struct metrics *m, struct buf *out);

#endif

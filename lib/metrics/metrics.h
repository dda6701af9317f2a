/* metrics.h: counters, gauges and histograms in the Prometheus text format 0.0.4. Registration and
 * removal take a lock; adding, setting and observing are atomic, wait-free and safe from any
 * thread; rendering may run meanwhile. */
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

/* The series of that family and those labels; the same pointer when asked again
 * (reference-counted). `name` comes without prefix: "outboxd_" is put before it when rendered.
 * Labels end with a NULL name; label values are copied, `name` and `help` must live as long as the
 * registry. `buckets` (upper bounds, ascending, without +Inf) is for histograms. NULL only when
 * memory ran out; every metric_*() takes NULL and does nothing. */
struct metric *metrics_counter(
	struct metrics *m, const char *name, const char *help, const struct metric_label *labels);
struct metric *metrics_gauge(
	struct metrics *m, const char *name, const char *help, const struct metric_label *labels);
struct metric *metrics_histogram(struct metrics *m, const char *name, const char *help,
	const struct metric_label *labels, const double *buckets, size_t count);

/* Gives one reference back; the last one removes the series. */
void metrics_drop(struct metrics *m, struct metric *series);

void metric_add(struct metric *s, uint64_t n); /* counter */
void metric_set(struct metric *s, double v);   /* gauge; before the first set it reads 0 */
void metric_absent(struct metric *s);          /* gauge: leave it out until it is set again */
void metric_observe(struct metric *s, double v);
double metric_value(const struct metric *s); /* counter or gauge; histogram: its count */

/* The whole registry as text: families sorted by name, each with HELP and TYPE once. 0, or -1: out
 * of memory. */
int metrics_render(struct metrics *m, struct buf *out);

#endif

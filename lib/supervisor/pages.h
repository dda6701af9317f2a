/* pages.h: what HTTP shows, from memory. The main thread takes a picture of its workers several
 * times a second; HTTP's thread reads the last one. */
#ifndef OUTBOXD_PAGES_H
#define OUTBOXD_PAGES_H

#include "base/buf.h"
#include "metrics/metrics.h"
#include "relay/relay.h"

#include <pthread.h>

struct pages {
	struct metrics *metrics;
	pthread_mutex_t lock;
	struct buf status, ready; /* shown now; under the lock */
	bool is_ready;
	struct buf next_status, next_ready, brokers; /* being made; main thread */
	bool next_is_ready;
	unsigned sources;
	int64_t made_us;
};

void pages_init(struct pages *p, struct metrics *metrics);
void pages_fini(struct pages *p);

/* Main thread: one picture. */
void pages_begin(struct pages *p);
void pages_add(struct pages *p, const struct source_conf *source, const struct relay_view *view);
void pages_end(struct pages *p);

/* HTTP's thread; `arg` is the struct pages. */
unsigned pages_metrics(void *arg, struct buf *out);
unsigned pages_livez(void *arg, struct buf *out);
unsigned pages_readyz(void *arg, struct buf *out);
unsigned pages_status(void *arg, struct buf *out);

#endif

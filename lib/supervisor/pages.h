/* pages.h: what HTTP shows, from memory. The main thread takes a picture of its workers several
 * times a second; HTTP's thread reads the last one. The text of /status, which is most of the work,
 * is written only while somebody asks for it: the first to ask waits for the next picture. */
#ifndef OUTBOXD_PAGES_H
#define OUTBOXD_PAGES_H

#include "base/buf.h"
#include "metrics/metrics.h"
#include "relay/relay.h"
#include "supervisor/upkeep.h"

#include <pthread.h>

/* A source of the picture: what its workers are taken together. */
struct page_source {
	const struct source_conf *conf;
	struct relay_view view;
	char owner[140]; /* of a worker that leads */
	unsigned workers;
};

/* A broker, over all relays that use it. Outlives pictures, for its series. */
struct page_broker {
	char *name;
	bool wanted, up, blocked;
	unsigned workers;
	char error[200];
	struct metric *up_gauge, *blocked_gauge;
};

struct pages {
	struct metrics *metrics;
	pthread_mutex_t lock;
	pthread_cond_t status_made;
	struct buf status, ready; /* shown now; under the lock */
	bool is_ready;
	int64_t made_us, status_us; /* when */
	int64_t asked_us;           /* when /status was asked for last */
	/* being made; main thread */
	struct buf next_status, next_ready;
	bool next_is_ready;
	struct page_source *sources;
	size_t source_count, source_cap;
	struct page_broker *brokers;
	size_t broker_count, broker_cap;
};

void pages_init(struct pages *p, struct metrics *metrics);
void pages_fini(struct pages *p);

/* Main thread: one picture of the sources of `conf` and their brokers; workers of others are left
 * out. `upkeep` (NULL: none) has the counts of the tables. */
void pages_begin(struct pages *p, const struct config *conf);
void pages_add(struct pages *p, const struct source_conf *source, const char *owner,
	const struct relay_view *view);
void pages_end(struct pages *p, struct upkeep *upkeep);

/* HTTP's thread; `arg` is the struct pages. */
unsigned pages_metrics(void *arg, struct buf *out);
unsigned pages_livez(void *arg, struct buf *out);
unsigned pages_readyz(void *arg, struct buf *out);
unsigned pages_status(void *arg, struct buf *out);

#endif

/* purge_pace.h: how long to wait between two batches of a purge. Pure: time is an argument.
 *
 * A batch that took t is followed by a pause: of 4 t when a pass begins, of less and less while it
 * goes on and disturbs nobody, of t in the end. What it disturbs is seen by the age of the event
 * that has waited longest to be claimed: while that grows beyond what it lately was the relay is
 * not keeping up, and each batch doubles the pause, up to 16 t. (It rises and falls with every
 * claim: two moments alone tell nothing.) Once this has gone on for two minutes of a pass, the rest
 * of the pass does without: a source that is busy for ever is purged all the same. */
#ifndef OUTBOXD_MYSQL_PURGE_PACE_H
#define OUTBOXD_MYSQL_PURGE_PACE_H

#include "base/base.h"

#include <stdbool.h>

#define PURGE_CHUNK_MAX 500u

/* Zero-initialised, then purge_pace_begin(). */
struct purge_pace {
	int64_t at_us; /* when the last batch ended */
	/* How old the oldest was at most, since span_us in `batches` batches, and in the span
	 * before. */
	int64_t highest_us, before_us, span_us;
	unsigned batches;
	unsigned level;    /* the pause is t, doubled so often */
	unsigned calm;     /* batches since it was changed */
	int64_t braked_us; /* of this pass */
};

/* A new pass. */
void purge_pace_begin(struct purge_pace *p);

/* Rows of one batch that keep `max_rate` rows a second (0: no limit) even. */
unsigned purge_chunk(unsigned max_rate);

/* After a batch of `rows` that took `took_us` and ended at `now_us`; `waiting_us`: how long the
 * oldest claimable event has been waiting, 0: there is none. Returns the pause. */
int64_t purge_pause(struct purge_pace *p, unsigned max_rate, uint64_t rows, int64_t took_us,
	int64_t waiting_us, int64_t now_us);

#endif

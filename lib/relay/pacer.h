/* pacer.h: when to poll the table next. Pure.
 *
 * A full batch: at once. Something found: again after PACER_FLOW_US, for as long as events keep
 * coming and PACER_LINGER_US beyond. Nothing for longer: the interval doubles up to the configured
 * poll_interval. A full batch that only failed is no reason to poll at once: the interval grows as
 * if nothing had been found. */
#ifndef OUTBOXD_PACER_H
#define OUTBOXD_PACER_H

#include "base/base.h"

#include <stdbool.h>

#define PACER_FLOW_US (20 * US_PER_MS)
#define PACER_LINGER_US (1 * US_PER_SEC)

struct pacer {
	int64_t max_us; /* poll_interval */
	int64_t interval_us;
	int64_t next_us; /* monotonic */
	int64_t found_us;
	unsigned failures; /* outcomes since the last success */
	bool hot;  /* no need to look before claiming: the last claim was full, or it rang */
	bool rung; /* since the last claim */
};

void pacer_init(struct pacer *p, int64_t poll_interval_us, int64_t now_us);
/* Poll now: a connection or a route works, rows were released. */
void pacer_poke(struct pacer *p, int64_t now_us);
/* Claim now: a producer says that it has committed something. If nothing is there to claim, a look
 * at what else there may be follows. */
void pacer_ring(struct pacer *p, int64_t now_us);
void pacer_outcome(struct pacer *p, bool good);
/* After a poll that found nothing to claim; due_us: how long until a delayed row falls due,
 * TIME_NEVER for none. */
void pacer_idle(struct pacer *p, int64_t now_us, int64_t due_us);
/* After a claim of `got` rows out of at most `wanted`. */
void pacer_claimed(struct pacer *p, int64_t now_us, unsigned got, unsigned wanted);

#endif

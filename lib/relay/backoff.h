/* backoff.h: how long to wait before the next attempt. Pure: chance comes in as an argument. */
#ifndef OUTBOXD_BACKOFF_H
#define OUTBOXD_BACKOFF_H

#include "base/base.h"

/* min(cap, base * 2^(attempt-1)) for attempt >= 1, moved by up to +-jitter (0 to 1) of itself,
 * never above cap; `draw` is uniform in [0, 1). Never overflows, however many attempts. */
int64_t backoff_us(int64_t base_us, int64_t cap_us, unsigned attempt, double jitter, double draw);

#endif

/* rng.h: seeded pseudo-random numbers (SplitMix64, Steele, Lea & Flood 2014). Good for jitter and
 * simulated faults, replayable from the seed; never for secrets. */
#ifndef OUTBOXD_RNG_H
#define OUTBOXD_RNG_H

#include "base/base.h"

struct rng {
	uint64_t state;
};

uint64_t rng_next(struct rng *r);
/* Uniform in [0, 1). */
double rng_unit(struct rng *r);
/* Uniform in [0, n); n > 0. */
uint64_t rng_below(struct rng *r, uint64_t n);

/* A seed from the operating system; falls back on clock and pid where getrandom(2) fails. */
uint64_t rng_os_seed(void);

#endif

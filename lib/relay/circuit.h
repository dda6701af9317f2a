/* circuit.h: after a failure, when to try again. One circuit guards one thing that can be away: the
 * database, the broker, the route. Pure: time and chance are arguments.
 *
 * closed: works. open: wait until retry_us. The first success closes it; the count of failures is
 * forgotten only once it has stayed closed for STABLE_US, so that something that dies right after
 * each connect does not get a quick try each time. Waits are drawn from the upper half of the grown
 * delay ("equal jitter"), so a herd of relays spreads out. */
#ifndef OUTBOXD_CIRCUIT_H
#define OUTBOXD_CIRCUIT_H

#include "base/base.h"
#include "base/rng.h"

#include <stdbool.h>

#define CIRCUIT_STABLE_US (10 * US_PER_SEC)

struct circuit {
	int64_t base_us, cap_us;
	bool open;
	unsigned failures;
	int64_t retry_us;  /* while open: the next probe; TIME_NEVER never */
	int64_t opened_us; /* when the present outage began */
	int64_t closed_us; /* when it last closed */
};

void circuit_init(struct circuit *c, int64_t base_us, int64_t cap_us);
/* `slow` (a fault that time alone does not mend: login, schema) starts at the cap's tenth and waits
 * up to three caps. */
void circuit_fail(struct circuit *c, int64_t now_us, bool slow, struct rng *rng);
void circuit_succeed(struct circuit *c, int64_t now_us);
/* Closed, or open with its probe due. */
bool circuit_may_try(const struct circuit *c, int64_t now_us);

#endif

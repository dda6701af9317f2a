#include "relay/circuit.h"

#include "relay/backoff.h"

void circuit_init(struct circuit *c, int64_t base_us, int64_t cap_us)
{
	*c = (struct circuit){ .base_us = base_us, .cap_us = cap_us };
}

void circuit_fail(struct circuit *c, int64_t now_us, bool slow, struct rng *rng)
{
	int64_t base = slow ? c->cap_us / 10 + c->base_us : c->base_us;
	int64_t cap = slow ? c->cap_us * 3 : c->cap_us;
	int64_t delay;

	if (!c->open) {
		c->opened_us = now_us;
		if (now_us - c->closed_us >= CIRCUIT_STABLE_US)
			c->failures = 0;
	}
	c->open = true;
	if (c->failures < UINT32_MAX)
		c->failures++;
	delay = backoff_us(base, cap, c->failures, 0.0, 0.0);
	c->retry_us = now_us + delay / 2 + (int64_t)((double)(delay / 2) * rng_unit(rng));
}

void circuit_succeed(struct circuit *c, int64_t now_us)
{
	if (c->open)
		c->closed_us = now_us;
	c->open = false;
}

bool circuit_may_try(const struct circuit *c, int64_t now_us)
{
	return !c->open || now_us >= c->retry_us;
}

#include "relay/pacer.h"

static int64_t min64(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

void pacer_init(struct pacer *p, int64_t poll_interval_us, int64_t now_us)
{
	*p = (struct pacer){
		.max_us = poll_interval_us,
		.interval_us = min64(PACER_FLOW_US, poll_interval_us),
		.next_us = now_us,
		.found_us = now_us - PACER_LINGER_US,
	};
}

void pacer_poke(struct pacer *p, int64_t now_us)
{
	p->next_us = now_us;
	p->failures = 0;
}

void pacer_ring(struct pacer *p, int64_t now_us)
{
	pacer_poke(p, now_us);
	p->hot = p->rung = true;
}

void pacer_outcome(struct pacer *p, bool good)
{
	if (good)
		p->failures = 0;
	else if (p->failures < UINT32_MAX)
		p->failures++;
}

static void slow_down(struct pacer *p)
{
	p->interval_us = min64(p->interval_us * 2, p->max_us);
}

void pacer_idle(struct pacer *p, int64_t now_us, int64_t due_us)
{
	p->hot = p->rung = false;
	if (now_us - p->found_us >= PACER_LINGER_US)
		slow_down(p);
	p->next_us = now_us + min64(p->interval_us, due_us);
}

void pacer_claimed(struct pacer *p, int64_t now_us, unsigned got, unsigned wanted)
{
	bool failing = wanted > 0 && p->failures >= wanted, rung = p->rung;

	p->rung = false;
	p->hot = got >= wanted && got > 0 && !failing;
	if (p->hot) {
		p->found_us = now_us;
		p->interval_us = min64(PACER_FLOW_US, p->max_us);
		p->next_us = now_us;
	} else if (got > 0 && !failing) {
		p->found_us = now_us;
		p->interval_us = min64(PACER_FLOW_US, p->max_us);
		p->next_us = now_us + p->interval_us;
	} else if (got == 0 && rung) {
		p->next_us = now_us;
	} else {
		slow_down(p);
		p->next_us = now_us + p->interval_us;
	}
}

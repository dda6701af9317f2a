#include "mysql/purge_pace.h"

#define LEVEL_BEGIN 2
#define LEVEL_MAX 4
/* So many batches that disturbed nobody halve the pause. */
#define CALM 8
/* What a span takes at least: some claims, some batches. */
#define SPAN_US (5 * US_PER_SEC)
#define SPAN_BATCHES 8
/* Waiting for less than this is no backlog. */
#define BACKLOG_US US_PER_SEC
#define BRAKE_MAX_US (120 * US_PER_SEC)
#define PAUSE_MAX_US (10 * US_PER_SEC)

unsigned purge_chunk(unsigned max_rate)
{
	unsigned quarter = max_rate / 4 > 0 ? max_rate / 4 : 1;

	return max_rate == 0 || quarter > PURGE_CHUNK_MAX ? PURGE_CHUNK_MAX : quarter;
}

void purge_pace_begin(struct purge_pace *p)
{
	if (p->level < LEVEL_BEGIN)
		p->level = LEVEL_BEGIN;
	p->calm = 0;
	p->braked_us = 0;
}

/* Older than lately, by a tenth of the time that has passed: most of that time nothing older went.
 */
static bool grows(const struct purge_pace *p, int64_t waiting_us, int64_t now_us)
{
	int64_t lately_us = p->highest_us > p->before_us ? p->highest_us : p->before_us;

	return waiting_us > BACKLOG_US && p->at_us != 0 &&
	       waiting_us - lately_us > (now_us - p->at_us) / 10;
}

static void remember(struct purge_pace *p, int64_t waiting_us, int64_t now_us)
{
	if (p->batches >= SPAN_BATCHES && now_us - p->span_us >= SPAN_US) {
		p->before_us = p->highest_us;
		p->highest_us = 0;
		p->batches = 0;
	}
	if (p->batches++ == 0)
		p->span_us = now_us;
	if (waiting_us > p->highest_us)
		p->highest_us = waiting_us;
	p->at_us = now_us;
}

int64_t purge_pause(struct purge_pace *p, unsigned max_rate, uint64_t rows, int64_t took_us,
	int64_t waiting_us, int64_t now_us)
{
	int64_t pause_us, rate_us = 0;

	if (grows(p, waiting_us, now_us)) {
		p->level += p->level < LEVEL_MAX;
		p->calm = 0;
	} else if (p->level > 0 && (p->level > LEVEL_BEGIN || ++p->calm >= CALM)) {
		p->level--;
		p->calm = 0;
	}
	remember(p, waiting_us, now_us);
	pause_us = took_us << (p->level > LEVEL_BEGIN && p->braked_us >= BRAKE_MAX_US ? LEVEL_BEGIN
										      : p->level);
	if (pause_us > PAUSE_MAX_US)
		pause_us = PAUSE_MAX_US;
	if (p->level > LEVEL_BEGIN)
		p->braked_us += pause_us;
	if (max_rate > 0)
		rate_us = (int64_t)(rows * US_PER_SEC / max_rate) - took_us;
	return rate_us > pause_us ? rate_us : pause_us;
}

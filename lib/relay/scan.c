#include "relay/scan.h"

void scan_init(struct scan *s, int64_t gain_us)
{
	*s = (struct scan){ .gain_us = gain_us };
}

void scan_restart(struct scan *s)
{
	s->from_us = 0;
}

int64_t scan_begin(struct scan *s, int64_t now_us, bool whole)
{
	bool whole_before = s->kind == SCAN_WHOLE;

	s->kind = now_us < s->next_whole_us ? SCAN_PART : SCAN_WHOLE;
	if (whole || s->from_us == 0) {
		s->kind = SCAN_WHOLE;
	} else if (s->kind == SCAN_WHOLE && whole_before && now_us >= s->next_try_us &&
		   s->mean_us[SCAN_WHOLE] > s->usual_us + (double)s->gain_us) {
		s->next_try_us = now_us + SCAN_TRY_US;
		s->kind = SCAN_PART;
	}
	return s->kind == SCAN_PART ? s->from_us - SCAN_OVERLAP_US : 0;
}

void scan_claimed(struct scan *s, int64_t created_us)
{
	s->from_us = created_us;
}

void scan_released(struct scan *s, int64_t created_us)
{
	if (created_us < s->from_us)
		s->from_us = created_us;
}

static void note(double *mean, double took_us)
{
	*mean = *mean == 0 ? took_us : *mean * 0.75 + took_us * 0.25;
}

void scan_took(struct scan *s, int64_t now_us, int64_t took_us)
{
	double whole, part, gain, rest;

	if (s->kind == SCAN_WHOLE && s->mean_us[SCAN_PART] > 0)
		s->mean_us[SCAN_WHOLE] = (double)took_us; /* they are few now */
	else
		note(&s->mean_us[s->kind], (double)took_us);
	whole = s->mean_us[SCAN_WHOLE];
	part = s->mean_us[SCAN_PART];
	gain = whole - part;
	if (s->kind == SCAN_PART)
		return;
	if (s->usual_us > whole)
		s->usual_us = whole;
	if (part == 0)
		return;
	if (gain > (double)s->gain_us && gain > part / 2) {
		rest = gain * SCAN_SHARE;
		s->next_whole_us = now_us + (rest < SCAN_WHOLE_US ? (int64_t)rest : SCAN_WHOLE_US);
	} else {
		s->usual_us = whole;
		s->mean_us[SCAN_PART] = 0; /* the next time it may be another */
		s->next_whole_us = now_us;
	}
}

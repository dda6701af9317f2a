/* clock.h: the two clocks, in microseconds. Durations and deadlines are monotonic; the wall clock
 * is for people and for time stamps that leave the process. */
#ifndef OUTBOXD_CLOCK_H
#define OUTBOXD_CLOCK_H

#include "base/base.h"

int64_t clock_mono_us(void);
int64_t clock_wall_us(void);

#endif

/* upkeep.h: what has to be done about the tables beside relaying: outbox and inbox tables are
 * counted for the gauges, and rows that have served their time removed. A few threads, so that a
 * database that hangs does not delay the others; one connection a table, one short statement or
 * transaction of a table at a time, whichever is due first. After a count that took t a table is
 * left alone by counting for 99 t, so that at most a hundredth of the time is spent on it; the pace
 * of removing is purge_pace.h's. What cannot be counted is asked again after a while, and its
 * gauges are absent meanwhile while sample_age_seconds grows.
 *
 *	main thread                          upkeep's threads
 *	upkeep_configure(conf) ------------> one takes it over while the others rest
 *	upkeep_released() <----------------- gives the former one back
 *	upkeep_check()  cuts a call that is past its deadline
 *	upkeep_sample() <------------------- the last count of each source */
#ifndef OUTBOXD_UPKEEP_H
#define OUTBOXD_UPKEEP_H

#include "config/config.h"
#include "metrics/metrics.h"
#include "mysql/gauges.h"

#include <stdbool.h>

struct upkeep;

/* Starts the threads, without a configuration. The metrics must outlive it. */
int upkeep_start(struct upkeep **out, struct metrics *metrics, struct err *e) MUST_CHECK;

/* All of these on the main thread. */

/* From now on these sources. `conf` must live until upkeep_released() has returned `token`. */
int upkeep_configure(
	struct upkeep *u, const struct config *conf, void *token, struct err *e) MUST_CHECK;
/* The token of a configuration that is no longer used, one a call; NULL: none. */
void *upkeep_released(struct upkeep *u);

/* Several times a second. */
void upkeep_check(struct upkeep *u, int64_t now_us);

/* The last sample of that source and its age; false: there is none, *age_us tells for how long. */
bool upkeep_sample(struct upkeep *u, const char *source, struct table_sample *out, int64_t *age_us);

/* Asks the threads to end, cutting their calls off. */
void upkeep_stop(struct upkeep *u);
bool upkeep_ended(const struct upkeep *u);
/* Joins the threads; afterwards upkeep_released() returns what is left, until upkeep_free(). */
void upkeep_join(struct upkeep *u);
void upkeep_free(struct upkeep *u); /* after upkeep_join(); takes NULL */

#endif

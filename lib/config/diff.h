/* diff.h: what differs between two snapshots. */
#ifndef OUTBOXD_CONFIG_DIFF_H
#define OUTBOXD_CONFIG_DIFF_H

#include "config/config.h"

/* Everything a relay of that source depends on, its broker included, is the same; lines in the file
 * apart. Of the retention it knows only whether rows are deleted as they are sent. */
bool config_source_equal(const struct source_conf *a, const struct source_conf *b);
bool config_retention_equal(const struct retention_conf *a, const struct retention_conf *b);
bool config_inbox_equal(const struct inbox_conf *a, const struct inbox_conf *b);

/* Calls `change` with one line for each difference ("source orders: batch: 500 -> 200", "source x:
 * added"); values of secrets are never shown. Returns how many there were. */
unsigned config_diff(const struct config *before, const struct config *after,
	void (*change)(void *arg, const char *line), void *arg);

#endif

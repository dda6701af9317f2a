/* store.h: the relay's store port over a MySQL or MariaDB table. One session with the
 * database; all calls from one thread, which has called mysql_thread_enter(). */
#ifndef OUTBOXD_MYSQL_STORE_H
#define OUTBOXD_MYSQL_STORE_H

#include "config/config.h"
#include "mysql/session.h"
#include "relay/store.h"

/* `conf`, the extra columns (struct row's `extra`, in this order) and `guard` (may be NULL) are
 * borrowed; `owner`, at most 128 bytes, is copied. Does not connect. */
int mysql_store_new(struct store **out, const struct source_conf *conf, const char *owner,
	const char *const *extra_columns, size_t extra_count, struct guard *guard,
	struct err *e) MUST_CHECK;

#endif

/* store_impl.h: what the parts of the MySQL store share. */
#ifndef OUTBOXD_MYSQL_STORE_IMPL_H
#define OUTBOXD_MYSQL_STORE_IMPL_H

#include "mysql/schema.h"
#include "mysql/session.h"
#include "mysql/statements.h"
#include "mysql/store.h"

/* Rows whose values differ are written in statements of so many: each row costs a comparison for
 * every one before it. */
#define CASES_MAX 50

/* After somebody's lock was waited for in vain, nobody's is for so long. */
#define LOCKED_US (10 * US_PER_SEC)

/* The name of the lock that elects a source's leader; one name for one table: where the server
 * takes Shop and shop for the same, so does the lock. */
#define LOCK_NAME_MAX 64
int mysql_lock_name(
	const struct source_conf *conf, const struct server *server, char *out, struct err *e);
/* The same of any table, beginning with `prefix`. */
int mysql_table_lock(const char *prefix, const char *database, const char *table,
	const struct server *server, char *out, struct err *e);

struct mysql_store {
	struct store base;
	const struct source_conf *conf;
	struct session *session;
	/* SENT is written on this one while the other one is used; commits by statement. */
	struct session *beside;
	size_t beside_count; /* rows of the statement under way */
	int64_t beside_us;   /* it was last used, monotonic */
	/* Until then no lock is waited for: somebody holds some for long. */
	int64_t locked_until_us;
	const char *const *extra;
	size_t extra_count;
	char owner[129];
	char owner_sql[300]; /* quoted */
	bool ordered;
	char lock[LOCK_NAME_MAX]; /* the source's lock; ordered sources, once connected */

	struct outbox_table table;
	bool stale; /* the table may have been changed: to be read again */
	bool leads;

	/* Room that is used again and again. */
	struct buf text;
	uint64_t *ids;
	size_t ids_cap;
	struct takeover *takeovers;
	size_t takeovers_cap;
	struct place *keys;
	size_t keys_cap;
	const struct settle **picked;
	size_t picked_cap;
	struct slice *extra_values;
};

#define store_of(s) container_of(s, struct mysql_store, base)

/* The array with room for `want` elements. NULL with ERR_NOMEM: it is gone. */
void *store_grown(void *array, size_t *cap, size_t want, size_t each, struct err *e);
#define ROOM(s, array, want, e)                                                                    \
	(((s)->array = store_grown(                                                                \
		  (s)->array, &(s)->array##_cap, want, sizeof(*(s)->array), e)) != NULL            \
			? 0                                                                        \
			: -1)

/* Sends s->text and empties it. */
int store_run(struct mysql_store *s, struct reply *r, struct err *e);

/* What each failed call ends with: context into *e, and the consequences of its kind: a session
 * that must not be used any more is closed. In a transaction call session_rollback() first. Returns
 * -1. */
int store_failed(struct mysql_store *s, struct err *e, const char *what);

/* NULL: no lock is involved. */
const char *store_lock(const struct mysql_store *s);

/* Checks what sql_assert() and sql_look() begin with; -1 with ERR_LINK: the session is not ours. */
int store_check_session(const struct mysql_store *s, const struct slice *values, struct err *e);

int mysql_store_claim(struct store *s, const struct claim_spec *spec, const struct row_sink *sink,
	bool *unknown, struct err *e);
int mysql_store_settle(
	struct store *s, struct settle *list, size_t count, bool *unknown, struct err *e);
int mysql_store_settle_begin(struct store *s, const uint64_t *ids, size_t count, struct err *e);
int mysql_store_settle_end(struct store *s, struct err *e);
int mysql_store_renew(struct store *s, const uint64_t *ids, enum lease_fate *out, size_t count,
	int64_t lease_us, struct err *e);
int mysql_store_predecessors(
	struct store *s, struct order_probe *list, size_t count, bool pass_dead, struct err *e);
int mysql_store_release_waiting(
	struct store *s, struct order_walk *w, bool pass_dead, struct err *e);
int mysql_store_barred(struct store *s, bool pass_dead, struct barred_cursor *cursor, bool *more,
	void (*row)(void *arg, const struct row *key, enum order_head what), void *arg,
	struct err *e);
int mysql_store_last_sent(struct store *s, struct place *out, struct err *e);

#endif

/* purge.h: retention in one table, a step at a time. A pass goes over all rows that are due:
 *
 *	round:	GET_LOCK; read up to `batch` rows in index order from where the last round ended
 *	step:	START TRANSACTION; lock by primary key those that are due, up to 500, and judge them
 *		again; INSERT ... SELECT into the archive, where there is one; DELETE; COMMIT
 *	...	until the round's rows are done; RELEASE_LOCK
 *
 * The lock, of the table's own and not the leader's, keeps two purgers from doing the same work
 * twice; what is right does not depend on it. Nothing is held between two steps but that lock. Rows
 * that somebody else has locked are left for the next pass. */
#ifndef OUTBOXD_MYSQL_PURGE_H
#define OUTBOXD_MYSQL_PURGE_H

#include "config/config.h"
#include "mysql/session.h"
#include "mysql/statements.h"

struct purger;

struct purge_step {
	uint64_t due;       /* found by a round, to be removed by the steps that follow */
	uint64_t gone;      /* removed by this step, for certain */
	uint64_t dead;      /* of those, events that were never sent */
	int64_t waiting_us; /* age of the oldest claimable event; 0: none, or an inbox */
	bool end;           /* the pass is over */
	bool elsewhere;     /* another purger is at work: the pass is over */
	bool unknown;       /* on -1: the transaction may have been committed */
};

/* What is to be known of removed rows. */
struct purge_sink {
	void (*gone)(void *arg, struct slice event_id); /* after the COMMIT */
	void *arg;
};

/* Borrows `conf`; `sink` (or NULL) is copied. With `dry_run` rows are counted as due and stay. */
int purger_new(struct purger **out, const struct source_conf *conf, const struct purge_sink *sink,
	bool dry_run, struct err *e) MUST_CHECK;
/* The same for an inbox: rows processed longer ago than its age. `table` is borrowed, and to be as
 * inbox_read() found it over the session of each step. */
struct inbox_table;
int purger_inbox_new(struct purger **out, const struct inbox_conf *conf,
	const struct inbox_table *table, const struct purge_sink *sink, bool dry_run,
	struct err *e) MUST_CHECK;
void purger_free(struct purger *p);

/* Is there anything to do, by the configuration? */
bool purger_wanted(const struct source_conf *conf);

/* The next step of the pass, or the first of a new one; removes `limit` rows at most (0: as many as
 * its rate allows). `table` is the source's as the session found it (an inbox: NULL).
 *
 * On -1 with ERR_RETRY or ERR_REFUSED the rows of this step are passed over, to be met by the next
 * pass, and the pass goes on with the next step; with any other kind it is over. ERR_REFUSED is one
 * row, named by its id, that a constraint, a trigger or the archive says no to: it is looked for by
 * halves, its neighbours go. Many in a row are the table's fault: ERR_CONFIG. */
int purger_step(struct purger *p, struct session *c, const struct outbox_table *table,
	unsigned limit, struct purge_step *out, struct err *e) MUST_CHECK;

/* What a step does next: it reads, or it removes what was read. */
bool purger_reads(const struct purger *p);

/* Ends the pass early and gives the lock back; NULL or a closed session: there is none. */
void purger_stop(struct purger *p, struct session *c);

#endif

/* upkeep_impl.h: what the parts of upkeep share. An item is used by the thread that has picked it,
 * and nobody else, except what is said to be under the lock. */
#ifndef OUTBOXD_UPKEEP_IMPL_H
#define OUTBOXD_UPKEEP_IMPL_H

#include "log/log.h"
#include "mysql/inbox.h"
#include "mysql/purge.h"
#include "mysql/purge_pace.h"
#include "supervisor/upkeep.h"
#include "sys/clock.h"
#include "sys/guard.h"

#include <pthread.h>
#include <stdatomic.h>

/* Between counts, and before another try after a failure. */
#define UPKEEP_INTERVAL_US (5 * US_PER_SEC)
/* Threads: so many databases may hang without delaying the others. */
#define UPKEEP_CREW 4

enum gauge {
	GAUGE_BACKLOG,
	GAUGE_PROCESSING,
	GAUGE_DEAD,
	GAUGE_SKIPPED,
	GAUGE_HELD,
	GAUGE_BLOCKED,
	GAUGE_EXPIRED,
	GAUGE_OLDEST_UNSENT,
	GAUGE_OLDEST_CLAIMABLE,
	GAUGE_OLDEST_DEAD,
	GAUGES
};

enum job_kind { JOB_COUNT, JOB_PURGE, JOBS };

struct job {
	int64_t due_us, again_us;
	struct log_limit limit;
	bool failing;
};

/* A table that is seen to. */
struct item {
	const char *name;
	const struct database_conf *database;
	const struct source_conf *source; /* or */
	const struct inbox_conf *inbox;
	const char *kind; /* "source", "inbox": the label of its series, and in the log */
	struct session *session;
	int64_t began_us;    /* its last work, over an open session */
	struct guard *guard; /* of the thread that is at work on it */
	struct outbox_table table;
	struct inbox_table inbox_table;
	bool known; /* the table has been read since the session was opened */
	struct job job[JOBS];
	struct metric *gauges[GAUGES], *age, *purged;
	struct metric *purge_failing; /* NULL: rows stay for ever */

	/* of an inbox, as they were counted last */
	struct inbox_sample counted;
	struct inbox_series *series;
	size_t series_count, series_cap;

	struct purger *purger; /* NULL: rows stay for ever */
	struct purge_pace pace;
	uint64_t pass_gone, pass_dead;
	int64_t pass_us;                /* when it began; 0: none is under way */
	int64_t vain_us;                /* its time spent on rounds that found nothing */
	bool pass_cut;                  /* the last one ended because another process went on */
	bool pass_failed, pass_refused; /* of this one a step failed; rows were refused */
	struct buf dead;                /* the first event ids of those deleted last */
	unsigned dead_shown;

	/* under the lock */
	bool busy; /* a thread is at work on it */
	bool sampled;
	int64_t sampled_us; /* or since when there has been none */
	struct table_sample sample;
};

/* A configuration with its token, on its way. */
struct parcel {
	const struct config *conf;
	void *token;
	struct parcel *next;
};

struct hand {
	struct upkeep *upkeep;
	pthread_t thread;
	struct guard guard;
};

struct upkeep {
	struct metrics *metrics;
	struct hand hand[UPKEEP_CREW];
	unsigned hands; /* started */
	bool joined;
	atomic_bool stop, ended;

	pthread_mutex_t lock;
	pthread_cond_t changed;
	/* under the lock */
	unsigned working; /* threads that have not ended */
	unsigned busy;    /* items that are being worked on */
	bool taking;      /* a configuration is being taken over */
	int64_t watch_us; /* until when a thread waits for what falls due; TIME_NEVER: none does */
	struct parcel *wanted, *current, *released;
	struct item *items; /* changed while no item is busy */
	size_t count;
};

/* Does `work` over an open session, the table read. A connection that had been idle may have ended
 * meanwhile: then it is made anew, and the work done once more, if it may be done `again`. */
int item_try(struct upkeep *u, struct item *it,
	int (*work)(struct item *it, void *arg, struct err *e), void *arg, bool again,
	struct err *e);

/* The job did what it should; "what it does again" for the log if it had failed before. */
void job_worked(struct item *it, enum job_kind kind, const char *again);
/* It did not, in part: tells so now and then. */
void job_complains(struct upkeep *u, struct item *it, enum job_kind kind, const char *what,
	const struct err *e);
/* It did not: tells so now and then, and sets when to try again. */
void job_failed(struct upkeep *u, struct item *it, enum job_kind kind, const char *what,
	const struct err *e);

/* In upkeep_inbox.c. */
int inbox_count_rows(struct item *it, void *arg, struct err *e); /* for item_try() */
void inbox_set_series(struct upkeep *u, struct item *it);
void inbox_set_absent(struct item *it);
void inbox_drop(struct upkeep *u, struct item *it);

/* In upkeep_purge.c. */
int purge_make(struct upkeep *u, struct item *it, struct err *e);
void purge_drop(struct upkeep *u, struct item *it);
void purge_pass(struct upkeep *u, struct item *it);

#endif

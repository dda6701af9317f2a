/* purge_impl.h: what a pass over an outbox table and one over an inbox table share. */
#ifndef OUTBOXD_MYSQL_PURGE_IMPL_H
#define OUTBOXD_MYSQL_PURGE_IMPL_H

#include "mysql/purge.h"
#include "mysql/store_impl.h"

struct purger_ops {
	/* Of a pass. */
	int (*begin)(struct purger *p, struct err *e);
	/* A round: sets due_count, and last if nothing of this part is left to be read. */
	int (*read)(struct purger *p, struct err *e);
	/* Another part of the table, after the last round of one. */
	bool (*next)(struct purger *p);
	/* Rows `from` to `from + count - 1` of those that are due, in one transaction. */
	int (*remove)(
		struct purger *p, size_t from, size_t count, struct purge_step *out, struct err *e);
	void (*free)(struct purger *p);
};

struct purger {
	const struct purger_ops *ops;
	const char *database, *table; /* whose lock it takes */
	unsigned chunk;               /* rows of a step, at most */
	bool dry_run;
	struct purge_sink sink;

	struct session *session;           /* of the step at hand */
	const struct outbox_table *outbox; /* of a source, likewise */
	char lock[LOCK_NAME_MAX];
	bool running, locked;
	bool last;
	size_t due_count, at;
	unsigned most; /* rows of the next step, at most: a refused one is looked for by halves */
	unsigned refused; /* one by one, with nothing removed in between */
	struct buf text;
	struct buf gone; /* event ids of the transaction at hand, each ended by a NUL */
};

/* Sends p->text with query_timeout from now, and empties it. */
int purger_run(struct purger *p, struct reply *r, struct err *e);
void purger_remember(struct purger *p, struct slice event_id);
/* Ends the transaction as `rc` says; tells the sink of what is gone. */
int purger_finish(struct purger *p, int rc, uint64_t rows, struct purge_step *out, struct err *e);
void purger_fini(struct purger *p);

#endif

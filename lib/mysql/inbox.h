/* inbox.h: the table by which consumers recognise messages they have had: as it is, counted, and
 * what can be said against it. Only its rows' status and times are looked at, never changed; old
 * ones are deleted by purge.h. */
#ifndef OUTBOXD_MYSQL_INBOX_H
#define OUTBOXD_MYSQL_INBOX_H

#include "config/config.h"
#include "mysql/schema.h"
#include "mysql/session.h"

/* As it was found. Names are quoted already. */
struct inbox_table {
	char name[600];
	char consumer_index[300]; /* (consumer_name, status, received_at); empty: there is none */
	char event_id_is[200],
		consumer_is[200]; /* how to compare text with the key, by its collation */
	bool has_received;
	unsigned received_fraction, processed_fraction; /* digits of the second */
};

/* Every deviation. With none of them a FAULT, *out is what statements need. */
void inbox_judge(const struct schema *s, const struct finding_sink *sink, struct inbox_table *out);

/* Reads and judges it; -1 with the first FAULT as ERR_CONFIG. */
int inbox_read(struct session *c, const struct inbox_conf *conf, struct inbox_table *out,
	struct err *e) MUST_CHECK;

/* `outboxd check` of one inbox; like mysql_check(). */
int inbox_check(const struct inbox_conf *conf, const struct finding_sink *sink, struct err *e);

#define INBOX_CONSUMERS 50 /* further ones are counted together, as "other" */
#define INBOX_STATUSES 10  /* likewise, of one consumer */

struct inbox_count {
	char consumer[129], status[65];
	int64_t rows;
};

struct inbox_age {
	char consumer[129];
	int64_t oldest_us; /* since received_at of the oldest unprocessed row; 0: none; -1: unknown
			    */
};

/* Zero-initialised is empty. Used again and again: memory is kept. */
struct inbox_sample {
	struct inbox_count *counts;
	size_t count_count, count_cap;
	struct inbox_age ages[INBOX_CONSUMERS + 1];
	size_t age_count;
};
void inbox_sample_fini(struct inbox_sample *s);

/* One statement that reads the consumer index, or without it the table. */
int inbox_sample_read(struct session *c, const struct inbox_table *t, const struct inbox_conf *conf,
	struct inbox_sample *out, struct err *e) MUST_CHECK;

/* --- statements, for tests of their text and plans ------------------------------------------- */

void sql_inbox_count(struct buf *b, const struct inbox_table *t);

/* Where the last reading ended, each as the column's text. */
struct inbox_cursor {
	struct buf consumer, event_id;
	char received_at[32];
	bool begun; /* false: nowhere yet */
};

/* The consumer that follows `after` (NULL: the first), by the index. */
void sql_inbox_consumer(struct buf *b, const struct inbox_table *t, const struct slice *after);

/* event_id, consumer_name, received_at, whether it is due. By the consumer index: of the cursor's
 * consumer, rows of that status received longer ago than `age_us`. Without it: all rows, by primary
 * key. */
void sql_inbox_read(struct buf *b, const struct inbox_table *t, const char *status, int64_t age_us,
	const struct inbox_cursor *from, unsigned limit);

/* event_id, consumer_name of those of `pairs`, a JSON list of [event_id, consumer_name], that are
 * due; locked, without those that somebody else has locked. */
void sql_inbox_lock(struct buf *b, const struct inbox_table *t, const char *status, int64_t age_us,
	struct slice pairs, bool mariadb);
void sql_inbox_delete(struct buf *b, const struct inbox_table *t, struct slice pairs);

#endif

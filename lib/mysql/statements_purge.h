/* statements_purge.h: the statements of retention. Pure text, see statements.h.
 *
 * Reading goes along an index, a bounded number of rows at a time, each time from where the last
 * one ended: rows are judged where they are read, so that one statement costs the rows it returns,
 * whatever lies in between. What is due is locked by primary key and judged again, then moved or
 * deleted by primary key. */
#ifndef OUTBOXD_MYSQL_STATEMENTS_PURGE_H
#define OUTBOXD_MYSQL_STATEMENTS_PURGE_H

#include "mysql/statements.h"

enum purge_kind { PURGE_SENT, PURGE_DEAD, PURGE_KINDS };

/* Where the last reading ended. `created_at` empty: nowhere yet. */
struct purge_cursor {
	char created_at[32]; /* as the column's text */
	uint64_t id;
};

/* id, created_at, whether it is due: SENT rows in the order of (created_at, id) that were created
 * and, to be due, sent longer ago than `age_us` by the database's clock; DEAD ones created so long
 * ago. */
void sql_purge_read(struct buf *b, const struct outbox_table *t, enum purge_kind kind,
	int64_t age_us, const struct purge_cursor *from, unsigned limit);

/* How long the first row that can be claimed has been waiting, microseconds; NULL: there is none.
 */
void sql_purge_waiting(struct buf *b, const struct outbox_table *t);

/* id, event_id of those of these rows, at most SQL_IDS_MAX, that are still due; locked. What
 * somebody else has locked is left out. MySQL wants to be told which of the two tables is meant,
 * MariaDB does not understand that. */
void sql_purge_lock(struct buf *b, const struct outbox_table *t, enum purge_kind kind,
	int64_t age_us, const uint64_t *ids, size_t count, bool mariadb);

/* Copies them; `archive` and `columns` are quoted. */
void sql_purge_archive(struct buf *b, const struct outbox_table *t, const char *archive,
	const char *columns, const uint64_t *ids, size_t count);

void sql_purge_delete(
	struct buf *b, const struct outbox_table *t, const uint64_t *ids, size_t count);

#endif

/* event_row.h: a row as sql_claim_select() and sql_events() give it. */
#ifndef OUTBOXD_MYSQL_EVENT_ROW_H
#define OUTBOXD_MYSQL_EVENT_ROW_H

#include "message/row.h"
#include "mysql/statements.h"

/* *out and extra[], t->extra_count of them, point into the values. -1: the row has no usable id. */
int event_row_read(const struct outbox_table *t, const struct slice *values, struct row *out,
	struct slice *extra, struct err *e);

#endif

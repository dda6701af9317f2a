/* admin_impl.h: what the two halves of admin.h share. */
#ifndef OUTBOXD_MYSQL_ADMIN_IMPL_H
#define OUTBOXD_MYSQL_ADMIN_IMPL_H

#include "mysql/admin.h"

/* Sends a->text with query_timeout from now, and empties it. */
int admin_run(struct admin *a, struct reply *r, struct err *e);
/* The one row a->text selects, by admin_add_row(); id 0: none. */
int admin_one(struct admin *a, struct admin_row *out, struct err *e);
int admin_read_row(const struct slice *v, struct admin_row *out, struct err *e);

/* As much of it as fits, cut at a character. */
void admin_copy(char *out, size_t size, struct slice v);

void admin_add_row(struct buf *b, const struct outbox_table *t); /* SELECT ... FROM t */
void admin_add_event_id(struct buf *b, const char *event_id);    /* WHERE ... */
void admin_add_class(struct buf *b, const char *class);          /* AND ... */
/* FROM t ... WHERE ...: the rows of its aggregate that follow it */
void admin_add_behind(struct buf *b, const struct outbox_table *t, const struct admin_row *row);

/* admin_head() without reading the row; 0: none. */
int admin_head_id(struct admin *a, const struct admin_row *row, uint64_t *head, uint64_t *between,
	struct err *e);

#endif

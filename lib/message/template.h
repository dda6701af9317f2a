/* template.h: one template, compiled to a list of literal pieces and columns of struct row. Only
 * route.c and envelope.c need it; everybody else uses route.h. */
#ifndef OUTBOXD_TEMPLATE_H
#define OUTBOXD_TEMPLATE_H

#include "base/buf.h"
#include "base/err.h"
#include "message/row.h"

struct template_part {
	const char *column;   /* NULL: literal text */
	struct slice literal; /* of the template's own text */
	bool extra;           /* the column is one of row.extra */
	size_t at;            /* its index there, else the offset of its slice in struct row */
};

/* Zero-initialised is the empty template. {source} is literal: it never changes for a route. */
struct template
{
	struct template_part *parts;
	size_t count;
	struct buf text;
};

/* The extra columns of all templates of a route, in the order of row.extra. */
struct template_columns {
	char *names[ROW_EXTRA_MAX];
	size_t count;
};

/* Adds the columns it needs to *columns. On -1 *t is still to be finished. */
int template_compile(struct template *t, struct template_columns *columns, const char *text,
	struct slice source, struct err *e) MUST_CHECK;
void template_fini(struct template *t);
void template_columns_fini(struct template_columns *columns);

/* No column in it: template_literal() is all of it. */
static inline bool template_fixed(const struct template *t)
{
	return t->count == 0 || (t->count == 1 && t->parts[0].column == NULL);
}

static inline struct slice template_literal(const struct template *t)
{
	return buf_slice(&t->text);
}

static inline struct slice template_value(const struct template_part *p, const struct row *row)
{
	struct slice s;

	if (p->column == NULL)
		return p->literal;
	if (p->extra)
		return row->extra != NULL ? row->extra[p->at] : (struct slice){ 0 };
	memcpy(&s, (const char *)row + p->at, sizeof(s));
	return s;
}

/* Bytes of the expansion. False: a column in it is NULL for this row. */
bool template_length(const struct template *t, const struct row *row, size_t *len);

/* The expansion; template_length() was true and `text` has its length reserved. A template that is
 * fixed or a single column is handed out without a copy. */
struct slice template_expand(const struct template *t, const struct row *row, struct buf *text);

#endif

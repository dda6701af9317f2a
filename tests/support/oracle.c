#include "support/oracle.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct known {
	bool suspect;
	char *event_id, *aggregate; /* "type/id" */
	char status;            /* first letters differ, but for PENDING and PROCESSING: 'P', 'p' */
	uint64_t copies, first; /* place of the first copy, from 1; 0: none */
};

struct look {
	struct findings *f;
	struct known *rows; /* by created_at, id */
	size_t count, cap;
	struct known **table; /* by event_id */
	size_t mask;
};

static uint64_t hash(const char *s)
{
	uint64_t h = UINT64_C(0xCBF29CE484222325);

	for (; *s != '\0'; s++)
		h = (h ^ (unsigned char)*s) * UINT64_C(0x100000001B3);
	return h ^ h >> 29;
}

static char *text_of(const char *s)
{
	char *c = strdup(s != NULL ? s : "");

	if (c == NULL)
		FAIL("out of memory");
	return c;
}

static void example(struct findings *f, const char *what, const struct known *k)
{
	if (f->first[0] == '\0')
		snprintf(f->first, sizeof(f->first), "%s: event %s of %s", what, k->event_id,
			k->aggregate);
}

static void on_row(void *arg, const struct db_row *row)
{
	struct look *l = arg;
	struct known *k;

	if (l->count == l->cap) {
		l->cap = l->cap == 0 ? 4096 : l->cap * 2;
		l->rows = realloc(l->rows, l->cap * sizeof(l->rows[0]));
		if (l->rows == NULL)
			FAIL("out of memory");
	}
	k = &l->rows[l->count++];
	*k = (struct known){ .event_id = text_of(row->value[0]),
		.aggregate = text_of(row->value[1]) };
	k->status = strcmp(row->value[2], "PROCESSING") == 0 ? 'p' : row->value[2][0];
	k->suspect = strcmp(row->value[5], "0") != 0;
	l->f->rows++;
	l->f->sent += k->status == 'S';
	l->f->dead += k->status == 'D';
	l->f->pending += k->status == 'P';
	l->f->retry += k->status == 'R';
	l->f->processing += k->status == 'p';
	if (strcmp(row->value[3], "0") != 0)
		l->f->charged++;
	if (strcmp(row->value[4], "0") != 0) {
		l->f->untidy++;
		example(l->f, "untidy row", k);
	}
}

static struct known **slot(struct look *l, const char *event_id)
{
	size_t at = hash(event_id) & l->mask;

	while (l->table[at] != NULL && strcmp(l->table[at]->event_id, event_id) != 0)
		at = (at + 1) & l->mask;
	return &l->table[at];
}

static void index_rows(struct look *l)
{
	size_t size = 1024;

	while (size < l->count * 2)
		size *= 2;
	l->mask = size - 1;
	l->table = calloc(size, sizeof(struct known *));
	if (l->table == NULL)
		FAIL("out of memory");
	for (size_t i = 0; i < l->count; i++)
		*slot(l, l->rows[i].event_id) = &l->rows[i];
}

static void count_copies(struct look *l, const struct inbox *in)
{
	for (size_t i = 0; i < in->count; i++) {
		const char *id = in->messages[i].message_id;
		struct known *k = id != NULL ? *slot(l, id) : NULL;

		if (k == NULL) {
			l->f->foreign++;
			continue;
		}
		l->f->arrived++;
		if (k->copies++ == 0)
			k->first = i + 1;
	}
}

static int by_aggregate(const void *a, const void *b)
{
	const struct known *const *x = a, *const *y = b;
	int c = strcmp((*x)->aggregate, (*y)->aggregate);

	return c != 0 ? c : (*x > *y) - (*x < *y); /* their place in the array is their order */
}

static void judge_order(struct look *l)
{
	struct known **sorted = calloc(l->count + 1, sizeof(struct known *));
	uint64_t last = 0;

	if (sorted == NULL)
		FAIL("out of memory");
	for (size_t i = 0; i < l->count; i++)
		sorted[i] = &l->rows[i];
	qsort((void *)sorted, l->count, sizeof(struct known *), by_aggregate);
	for (size_t i = 0; i < l->count; i++) {
		if (i == 0 || strcmp(sorted[i]->aggregate, sorted[i - 1]->aggregate) != 0)
			last = 0;
		if (sorted[i]->first == 0)
			continue;
		if (sorted[i]->first < last) {
			l->f->disordered++;
			example(l->f, "out of order", sorted[i]);
		}
		last = sorted[i]->first > last ? sorted[i]->first : last;
	}
	free((void *)sorted);
}

void oracle_look(struct findings *f, struct db *db, const struct schema *s, const struct inbox *in)
{
	struct look l = { .f = f };

	*f = (struct findings){ 0 };
	db_rows(db, on_row, &l,
		"SELECT event_id,CONCAT(aggregate_type,'/',aggregate_id),status,retry_count,"
		"(status IN ('SENT','DEAD') AND (locked_by IS NOT NULL OR locked_until IS NOT NULL "
		"OR next_retry_at IS NOT NULL)) OR (status='SENT' AND (sent_at IS NULL OR "
		"last_error IS NOT NULL)) OR (status IN ('PENDING','RETRY') AND locked_by IS NOT "
		"NULL),EXISTS(SELECT 1 FROM %s.suspect u WHERE u.event_id=e.event_id) FROM "
		"%s.outbox_event e "
		"ORDER BY created_at,id",
		s->name, s->name);
	index_rows(&l);
	count_copies(&l, in);
	for (size_t i = 0; i < l.count; i++) {
		struct known *k = &l.rows[i];

		if (k->copies > 1)
			f->duplicates += k->copies - 1;
		if (k->copies > 1 && !k->suspect) {
			f->unexplained += k->copies - 1;
			example(f, "duplicate", k);
		}
		if (k->status == 'S' && k->copies == 0) {
			f->lost++;
			example(f, "SENT, never arrived", k);
		} else if (k->status == 'D' && k->copies > 0) {
			f->unrecorded++;
			example(f, "DEAD, yet arrived", k);
		} else if (k->status != 'S' && k->status != 'D') {
			f->missing++;
			example(f, "not settled", k);
		}
	}
	judge_order(&l);
	for (size_t i = 0; i < l.count; i++) {
		free(l.rows[i].event_id);
		free(l.rows[i].aggregate);
	}
	free(l.rows);
	free((void *)l.table);
}

void oracle_judge(const struct findings *f, const struct allowance *a)
{
	bool good = f->lost == 0 && f->unrecorded == 0 && f->untidy == 0 && f->processing == 0 &&
		    f->missing == a->missing &&
		    (a->suspects ? f->unexplained == 0 : f->duplicates <= a->duplicates) &&
		    f->dead == a->dead && (a->charged_any || f->charged == a->charged) &&
		    (!a->ordered || f->disordered == 0) && (a->foreign || f->foreign == 0);

	if (!good)
		FAIL("oracle: %" PRIu64 " rows: %" PRIu64 " sent, %" PRIu64 " dead, %" PRIu64
		     " pending, %" PRIu64 " retry, %" PRIu64 " processing; lost %" PRIu64
		     ", duplicates %" PRIu64 " (allowed %" PRIu64 ", unexplained %" PRIu64
		     "), disordered %" PRIu64 ", charged %" PRIu64 ", dead but arrived %" PRIu64
		     ", untidy %" PRIu64 ", foreign %" PRIu64 "; %s",
			f->rows, f->sent, f->dead, f->pending, f->retry, f->processing, f->lost,
			f->duplicates, a->duplicates, f->unexplained, f->disordered, f->charged,
			f->unrecorded, f->untidy, f->foreign, f->first);
}

void oracle(struct db *db, const struct schema *s, const struct inbox *in,
	const struct allowance *a, struct findings *f)
{
	struct findings own;

	if (f == NULL)
		f = &own;
	oracle_look(f, db, s, in);
	oracle_judge(f, a);
}

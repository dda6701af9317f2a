/* admin_change.c: what the administrative commands change in a table:
 *
 *	START TRANSACTION; the rows, FOR UPDATE, by primary key or event_id
 *	decide about each, as it is now
 *	UPDATE ... WHERE id IN (...) AND status = what it was
 *	the first rows waiting right behind: claimable again
 *	COMMIT
 */
#include "base/ids.h"
#include "mysql/admin.h"
#include "mysql/admin_impl.h"
#include "mysql/statements_order.h"
#include "mysql/values.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Rows released with the change; the relay releases the others as the first ones are sent. */
#define RELEASE_MAX SQL_IDS_MAX
#define TRIES 5

/* --- which rows ----------------------------------------------------------------------------- */

void admin_keys_fini(struct admin_keys *k)
{
	free(k->list);
	*k = (struct admin_keys){ 0 };
}

static int row_key(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	struct admin_keys *k = arg;

	(void)statement, (void)count;
	if (k->count == k->cap) {
		size_t cap = k->cap * 2 + 64;
		struct admin_key *more = realloc(k->list, cap * sizeof(*more));

		if (more == NULL)
			return err_set(e, ERR_NOMEM, errno, "room for %zu rows", cap);
		k->list = more;
		k->cap = cap;
	}
	if (!value_id(v[0], &k->list[k->count].id))
		return err_set(e, ERR_CONFIG, 0, "id is not an integer");
	k->list[k->count++].created_us = value_time_us(v[1]);
	return 0;
}

static int by_place(const void *a, const void *b)
{
	const struct admin_key *x = a, *y = b;

	if (x->created_us != y->created_us)
		return x->created_us < y->created_us ? -1 : 1;
	return (x->id > y->id) - (x->id < y->id);
}

int admin_pick_all(
	struct admin *a, const struct admin_pick *pick, struct admin_keys *out, struct err *e)
{
	struct reply r = { .row = row_key, .arg = out };
	struct buf *b = &a->text;

	buf_addf(b,
		"SELECT `id`,`created_at` FROM %s FORCE INDEX (%s) WHERE `status`=", a->table.name,
		a->table.claim_index);
	sql_add_string(b, slice_str(pick->status));
	if (pick->class != NULL)
		admin_add_class(b, pick->class);
	if (!pick->skipped_too)
		buf_adds(b, " AND (`last_error` IS NULL OR `last_error` NOT LIKE 'SKIPPED%')");
	if (admin_run(a, &r, e) < 0)
		return err_wrap(e, "choose rows");
	if (out->count > 0)
		qsort(out->list, out->count, sizeof(*out->list), by_place);
	return 0;
}

/* --- one transaction ------------------------------------------------------------------------ */

struct batch {
	const struct admin_key *keys;
	size_t count;
	struct admin_row *rows; /* as many */
	enum admin_outcome *how;
};

static int row_locked(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	struct batch *b = arg;
	uint64_t id;

	(void)statement, (void)count;
	if (!value_id(v[0], &id))
		return 0;
	for (size_t i = 0; i < b->count; i++)
		if (b->keys[i].id == id && b->rows[i].id == 0)
			return admin_read_row(v, &b->rows[i], e);
	return 0;
}

static void batch_reset(struct batch *b)
{
	for (size_t i = 0; i < b->count; i++)
		admin_row_fini(&b->rows[i]);
}

static void add_ids(struct buf *b, const struct outbox_table *t, const uint64_t *ids, size_t count)
{
	buf_adds(b, " WHERE `id` IN (");
	for (size_t i = 0; i < count; i++) {
		if (i > 0)
			buf_addc(b, ',');
		sql_add_id(b, t, ids[i]);
	}
	buf_addc(b, ')');
}

static int read_batch(struct admin *a, struct batch *b, bool lock, struct err *e)
{
	struct reply r = { .row = row_locked, .arg = b };
	uint64_t ids[ADMIN_BATCH];

	for (size_t i = 0; i < b->count; i++)
		ids[i] = b->keys[i].id;
	ids_sort(ids, b->count);
	admin_add_row(&a->text, &a->table);
	buf_adds(&a->text, " FORCE INDEX (PRIMARY)");
	add_ids(&a->text, &a->table, ids, b->count);
	if (lock)
		buf_adds(&a->text, " FOR UPDATE");
	return admin_run(a, &r, e);
}

static bool is(const struct admin_row *row, const char *status)
{
	return strcmp(row->state, status) == 0;
}

bool admin_is_skipped(const struct admin_row *row)
{
	return is(row, "DEAD") && row->last_error != NULL &&
	       strncmp(row->last_error, "SKIPPED", 7) == 0;
}

bool admin_is_leased(const struct admin_row *row)
{
	return is(row, "PROCESSING") && row->has_owner && row->locked_until[0] != '\0' &&
	       row->lease_left_us >= 0;
}

static bool is_of_class(const struct admin_row *row, const char *class)
{
	size_t n = strlen(class);

	return row->last_error != NULL && strncmp(row->last_error, class, n) == 0 &&
	       (row->last_error[n] == ':' || row->last_error[n] == '\0');
}

static int decide_requeue(struct admin *a, const struct admin_pick *pick,
	const struct admin_change *change, const struct admin_row *row, enum admin_outcome *how,
	struct err *e)
{
	bool overtaken = false;

	if (row->id == 0)
		*how = ADMIN_UNKNOWN;
	else if (is(row, "SENT"))
		*how = ADMIN_SENT;
	else if (admin_is_leased(row))
		*how = ADMIN_LEASED;
	else if (!is(row, pick->status) ||
		 (pick->class != NULL && !is_of_class(row, pick->class)) ||
		 (!pick->skipped_too && admin_is_skipped(row)))
		*how = ADMIN_STATE;
	else if (!change->force && admin_overtaken(a, row, &overtaken, e) < 0)
		return -1;
	else
		*how = overtaken ? ADMIN_OVERTAKEN : ADMIN_CHANGED;
	return 0;
}

/* Columns that move with every UPDATE stay as they are, except next_retry_at and locked_until. */
static void add_unmoved(struct buf *b, const struct outbox_table *t)
{
	for (unsigned c = 0; c < TIME_COLUMNS; c++)
		if (t->on_update[c] && c != TIME_NEXT_RETRY && c != TIME_LOCKED)
			buf_addf(b, ",`%s`=`%s`", time_column_name[c], time_column_name[c]);
}

static int update(
	struct admin *a, const uint64_t *ids, size_t count, const char *status, struct err *e)
{
	struct reply r = { 0 };

	buf_adds(&a->text, ",`next_retry_at`=NULL,`locked_by`=NULL,`locked_until`=NULL");
	add_unmoved(&a->text, &a->table);
	add_ids(&a->text, &a->table, ids, count);
	buf_adds(&a->text, " AND `status`=");
	sql_add_string(&a->text, slice_str(status));
	if (admin_run(a, &r, e) < 0)
		return -1;
	if (r.matched != count)
		return err_set(e, ERR_RETRY, 0, "%zu rows were locked, %llu of them found again",
			count, (unsigned long long)r.matched);
	return 0;
}

static int row_id(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	struct admin_keys *k = arg;

	(void)statement, (void)count, (void)e;
	if (k->count < RELEASE_MAX && value_id(v[0], &k->list[k->count].id))
		k->count++;
	return 0;
}

/* The first rows waiting behind this one come back at once, unless something else holds them up. */
static int release_behind(
	struct admin *a, const struct admin_row *row, uint64_t *released, struct err *e)
{
	struct admin_key room[RELEASE_MAX];
	struct admin_keys found = { .list = room };
	struct reply waiting = { .row = row_id, .arg = &found }, r = { 0 };
	uint64_t ids[RELEASE_MAX], head, between;

	if (a->conf->ordering != ORDERING_AGGREGATE)
		return 0;
	if (admin_head_id(a, row, &head, &between, e) < 0)
		return -1;
	if (head != 0)
		return 0;
	buf_adds(&a->text, "SELECT `id`");
	admin_add_behind(&a->text, &a->table, row);
	buf_addf(&a->text,
		" AND `status` IN ('PENDING','RETRY') AND `next_retry_at` IS NOT NULL AND "
		"`last_error` LIKE 'WAITING: %%' ORDER BY `created_at`,`id` LIMIT %u",
		RELEASE_MAX);
	if (admin_run(a, &waiting, e) < 0)
		return -1;
	if (found.count == 0)
		return 0;
	for (size_t i = 0; i < found.count; i++)
		ids[i] = room[i].id;
	ids_sort(ids, found.count);
	sql_release_waiting(&a->text, &a->table, ids, found.count);
	if (admin_run(a, &r, e) < 0)
		return -1;
	*released += r.matched;
	return 0;
}

static int begin(struct admin *a, const struct admin_change *change, struct err *e)
{
	if (change->dry_run)
		return 0;
	session_begin(a->session);
	return session_run_text(a->session, "START TRANSACTION", e);
}

/* Ends the transaction as `rc` says. */
static int finish(
	struct admin *a, const struct admin_change *change, int rc, bool *unknown, struct err *e)
{
	if (change->dry_run)
		return rc;
	session_begin(a->session);
	if (rc < 0)
		return session_rollback(a->session, e);
	return session_commit(a->session, unknown, e);
}

static void pause_ms(long ms)
{
	const struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };

	nanosleep(&t, NULL);
}

static bool worth_another_try(unsigned tries, const struct err *e, bool unknown)
{
	if (e->kind != ERR_RETRY || unknown || tries + 1 >= TRIES)
		return false;
	pause_ms(50L << tries);
	return true;
}

/* --- requeue -------------------------------------------------------------------------------- */

static int requeue_once(struct admin *a, const struct admin_pick *pick, struct batch *b,
	const struct admin_change *change, uint64_t *released, struct err *e)
{
	uint64_t ids[ADMIN_BATCH];
	size_t n = 0;

	if (read_batch(a, b, !change->dry_run, e) < 0)
		return -1;
	for (size_t i = 0; i < b->count; i++) {
		if (decide_requeue(a, pick, change, &b->rows[i], &b->how[i], e) < 0)
			return -1;
		if (b->how[i] == ADMIN_CHANGED)
			ids[n++] = b->rows[i].id;
	}
	if (n == 0 || change->dry_run)
		return 0;
	ids_sort(ids, n);
	buf_addf(&a->text,
		"UPDATE %s FORCE INDEX (PRIMARY) SET `status`='PENDING',`retry_count`=0,"
		"`last_error`=NULL",
		a->table.name);
	if (update(a, ids, n, pick->status, e) < 0)
		return -1;
	for (size_t i = 0; i < b->count; i++)
		if (b->how[i] == ADMIN_CHANGED && release_behind(a, &b->rows[i], released, e) < 0)
			return -1;
	return 0;
}

int admin_requeue(struct admin *a, const struct admin_pick *pick, const struct admin_key *keys,
	size_t count, struct admin_change *change, bool *unknown, struct err *e)
{
	struct admin_row rows[ADMIN_BATCH] = { 0 };
	enum admin_outcome how[ADMIN_BATCH];
	struct batch b = { keys, count, rows, how };
	uint64_t released;
	int rc;

	*unknown = false;
	for (unsigned tries = 0;; tries++) {
		released = 0;
		batch_reset(&b);
		rc = begin(a, change, e);
		if (rc == 0)
			rc = finish(a, change, requeue_once(a, pick, &b, change, &released, e),
				unknown, e);
		if (rc == 0 || !worth_another_try(tries, e, *unknown))
			break;
	}
	if (rc == 0) {
		change->released += released;
		for (size_t i = 0; i < count; i++)
			change->done(change->arg, &rows[i], how[i]);
	}
	batch_reset(&b);
	return rc < 0 ? err_wrap(e, "requeue") : 0;
}

/* --- skip ----------------------------------------------------------------------------------- */

static int skip_once(struct admin *a, const char *event_id, const char *reason,
	const struct admin_change *change, struct admin_row *row, enum admin_outcome *how,
	uint64_t *released, struct err *e)
{
	struct buf text = { 0 };

	admin_add_row(&a->text, &a->table);
	admin_add_event_id(&a->text, event_id);
	if (!change->dry_run)
		buf_adds(&a->text, " FOR UPDATE");
	if (admin_one(a, row, e) < 0)
		return -1;
	if (row->id == 0)
		*how = ADMIN_UNKNOWN;
	else if (is(row, "SENT"))
		*how = ADMIN_SENT;
	else if (admin_is_leased(row))
		*how = ADMIN_LEASED;
	else if (admin_is_skipped(row))
		*how = ADMIN_ALREADY;
	else
		*how = ADMIN_CHANGED;
	if (change->dry_run || (*how != ADMIN_CHANGED && *how != ADMIN_ALREADY))
		return 0;
	if (*how == ADMIN_CHANGED) {
		buf_addf(&text, "SKIPPED: %s", reason);
		buf_addf(&a->text,
			"UPDATE %s FORCE INDEX (PRIMARY) SET `status`='DEAD',`last_error`=",
			a->table.name);
		sql_add_error(&a->text, &a->table, text.data != NULL ? text.data : "SKIPPED");
		a->text.failed |= text.failed;
		buf_fini(&text);
		if (update(a, &row->id, 1, row->status, e) < 0)
			return -1;
	}
	return release_behind(a, row, released, e);
}

int admin_skip(struct admin *a, const char *event_id, const char *reason,
	struct admin_change *change, bool *unknown, struct err *e)
{
	struct admin_row row = { 0 };
	enum admin_outcome how = ADMIN_UNKNOWN;
	uint64_t released;
	int rc;

	*unknown = false;
	for (unsigned tries = 0;; tries++) {
		released = 0;
		admin_row_fini(&row);
		rc = begin(a, change, e);
		if (rc == 0)
			rc = finish(a, change,
				skip_once(a, event_id, reason, change, &row, &how, &released, e),
				unknown, e);
		if (rc == 0 || !worth_another_try(tries, e, *unknown))
			break;
	}
	if (rc == 0) {
		change->released += released;
		change->done(change->arg, &row, how);
	}
	admin_row_fini(&row);
	return rc < 0 ? err_wrap(e, "skip") : 0;
}

/* store_settle.c: outcomes go back into the table, and leases are prolonged. Every statement is
 * fenced: it matches only rows that are still PROCESSING under this very owner. */
#include "base/ids.h"
#include "mysql/errors.h"
#include "mysql/store_impl.h"
#include "mysql/values.h"
#include "sys/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

static size_t at_most(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* --- settle --------------------------------------------------------------------------------- */

/* Adds the statements for those of `picked` that are of this kind. */
static void add_kind(struct mysql_store *s, enum settle_kind kind, size_t picked)
{
	size_t chunk = kind == SETTLE_SENT || kind == SETTLE_RELEASE ? SQL_IDS_MAX : CASES_MAX;
	const struct settle *some[SQL_IDS_MAX];
	size_t n = 0;

	for (size_t i = 0; i < picked; i++) {
		if (s->picked[i]->kind == kind)
			some[n++] = s->picked[i];
		if (n > 0 && (n == chunk || i + 1 == picked)) {
			buf_addc(&s->text, ';');
			sql_settle(&s->text, &s->table, s->owner_sql, kind, some, n);
			n = 0;
		}
	}
}

static void add_all(struct mysql_store *s, size_t picked)
{
	for (unsigned kind = 0; kind <= SETTLE_HOLD; kind++)
		add_kind(s, kind, picked);
}

struct resolving {
	struct mysql_store *store;
	struct settle *list;
	size_t count;
	unsigned chunks; /* statements of a half */
	size_t picked;
};

static struct settle *find(struct settle *list, size_t count, uint64_t id)
{
	size_t low = 0, high = count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (list[middle].id < id)
			low = middle + 1;
		else
			high = middle;
	}
	return low < count && list[low].id == id ? &list[low] : NULL;
}

/* Does the row stand as an earlier try, whose COMMIT was never answered, wanted it? */
static bool stands(const struct settle *s, struct slice status, uint32_t retry_count)
{
	switch (s->kind) {
	case SETTLE_SENT:
		return value_is(status, "SENT");
	case SETTLE_RETRY: /* or claimed again since */
		return retry_count == s->retry_count &&
		       (value_is(status, "RETRY") || value_is(status, "PROCESSING"));
	case SETTLE_DEAD:
		return value_is(status, "DEAD");
	case SETTLE_RELEASE:
	case SETTLE_HOLD:
		return value_is(status, "PENDING") || value_is(status, "RETRY");
	}
	return false;
}

/* Begins a transaction that asks about the rows twice; returns the statements of a half. */
static unsigned begin_held(struct mysql_store *s, const uint64_t *ids, size_t count)
{
	unsigned chunks = 0;

	buf_reset(&s->text);
	buf_adds(&s->text, "START TRANSACTION");
	for (int lock = 0; lock < 2; lock++)
		for (size_t i = 0; i < count; i += SQL_IDS_MAX) {
			chunks += !lock;
			buf_addc(&s->text, ';');
			sql_held(&s->text, &s->table, s->owner_sql, ids + i,
				at_most(SQL_IDS_MAX, count - i));
			if (lock)
				sql_lock_rows(&s->text, false);
		}
	return chunks;
}

/* The statements of the first half tell who has each row, those of the second lock ours that nobody
 * else has locked. */
static int row_held(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	struct resolving *r = arg;
	struct settle *one;
	uint64_t id;

	(void)count, (void)e;
	if (!value_id(v[0], &id) || (one = find(r->list, r->count, id)) == NULL)
		return 0;
	if (value_true(v[1])) {
		one->lost = false;
		one->left = statement <= r->chunks; /* START TRANSACTION is the first */
		if (!one->left)
			r->store->picked[r->picked++] = one;
	} else {
		one->left = false;
		one->lost = !one->again || !stands(one, v[2], value_count(v[3]));
	}
	return 0;
}

static int find_ours(struct resolving *r, struct err *e)
{
	struct mysql_store *s = r->store;
	struct reply reply = { .row = row_held, .arg = r };

	if (ROOM(s, ids, r->count, e) < 0)
		return -1;
	for (size_t i = 0; i < r->count; i++) {
		s->ids[i] = r->list[i].id;
		/* until it is found: but what was SENT may have been deleted since */
		r->list[i].lost = !r->list[i].again || r->list[i].kind != SETTLE_SENT;
		r->list[i].left = false;
	}
	r->chunks = begin_held(s, s->ids, r->count);
	return store_run(s, &reply, e);
}

/* Some rows are not ours any more, or somebody else has locked them: finds out which, and settles
 * the others. */
static int settle_found(
	struct mysql_store *s, struct settle *list, size_t count, bool *unknown, struct err *e)
{
	struct resolving resolving = { .store = s, .list = list, .count = count };
	struct reply r = { 0 };

	if (find_ours(&resolving, e) < 0)
		return session_rollback(s->session, e);
	if (resolving.picked == 0) {
		struct err again = { 0 };

		session_rollback(s->session, &again);
		if (session_is_open(s->session))
			return 0;
		return err_set(e, ERR_LINK, 0, "ROLLBACK failed");
	}
	add_all(s, resolving.picked);
	if (s->text.len > 0) /* each is preceded by a semicolon */
		s->text.data[0] = ' ';
	if (store_run(s, &r, e) < 0)
		return session_rollback(s->session, e);
	if (r.matched != resolving.picked) {
		err_set(e, ERR_RETRY, 0, "%zu rows were locked, %llu of them found again",
			resolving.picked, (unsigned long long)r.matched);
		return session_rollback(s->session, e);
	}
	return session_commit(s->session, unknown, e);
}

/* One that is refused is looked for by halves, each a transaction of its own, and left. */
static int settle_rest(struct mysql_store *s, struct settle *list, size_t count, bool *unknown,
	struct err *refused, struct err *e)
{
	int rc = settle_found(s, list, count, unknown, e);
	size_t half = count / 2;

	if (rc == 0 || e->kind == ERR_LINK || !mysql_error_row((unsigned)e->code))
		return rc;
	if (count == 1) {
		err_set(refused, ERR_REFUSED, e->code, "row %" PRIu64 ": %s", list->id, e->text);
		list->left = true;
		list->lost = false;
		return 0;
	}
	if (settle_rest(s, list, half, unknown, refused, e) < 0)
		return -1;
	if (settle_rest(s, list + half, count - half, unknown, refused, e) == 0)
		return 0;
	*unknown = true; /* the first half stands */
	return -1;
}

static int settle_at_once(
	struct mysql_store *s, struct settle *list, size_t count, bool *unknown, struct err *e)
{
	struct reply r = { 0 };

	for (size_t i = 0; i < count; i++) {
		list[i].lost = list[i].left = false;
		s->picked[i] = &list[i];
	}
	buf_reset(&s->text);
	buf_adds(&s->text, "START TRANSACTION");
	add_all(s, count);
	if (store_run(s, &r, e) < 0)
		return session_rollback(s->session, e);
	if (r.matched == count)
		return session_commit(s->session, unknown, e);
	err_set(e, ERR_REFUSED, 0, "%llu of %zu rows were ours", (unsigned long long)r.matched,
		count);
	return session_rollback(s->session, e);
}

/* Not by a lock that nobody else has: the others need not wait for it. */
static bool row_is_at_fault(struct mysql_store *s, const struct err *e)
{
	if (e->kind == ERR_LINK)
		return false;
	if (mysql_error_locked((unsigned)e->code))
		s->locked_until_us = clock_mono_us() + LOCKED_US;
	return mysql_error_locked((unsigned)e->code) || mysql_error_row((unsigned)e->code) ||
	       e->kind == ERR_REFUSED;
}

static int settle(
	struct mysql_store *s, struct settle *list, size_t count, bool *unknown, struct err *e)
{
	struct err refused = { 0 };

	if (ROOM(s, picked, count, e) < 0)
		return -1;
	session_begin(s->session);
	if (clock_mono_us() >= s->locked_until_us) {
		if (settle_at_once(s, list, count, unknown, e) == 0)
			return 0;
		if (*unknown || !row_is_at_fault(s, e))
			return -1;
		session_begin(s->session);
	}
	if (settle_rest(s, list, count, unknown, &refused, e) < 0)
		return -1;
	*e = refused;
	return 0;
}

int mysql_store_settle(
	struct store *base, struct settle *list, size_t count, bool *unknown, struct err *e)
{
	struct mysql_store *s = store_of(base);

	*unknown = false;
	if (count == 0)
		return 0;
	if (settle(s, list, count, unknown, e) < 0) {
		for (size_t i = 0; i < count; i++)
			list[i].lost = list[i].left = false; /* nothing is known of any */
		return store_failed(s, e, "settle");
	}
	return 0;
}

/* --- settle beside -------------------------------------------------------------------------- */

int mysql_store_settle_begin(struct store *base, const uint64_t *ids, size_t count, struct err *e)
{
	struct mysql_store *s = store_of(base);
	struct settle sent[SQL_IDS_MAX];
	const struct settle *list[SQL_IDS_MAX];
	int rc;

	if (!session_is_open(s->beside) && session_open(s->beside, e) < 0)
		return err_wrap(e, "second session");
	for (size_t i = 0; i < count; i++) {
		sent[i] = (struct settle){ .id = ids[i], .kind = SETTLE_SENT };
		list[i] = &sent[i];
	}
	session_begin(s->beside);
	buf_reset(&s->text);
	sql_settle(&s->text, &s->table, s->owner_sql, SETTLE_SENT, list, count);
	if (s->text.failed)
		rc = err_set(e, ERR_NOMEM, errno, "statement");
	else
		rc = session_send(s->beside, buf_slice(&s->text), e);
	buf_reset(&s->text);
	if (rc < 0)
		return err_wrap(e, "settle beside");
	s->beside_count = count;
	return 0;
}

int mysql_store_settle_end(struct store *base, struct err *e)
{
	struct mysql_store *s = store_of(base);
	struct reply r = { 0 };
	size_t count = s->beside_count;
	int rc = session_answer(s->beside, &r, e);

	if (rc > 0)
		return 1;
	s->beside_count = 0;
	s->beside_us = clock_mono_us();
	if (rc < 0)
		return err_wrap(e, "settle beside");
	if (r.matched != count)
		return err_set(e, ERR_RETRY, 0, "settle beside: %llu of %zu rows were ours",
			(unsigned long long)r.matched, count);
	return 0;
}

/* --- renew ---------------------------------------------------------------------------------- */

struct renewing {
	const uint64_t *ids;
	enum lease_fate *out;
	size_t count;
	unsigned chunks; /* statements of a half, where rows are found first */
	uint64_t *ours;  /* found, and locked by us */
	size_t ours_count;
};

/* As row_held(). */
static int row_renewed(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	struct renewing *r = arg;
	size_t i;
	uint64_t id;

	(void)count, (void)e;
	if (!value_id(v[0], &id) || !value_true(v[1]))
		return 0;
	i = ids_find(r->ids, r->count, id);
	if (i == r->count)
		return 0;
	r->out[i] = LEASE_LOCKED;
	if (statement > r->chunks) {
		r->out[i] = LEASE_RENEWED;
		r->ours[r->ours_count++] = id;
	}
	return 0;
}

static void add_renewals(struct mysql_store *s, const uint64_t *ids, size_t count, int64_t lease_us)
{
	for (size_t i = 0; i < count; i += SQL_IDS_MAX) {
		buf_addc(&s->text, ';');
		sql_renew(&s->text, &s->table, s->owner_sql, lease_us, ids + i,
			at_most(SQL_IDS_MAX, count - i));
	}
}

/* Those that are ours, and that nobody else has locked. */
static int renew_found(
	struct mysql_store *s, struct renewing *renewing, int64_t lease_us, struct err *e)
{
	struct reply r = { .row = row_renewed, .arg = renewing };

	if (ROOM(s, ids, renewing->count, e) < 0)
		return -1;
	renewing->ours = s->ids;
	session_begin(s->session);
	for (size_t i = 0; i < renewing->count; i++)
		renewing->out[i] = LEASE_LOST;
	renewing->chunks = begin_held(s, renewing->ids, renewing->count);
	if (store_run(s, &r, e) < 0)
		return session_rollback(s->session, e);
	ids_sort(renewing->ours, renewing->ours_count);
	buf_adds(&s->text, "DO 0");
	add_renewals(s, renewing->ours, renewing->ours_count, lease_us);
	buf_adds(&s->text, ";COMMIT");
	r = (struct reply){ 0 };
	return store_run(s, &r, e) < 0 ? session_rollback(s->session, e) : 0;
}

static int renew_at_once(
	struct mysql_store *s, const uint64_t *ids, size_t count, int64_t lease_us, struct err *e)
{
	struct reply r = { 0 };

	session_begin(s->session);
	buf_reset(&s->text);
	/* may be repeated as often as one likes: nothing to check before COMMIT */
	if (count > SQL_IDS_MAX)
		buf_adds(&s->text, "START TRANSACTION");
	add_renewals(s, ids, count, lease_us);
	if (count > SQL_IDS_MAX)
		buf_adds(&s->text, ";COMMIT");
	else if (s->text.len > 0)
		s->text.data[0] = ' '; /* a semicolon */
	if (store_run(s, &r, e) < 0)
		return session_rollback(s->session, e);
	if (r.matched == count)
		return 0;
	return err_set(e, ERR_REFUSED, 0, "%llu of %zu rows were ours",
		(unsigned long long)r.matched, count);
}

int mysql_store_renew(struct store *base, const uint64_t *ids, enum lease_fate *out, size_t count,
	int64_t lease_us, struct err *e)
{
	struct mysql_store *s = store_of(base);
	struct renewing renewing = { .ids = ids, .out = out, .count = count };

	for (size_t i = 0; i < count; i++)
		out[i] = LEASE_RENEWED;
	if (count == 0)
		return 0;
	if (clock_mono_us() >= s->locked_until_us) {
		if (renew_at_once(s, ids, count, lease_us, e) == 0)
			return 0;
		if (!row_is_at_fault(s, e))
			return store_failed(s, e, "renew");
	}
	if (renew_found(s, &renewing, lease_us, e) < 0)
		return store_failed(s, e, "renew");
	return 0;
}

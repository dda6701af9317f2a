/* purge_inbox.c: a pass over an inbox table: consumer by consumer along their index, or, where
 * there is none, over all rows by primary key. */
#include "mysql/inbox.h"
#include "mysql/purge_impl.h"
#include "mysql/purge_pace.h"
#include "mysql/values.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct inbox_purger {
	struct purger base;
	const struct inbox_conf *conf;
	const struct inbox_table *table;
	struct inbox_cursor cursor;
	bool first;       /* no consumer has had its turn yet */
	bool over;        /* there is no further consumer */
	struct buf pairs; /* those due of this round: ["event_id","consumer_name"] after another */
	size_t *ends;     /* where each ends */
	size_t ends_cap;
	unsigned read; /* rows, of this round */
	struct buf locked;
	uint64_t locked_count;
};

#define inbox_of(p) container_of(p, struct inbox_purger, base)

static bool by_consumer(const struct inbox_purger *i)
{
	return i->table->consumer_index[0] != '\0';
}

static int inbox_begin(struct purger *p, struct err *e)
{
	struct inbox_purger *i = inbox_of(p);

	(void)e;
	i->cursor.begun = i->over = false;
	i->first = true;
	return 0;
}

static bool inbox_next(struct purger *p)
{
	struct inbox_purger *i = inbox_of(p);

	if (!by_consumer(i) || i->over)
		return false;
	i->cursor.begun = false;
	return true;
}

static void add_pair(struct buf *b, struct slice event_id, struct slice consumer)
{
	buf_adds(b, b->len > 0 ? ",[\"" : "[\"");
	buf_add_json(b, event_id);
	buf_adds(b, "\",\"");
	buf_add_json(b, consumer);
	buf_adds(b, "\"]");
}

static int row_consumer(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	struct inbox_purger *i = arg;

	(void)statement, (void)count, (void)e;
	buf_reset(&i->cursor.consumer);
	buf_add_slice(&i->cursor.consumer, v[0]);
	i->over = false;
	return 0;
}

/* On to the next consumer, where this part of the pass begins. */
static int find_consumer(struct inbox_purger *i, struct err *e)
{
	struct reply r = { .row = row_consumer, .arg = i };
	const struct slice after = buf_slice(&i->cursor.consumer);

	i->over = true;
	sql_inbox_consumer(&i->base.text, i->table, i->first ? NULL : &after);
	i->first = false;
	return purger_run(&i->base, &r, e);
}

static int row_read(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	struct inbox_purger *i = arg;

	(void)statement, (void)count;
	i->read++;
	i->cursor.begun = true;
	buf_reset(&i->cursor.event_id);
	buf_add_slice(&i->cursor.event_id, v[0]);
	if (by_consumer(i)) {
		size_t n = v[2].len < sizeof(i->cursor.received_at)
				   ? v[2].len
				   : sizeof(i->cursor.received_at) - 1;

		memcpy(i->cursor.received_at, v[2].ptr, n);
		i->cursor.received_at[n] = '\0';
	} else {
		buf_reset(&i->cursor.consumer);
		buf_add_slice(&i->cursor.consumer, v[1]);
	}
	if (value_true(v[3])) {
		add_pair(&i->pairs, v[0], v[1]);
		i->ends[i->base.due_count++] = i->pairs.len;
	}
	if (i->pairs.failed || i->cursor.event_id.failed || i->cursor.consumer.failed)
		return err_set(e, ERR_NOMEM, errno, "rows");
	return 0;
}

static int inbox_read_round(struct purger *p, struct err *e)
{
	struct inbox_purger *i = inbox_of(p);
	struct reply r = { .row = row_read, .arg = i };
	unsigned batch = i->conf->retention.batch;

	i->ends = store_grown(i->ends, &i->ends_cap, batch, sizeof(*i->ends), e);
	if (i->ends == NULL)
		return -1;
	i->read = 0;
	buf_reset(&i->pairs);
	if (by_consumer(i) && !i->cursor.begun) {
		if (find_consumer(i, e) < 0)
			return -1;
		if (i->over) {
			p->last = true;
			return 0;
		}
	}
	sql_inbox_read(&p->text, i->table, i->conf->processed_status,
		i->conf->retention.processed_us, &i->cursor, batch);
	if (purger_run(p, &r, e) < 0) {
		p->due_count = 0;
		return -1;
	}
	p->last = i->read < batch;
	return 0;
}

static int row_locked(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	struct inbox_purger *i = arg;

	(void)statement, (void)count, (void)e;
	add_pair(&i->locked, v[0], v[1]);
	i->locked_count++;
	purger_remember(&i->base, v[0]);
	return 0;
}

/* A list of them, in brackets, in a buffer of its own. */
static int bracket(struct buf *out, struct slice pairs, struct err *e)
{
	if (pairs.len > 0 && pairs.ptr[0] == ',') {
		pairs.ptr++;
		pairs.len--;
	}
	buf_addc(out, '[');
	buf_add_slice(out, pairs);
	buf_addc(out, ']');
	return out->failed ? err_set(e, ERR_NOMEM, errno, "statement") : 0;
}

static int lock_some(struct inbox_purger *i, size_t from, size_t count, struct err *e)
{
	struct reply r = { .row = row_locked, .arg = i };
	size_t begin = from > 0 ? i->ends[from - 1] : 0, end = i->ends[from + count - 1];
	struct buf list = { 0 };
	int rc = bracket(&list, (struct slice){ i->pairs.data + begin, end - begin }, e);

	buf_reset(&i->locked);
	i->locked_count = 0;
	if (rc == 0) {
		buf_adds(&i->base.text, "START TRANSACTION;");
		sql_inbox_lock(&i->base.text, i->table, i->conf->processed_status,
			i->conf->retention.processed_us, buf_slice(&list),
			session_server(i->base.session)->mariadb);
		rc = purger_run(&i->base, &r, e);
	}
	buf_fini(&list);
	return rc;
}

static int delete_locked(struct inbox_purger *i, struct err *e)
{
	struct reply r = { 0 };
	struct buf list = { 0 };
	int rc = bracket(&list, buf_slice(&i->locked), e);

	if (rc == 0) {
		sql_inbox_delete(&i->base.text, i->table, buf_slice(&list));
		rc = purger_run(&i->base, &r, e);
	}
	buf_fini(&list);
	if (rc == 0 && r.matched != i->locked_count)
		rc = err_set(e, ERR_REFUSED, 0, "%llu rows were locked, %llu deleted",
			(unsigned long long)i->locked_count, (unsigned long long)r.matched);
	return rc;
}

static int inbox_remove(
	struct purger *p, size_t from, size_t count, struct purge_step *out, struct err *e)
{
	struct inbox_purger *i = inbox_of(p);
	int rc = lock_some(i, from, count, e);

	if (rc == 0 && i->locked_count > 0)
		rc = delete_locked(i, e);
	return purger_finish(p, rc, i->locked_count, out, e);
}

static void inbox_free(struct purger *p)
{
	struct inbox_purger *i = inbox_of(p);

	purger_fini(p);
	buf_fini(&i->cursor.consumer);
	buf_fini(&i->cursor.event_id);
	buf_fini(&i->pairs);
	buf_fini(&i->locked);
	free(i->ends);
	free(i);
}

int purger_inbox_new(struct purger **out, const struct inbox_conf *conf,
	const struct inbox_table *table, const struct purge_sink *sink, bool dry_run, struct err *e)
{
	static const struct purger_ops ops = {
		.begin = inbox_begin,
		.read = inbox_read_round,
		.next = inbox_next,
		.remove = inbox_remove,
		.free = inbox_free,
	};
	struct inbox_purger *i = calloc(1, sizeof(*i));

	if (i == NULL)
		return err_set(e, ERR_NOMEM, errno, "retention");
	i->conf = conf;
	i->table = table;
	i->base = (struct purger){
		.ops = &ops,
		.database = conf->database.name,
		.table = conf->table,
		.chunk = PURGE_CHUNK_MAX,
		.dry_run = dry_run,
	};
	if (sink != NULL)
		i->base.sink = *sink;
	*out = &i->base;
	return 0;
}

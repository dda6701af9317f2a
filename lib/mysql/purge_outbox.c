/* purge_outbox.c: a pass over an outbox table: SENT rows first, then DEAD ones, each in the order
 * of the claim index. */
#include "base/ids.h"
#include "mysql/purge_impl.h"
#include "mysql/purge_pace.h"
#include "mysql/schema.h"
#include "mysql/statements_purge.h"
#include "mysql/values.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct outbox_purger {
	struct purger base;
	const struct source_conf *conf;
	enum purge_kind kind; /* of the part at hand */
	struct purge_cursor cursor;
	uint64_t *ids; /* that are due, of this round */
	size_t ids_cap;
	unsigned read;     /* rows, of this round */
	char archive[600]; /* quoted; empty: none */
	struct buf columns;
};

#define outbox_of(p) container_of(p, struct outbox_purger, base)

static int64_t age_of(const struct outbox_purger *o, enum purge_kind kind)
{
	return kind == PURGE_SENT ? o->conf->retention.sent_us : o->conf->retention.dead_us;
}

/* Steps on to the first kind from `kind` on that anything is to be done about. */
static bool begin_kind(struct outbox_purger *o, unsigned kind)
{
	while (kind < PURGE_KINDS && age_of(o, kind) == AGE_NEVER)
		kind++;
	if (kind == PURGE_KINDS)
		return false;
	o->kind = kind;
	o->cursor = (struct purge_cursor){ 0 };
	return true;
}

static bool outbox_next(struct purger *p)
{
	struct outbox_purger *o = outbox_of(p);

	return begin_kind(o, o->kind + 1);
}

/* What is moved is deleted here: the archive must be a table that keeps it, in one transaction. */
static int check_archive(struct outbox_purger *o, struct err *e)
{
	const struct source_conf *conf = o->conf;
	struct schema s;
	int rc = 0;

	if (schema_read(
		    o->base.session, conf->database.name, conf->retention.archive_table, &s, e) < 0)
		return -1;
	if (s.kind[0] == '\0')
		rc = err_set(e, ERR_CONFIG, 0,
			"the archive table %s does not exist, or the account has no privilege on "
			"it",
			conf->retention.archive_table);
	else if (strcasecmp(s.kind, "BASE TABLE") != 0 || strcasecmp(s.engine, "InnoDB") != 0)
		rc = err_set(e, ERR_CONFIG, 0,
			"the archive %s is no InnoDB table: what is moved there could be lost",
			conf->retention.archive_table);
	schema_fini(&s);
	return rc;
}

/* All columns that can be written, for both sides of the copy: the archive may have more, and in
 * another order. */
static int read_columns(struct outbox_purger *o, struct err *e)
{
	const struct source_conf *conf = o->conf;
	struct schema s;

	o->archive[0] = '\0';
	if (conf->retention.archive_table == NULL)
		return 0;
	if (check_archive(o, e) < 0)
		return -1;
	if (schema_read(o->base.session, conf->database.name, conf->table, &s, e) < 0)
		return -1;
	buf_reset(&o->columns);
	schema_add_columns(&s, &o->columns);
	schema_fini(&s);
	if (o->columns.failed)
		return err_set(e, ERR_NOMEM, errno, "columns");
	if (!sql_table_name(o->archive, sizeof(o->archive), conf->database.name,
		    conf->retention.archive_table))
		return err_set(e, ERR_CONFIG, 0, "the name of the archive table is too long");
	return 0;
}

static int outbox_begin(struct purger *p, struct err *e)
{
	struct outbox_purger *o = outbox_of(p);

	if (!begin_kind(o, 0))
		return err_set(e, ERR_REFUSED, 0, "nothing is to be deleted");
	session_begin(p->session);
	return p->dry_run ? 0 : read_columns(o, e);
}

static int row_read(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	struct outbox_purger *o = arg;
	uint64_t id;

	(void)statement, (void)count;
	if (!value_id(v[0], &id) || v[1].ptr == NULL || v[1].len >= sizeof(o->cursor.created_at))
		return err_set(e, ERR_CONFIG, 0, "id is no integer, or created_at no time");
	o->read++;
	o->cursor.id = id;
	memcpy(o->cursor.created_at, v[1].ptr, v[1].len);
	o->cursor.created_at[v[1].len] = '\0';
	if (value_true(v[2]))
		o->ids[o->base.due_count++] = id;
	return 0;
}

static int outbox_read(struct purger *p, struct err *e)
{
	struct outbox_purger *o = outbox_of(p);
	struct reply r = { .row = row_read, .arg = o };
	unsigned batch = o->conf->retention.batch;

	o->ids = store_grown(o->ids, &o->ids_cap, batch, sizeof(*o->ids), e);
	if (o->ids == NULL)
		return -1;
	o->read = 0;
	sql_purge_read(&p->text, p->outbox, o->kind, age_of(o, o->kind), &o->cursor, batch);
	if (purger_run(p, &r, e) < 0) {
		p->due_count = 0;
		return -1;
	}
	p->last = o->read < batch;
	return 0;
}

struct removing {
	struct outbox_purger *o;
	uint64_t ids[SQL_IDS_MAX];
	size_t count;
	int64_t waiting_us;
};

static int row_locked(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	struct removing *r = arg;

	(void)count, (void)e;
	if (statement == 0) {
		r->waiting_us = value_int(v[0], 0);
	} else if (r->count < SQL_IDS_MAX && value_id(v[0], &r->ids[r->count])) {
		r->count++;
		purger_remember(&r->o->base, v[1]);
	}
	return 0;
}

/* Each statement must find exactly the rows that were locked: else nothing has happened. */
static int run_counted(struct outbox_purger *o, const char *what, size_t count, struct err *e)
{
	struct reply r = { 0 };

	if (purger_run(&o->base, &r, e) < 0)
		return err_wrap(e, "%s", what);
	if (r.matched != count)
		return err_set(e, ERR_REFUSED, 0, "%s: %zu rows were locked, %llu were written",
			what, count, (unsigned long long)r.matched);
	return 0;
}

static int remove_locked(struct outbox_purger *o, struct removing *r, struct err *e)
{
	struct buf *text = &o->base.text;

	if (o->archive[0] != '\0') {
		sql_purge_archive(text, o->base.outbox, o->archive, buf_slice(&o->columns).ptr,
			r->ids, r->count);
		if (run_counted(o, o->archive, r->count, e) < 0)
			return -1;
	}
	sql_purge_delete(text, o->base.outbox, r->ids, r->count);
	return run_counted(o, "delete", r->count, e);
}

static int outbox_remove(
	struct purger *p, size_t from, size_t count, struct purge_step *out, struct err *e)
{
	struct outbox_purger *o = outbox_of(p);
	struct removing removing = { .o = o };
	struct reply r = { .row = row_locked, .arg = &removing };
	int rc;

	ids_sort(o->ids + from, count);
	sql_purge_waiting(&p->text, p->outbox);
	buf_adds(&p->text, ";START TRANSACTION;");
	sql_purge_lock(&p->text, p->outbox, o->kind, age_of(o, o->kind), o->ids + from, count,
		session_server(p->session)->mariadb);
	rc = purger_run(p, &r, e);
	if (rc == 0 && removing.count > 0) {
		ids_sort(removing.ids, removing.count);
		rc = remove_locked(o, &removing, e);
	}
	if (rc < 0 && count == 1)
		err_wrap(e, "row %" PRIu64, o->ids[from]);
	rc = purger_finish(p, rc, removing.count, out, e);
	out->waiting_us = removing.waiting_us > 0 ? removing.waiting_us : 0;
	out->dead = o->kind == PURGE_DEAD ? out->gone : 0;
	return rc;
}

static void outbox_free(struct purger *p)
{
	struct outbox_purger *o = outbox_of(p);

	purger_fini(p);
	buf_fini(&o->columns);
	free(o->ids);
	free(o);
}

int purger_new(struct purger **out, const struct source_conf *conf, const struct purge_sink *sink,
	bool dry_run, struct err *e)
{
	static const struct purger_ops ops = {
		.begin = outbox_begin,
		.read = outbox_read,
		.next = outbox_next,
		.remove = outbox_remove,
		.free = outbox_free,
	};
	struct outbox_purger *o = calloc(1, sizeof(*o));

	if (o == NULL)
		return err_set(e, ERR_NOMEM, errno, "retention");
	o->conf = conf;
	o->base = (struct purger){
		.ops = &ops,
		.database = conf->database.name,
		.table = conf->table,
		.chunk = purge_chunk(conf->retention.max_rate),
		.dry_run = dry_run,
	};
	if (sink != NULL)
		o->base.sink = *sink;
	*out = &o->base;
	return 0;
}

bool purger_wanted(const struct source_conf *conf)
{
	return conf->retention.sent_us != AGE_NEVER || conf->retention.dead_us != AGE_NEVER;
}

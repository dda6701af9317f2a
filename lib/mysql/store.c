#include "mysql/store.h"

#include "base/str.h"
#include "mysql/sha1.h"
#include "mysql/store_impl.h"
#include "mysql/values.h"
#include "sys/clock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* An unordered relay holds nothing while it is silent; an ordered one holds the lock. */
#define PATIENT_WAIT_S 28800
/* The second session is for times of load. */
#define BESIDE_IDLE_US (60 * US_PER_SEC)

void *store_grown(void *array, size_t *cap, size_t want, size_t each, struct err *e)
{
	void *more;

	if (array != NULL && want <= *cap)
		return array;
	if (want == 0)
		want = 1;
	more = reallocarray(array, want, each);
	if (more == NULL) {
		err_set(e, ERR_NOMEM, errno, "room for %zu rows", want);
		free(array);
		*cap = 0;
		return NULL;
	}
	*cap = want;
	return more;
}

int store_run(struct mysql_store *s, struct reply *r, struct err *e)
{
	int rc;

	if (s->text.failed)
		rc = err_set(e, ERR_NOMEM, errno, "statement");
	else
		rc = session_run(s->session, buf_slice(&s->text), r, e);
	buf_reset(&s->text);
	return rc;
}

int store_failed(struct mysql_store *s, struct err *e, const char *what)
{
	if (e->kind == ERR_LINK)
		session_close(s->session);
	if (!session_is_open(s->session))
		s->leads = false;
	if (e->kind == ERR_CONFIG)
		s->stale = true; /* perhaps the table is another one than it was */
	return err_wrap(e, "%s", what);
}

const char *store_lock(const struct mysql_store *s)
{
	return s->ordered ? s->lock : NULL;
}

static int distrust(struct err *e, const char *what)
{
	return err_set(e, ERR_LINK, 0,
		"the session's %s is not what was set: something in between (a proxy that shares "
		"connections?) hands out other sessions",
		what);
}

int store_check_session(const struct mysql_store *s, const struct slice *values, struct err *e)
{
	uint64_t id = 0;

	value_id(values[LOOK_CONNECTION], &id);
	if (id != session_server(s->session)->session)
		return distrust(e, "connection id");
	if (!value_is(values[LOOK_ZONE], "+00:00"))
		return distrust(e, "time zone");
	if (!value_is(values[LOOK_ISOLATION], "READ-COMMITTED"))
		return distrust(e, "isolation level");
	return 0;
}

/* --- connect -------------------------------------------------------------------------------- */

static void first_fault(void *arg, const struct finding *f)
{
	struct err *e = arg;

	if (f->severity == SEVERITY_FAULT && e->kind == ERR_NONE)
		err_set(e, ERR_CONFIG, 0, "%s: %s: %s", f->where, f->what, f->fix);
}

static int read_table(struct mysql_store *s, struct err *e)
{
	const struct schema_wish wish = { s->extra, s->extra_count, s->ordered, s->owner };
	struct err fault = { 0 };
	const struct finding_sink sink = { first_fault, &fault };
	struct schema schema;

	if (schema_read(s->session, s->conf->database.name, s->conf->table, &schema, e) < 0)
		return -1;
	schema_judge(&schema, &wish, &sink, &s->table);
	schema_fini(&schema);
	if (fault.kind != ERR_NONE) {
		*e = fault;
		return -1;
	}
	s->table.delete_sent = s->conf->retention.sent_us == 0;
	s->stale = false;
	return 0;
}

int mysql_lock_name(
	const struct source_conf *conf, const struct server *server, char *out, struct err *e)
{
	return mysql_table_lock("outboxd.", conf->database.name, conf->table, server, out, e);
}

int mysql_table_lock(const char *prefix, const char *database, const char *table,
	const struct server *server, char *out, struct err *e)
{
	struct buf name = { 0 };
	char hex[SHA1_HEX];

	buf_addf(&name, "%s.%s", database, table);
	if (name.failed) {
		buf_fini(&name);
		return err_set(e, ERR_NOMEM, errno, "lock");
	}
	if (server->name_case != 0)
		for (size_t i = 0; i < name.len; i++)
			if (name.data[i] >= 'A' && name.data[i] <= 'Z')
				name.data[i] += 'a' - 'A';
	sha1_hex(buf_slice(&name), hex);
	snprintf(out, LOCK_NAME_MAX, "%s%s", prefix, hex);
	buf_fini(&name);
	return 0;
}

static int store_connect(struct store *base, struct err *e)
{
	struct mysql_store *s = store_of(base);

	s->leads = !s->ordered;
	if (session_open(s->session, e) < 0)
		return store_failed(s, e, "connect");
	session_begin(s->session);
	if (read_table(s, e) < 0 ||
		(s->ordered &&
			mysql_lock_name(s->conf, session_server(s->session), s->lock, e) < 0)) {
		session_close(s->session);
		return store_failed(s, e, "connect");
	}
	snprintf(base->peer, sizeof(base->peer), "%.60s (%.60s%s)", session_address(s->session),
		session_server(s->session)->name,
		session_server(s->session)->encrypted ? ", TLS" : "");
	return 0;
}

static void store_close(struct store *base)
{
	struct mysql_store *s = store_of(base);

	session_close(s->session);
	session_close(s->beside);
	s->beside_count = 0;
	s->leads = false;
	buf_shrink(&s->text, 1 << 20);
}

/* --- look ----------------------------------------------------------------------------------- */

struct looking {
	struct mysql_store *store;
	struct store_look *out;
	bool read_only, answered;
};

static int row_look(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	struct looking *l = arg;
	struct store_look *out = l->out;

	(void)statement, (void)count;
	if (store_check_session(l->store, v, e) < 0)
		return -1;
	l->answered = true;
	l->read_only = !value_is(v[LOOK_READ_ONLY], "0") && !value_is(v[LOOK_READ_ONLY], "OFF");
	out->leads = value_true(v[LOOK_LEADS]);
	out->now_us = value_time_us(v[LOOK_NOW]);
	for (unsigned c = 0; c < ROW_CLASSES; c++)
		out->exists[c] = value_true(v[LOOK_EXISTS + c]);
	for (unsigned i = LOOK_DUE_PENDING; i <= LOOK_DUE_RETRY; i++) {
		int64_t us = value_int(v[i], TIME_NEVER);

		if (us < out->next_due_us)
			out->next_due_us = us > 0 ? us : 0;
	}
	return 0;
}

static int store_look(struct store *base, bool expired_too, struct store_look *out, struct err *e)
{
	struct mysql_store *s = store_of(base);
	struct looking l = { .store = s, .out = out };
	struct reply r = { .row = row_look, .arg = &l };

	*out = (struct store_look){ .next_due_us = TIME_NEVER };
	if (s->beside_count == 0 && clock_mono_us() - s->beside_us > BESIDE_IDLE_US)
		session_close(s->beside);
	session_begin(s->session);
	if (s->stale && session_is_open(s->session) && read_table(s, e) < 0)
		return store_failed(s, e, "look");
	buf_reset(&s->text);
	sql_look(&s->text, &s->table, s->owner_sql, session_server(s->session)->isolation,
		store_lock(s), expired_too);
	if (store_run(s, &r, e) < 0)
		return store_failed(s, e, "look");
	if (!l.answered) {
		err_set(e, ERR_LINK, 0, "no row came back");
		return store_failed(s, e, "look");
	}
	if (l.read_only) {
		/* a failover that this connection survived */
		session_avoid(s->session);
		err_set(e, ERR_LINK, 1290, "the server is read-only");
		return store_failed(s, e, "look");
	}
	s->leads = out->leads;
	return 0;
}

static int store_settle_fd(const struct store *base)
{
	union {
		const struct store *in;
		struct store *out;
	} u = { .in = base };

	return session_fd(store_of(u.out)->beside);
}

/* --- life ----------------------------------------------------------------------------------- */

static void store_free(struct store *base)
{
	struct mysql_store *s;

	if (base == NULL)
		return;
	s = store_of(base);
	session_free(s->session);
	session_free(s->beside);
	buf_fini(&s->text);
	free(s->ids);
	free(s->takeovers);
	free(s->keys);
	free(s->picked);
	free(s->extra_values);
	free(s);
}

static const struct store_ops ops = {
	.connect = store_connect,
	.close = store_close,
	.look = store_look,
	.claim = mysql_store_claim,
	.settle = mysql_store_settle,
	.settle_begin = mysql_store_settle_begin,
	.settle_end = mysql_store_settle_end,
	.settle_fd = store_settle_fd,
	.renew = mysql_store_renew,
	.predecessors = mysql_store_predecessors,
	.release_waiting = mysql_store_release_waiting,
	.barred = mysql_store_barred,
	.last_sent = mysql_store_last_sent,
	.free = store_free,
};

/* Half the lease: a leader that vanished without a word has lost the lock before its leases run
 * out. An idle one says something every poll_interval, and an operation must fit in between. */
static unsigned lock_wait_timeout_s(const struct source_conf *conf)
{
	int64_t half_s = conf->lease_us / 2 / US_PER_SEC;
	int64_t poll_s = (conf->poll_interval_us + US_PER_SEC - 1) / US_PER_SEC + 2;

	return (unsigned)(half_s > poll_s ? half_s : poll_s);
}

int mysql_store_new(struct store **out, const struct source_conf *conf, const char *owner,
	const char *const *extra_columns, size_t extra_count, struct guard *guard, struct err *e)
{
	struct mysql_store *s = calloc(1, sizeof(*s));
	struct session_options options = {
		.wait_timeout_s = PATIENT_WAIT_S,
		.program = "outboxd",
	};
	struct buf quoted = { 0 };

	if (s == NULL)
		return err_set(e, ERR_NOMEM, errno, "store");
	s->base.ops = &ops;
	s->conf = conf;
	s->extra = extra_columns;
	s->extra_count = extra_count;
	s->ordered = conf->ordering == ORDERING_AGGREGATE;
	if (s->ordered)
		options.wait_timeout_s = lock_wait_timeout_s(conf);
	if (!str_copy(s->owner, sizeof(s->owner), owner)) {
		err_set(e, ERR_CONFIG, 0, "the owner's name is longer than 128 bytes: %s", owner);
		goto fail;
	}
	options.owner = s->owner;
	sql_add_string(&quoted, slice_str(owner));
	if (quoted.failed || !str_copy(s->owner_sql, sizeof(s->owner_sql), quoted.data)) {
		err_set(e, ERR_NOMEM, errno, "store");
		goto fail;
	}
	if (extra_count > 0) {
		s->extra_values = calloc(extra_count, sizeof(*s->extra_values));
		if (s->extra_values == NULL) {
			err_set(e, ERR_NOMEM, errno, "store");
			goto fail;
		}
	}
	if (session_new(&s->session, &conf->database, &options, guard, e) < 0)
		goto fail;
	options.wait_timeout_s = PATIENT_WAIT_S; /* it holds no lock */
	if (session_new(&s->beside, &conf->database, &options, guard, e) < 0)
		goto fail;
	buf_fini(&quoted);
	*out = &s->base;
	return 0;
fail:
	buf_fini(&quoted);
	store_free(&s->base);
	return -1;
}

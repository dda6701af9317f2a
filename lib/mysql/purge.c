#include "mysql/errors.h"
#include "mysql/purge_impl.h"
#include "mysql/values.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* So many rows in a row that are refused for themselves are not. */
#define REFUSED_MAX 20

int purger_run(struct purger *p, struct reply *r, struct err *e)
{
	int rc;

	session_begin(p->session);
	if (p->text.failed)
		rc = err_set(e, ERR_NOMEM, errno, "statement");
	else
		rc = session_run(p->session, buf_slice(&p->text), r, e);
	buf_reset(&p->text);
	return rc;
}

void purger_remember(struct purger *p, struct slice event_id)
{
	if (p->sink.gone == NULL || event_id.ptr == NULL)
		return;
	buf_add_slice(&p->gone, event_id);
	buf_addc(&p->gone, '\0');
}

int purger_finish(struct purger *p, int rc, uint64_t rows, struct purge_step *out, struct err *e)
{
	session_begin(p->session);
	if (rc < 0)
		return session_rollback(p->session, e);
	if (session_commit(p->session, &out->unknown, e) < 0)
		return -1;
	out->gone = rows;
	for (size_t at = 0; !p->gone.failed && at < p->gone.len;) {
		struct slice id = slice_str(p->gone.data + at);

		p->sink.gone(p->sink.arg, id);
		at += id.len + 1;
	}
	return 0;
}

void purger_fini(struct purger *p)
{
	buf_fini(&p->text);
	buf_fini(&p->gone);
}

static int row_got(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	bool *got = arg;

	(void)statement, (void)count, (void)e;
	*got = value_true(v[0]);
	return 0;
}

/* A session that is not the one the pass began with has lost the lock, so it is asked each time. */
static int take_lock(struct purger *p, bool *got, struct err *e)
{
	struct reply r = { .row = row_got, .arg = got };

	*got = false;
	if (mysql_table_lock("outboxd.purge.", p->database, p->table, session_server(p->session),
		    p->lock, e) < 0)
		return -1;
	buf_addf(&p->text, "SELECT IF(IS_USED_LOCK('%s')<=>CONNECTION_ID(),1,GET_LOCK('%s',0))",
		p->lock, p->lock);
	if (purger_run(p, &r, e) < 0)
		return -1;
	p->locked = *got;
	return 0;
}

static int give_lock(struct purger *p, struct err *e)
{
	struct reply r = { 0 };

	if (!p->locked)
		return 0;
	p->locked = false;
	buf_addf(&p->text, "DO RELEASE_LOCK('%s')", p->lock);
	return purger_run(p, &r, e);
}

void purger_stop(struct purger *p, struct session *c)
{
	struct err ignored;

	p->session = c;
	if (c != NULL && session_is_open(c) && give_lock(p, &ignored) < 0)
		session_close(c);
	p->running = p->locked = false;
	p->due_count = p->at = 0;
}

static int read_round(struct purger *p, struct purge_step *out, struct err *e)
{
	bool got = true;

	if (!p->running) {
		p->most = p->chunk;
		p->refused = 0;
		if (p->ops->begin(p, e) < 0)
			return -1;
	}
	if (p->running && p->last && !p->ops->next(p)) {
		out->end = true;
		p->running = false;
		return 0;
	}
	p->running = true;
	if (!p->dry_run && take_lock(p, &got, e) < 0)
		return -1;
	if (!got) {
		out->elsewhere = out->end = true;
		p->running = false;
		return 0;
	}
	p->due_count = p->at = 0;
	p->last = false;
	if (p->ops->read(p, e) < 0)
		return -1;
	out->due = p->due_count;
	if (p->dry_run)
		p->at = p->due_count;
	return 0;
}

bool purger_reads(const struct purger *p)
{
	return p->at == p->due_count;
}

/* Of what a step of `count` rows from `from` on came to. One that is refused has rolled back. */
static int narrow(struct purger *p, int rc, size_t from, size_t count, struct err *e)
{
	if (rc == 0) {
		p->most = p->most < p->chunk / 2 ? p->most * 2 : p->chunk;
		p->refused = 0;
		return 0;
	}
	if (mysql_error_row((unsigned)e->code) && e->kind != ERR_LINK)
		e->kind = ERR_REFUSED;
	if (e->kind != ERR_REFUSED)
		return -1;
	if (count > 1) {
		p->at = from;
		p->most = (unsigned)count / 2;
		*e = (struct err){ 0 };
		return 0;
	}
	if (++p->refused == REFUSED_MAX) {
		p->refused = 0;
		e->kind = ERR_CONFIG;
	}
	return -1;
}

int purger_step(struct purger *p, struct session *c, const struct outbox_table *table,
	unsigned limit, struct purge_step *out, struct err *e)
{
	size_t n = p->due_count - p->at, from = p->at;
	int rc;

	*out = (struct purge_step){ 0 };
	p->session = c;
	p->outbox = table;
	if (n == 0) {
		rc = read_round(p, out, e);
	} else {
		n = n < p->most ? n : p->most;
		n = limit == 0 || n < limit ? n : limit;
		p->at += n;
		buf_reset(&p->gone);
		rc = narrow(p, p->ops->remove(p, from, n, out, e), from, n, e);
	}
	if (rc == 0 && p->at == p->due_count && give_lock(p, e) < 0)
		rc = -1;
	if (rc == 0)
		return 0;
	if (e->kind != ERR_RETRY && e->kind != ERR_REFUSED) {
		struct err kept = *e;

		purger_stop(p, c);
		*e = kept;
	}
	return err_wrap(e, "retention");
}

void purger_free(struct purger *p)
{
	if (p != NULL)
		p->ops->free(p);
}

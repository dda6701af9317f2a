#include "admin.h"

#include "mysql/inbox.h"
#include "mysql/purge.h"
#include "mysql/purge_pace.h"
#include "sys/clock.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char help[] =
	"usage: outboxd purge [-c FILE] [--source NAME] [--inbox NAME] [--limit N] [--reason TEXT] "
	"[--dry-run] "
	"[--json]\n\n"
	"Retention now: deletes, or moves to the archive table, the rows that the configured ages "
	"allow to go, until nothing is\n"
	"due; in small batches with pauses, like the daemon, at no more than max_rate, but at any "
	"time of the day. Without\n"
	"--source and --inbox: of all sources and inboxes. Leaves a line in syslog.\n\n"
	"  -c, --config FILE   default: " DEFAULT_CONFIG "\n"
	"      --source NAME   of this source only\n"
	"      --inbox NAME    of this inbox only\n"
	"      --limit N       no more than so many rows\n"
	"      --reason TEXT   why; for the line in syslog\n"
	"      --dry-run       changes nothing, says how many there are\n"
	"      --json\n"
	"  -h, --help\n";

/* While another purger has the table it is asked again for so long. */
#define BUSY_US (30 * US_PER_SEC)
#define BUSY_PAUSE_US (200 * US_PER_MS)
#define IDS_SHOWN 100

/* Between two steps is a good place to stop. */
static volatile sig_atomic_t interrupted;

static void on_signal(int sig)
{
	(void)sig;
	interrupted = 1;
}

struct purge {
	struct common common;
	unsigned limit;
	bool dry_run;
	const char *reason, *inbox;
	uint64_t total; /* gone, of all tables */
	struct buf json;
	unsigned reports;
};

/* Of one table. */
struct result {
	const struct purge *purge;
	const char *kind, *name; /* "source", "orders" */
	const char *archive;     /* NULL: deleted */
	uint64_t matched, gone, dead;
	bool unknown, limited;
	uint64_t shown;
	struct buf ids; /* JSON, of the first of them */
	int64_t progress_us;
};

static void on_gone(void *arg, struct slice event_id)
{
	struct result *r = arg;

	if (r->shown++ >= IDS_SHOWN)
		return;
	if (r->shown > 1)
		buf_addc(&r->ids, ',');
	out_text(&r->ids, event_id);
}

static void pause_us(int64_t us)
{
	const struct timespec t = { .tv_sec = us / US_PER_SEC, .tv_nsec = us % US_PER_SEC * 1000 };

	if (us > 0)
		nanosleep(&t, NULL);
}

static void show_progress(struct result *r)
{
	int64_t now_us = clock_mono_us();

	if (r->progress_us == 0)
		r->progress_us = now_us;
	if (now_us - r->progress_us < US_PER_SEC || !isatty(STDERR_FILENO))
		return;
	r->progress_us = now_us;
	fprintf(stderr, "outboxd purge: %s %s: %llu rows\n", r->kind, r->name,
		(unsigned long long)(r->purge->dry_run ? r->matched : r->gone));
}

static unsigned left(const struct purge *p)
{
	return p->limit > p->total ? p->limit - (unsigned)p->total : 0;
}

/* The whole pass. Rows that fail by themselves, or whose turn it was when another transaction won,
 * are left; the first reason is what comes back. */
static int pass(struct purge *p, struct result *r, struct purger *purger, struct session *session,
	const struct outbox_table *table, unsigned max_rate, struct err *e)
{
	int64_t busy_until_us = clock_mono_us() + BUSY_US;
	struct purge_pace pace = { 0 };
	struct err first = { 0 };

	purge_pace_begin(&pace);
	while (!interrupted && (p->limit == 0 || left(p) > 0)) {
		int64_t start_us = clock_mono_us(), now_us;
		struct purge_step done;
		int rc = purger_step(purger, session, table, left(p), &done, e);

		now_us = clock_mono_us();
		r->matched += done.due;
		r->gone += done.gone;
		r->dead += done.dead;
		r->unknown |= done.unknown;
		p->total += p->dry_run ? done.due : done.gone;
		if (rc < 0 && e->kind != ERR_RETRY && e->kind != ERR_REFUSED)
			return -1;
		if (rc < 0 && first.kind == ERR_NONE)
			first = *e;
		show_progress(r);
		if (done.elsewhere && now_us >= busy_until_us)
			return err_set(e, ERR_RETRY, 0,
				"another process is purging this table: try again later");
		if (done.end && !done.elsewhere)
			break;
		pause_us(done.elsewhere ? BUSY_PAUSE_US
					: purge_pause(&pace, max_rate, done.gone, now_us - start_us,
						  done.waiting_us, now_us));
	}
	purger_stop(purger, session);
	r->limited = p->limit > 0 && p->total >= p->limit;
	if (p->dry_run && r->limited) { /* the last round may have found more */
		r->matched -= p->total - p->limit;
		p->total = p->limit;
	}
	*e = first;
	return first.kind == ERR_NONE ? 0 : -1;
}

static void add_json(struct purge *p, const struct result *r, const struct err *trouble)
{
	struct buf *b = &p->json;

	if (p->reports++ > 0)
		buf_addc(b, ',');
	buf_addc(b, '{');
	out_pair(b, r->kind, r->name);
	out_count(b, "matched", r->matched);
	out_count(b, "changed", r->gone);
	out_name(b, "dry_run");
	buf_adds(b, p->dry_run ? "true" : "false");
	out_count(b, "dead", r->dead);
	out_name(b, "event_ids");
	buf_addc(b, '[');
	buf_add_slice(b, buf_slice(&r->ids));
	buf_addc(b, ']');
	out_pair(b, "error",
		trouble->kind != ERR_NONE ? trouble->text
		: interrupted             ? "interrupted"
					  : NULL);
	buf_addc(b, '}');
	b->failed |= r->ids.failed;
}

static void report(struct purge *p, const struct result *r)
{
	if (p->dry_run)
		printf("%s %s: %llu rows would be %s%s\n", r->kind, r->name,
			(unsigned long long)r->matched,
			r->archive != NULL ? "moved to " : "deleted",
			r->archive != NULL ? r->archive : "");
	else
		printf("%s %s: %llu rows %s%s", r->kind, r->name, (unsigned long long)r->gone,
			r->archive != NULL ? "moved to " : "deleted",
			r->archive != NULL ? r->archive : "");
	if (p->dry_run)
		return;
	if (r->dead > 0)
		printf(", %llu of them dead events that were never sent",
			(unsigned long long)r->dead);
	if (r->limited)
		fputs(", as many as were asked for", stdout);
	else if (r->matched > r->gone)
		printf(", %llu left", (unsigned long long)(r->matched - r->gone));
	putchar('\n');
}

static void audit(const struct purge *p, const struct result *r, const struct err *trouble)
{
	struct buf detail = { 0 };

	buf_addf(&detail, "kind=%s matched=%llu dead=%llu limit=%u archive=%s", r->kind,
		(unsigned long long)r->matched, (unsigned long long)r->dead, p->limit,
		r->archive != NULL ? r->archive : "-");
	if (r->unknown)
		buf_adds(&detail, " trouble=\"outcome of the last transaction unknown\"");
	else if (trouble->kind != ERR_NONE)
		buf_addf(&detail, " trouble=\"%s\"", trouble->text);
	else if (interrupted)
		buf_adds(&detail, " trouble=interrupted");
	admin_audit("purge", r->name, r->gone, p->reason, detail.data);
	buf_fini(&detail);
}

/* Retention is off. */
static int nothing(struct purge *p, const struct result *r)
{
	static const struct err none;

	if (p->common.json)
		add_json(p, r, &none);
	else
		printf("%s %s: its retention is never: nothing to do\n", r->kind, r->name);
	return EXIT_DONE;
}

/* *e names the table's source or inbox. */
static int end(struct purge *p, struct result *r, int rc, const struct err *e)
{
	if (r->gone > 0 || r->unknown)
		audit(p, r, e);
	if (p->common.json)
		add_json(p, r, e);
	else if (rc == 0 || r->gone > 0)
		report(p, r);
	if (rc < 0)
		fprintf(stderr, "outboxd purge: %s%s\n", e->text,
			r->unknown ? " (the last rows may be gone: run it again)" : "");
	buf_fini(&r->ids);
	return rc < 0 ? EXIT_FAILED : EXIT_DONE;
}

static int purge_source(struct purge *p, const struct source_conf *source)
{
	struct result r = { .purge = p,
		.kind = "source",
		.name = source->name,
		.archive = source->retention.archive_table };
	const struct purge_sink sink = { on_gone, &r };
	struct purger *purger = NULL;
	struct admin a = { 0 };
	struct err e = { 0 };
	int rc = 0;

	if (!purger_wanted(source))
		return nothing(p, &r);
	rc = admin_open(&a, source, NULL, 0, "outboxd purge", &e);
	if (rc == 0) {
		rc = purger_new(&purger, source, &sink, p->dry_run, &e);
		if (rc == 0)
			rc = pass(
				p, &r, purger, a.session, &a.table, source->retention.max_rate, &e);
		if (rc < 0)
			(void)err_wrap(&e, "source %s", source->name); /* as admin_open() does */
	}
	purger_free(purger);
	admin_close(&a);
	return end(p, &r, rc, &e);
}

static int purge_inbox(struct purge *p, const struct inbox_conf *inbox)
{
	const struct session_options options = {
		.wait_timeout_s = 120, .examine = true, .program = "outboxd purge"
	};
	struct result r = { .purge = p, .kind = "inbox", .name = inbox->name };
	const struct purge_sink sink = { on_gone, &r };
	struct purger *purger = NULL;
	struct session *session = NULL;
	struct inbox_table table;
	struct err e = { 0 };
	int rc;

	if (inbox->retention.processed_us == AGE_NEVER)
		return nothing(p, &r);
	rc = session_new(&session, &inbox->database, &options, NULL, &e);
	if (rc == 0)
		rc = session_open(session, &e);
	if (rc == 0)
		rc = inbox_read(session, inbox, &table, &e);
	if (rc == 0)
		rc = purger_inbox_new(&purger, inbox, &table, &sink, p->dry_run, &e);
	if (rc == 0)
		rc = pass(p, &r, purger, session, NULL, 0, &e);
	if (rc < 0)
		(void)err_wrap(&e, "inbox %s", inbox->name);
	purger_free(purger);
	session_free(session);
	return end(p, &r, rc, &e);
}

static int purge(struct purge *p, const struct config *conf)
{
	int rc = EXIT_DONE;
	const char *source = p->common.source, *inbox = p->inbox;
	bool all = source == NULL && inbox == NULL;
	bool many =
		all ? conf->source_count + conf->inbox_count > 1 : source != NULL && inbox != NULL;

	for (size_t i = 0; i < conf->source_count && !interrupted; i++)
		if (all || (source != NULL && strcmp(source, conf->sources[i].name) == 0))
			if (purge_source(p, &conf->sources[i]) != EXIT_DONE)
				rc = EXIT_FAILED;
	for (size_t i = 0; i < conf->inbox_count && !interrupted; i++)
		if (all || (inbox != NULL && strcmp(inbox, conf->inboxes[i].name) == 0))
			if (purge_inbox(p, &conf->inboxes[i]) != EXIT_DONE)
				rc = EXIT_FAILED;
	if (p->common.json && p->reports > 0) {
		struct buf b = { 0 };

		buf_addf(&b, "%s%s%s", many ? "[" : "", buf_slice(&p->json).ptr, many ? "]" : "");
		b.failed |= p->json.failed;
		if (!out_print(&b))
			rc = EXIT_FAILED;
	}
	if (interrupted) {
		fputs("outboxd purge: interrupted\n", stderr);
		rc = EXIT_FAILED;
	}
	return rc;
}

int cmd_purge(int argc, char **argv)
{
	struct purge p = { 0 };
	const struct option_spec own[] = {
		{ "inbox", OPTION_TEXT, (void *)&p.inbox },
		{ "limit", OPTION_NUMBER, &p.limit },
		{ "reason", OPTION_TEXT, (void *)&p.reason },
		{ "dry-run", OPTION_FLAG, &p.dry_run },
		{ 0 },
	};
	struct config *conf;
	int rc = parse_options("purge", help, argc, argv, &p.common, own, NULL);

	if (rc < 0)
		rc = admin_begin("purge", &p.common, &conf);
	if (rc >= 0)
		return rc;
	if (p.inbox != NULL && config_inbox(conf, p.inbox) == NULL) {
		rc = usage_error("purge", "%s has no inbox '%s'", p.common.path, p.inbox);
		admin_end(conf);
		return rc;
	}
	sigaction(SIGINT, &(struct sigaction){ .sa_handler = on_signal }, NULL);
	sigaction(SIGTERM, &(struct sigaction){ .sa_handler = on_signal }, NULL);
	rc = purge(&p, conf);
	buf_fini(&p.json);
	admin_end(conf);
	return rc;
}

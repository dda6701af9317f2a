#include "admin.h"

#include "sys/clock.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char help[] =
	"usage: outboxd requeue [-c FILE] [--source NAME] [--status RETRY] [--force] [--reason "
	"TEXT] [--dry-run] [--json]\n"
	"                       EVENT_ID... | --class CLASS | --all\n\n"
	"Dead rows become PENDING again with a fresh attempt budget; what waits behind them comes "
	"back with them, in order.\n"
	"Rows that were skipped are left alone unless they are named, or their class is. One that "
	"is older than a sent event\n"
	"of its aggregate would arrive out of order: only with --force. Leaves a line in "
	"syslog.\n\n"
	"  -c, --config FILE   default: " DEFAULT_CONFIG "\n"
	"      --source NAME   which source; may be left out where there is only one\n"
	"      --class CLASS   all whose last_error begins with this word: UNROUTABLE, NACKED, "
	"...\n"
	"      --all           all of them\n"
	"      --status RETRY  rows that wait for their next attempt, instead of dead ones\n"
	"      --force         also those older than a sent event of their aggregate\n"
	"      --reason TEXT   why; for the line in syslog\n"
	"      --dry-run       changes nothing, says what would be\n"
	"      --json\n"
	"  -h, --help\n";

struct requeue {
	struct common common;
	struct admin_pick pick;
	bool all, force, dry_run;
	const char *reason;
	char **ids;
	unsigned id_count;
	uint64_t matched, how[ADMIN_OUTCOMES];
	struct buf event_ids; /* JSON, of those changed */
	struct buf some;      /* the first few, for the audit */
	int64_t progress_us;
};

/* Between two transactions is a good place to stop. */
static volatile sig_atomic_t interrupted;

static void on_signal(int sig)
{
	(void)sig;
	interrupted = 1;
}

static const char *why(enum admin_outcome how)
{
	static const char *const words[ADMIN_OUTCOMES] = {
		[ADMIN_UNKNOWN] = "there is no such event",
		[ADMIN_STATE] = "its state is another one",
		[ADMIN_LEASED] = "a relay holds it; its lease is not over",
		[ADMIN_SENT] = "it is sent already",
		[ADMIN_OVERTAKEN] = "a later event of its aggregate is sent: it would arrive out "
				    "of order, see --force",
	};

	return words[how] != NULL ? words[how] : "";
}

static void complain(
	const struct requeue *q, const char *event_id, const char *status, enum admin_outcome how)
{
	fprintf(stderr, "outboxd requeue: %s: %s", event_id, why(how));
	if (how == ADMIN_STATE)
		fprintf(stderr, " (%s)", status);
	if (how == ADMIN_STATE && strcmp(status, "RETRY") == 0 &&
		strcmp(q->pick.status, "DEAD") == 0)
		fprintf(stderr, ": see --status RETRY");
	fputc('\n', stderr);
}

static void on_done(void *arg, const struct admin_row *row, enum admin_outcome how)
{
	struct requeue *q = arg;

	q->how[how]++;
	if (how != ADMIN_CHANGED) {
		if (q->id_count > 0 && row->event_id != NULL)
			complain(q, row->event_id, row->status, how);
		return;
	}
	if (q->how[how] > 1)
		buf_addc(&q->event_ids, ',');
	out_text(&q->event_ids, slice_str(row->event_id));
	if (q->how[how] <= 10)
		buf_addf(&q->some, "%s%s", q->how[how] > 1 ? "," : "",
			row->event_id != NULL ? row->event_id : "?");
	else if (q->how[how] == 11)
		buf_adds(&q->some, ",...");
}

static int by_place(const void *a, const void *b)
{
	const struct admin_key *x = a, *y = b;

	if (x->created_us != y->created_us)
		return x->created_us < y->created_us ? -1 : 1;
	return (x->id > y->id) - (x->id < y->id);
}

static int find_named(struct requeue *q, struct admin *a, struct admin_keys *keys, struct err *e)
{
	keys->list = calloc(q->id_count, sizeof(*keys->list));
	if (keys->list == NULL)
		return err_set(e, ERR_NOMEM, 0, "out of memory");
	keys->cap = q->id_count;
	for (unsigned i = 0; i < q->id_count; i++) {
		struct admin_row row;

		if (admin_find(a, q->ids[i], &row, e) < 0)
			return -1;
		if (row.id == 0) {
			q->how[ADMIN_UNKNOWN]++;
			complain(q, q->ids[i], "", ADMIN_UNKNOWN);
		} else {
			keys->list[keys->count++] = (struct admin_key){ row.created_us, row.id };
		}
		admin_row_fini(&row);
	}
	if (keys->count > 0)
		qsort(keys->list, keys->count, sizeof(*keys->list), by_place);
	/* one named twice is one */
	for (size_t i = 1; i < keys->count;) {
		if (keys->list[i].id != keys->list[i - 1].id) {
			i++;
			continue;
		}
		memmove(&keys->list[i], &keys->list[i + 1],
			(keys->count - i - 1) * sizeof(*keys->list));
		keys->count--;
	}
	return 0;
}

static void show_progress(struct requeue *q, size_t done, size_t of)
{
	int64_t now_us = clock_mono_us();

	if (q->progress_us == 0)
		q->progress_us = now_us;
	if (now_us - q->progress_us < US_PER_SEC || !isatty(STDERR_FILENO))
		return;
	q->progress_us = now_us;
	fprintf(stderr, "outboxd requeue: %zu of %zu\n", done, of);
}

static int change_all(struct requeue *q, struct admin *a, const struct config *conf,
	struct admin_change *change, const struct admin_keys *keys, bool *unknown, struct err *e)
{
	for (size_t at = 0; at < keys->count && !interrupted; at += ADMIN_BATCH) {
		size_t n = keys->count - at < ADMIN_BATCH ? keys->count - at : ADMIN_BATCH;
		uint64_t before = q->how[ADMIN_CHANGED];

		if (admin_requeue(a, &q->pick, keys->list + at, n, change, unknown, e) < 0)
			return -1;
		if (!q->dry_run && before == 0 && q->how[ADMIN_CHANGED] > 0)
			admin_wake(conf, a->conf); /* need not wait for the rest */
		show_progress(q, at + n, keys->count);
	}
	return 0;
}

static void report(const struct requeue *q, const struct source_conf *source, uint64_t released,
	const char *trouble)
{
	uint64_t changed = q->how[ADMIN_CHANGED];
	struct buf b = { 0 };

	if (q->common.json) {
		buf_addc(&b, '{');
		out_pair(&b, "source", source->name);
		out_count(&b, "matched", q->matched);
		out_count(&b, "changed", q->dry_run ? 0 : changed);
		out_name(&b, "dry_run");
		buf_adds(&b, q->dry_run ? "true" : "false");
		out_name(&b, "event_ids");
		buf_addc(&b, '[');
		buf_add_slice(&b, buf_slice(&q->event_ids));
		buf_addc(&b, ']');
		out_count(&b, "released", released);
		out_count(&b, "refused", q->how[ADMIN_OVERTAKEN]);
		out_pair(&b, "error", trouble);
		buf_addc(&b, '}');
		b.failed |= q->event_ids.failed;
		(void)out_print(&b);
		return;
	}
	printf("%llu of %llu rows %s", (unsigned long long)changed, (unsigned long long)q->matched,
		q->dry_run ? "would be requeued" : "requeued");
	if (released > 0)
		printf(", %llu waiting rows released", (unsigned long long)released);
	if (q->how[ADMIN_OVERTAKEN] > 0)
		printf(", %llu refused: %s", (unsigned long long)q->how[ADMIN_OVERTAKEN],
			why(ADMIN_OVERTAKEN));
	if (q->how[ADMIN_STATE] + q->how[ADMIN_LEASED] + q->how[ADMIN_SENT] > 0)
		printf(", %llu not in that state%s",
			(unsigned long long)(q->how[ADMIN_STATE] + q->how[ADMIN_LEASED] +
					     q->how[ADMIN_SENT]),
			q->id_count > 0 ? "" : " any more");
	putchar('\n');
}

static void audit(const struct requeue *q, const struct source_conf *source, uint64_t released,
	const char *trouble)
{
	struct buf detail = { 0 };

	buf_addf(&detail, "matched=%llu status=%s class=%s force=%s released=%llu event_ids=%s",
		(unsigned long long)q->matched, q->pick.status,
		q->pick.class != NULL ? q->pick.class : "-", q->force ? "yes" : "no",
		(unsigned long long)released, q->some.data != NULL ? q->some.data : "");
	if (trouble != NULL)
		buf_addf(&detail, " trouble=\"%s\"", trouble);
	admin_audit("requeue", source->name, q->how[ADMIN_CHANGED], q->reason, detail.data);
	buf_fini(&detail);
}

static int requeue(struct requeue *q, const struct config *conf, const struct source_conf *source)
{
	struct admin_change change = {
		.force = q->force, .dry_run = q->dry_run, .done = on_done, .arg = q
	};
	struct admin_keys keys = { 0 };
	struct admin a = { 0 };
	struct err e = { 0 };
	bool unknown = false;
	const char *trouble;
	int rc = admin_open(&a, source, NULL, 0, "outboxd requeue", &e);

	if (rc == 0)
		rc = q->id_count > 0 ? find_named(q, &a, &keys, &e)
				     : admin_pick_all(&a, &q->pick, &keys, &e);
	q->matched = keys.count;
	if (rc == 0)
		rc = change_all(q, &a, conf, &change, &keys, &unknown, &e);
	admin_keys_fini(&keys);
	admin_close(&a);
	trouble = rc < 0 ? e.text : interrupted ? "interrupted" : NULL;
	if (!q->dry_run && (q->how[ADMIN_CHANGED] > 0 || unknown)) {
		audit(q, source, change.released,
			unknown ? "outcome of the last transaction unknown" : trouble);
		admin_wake(conf, source);
	}
	if (rc == 0 || q->common.json)
		report(q, source, change.released, trouble);
	if (rc < 0) {
		fprintf(stderr, "outboxd requeue: %llu rows requeued%s, then it failed\n",
			(unsigned long long)q->how[ADMIN_CHANGED],
			unknown ? ", perhaps a few more" : "");
		return admin_failed("requeue", &e);
	}
	if (interrupted) {
		fputs("outboxd requeue: interrupted\n", stderr);
		return EXIT_FAILED;
	}
	if (q->how[ADMIN_OVERTAKEN] > 0)
		return EXIT_FAILED;
	/* of rows that were named each one counts */
	return q->id_count > 0 && q->how[ADMIN_CHANGED] < q->matched + q->how[ADMIN_UNKNOWN]
		       ? EXIT_FAILED
		       : EXIT_DONE;
}

static int check_options(struct requeue *q, int argc, char **argv, int rest)
{
	q->ids = argv + rest;
	q->id_count = (unsigned)(argc - rest);
	if ((q->id_count > 0) + (q->pick.class != NULL) + q->all != 1)
		return usage_error("requeue", "one of EVENT_ID..., --class and --all is wanted");
	if (q->pick.status == NULL)
		q->pick.status = "DEAD";
	else if (strcmp(q->pick.status, "RETRY") != 0 && strcmp(q->pick.status, "DEAD") != 0)
		return usage_error(
			"requeue", "--status is RETRY or DEAD, not '%s'", q->pick.status);
	q->pick.skipped_too =
		q->id_count > 0 || (q->pick.class != NULL && strcmp(q->pick.class, "SKIPPED") == 0);
	return -1;
}

int cmd_requeue(int argc, char **argv)
{
	struct requeue q = { 0 };
	const struct option_spec own[] = {
		{ "class", OPTION_TEXT, (void *)&q.pick.class },
		{ "status", OPTION_TEXT, (void *)&q.pick.status },
		{ "reason", OPTION_TEXT, (void *)&q.reason },
		{ "all", OPTION_FLAG, &q.all },
		{ "force", OPTION_FLAG, &q.force },
		{ "dry-run", OPTION_FLAG, &q.dry_run },
		{ 0 },
	};
	const struct source_conf *source;
	struct config *conf;
	int rest, rc = parse_options("requeue", help, argc, argv, &q.common, own, &rest);

	if (rc < 0)
		rc = check_options(&q, argc, argv, rest);
	if (rc < 0)
		rc = admin_begin("requeue", &q.common, &conf);
	if (rc >= 0)
		return rc;
	sigaction(SIGINT, &(struct sigaction){ .sa_handler = on_signal }, NULL);
	sigaction(SIGTERM, &(struct sigaction){ .sa_handler = on_signal }, NULL);
	source = admin_source("requeue", conf, &q.common);
	rc = source != NULL ? requeue(&q, conf, source) : EXIT_USAGE;
	buf_fini(&q.event_ids);
	buf_fini(&q.some);
	admin_end(conf);
	return rc;
}

#include "admin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
	"usage: outboxd skip [-c FILE] [--source NAME] --reason TEXT [--dry-run] [--json] "
	"EVENT_ID\n\n"
	"The event is given up: its row becomes DEAD with class SKIPPED, its aggregate moves on "
	"without it, and what waits\n"
	"behind it goes at once. Refused for a row that is sent, or that a relay holds. Leaves a "
	"line in syslog.\n\n"
	"  -c, --config FILE   default: " DEFAULT_CONFIG "\n"
	"      --source NAME   which source; may be left out where there is only one\n"
	"      --reason TEXT   why; kept in the row\n"
	"      --dry-run       changes nothing, says what would be\n"
	"      --json\n"
	"  -h, --help\n";

struct skip {
	struct common common;
	const char *reason;
	bool dry_run;
	const char *event_id;
	enum admin_outcome how;
	char was[33];
	char owner[140];
};

static void on_done(void *arg, const struct admin_row *before, enum admin_outcome how)
{
	struct skip *s = arg;

	s->how = how;
	snprintf(s->was, sizeof(s->was), "%s", before->status);
	snprintf(s->owner, sizeof(s->owner), "%s", before->owner);
}

static void report(const struct skip *s, const struct source_conf *source, uint64_t released,
	const char *trouble)
{
	bool matched = s->how == ADMIN_CHANGED || s->how == ADMIN_ALREADY;
	struct buf b = { 0 };

	if (s->common.json) {
		buf_addc(&b, '{');
		out_pair(&b, "source", source->name);
		out_count(&b, "matched", matched);
		out_count(&b, "changed", s->how == ADMIN_CHANGED && !s->dry_run);
		out_name(&b, "dry_run");
		buf_adds(&b, s->dry_run ? "true" : "false");
		out_name(&b, "event_ids");
		buf_addc(&b, '[');
		if (matched)
			out_text(&b, slice_str(s->event_id));
		buf_addc(&b, ']');
		out_count(&b, "released", released);
		out_pair(&b, "error", trouble);
		buf_addc(&b, '}');
		(void)out_print(&b);
	} else if (s->how == ADMIN_ALREADY) {
		printf("%s was skipped before; %llu waiting rows released\n", s->event_id,
			(unsigned long long)released);
	} else if (s->how == ADMIN_CHANGED) {
		printf("%s %s skipped (it was %s); %llu waiting rows released\n", s->event_id,
			s->dry_run ? "would be" : "is", s->was, (unsigned long long)released);
	}
}

static int refused(const struct skip *s, const struct source_conf *source)
{
	const char *why = s->how == ADMIN_UNKNOWN ? "there is no such event"
			  : s->how == ADMIN_SENT  ? "it is sent already"
						  : "a relay holds it; its lease is not over";

	fprintf(stderr, "outboxd skip: source %s: %s: %s%s%s%s\n", source->name, s->event_id, why,
		s->how == ADMIN_LEASED ? " (" : "", s->how == ADMIN_LEASED ? s->owner : "",
		s->how == ADMIN_LEASED ? "): stop the relay, or wait" : "");
	return EXIT_FAILED;
}

static int failed(const struct skip *s, const struct source_conf *source, const struct err *e)
{
	if (s->common.json)
		report(s, source, 0, e->text);
	return admin_failed("skip", e);
}

static int skip(struct skip *s, const struct config *conf, const struct source_conf *source)
{
	struct admin_change change = { .dry_run = s->dry_run, .done = on_done, .arg = s };
	struct admin a;
	struct err e = { 0 };
	bool unknown = false;

	if (admin_open(&a, source, NULL, 0, "outboxd skip", &e) < 0)
		return failed(s, source, &e);
	if (admin_skip(&a, s->event_id, s->reason, &change, &unknown, &e) < 0) {
		admin_close(&a);
		if (unknown) {
			admin_audit("skip", source->name, 0, s->reason, "outcome unknown");
			fprintf(stderr, "outboxd skip: the change may have been made: run it "
					"again\n");
		}
		return failed(s, source, &e);
	}
	admin_close(&a);
	if (s->how == ADMIN_CHANGED && !s->dry_run) {
		struct buf detail = { 0 };

		buf_addf(&detail, "event_id=%s was=%s released=%llu", s->event_id, s->was,
			(unsigned long long)change.released);
		admin_audit("skip", source->name, 1, s->reason, detail.data);
		buf_fini(&detail);
	}
	if (!s->dry_run && (s->how == ADMIN_CHANGED || change.released > 0))
		admin_wake(conf, source);
	report(s, source, change.released, NULL);
	return s->how == ADMIN_CHANGED || s->how == ADMIN_ALREADY ? EXIT_DONE : refused(s, source);
}

int cmd_skip(int argc, char **argv)
{
	struct skip s = { .how = ADMIN_UNKNOWN };
	const struct option_spec own[] = {
		{ "reason", OPTION_TEXT, (void *)&s.reason },
		{ "dry-run", OPTION_FLAG, &s.dry_run },
		{ 0 },
	};
	const struct source_conf *source;
	struct config *conf;
	int rest, rc = parse_options("skip", help, argc, argv, &s.common, own, &rest);

	if (rc >= 0)
		return rc;
	if (argc - rest != 1)
		return usage_error("skip", "one EVENT_ID is wanted");
	if (s.reason == NULL || s.reason[strspn(s.reason, " \t\n")] == '\0')
		return usage_error("skip", "--reason is wanted: it is kept in the row");
	s.event_id = argv[rest];
	rc = admin_begin("skip", &s.common, &conf);
	if (rc >= 0)
		return rc;
	source = admin_source("skip", conf, &s.common);
	rc = source != NULL ? skip(&s, conf, source) : EXIT_USAGE;
	admin_end(conf);
	return rc;
}

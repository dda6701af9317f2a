#include "admin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
	"usage: outboxd events [-c FILE] [--source NAME] [--status STATUS] [--class CLASS] "
	"[--aggregate TYPE/ID]\n"
	"                      [--trace-id ID] [--limit N] [--payload] [--json]\n\n"
	"Lists rows of an outbox table: without --status, --aggregate or --trace-id those that are "
	"not sent, the dead\n"
	"ones first. Payloads are left out unless asked for.\n\n"
	"  -c, --config FILE          default: " DEFAULT_CONFIG "\n"
	"      --source NAME          which source; may be left out where there is only one\n"
	"      --status STATUS        PENDING, PROCESSING, RETRY, DEAD or SENT (newest first)\n"
	"      --class CLASS          last_error begins with this word: UNROUTABLE, WAITING, ...\n"
	"      --aggregate TYPE/ID    in the aggregate's order, sent ones too\n"
	"      --trace-id ID          reads the whole table\n"
	"      --limit N              default: 50\n"
	"      --payload              the payload too\n"
	"      --json\n"
	"  -h, --help\n";

struct events {
	struct common common;
	struct admin_filter filter;
	const char *aggregate;
	bool payload;
	const char *names[ADMIN_COLUMNS_MAX];
	unsigned columns;
	struct table table;
	struct buf json;
	unsigned count;
};

static bool is_time(const char *name)
{
	size_t n = strlen(name);

	return (n > 3 && strcmp(name + n - 3, "_at") == 0) || strcmp(name, "locked_until") == 0;
}

static bool is_number(const char *name)
{
	return strcmp(name, "id") == 0 || strcmp(name, "retry_count") == 0 ||
	       strcmp(name, "aggregate_version") == 0;
}

static bool is_plain_integer(struct slice s)
{
	size_t i = s.len > 1 && s.ptr[0] == '-' ? 1 : 0;

	if (s.len == i || s.len > 20 || (s.ptr[i] == '0' && s.len > i + 1))
		return false;
	for (; i < s.len; i++)
		if (s.ptr[i] < '0' || s.ptr[i] > '9')
			return false;
	return true;
}

static void add_json_value(struct buf *b, const char *name, struct slice v)
{
	out_name(b, name);
	if (is_number(name) && v.ptr != NULL && is_plain_integer(v))
		buf_add_slice(b, v);
	else if (is_time(name) && v.ptr != NULL)
		out_time(b, v);
	else
		out_text(b, v);
}

static int on_row(void *arg, const struct slice *v, unsigned count, struct err *e)
{
	struct events *ev = arg;

	(void)e;
	ev->count++;
	if (!ev->common.json) {
		for (unsigned i = 0; i < ev->columns && i < count; i++)
			table_text(
				&ev->table, v[i], strcmp(ev->names[i], "last_error") == 0 ? 80 : 0);
		return 0;
	}
	/* as it comes: there may be many */
	buf_adds(&ev->json, ev->count > 1 ? ",\n{" : "{");
	for (unsigned i = 0; i < ev->columns && i < count; i++)
		add_json_value(&ev->json, ev->names[i], v[i]);
	buf_addc(&ev->json, '}');
	if (ev->json.failed)
		return err_set(e, ERR_NOMEM, 0, "out of memory");
	fwrite(ev->json.data, 1, ev->json.len, stdout);
	buf_reset(&ev->json);
	return 0;
}

static int check_options(struct events *ev)
{
	static const char *const states[] = { "PENDING", "PROCESSING", "RETRY", "DEAD", "SENT" };
	const char *slash;

	if (ev->filter.status != NULL) {
		size_t i = 0;

		while (i < ARRAY_LEN(states) && strcmp(ev->filter.status, states[i]) != 0)
			i++;
		if (i == ARRAY_LEN(states))
			return usage_error("events",
				"--status is PENDING, PROCESSING, RETRY, DEAD or SENT, not '%s'",
				ev->filter.status);
	}
	if (ev->aggregate == NULL)
		return -1;
	slash = strchr(ev->aggregate, '/');
	if (slash == NULL)
		return usage_error("events", "--aggregate is TYPE/ID, not '%s'", ev->aggregate);
	ev->filter.aggregate_type =
		(struct slice){ ev->aggregate, (size_t)(slash - ev->aggregate) };
	ev->filter.aggregate_id = slice_str(slash + 1);
	return -1;
}

static void make_table(struct events *ev)
{
	const char *headings[ADMIN_COLUMNS_MAX + 1] = { NULL };
	char upper[ADMIN_COLUMNS_MAX][64];

	for (unsigned i = 0; i < ev->columns; i++) {
		snprintf(upper[i], sizeof(upper[i]), "%s%s", is_number(ev->names[i]) ? ">" : "",
			ev->names[i]);
		for (char *p = upper[i]; *p != '\0'; p++)
			if (*p >= 'a' && *p <= 'z')
				*p = (char)(*p - 'a' + 'A');
		headings[i] = upper[i];
	}
	table_init(&ev->table, headings);
}

static int list(struct events *ev, const struct source_conf *source)
{
	const struct admin_sink sink = { on_row, ev };
	struct admin a;
	struct err e = { 0 };
	int rc;

	if (admin_open(&a, source, NULL, 0, "outboxd events", &e) < 0)
		return admin_failed("events", &e);
	ev->filter.payload = ev->payload;
	ev->columns = admin_columns(&a, ev->payload, ev->names);
	if (ev->common.json)
		fputs("[", stdout);
	else
		make_table(ev);
	rc = admin_list(&a, &ev->filter, &sink, &e);
	admin_close(&a);
	if (ev->common.json)
		puts("]");
	else if (ev->count > 0)
		table_print(&ev->table, "");
	else
		table_fini(&ev->table);
	if (rc < 0)
		return admin_failed("events", &e);
	if (!ev->common.json)
		printf("%s%u row%s%s\n", ev->count > 0 ? "\n" : "", ev->count,
			ev->count == 1 ? "" : "s",
			ev->count == ev->filter.limit ? ", perhaps more: --limit" : "");
	return EXIT_DONE;
}

int cmd_events(int argc, char **argv)
{
	struct events ev = { .filter.limit = 50 };
	const struct option_spec own[] = {
		{ "status", OPTION_TEXT, (void *)&ev.filter.status },
		{ "class", OPTION_TEXT, (void *)&ev.filter.class },
		{ "aggregate", OPTION_TEXT, (void *)&ev.aggregate },
		{ "trace-id", OPTION_TEXT, (void *)&ev.filter.trace_id },
		{ "limit", OPTION_NUMBER, &ev.filter.limit },
		{ "payload", OPTION_FLAG, &ev.payload },
		{ 0 },
	};
	const struct source_conf *source;
	struct config *conf;
	int rc = parse_options("events", help, argc, argv, &ev.common, own, NULL);

	if (rc < 0)
		rc = check_options(&ev);
	if (rc < 0)
		rc = admin_begin("events", &ev.common, &conf);
	if (rc >= 0)
		return rc;
	source = admin_source("events", conf, &ev.common);
	rc = source != NULL ? list(&ev, source) : EXIT_USAGE;
	buf_fini(&ev.json);
	admin_end(conf);
	return rc;
}

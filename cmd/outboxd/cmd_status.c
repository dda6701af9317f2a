#include "admin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
	"usage: outboxd status [-c FILE] [--source NAME] [--blocked] [--json]\n\n"
	"How the tables of the sources stand: rows by state, the oldest ones, who leads, who holds "
	"leases, and which\n"
	"aggregates are blocked by a dead event. Exits 1 if a source cannot be reached.\n\n"
	"  -c, --config FILE   default: " DEFAULT_CONFIG "\n"
	"      --source NAME   this source only\n"
	"      --blocked       all blocked aggregates, up to 1,000 a source; else the oldest 5\n"
	"      --json\n"
	"  -h, --help\n";

#define BLOCKED_SHOWN 5
#define BLOCKED_MAX 1000
#define HOLDERS_SHOWN 20
/* Dead rows looked at for each aggregate shown: some have several. */
#define DEAD_EACH 4

struct status {
	const struct config *conf;
	struct common common;
	bool all_blocked, down;
	struct table sources, holders, blocked;
	struct buf json, commands;
};

struct blocked {
	struct status *status;
	const struct source_conf *source;
	struct buf seen; /* aggregates listed already, each with its length */
	unsigned count, max;
	bool more;
};

/* Each aggregate once. */
static bool is_listed(struct blocked *b, struct slice type, struct slice id)
{
	size_t key[2] = { type.len, id.len };

	for (size_t at = 0; at < b->seen.len;) {
		size_t has[2];

		memcpy(has, b->seen.data + at, sizeof(has));
		at += sizeof(has);
		if (memcmp(has, key, sizeof(key)) == 0 &&
			(type.len == 0 || memcmp(b->seen.data + at, type.ptr, type.len) == 0) &&
			(id.len == 0 || memcmp(b->seen.data + at + type.len, id.ptr, id.len) == 0))
			return true;
		at += has[0] + has[1];
	}
	buf_add(&b->seen, key, sizeof(key));
	buf_add_slice(&b->seen, type);
	buf_add_slice(&b->seen, id);
	return false;
}

static int on_blocked(void *arg, const struct slice *v, unsigned count, struct err *e)
{
	struct blocked *b = arg;
	struct status *s = b->status;
	char event_id[300], error[200], class[CLASS_MAX];
	struct buf aggregate = { 0 }, command = { 0 };

	(void)count, (void)e;
	if (is_listed(b, v[1], v[2]))
		return 0;
	if (b->count == b->max) {
		b->more = true;
		return 0;
	}
	b->count++;
	snprintf(event_id, sizeof(event_id), "%.*s", (int)v[0].len,
		v[0].ptr != NULL ? v[0].ptr : "");
	snprintf(error, sizeof(error), "%.*s", (int)v[3].len, v[3].ptr != NULL ? v[3].ptr : "");
	error_class(error, class);
	buf_add_slice(&aggregate, v[1]);
	buf_addc(&aggregate, '/');
	buf_add_slice(&aggregate, v[2]);
	add_command(&command, "requeue", s->conf, b->source, event_id);
	if (s->common.json) {
		out_next(&s->json);
		buf_addc(&s->json, '{');
		out_name(&s->json, "aggregate_type");
		out_text(&s->json, v[1]);
		out_name(&s->json, "aggregate_id");
		out_text(&s->json, v[2]);
		out_name(&s->json, "event_id");
		out_text(&s->json, v[0]);
		out_pair(&s->json, "class", class);
		out_name(&s->json, "last_error");
		out_text(&s->json, v[3]);
		out_name(&s->json, "since");
		out_time(&s->json, v[4]);
		out_pair(&s->json, "unblock", command.data);
		buf_addc(&s->json, '}');
	} else {
		table_text(&s->blocked, slice_str(b->source->name), 0);
		table_text(&s->blocked, buf_slice(&aggregate), 60);
		table_text(&s->blocked, v[0], 0);
		table_text(&s->blocked, slice_str(class[0] != '\0' ? class : "-"), 0);
		table_text(&s->blocked, v[4], 0);
		table_text(&s->blocked, buf_slice(&command), 0);
	}
	buf_fini(&aggregate);
	buf_fini(&command);
	return 0;
}

static int on_holder(void *arg, const struct slice *v, unsigned count, struct err *e)
{
	struct blocked *b = arg;
	struct status *s = b->status;
	int64_t left_us = v[3].ptr != NULL ? strtoll(v[3].ptr, NULL, 10) : 0;
	char left[AGE_MAX];

	(void)count, (void)e;
	if (s->common.json) {
		out_next(&s->json);
		buf_addc(&s->json, '{');
		out_name(&s->json, "owner");
		out_text(&s->json, v[0]);
		out_name(&s->json, "rows");
		buf_add_slice(&s->json, v[1]);
		out_name(&s->json, "expired");
		buf_add_slice(&s->json, v[2]);
		out_name(&s->json, "lease_left_seconds");
		buf_addf(&s->json, "%.3f", (double)left_us / US_PER_SEC);
		buf_addc(&s->json, '}');
		return 0;
	}
	age_text(left_us, left);
	table_text(&s->holders, slice_str(b->source->name), 0);
	table_text(&s->holders, v[0], 0);
	table_text(&s->holders, v[1], 0);
	table_text(&s->holders, v[2], 0);
	table_text(&s->holders, slice_str(left_us < 0 ? "over" : left), 0);
	return 0;
}

static void cell_count(struct table *t, int64_t n)
{
	if (n < 0)
		table_cell(t, "?");
	else
		table_cell(t, "%lld", (long long)n);
}

static void cell_age(struct table *t, int64_t us)
{
	char text[AGE_MAX];

	age_text(us == 0 ? -1 : us, text);
	table_cell(t, "%s", us < 0 ? "?" : text);
}

static void leader_text(const struct admin *a, const struct admin_leader *l, char *out, size_t size)
{
	if (a->conf->ordering != ORDERING_AGGREGATE)
		snprintf(out, size, "-");
	else if (l->connection == 0)
		snprintf(out, size, "nobody");
	else if (l->owner[0] != '\0')
		snprintf(out, size, "%s", l->owner);
	else
		snprintf(out, size, "connection %llu%s%s", (unsigned long long)l->connection,
			l->from[0] != '\0' ? " from " : "", l->from);
}

static void row_text(struct status *s, const struct source_conf *source,
	const struct table_sample *t, const char *leader)
{
	struct table *out = &s->sources;

	table_text(out, slice_str(source->name), 0);
	table_cell(out, "%s", t != NULL ? "yes" : "NO");
	table_text(out, slice_str(leader), 0);
	for (unsigned i = 0; t == NULL && i < 10; i++)
		table_cell(out, "?");
	if (t == NULL)
		return;
	cell_count(out, t->pending);
	cell_count(out, t->retry);
	cell_count(out, t->processing);
	cell_count(out, t->dead);
	cell_count(out, t->skipped);
	cell_count(out, t->held);
	cell_count(out, t->blocked_aggregates);
	cell_count(out, t->expired_leases);
	cell_age(out, t->oldest_unsent_us);
	cell_age(out, t->oldest_claimable_us);
}

static void begin_json(struct status *s, const struct source_conf *source, const struct admin *a,
	const struct table_sample *t, const struct admin_leader *l, const struct err *e)
{
	struct buf *b = &s->json;
	bool led = t != NULL && l->connection != 0;
	char leader[300];

	out_next(b);
	buf_addc(b, '{');
	out_pair(b, "name", source->name);
	out_name(b, "up");
	buf_adds(b, t != NULL ? "true" : "false");
	out_pair(b, "error", t == NULL ? e->text : NULL);
	if (led)
		leader_text(a, l, leader, sizeof(leader));
	out_pair(b, "leader", led ? leader : NULL);
	out_name(b, "leader_connection");
	if (led)
		buf_addf(b, "%llu", (unsigned long long)l->connection);
	else
		buf_adds(b, "null");
	out_pair(b, "leader_address", led && l->from[0] != '\0' ? l->from : NULL);
	out_pair(b, "ordering", source->ordering == ORDERING_AGGREGATE ? "aggregate" : "none");
	buf_addc(b, ',');
	gauges_add_json(b, t);
}

static void show_details(struct status *s, struct admin *a)
{
	struct blocked b = {
		.status = s, .source = a->conf, .max = s->all_blocked ? BLOCKED_MAX : BLOCKED_SHOWN
	};
	const struct admin_sink holders = { on_holder, &b }, blocked = { on_blocked, &b };
	struct err e = { 0 };

	out_name(&s->json, "leases");
	buf_addc(&s->json, '[');
	if (admin_holders(a, HOLDERS_SHOWN, &holders, &e) < 0)
		s->down = true;
	buf_addc(&s->json, ']');
	out_name(&s->json, "blocked");
	buf_addc(&s->json, '[');
	if (e.kind == ERR_NONE && admin_blocking(a, b.max * DEAD_EACH + 1, &blocked, &e) < 0)
		s->down = true;
	buf_addc(&s->json, ']');
	if (b.more)
		buf_addf(&s->commands, "source %s: more blocked aggregates: --blocked\n",
			a->conf->name);
	if (e.kind != ERR_NONE)
		fprintf(stderr, "outboxd status: source %s: %s\n", a->conf->name, e.text);
	buf_fini(&b.seen);
}

static void show_source(struct status *s, const struct source_conf *source)
{
	struct admin a = { 0 };
	struct admin_leader leader = { 0 };
	struct table_sample sample;
	struct err e = { 0 };
	char text[300] = "?";
	bool up = admin_open(&a, source, NULL, 0, "outboxd status", &e) == 0 &&
		  admin_sample(&a, &sample, &e) == 0 && admin_leader(&a, &leader, &e) == 0;

	if (up)
		leader_text(&a, &leader, text, sizeof(text));
	else
		s->down = true;
	if (s->common.json) {
		begin_json(s, source, &a, up ? &sample : NULL, &leader, &e);
	} else {
		row_text(s, source, up ? &sample : NULL, text);
		if (!up)
			fprintf(stderr, "outboxd status: %s%s%s%s\n",
				strncmp(e.text, "source ", 7) == 0 ? "" : "source ",
				strncmp(e.text, "source ", 7) == 0 ? "" : source->name,
				strncmp(e.text, "source ", 7) == 0 ? "" : ": ", e.text);
	}
	if (up)
		show_details(s, &a);
	if (s->common.json)
		buf_addc(&s->json, '}');
	admin_close(&a);
}

static void print_tables(struct status *s)
{
	bool holders = table_rows(&s->holders) > 0, blocked = table_rows(&s->blocked) > 0;

	table_print(&s->sources, "");
	if (holders)
		puts("\nLeases");
	if (holders)
		table_print(&s->holders, "");
	if (blocked)
		puts("\nBlocked aggregates: mend the cause, then run UNBLOCK; or give the event up "
		     "with skip instead of requeue");
	if (blocked)
		table_print(&s->blocked, "");
	fputs(s->commands.data != NULL ? s->commands.data : "", stdout);
}

int cmd_status(int argc, char **argv)
{
	static const char *const sources[] = { "SOURCE", "UP", "LEADER", ">PENDING", ">RETRY",
		">PROCESSING", ">DEAD", ">SKIPPED", ">HELD", ">BLOCKED", ">EXPIRED",
		">OLDEST-UNSENT", ">OLDEST-CLAIMABLE", NULL };
	static const char *const holders[] = { "SOURCE", "OWNER", ">ROWS", ">EXPIRED", ">LEFT",
		NULL };
	static const char *const blocked[] = { "SOURCE", "AGGREGATE", "HEAD", "CLASS", "SINCE",
		"UNBLOCK", NULL };
	struct status s = { 0 };
	const struct option_spec own[] = {
		{ "blocked", OPTION_FLAG, &s.all_blocked },
		{ 0 },
	};
	struct config *conf;
	int done = parse_options("status", help, argc, argv, &s.common, own, NULL);

	if (done >= 0)
		return done;
	done = admin_begin("status", &s.common, &conf);
	if (done >= 0)
		return done;
	s.conf = conf;
	table_init(&s.sources, sources);
	table_init(&s.holders, holders);
	table_init(&s.blocked, blocked);
	buf_adds(&s.json, "{\"sources\":[");
	for (size_t i = 0; i < conf->source_count; i++)
		if (s.common.source == NULL || strcmp(s.common.source, conf->sources[i].name) == 0)
			show_source(&s, &conf->sources[i]);
	buf_adds(&s.json, "]}");
	if (s.common.json)
		s.down |= !out_print(&s.json);
	else
		print_tables(&s);
	table_fini(&s.sources);
	table_fini(&s.holders);
	table_fini(&s.blocked);
	buf_fini(&s.json);
	buf_fini(&s.commands);
	admin_end(conf);
	return s.down ? EXIT_FAILED : EXIT_DONE;
}

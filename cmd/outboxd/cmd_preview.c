#include "admin.h"

#include "message/route.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
	"usage: outboxd preview [-c FILE] [--source NAME] [--limit N] [--json]\n\n"
	"The messages that the next rows would become, as the configuration in the file makes "
	"them: exchange, routing key,\n"
	"properties, headers, size. Claims nothing, sends nothing, and does not ask the broker. A "
	"row that waits for\n"
	"another one of its aggregate is shown all the same.\n\n"
	"  -c, --config FILE   default: " DEFAULT_CONFIG "\n"
	"      --source NAME   which source; may be left out where there is only one\n"
	"      --limit N       default: 10\n"
	"      --json\n"
	"  -h, --help\n";

struct preview {
	struct common common;
	unsigned limit, count, refused;
	struct route *route;
	struct envelope_arena arena;
	struct buf out;
};

static void add_field(struct buf *b, const struct field *f);

static void add_fields(struct buf *b, const struct field *list, size_t count)
{
	buf_addc(b, '{');
	for (size_t i = 0; i < count; i++) {
		if (i > 0)
			buf_addc(b, ',');
		out_text(b, list[i].name);
		buf_addc(b, ':');
		add_field(b, &list[i]);
	}
	buf_addc(b, '}');
}

static void add_field(struct buf *b, const struct field *f)
{
	switch (f->type) {
	case FIELD_STRING:
		out_text(b, f->string.ptr != NULL ? f->string : SLICE_LIT(""));
		break;
	case FIELD_BOOL:
		buf_adds(b, f->boolean ? "true" : "false");
		break;
	case FIELD_INT:
		buf_addf(b, "%" PRId64, f->integer);
		break;
	case FIELD_DOUBLE:
		buf_addf(b, "%.17g", f->real);
		break;
	case FIELD_ARRAY:
		buf_addc(b, '[');
		for (size_t i = 0; i < f->many.count; i++) {
			if (i > 0)
				buf_addc(b, ',');
			add_field(b, &f->many.items[i]);
		}
		buf_addc(b, ']');
		break;
	case FIELD_TABLE:
		add_fields(b, f->many.items, f->many.count);
		break;
	}
}

static void pair(struct buf *b, const char *name, struct slice value)
{
	if (value.ptr == NULL)
		return;
	out_name(b, name);
	out_text(b, value);
}

static void add_properties(struct buf *b, const struct envelope *env)
{
	buf_addc(b, '{');
	pair(b, "message_id", env->message_id);
	pair(b, "type", env->type);
	pair(b, "content_type", env->content_type);
	pair(b, "app_id", env->app_id);
	out_count(b, "timestamp", env->timestamp);
	out_count(b, "delivery_mode", env->delivery_mode);
	out_name(b, "mandatory");
	buf_adds(b, env->mandatory ? "true}" : "false}");
}

static void add_json(
	struct buf *b, const struct row *row, const struct envelope *env, const struct err *refused)
{
	buf_addc(b, '{');
	out_name(b, "event_id");
	out_text(b, row->event_id);
	if (refused != NULL) {
		out_pair(b, "error", refused->text);
		buf_addc(b, '}');
		return;
	}
	pair(b, "exchange", env->exchange);
	pair(b, "routing_key", env->routing_key);
	out_name(b, "properties");
	add_properties(b, env);
	out_name(b, "headers");
	add_fields(b, env->headers, env->header_count);
	out_count(b, "size", env->body.len);
	buf_addc(b, '}');
}

static void add_line(struct buf *b, const char *name, struct slice value)
{
	buf_addf(b, "  %-12s ", name);
	add_clean(b, value);
	buf_addc(b, '\n');
}

static void add_text(
	struct buf *b, const struct row *row, const struct envelope *env, const struct err *refused)
{
	struct buf some = { 0 };

	add_clean(b, row->event_id);
	buf_addc(b, '\n');
	if (refused != NULL) {
		add_line(b, "never sent", slice_str(refused->text));
		return;
	}
	add_line(b, "exchange", env->exchange);
	add_line(b, "routing key", env->routing_key);
	add_properties(&some, env);
	add_line(b, "properties", buf_slice(&some));
	buf_reset(&some);
	add_fields(&some, env->headers, env->header_count);
	add_line(b, "headers", buf_slice(&some));
	buf_addf(b, "  %-12s %zu bytes\n", "size", env->body.len);
	buf_fini(&some);
}

static int on_row(void *arg, enum row_class class, const struct row *row, struct err *e)
{
	struct preview *p = arg;
	struct envelope env;
	struct err why = { 0 };
	const struct err *refused = NULL;

	(void)class;
	if (envelope_build(&env, &p->arena, p->route, row, &why) < 0) {
		if (why.kind != ERR_REFUSED) {
			*e = why;
			return -1;
		}
		refused = &why;
		p->refused++;
	}
	p->count++;
	if (p->common.json) {
		out_next(&p->out);
		add_json(&p->out, row, &env, refused);
	} else {
		add_text(&p->out, row, &env, refused);
	}
	return p->out.failed ? err_set(e, ERR_NOMEM, 0, "out of memory") : 0;
}

static int show(struct preview *p, const struct source_conf *source)
{
	struct admin a = { 0 };
	const char *const *extra;
	size_t extra_count;
	struct err e = { 0 };
	int rc = EXIT_DONE;

	/* what the connection allows is not known without one; its own limit is large */
	if (source_make_route(&p->route, source, SIZE_MAX, NULL, &e) < 0)
		return admin_failed("preview", &e);
	extra_count = route_extra_columns(p->route, &extra);
	if (p->common.json)
		buf_addc(&p->out, '[');
	if (admin_open(&a, source, extra, extra_count, "outboxd preview", &e) < 0 ||
		admin_preview(&a, p->limit, on_row, p, &e) < 0)
		rc = admin_failed("preview", &e);
	admin_close(&a);
	if (rc != EXIT_DONE)
		return rc;
	if (p->common.json) {
		buf_addc(&p->out, ']');
		return out_print(&p->out) ? EXIT_DONE : EXIT_FAILED;
	}
	fputs(p->out.data != NULL ? p->out.data : "", stdout);
	printf("%s%u message%s, nothing was claimed or sent\n", p->count > 0 ? "\n" : "", p->count,
		p->count == 1 ? "" : "s");
	return EXIT_DONE;
}

int cmd_preview(int argc, char **argv)
{
	struct preview p = { .limit = 10 };
	const struct option_spec own[] = {
		{ "limit", OPTION_NUMBER, &p.limit },
		{ 0 },
	};
	const struct source_conf *source;
	struct config *conf;
	int rc = parse_options("preview", help, argc, argv, &p.common, own, NULL);

	if (rc < 0)
		rc = admin_begin("preview", &p.common, &conf);
	if (rc >= 0)
		return rc;
	source = admin_source("preview", conf, &p.common);
	rc = source != NULL ? show(&p, source) : EXIT_USAGE;
	route_free(p.route);
	envelope_arena_fini(&p.arena);
	buf_fini(&p.out);
	admin_end(conf);
	return rc;
}

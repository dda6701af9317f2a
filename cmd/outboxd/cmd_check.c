#include "cmd.h"

#include "amqp/publisher.h"
#include "log/log.h"
#include "mysql/schema.h"
#include "mysql/session.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] = "usage: outboxd check [-c FILE] [--offline] [--source NAME] [--json]\n\n"
			   "Validates the configuration; then connects to every source and broker "
			   "and verifies what the relay needs: server,\n"
			   "account, table, columns, indexes, plans, privileges, clock, exchange. "
			   "Exits 1 if it finds a fault, 2 if the file is\n"
			   "bad. Warnings and notes do not change the exit status.\n\n"
			   "  -c, --config FILE   default: " DEFAULT_CONFIG "\n"
			   "      --offline       the file only\n"
			   "      --source NAME   this source and its broker only\n"
			   "      --json          findings as JSON\n"
			   "  -h, --help\n";

struct check_options {
	const char *path, *source;
	bool offline, json;
};

struct report {
	bool json;
	unsigned count, faults, warnings;
	struct buf out;
};

static void add_text(struct report *r, const struct finding *f)
{
	buf_addf(&r->out, "%-7s %s: %s\n", severity_name(f->severity), f->where, f->what);
	if (f->fix != NULL && f->fix[0] != '\0')
		buf_addf(&r->out, "        -> %s\n", f->fix);
}

static void add_json_field(struct buf *out, const char *name, const char *value)
{
	buf_addf(out, ",\"%s\":\"", name);
	buf_add_json(out, slice_str(value != NULL ? value : ""));
	buf_addc(out, '"');
}

static void add_json(struct report *r, const struct finding *f)
{
	buf_addf(&r->out, "%s{\"severity\":\"%s\"", r->count > 0 ? "," : "",
		severity_name(f->severity));
	add_json_field(&r->out, "where", f->where);
	add_json_field(&r->out, "what", f->what);
	add_json_field(&r->out, "fix", f->fix);
	buf_addc(&r->out, '}');
}

static void on_finding(void *arg, const struct finding *f)
{
	struct report *r = arg;

	if (r->json)
		add_json(r, f);
	else
		add_text(r, f);
	r->count++;
	r->faults += f->severity == SEVERITY_FAULT;
	r->warnings += f->severity == SEVERITY_WARNING;
}

static void find(struct report *r, enum severity severity, const char *where, const char *what,
	const char *fix)
{
	on_finding(r, &(struct finding){ severity, where, what, fix });
}

static void check_secret(struct report *r, const char *where, const struct secret_conf *s)
{
	char why[300];

	if (secret_file_exposed(s, why, sizeof(why)))
		find(r, SEVERITY_WARNING, where, why, "chmod 0640 and chgrp to the daemon's group");
}

static void check_source(struct report *r, const struct source_conf *source)
{
	struct finding_sink sink = { on_finding, r };
	struct route *route = NULL;
	const char *const *extra;
	struct err e = { 0 };
	char where[100];

	snprintf(where, sizeof(where), "source %s", source->name);
	check_secret(r, where, &source->database.password);
	if (source_make_route(&route, source, SIZE_MAX, NULL, &e) < 0) {
		find(r, SEVERITY_FAULT, where, e.text, "");
	} else {
		size_t count = route_extra_columns(route, &extra);

		(void)mysql_check(source, extra, count, &sink, &e);
	}
	route_free(route);
}

/* The exchanges of this broker's sources, as far as they are fixed names. */
static void check_exchanges(struct report *r, const struct config *conf,
	const struct broker_conf *broker, struct publisher *publisher, const char *only)
{
	for (size_t i = 0; i < conf->source_count; i++) {
		const struct source_conf *source = &conf->sources[i];
		struct err e = { 0 };
		char where[200];

		if (source->broker != broker || (only != NULL && strcmp(only, source->name) != 0))
			continue;
		snprintf(where, sizeof(where), "source %s: exchange %.100s", source->name,
			source->publish.exchange);
		if (strchr(source->publish.exchange, '{') != NULL)
			find(r, SEVERITY_NOTE, where, "depends on the row: not checked", "");
		else if (amqp_check_exchange(publisher, source->publish.exchange, &e) < 0)
			find(r, SEVERITY_FAULT, where, e.text,
				e.code == 404 ? "declare the exchange, or correct publish.exchange"
					      : "grant the user access to it, or correct "
						"publish.exchange");
	}
}

static void check_broker(struct report *r, const struct config *conf,
	const struct broker_conf *broker, const char *only)
{
	struct publisher *publisher = NULL;
	struct err e = { 0 };
	char where[100];

	snprintf(where, sizeof(where), "broker %s", broker->name);
	check_secret(r, where, &broker->password);
	if (amqp_publisher_new(&publisher, broker, "outboxd check", NULL, &e) < 0) {
		find(r, SEVERITY_FAULT, where, e.text, "");
		return;
	}
	if (publisher->ops->connect(publisher, &e) < 0)
		find(r, SEVERITY_FAULT, where, e.text,
			e.kind == ERR_CONFIG ? "correct the account, the vhost or the certificates"
					     : "start the broker, or correct its hosts");
	else
		check_exchanges(r, conf, broker, publisher, only);
	publisher->ops->close(publisher);
	publisher->ops->free(publisher);
}

static void print(const struct report *r, const struct config *conf, const struct check_options *o)
{
	if (r->json) {
		printf("{\"findings\":[%s]}\n", r->out.data != NULL ? r->out.data : "");
		return;
	}
	fputs(r->out.data != NULL ? r->out.data : "", stdout);
	printf("%s: %zu source%s, %zu broker%s%s: %u fault%s, %u warning%s\n", conf->path,
		conf->source_count, conf->source_count == 1 ? "" : "s", conf->broker_count,
		conf->broker_count == 1 ? "" : "s", o->offline ? " (file only)" : "", r->faults,
		r->faults == 1 ? "" : "s", r->warnings, r->warnings == 1 ? "" : "s");
}

static int parse(int argc, char **argv, struct check_options *o)
{
	enum { OFFLINE = 256, SOURCE, JSON };
	static const struct option known[] = {
		{ "config", required_argument, NULL, 'c' },
		{ "offline", no_argument, NULL, OFFLINE },
		{ "source", required_argument, NULL, SOURCE },
		{ "json", no_argument, NULL, JSON },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	int c;

	opterr = 0;
	while ((c = getopt_long(argc, argv, "c:h", known, NULL)) != -1) {
		switch (c) {
		case 'c':
			o->path = optarg;
			break;
		case OFFLINE:
			o->offline = true;
			break;
		case SOURCE:
			o->source = optarg;
			break;
		case JSON:
			o->json = true;
			break;
		case 'h':
			fputs(help, stdout);
			return EXIT_DONE;
		default:
			return usage_error("check", "unknown option, or one without its value: %s",
				argv[optind - 1]);
		}
	}
	if (optind < argc)
		return usage_error("check", "unexpected argument: %s", argv[optind]);
	return -1;
}

int cmd_check(int argc, char **argv)
{
	struct check_options o = { .path = DEFAULT_CONFIG };
	struct report r = { 0 };
	struct config *conf;
	struct err e = { 0 };
	int done = parse(argc, argv, &o);

	if (done >= 0)
		return done;
	conf = load_or_complain(o.path);
	if (conf == NULL)
		return EXIT_USAGE;
	if (o.source != NULL && config_source(conf, o.source) == NULL) {
		done = usage_error("check", "%s has no source '%s'", o.path, o.source);
		config_free(conf);
		return done;
	}
	r.json = o.json;
	if (log_open(NULL, LOG_LEVEL_ERROR, false, &e) == 0 && !o.offline &&
		mysql_global_init(&e) == 0 && amqp_global_init(&e) == 0) {
		mysql_thread_enter();
		for (size_t i = 0; i < conf->source_count; i++)
			if (o.source == NULL || strcmp(o.source, conf->sources[i].name) == 0)
				check_source(&r, &conf->sources[i]);
		mysql_thread_leave();
		for (size_t i = 0; i < conf->broker_count; i++)
			if (o.source == NULL ||
				config_source(conf, o.source)->broker == &conf->brokers[i])
				check_broker(&r, conf, &conf->brokers[i], o.source);
		mysql_global_fini();
	}
	if (e.kind != ERR_NONE)
		find(&r, SEVERITY_FAULT, "client libraries", e.text, "");
	print(&r, conf, &o);
	buf_fini(&r.out);
	config_free(conf);
	return r.faults > 0 ? EXIT_FAILED : EXIT_DONE;
}

#include "check_queue.h"
#include "cmd.h"

#include "amqp/publisher.h"
#include "base/rng.h"
#include "config/uri.h"
#include "log/log.h"
#include "mysql/inbox.h"
#include "mysql/schema.h"
#include "mysql/session.h"
#include "relay/resend.h"
#include "sys/clock.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
	"usage: outboxd check [-c FILE] [--offline] [--source NAME] [--probe KEY] [--json]\n\n"
	"Validates the configuration; then connects to every source and broker and verifies what "
	"the relay needs: server,\n"
	"account, table, columns, indexes, plans, privileges, clock, exchange. Exits 1 if it finds "
	"a fault, 2 if the file is\n"
	"bad. Warnings and notes do not change the exit status.\n\n"
	"  -c, --config FILE   default: " DEFAULT_CONFIG "\n"
	"      --offline       the file only\n"
	"      --source NAME   this source and its broker only\n"
	"      --probe KEY     also publishes one message to each source's exchange with this "
	"routing key: is a queue bound\n"
	"                      for it? It expires at once, and has the header x-outboxd-probe: "
	"true\n"
	"      --json          findings as JSON\n"
	"  -h, --help\n";

struct check_options {
	const char *path, *source, *probe;
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

static void check_secret(struct report *r, const char *where, const struct secret_conf *s,
	const struct tls_conf *tls)
{
	const struct secret_conf key = { SECRET_FILE, tls->key_file };
	char why[300], fix[300];

	if (secret_file_exposed(s, why, sizeof(why))) {
		snprintf(fix, sizeof(fix), "chmod 0640 %.250s, its group being the daemon's",
			s->value);
		find(r, SEVERITY_WARNING, where, why, fix);
	}
	if (tls->key_file != NULL && secret_file_exposed(&key, why, sizeof(why))) {
		snprintf(fix, sizeof(fix), "chmod 0640 %.250s, its group being the daemon's",
			tls->key_file);
		find(r, SEVERITY_WARNING, where, "tls.key_file can be read by every user", fix);
	}
}

/* Off this machine a connection that is not verified is one to whoever is in between. No hosts: a
 * socket. */
static void check_encryption(struct report *r, const char *where, const struct endpoint *hosts,
	size_t count, const struct tls_conf *tls, const char *fix)
{
	bool local = true;

	for (size_t i = 0; i < count; i++)
		local &= host_is_loopback(hosts[i].host);
	if (local)
		return;
	if (tls->mode == TLS_DISABLED)
		find(r, SEVERITY_WARNING, where,
			"the connection is not encrypted: whoever is in between reads every event",
			fix);
	else if (tls->mode == TLS_REQUIRED)
		find(r, SEVERITY_WARNING, where,
			"the server's certificate is not verified: whoever is in between can be "
			"the server",
			fix);
}

static void check_database(struct report *r, const char *where, const struct database_conf *db)
{
	check_secret(r, where, &db->password, &db->tls);
	check_encryption(r, where, db->hosts, db->host_count, &db->tls,
		"database.tls.mode: verify_identity");
}

static void check_source(struct report *r, const struct source_conf *source)
{
	struct finding_sink sink = { on_finding, r };
	struct route *route = NULL;
	const char *const *extra;
	struct err e = { 0 };
	char where[100];

	snprintf(where, sizeof(where), "source %s", source->name);
	if (source_make_route(&route, source, SIZE_MAX, NULL, &e) < 0) {
		find(r, SEVERITY_FAULT, where, e.text, "");
	} else {
		size_t count = route_extra_columns(route, &extra);

		(void)mysql_check(source, extra, count, &sink, &e);
	}
	route_free(route);
}

static void check_inbox(struct report *r, const struct inbox_conf *inbox)
{
	struct finding_sink sink = { on_finding, r };
	struct err e = { 0 };

	(void)inbox_check(inbox, &sink, &e);
}

/* --- probing -------------------------------------------------------------------------------- */

struct probe {
	bool done;
	char failure[600];
};

static void on_probed(void *arg, uint64_t id, struct slice event_id, const char *failure)
{
	struct probe *p = arg;

	(void)id, (void)event_id;
	p->done = true;
	snprintf(p->failure, sizeof(p->failure), "%s", failure != NULL ? failure : "");
}

/* Braces are what templates take as theirs. */
static char *literal_template(const char *key)
{
	struct buf b = { 0 };

	for (; *key != '\0'; key++) {
		buf_addc(&b, *key);
		if (*key == '{' || *key == '}')
			buf_addc(&b, *key);
	}
	buf_addc(&b, '\0');
	if (b.failed)
		buf_fini(&b);
	return b.data;
}

static int wait_for_answer(struct resend *resend, struct publisher *publisher,
	const struct source_conf *source, const struct probe *p, struct err *e)
{
	int64_t until_us = clock_mono_us() + source->broker->confirm_timeout_us, next_us;

	while (!p->done) {
		struct pollfd fd = { .fd = publisher->ops->fd(publisher), .events = POLLIN };
		int64_t now_us = clock_mono_us();

		if (now_us >= until_us && resend_blocked(resend) != NULL)
			return err_set(e, ERR_LINK, 0, "the broker takes no messages: %s",
				resend_blocked(resend));
		if (resend_turn(resend, now_us, &next_us, e) < 0 && !p->done)
			return -1;
		if (p->done)
			break;
		if (publisher->ops->wants_write(publisher))
			fd.events |= POLLOUT;
		if (next_us > until_us)
			next_us = until_us;
		if (next_us > now_us)
			(void)poll(&fd, 1, (int)((next_us - now_us) / US_PER_MS + 1));
	}
	return 0;
}

/* One message as the relay would send it, except that it goes by `key` and expires at once. */
static int send_probe(const struct source_conf *source, struct publisher *publisher,
	const char *key, struct probe *p, struct err *e)
{
	struct source_conf like = *source;
	const struct resend_conf conf = {
		.source = &like,
		.marker = "x-outboxd-probe",
		.expiration = "0",
		.done = on_probed,
		.arg = p,
	};
	char id[64];
	const struct row row = {
		.id = 1,
		.created_us = clock_wall_us(),
		.event_id = { id, (size_t)snprintf(id, sizeof(id), "outboxd-probe-%016" PRIx64,
					  rng_os_seed()) },
		.aggregate_type = SLICE_LIT("outboxd"),
		.aggregate_id = SLICE_LIT("probe"),
		.event_type = SLICE_LIT("probe"),
		.payload = SLICE_LIT("{}"),
	};
	struct resend *resend = NULL;
	char *template = literal_template(key);
	int rc = -1;

	if (template == NULL)
		return err_set(e, ERR_NOMEM, 0, "out of memory");
	like.publish.routing_key = template;
	like.publish.headers = NULL;
	like.publish.header_count = 0;
	like.publish.body = BODY_PAYLOAD;
	like.publish.mandatory = true;
	like.publish.persistent = false;
	if (resend_new(&resend, &conf, publisher, e) == 0 && resend_add(resend, &row, e) == 0)
		rc = wait_for_answer(resend, publisher, source, p, e);
	resend_free(resend);
	free(template);
	return rc;
}

static void probe(struct report *r, const struct source_conf *source, struct publisher *publisher,
	const char *where, const char *key)
{
	const char *exchange = source->publish.exchange;
	struct probe p = { 0 };
	struct err e = { 0 };
	char what[700], fix[400];

	fprintf(stderr,
		"outboxd check: source %s: publishing a message to exchange '%s' with routing key "
		"'%s', which expires at once\n",
		source->name, exchange, key);
	if (send_probe(source, publisher, key, &p, &e) < 0) {
		find(r, SEVERITY_FAULT, where, e.text, "see whether the broker is well");
		return;
	}
	if (p.failure[0] == '\0') {
		snprintf(what, sizeof(what), "a message with routing key '%.255s' reaches a queue",
			key);
		find(r, SEVERITY_NOTE, where, what, "");
	} else if (strncmp(p.failure, "UNROUTABLE", 10) == 0) {
		snprintf(what, sizeof(what), "nothing is bound for routing key '%.255s'", key);
		snprintf(fix, sizeof(fix),
			"rabbitmqadmin declare binding source=%.120s destination=QUEUE "
			"routing_key=%.200s",
			exchange, key);
		find(r, SEVERITY_FAULT, where, what, fix);
	} else {
		find(r, SEVERITY_FAULT, where, p.failure,
			strstr(p.failure, " 403 ") != NULL
				? "grant the user write access to the exchange"
				: "see the broker's log");
	}
}

/* --- brokers -------------------------------------------------------------------------------- */

static void check_exchange(struct report *r, const struct source_conf *source,
	struct publisher *publisher, const char *probe_key)
{
	const char *exchange = source->publish.exchange;
	struct route *route = NULL;
	struct err e = { 0 };
	char where[200], fix[300];
	bool fixed;

	snprintf(where, sizeof(where), "source %s: exchange %.100s", source->name, exchange);
	if (source_make_route(&route, source, SIZE_MAX, NULL, &e) < 0)
		return; /* was reported with the source */
	fixed = route_exchange_fixed(route);
	route_free(route);
	if (!fixed || strchr(exchange, '{') != NULL) {
		find(r, SEVERITY_NOTE, where, "depends on the row: not checked", "");
		return;
	}
	if (amqp_check_exchange(publisher, exchange, &e) < 0) {
		snprintf(fix, sizeof(fix),
			e.code == 404 ? "rabbitmqadmin declare exchange name=%.120s type=topic "
					"durable=true, or correct publish.exchange"
				      : "grant the user access to %.120s, or correct "
					"publish.exchange",
			exchange);
		find(r, SEVERITY_FAULT, where, e.text, fix);
	} else if (probe_key != NULL) {
		probe(r, source, publisher, where, probe_key);
	}
}

/* What to do about a connection that could not be made. */
static void mend_connection(
	const struct broker_conf *broker, const struct err *e, char *fix, size_t size)
{
	static const char ports[] =
		"5672 is AMQP's usual port, 5671 the one with TLS, which needs tls.mode";

	if (e->code == EPROTO)
		snprintf(fix, size, "correct hosts: %s", ports);
	else if (strstr(e->text, "no AMQP at all") != NULL)
		snprintf(fix, size, "see whether the broker is well, or correct hosts: %s", ports);
	else if (strcasestr(e->text, "certificate") != NULL || strcasestr(e->text, "TLS") != NULL ||
		 strstr(e->text, "tls.") != NULL)
		snprintf(fix, size,
			"name the authority that signed the broker's certificate in tls.ca_file, "
			"and the host as the certificate has it");
	else if (e->code == 403)
		snprintf(fix, size,
			"correct username and password, or rabbitmqctl change_password %.60s '...'",
			broker->username);
	else if (e->code == 530 || e->code == 404)
		snprintf(fix, size,
			"correct vhost, or rabbitmqctl add_vhost %.60s; rabbitmqctl "
			"set_permissions -p %.60s %.60s '^$' '.*' '^$'",
			broker->vhost, broker->vhost, broker->username);
	else if (e->kind == ERR_CONFIG)
		snprintf(fix, size, "correct the account, the vhost or the certificates");
	else
		snprintf(fix, size, "start the broker, or correct its hosts");
}

static void check_broker(struct report *r, const struct config *conf,
	const struct broker_conf *broker, const struct check_options *o)
{
	const struct finding_sink sink = { on_finding, r };
	struct publisher *publisher = NULL;
	struct err e = { 0 };
	char where[100], fix[400];

	snprintf(where, sizeof(where), "broker %s", broker->name);
	if (amqp_publisher_new(&publisher, broker, "outboxd check", NULL, &e) < 0) {
		find(r, SEVERITY_FAULT, where, e.text, "");
		return;
	}
	if (publisher->ops->connect(publisher, &e) < 0) {
		mend_connection(broker, &e, fix, sizeof(fix));
		find(r, SEVERITY_FAULT, where, e.text, fix);
	}
	for (size_t i = 0; e.kind == ERR_NONE && i < conf->source_count; i++) {
		const struct source_conf *source = &conf->sources[i];

		if (source->broker == broker &&
			(o->source == NULL || strcmp(o->source, source->name) == 0))
			check_exchange(r, source, publisher, o->probe);
	}
	for (size_t i = 0; e.kind == ERR_NONE && o->source == NULL && i < conf->inbox_count; i++) {
		const struct inbox_conf *inbox = &conf->inboxes[i];

		if (inbox->redelivery.queue != NULL && inbox->redelivery.broker == broker)
			check_queue(inbox, publisher, &sink);
	}
	publisher->ops->close(publisher);
	publisher->ops->free(publisher);
}

/* The file only, and those that it names. */
static void check_files(struct report *r, const struct config *conf, const struct check_options *o)
{
	char where[100];

	for (size_t i = 0; i < conf->source_count; i++) {
		const struct source_conf *source = &conf->sources[i];

		snprintf(where, sizeof(where), "source %s", source->name);
		if (o->source == NULL || strcmp(o->source, source->name) == 0)
			check_database(r, where, &source->database);
	}
	for (size_t i = 0; i < conf->broker_count; i++) {
		const struct broker_conf *broker = &conf->brokers[i];

		snprintf(where, sizeof(where), "broker %s", broker->name);
		if (o->source != NULL && config_source(conf, o->source)->broker != broker)
			continue;
		check_secret(r, where, &broker->password, &broker->tls);
		check_encryption(r, where, broker->hosts, broker->host_count, &broker->tls,
			"tls.mode: verify_identity");
	}
	for (size_t i = 0; i < conf->inbox_count && o->source == NULL; i++) {
		const struct inbox_conf *inbox = &conf->inboxes[i];

		snprintf(where, sizeof(where), "inbox %s", inbox->name);
		check_database(r, where, &inbox->database);
	}
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
	enum { OFFLINE = 256, SOURCE, PROBE, JSON };
	static const struct option known[] = {
		{ "config", required_argument, NULL, 'c' },
		{ "offline", no_argument, NULL, OFFLINE },
		{ "source", required_argument, NULL, SOURCE },
		{ "probe", required_argument, NULL, PROBE },
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
		case PROBE:
			o->probe = optarg;
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
	if (o->offline && o->probe != NULL)
		return usage_error("check", "--probe needs the broker: not with --offline");
	return -1;
}

/* The faults of the file as findings: "FILE:LINE:COLUMN: WHAT", or "FILE: WHAT". */
static struct config *load_or_report(const char *path)
{
	struct config *conf = NULL;
	struct buf faults = { 0 };
	struct report r = { .json = true };
	char *next = NULL;

	if (config_load(&conf, path, &faults) == 0 || faults.failed || faults.data == NULL) {
		buf_fini(&faults);
		return conf;
	}
	for (char *line = strtok_r(faults.data, "\n", &next); line != NULL;
		line = strtok_r(NULL, "\n", &next)) {
		char *what = strstr(
			line + (strncmp(line, path, strlen(path)) == 0 ? strlen(path) : 0), ": ");

		if (what != NULL)
			*what = '\0';
		find(&r, SEVERITY_FAULT, what != NULL ? line : path, what != NULL ? what + 2 : line,
			"correct the file");
		fprintf(stderr, "%s: %s\n", line, what != NULL ? what + 2 : "");
	}
	printf("{\"findings\":[%s]}\n", r.out.data != NULL ? r.out.data : "");
	buf_fini(&r.out);
	buf_fini(&faults);
	return NULL;
}

int cmd_check(int argc, char **argv)
{
	struct check_options o = { .path = DEFAULT_CONFIG };
	struct report r = { 0 };
	struct config *conf;
	struct err e = { 0 };
	char why[300];
	int done = parse(argc, argv, &o);

	if (done >= 0)
		return done;
	conf = o.json ? load_or_report(o.path) : load_or_complain(o.path);
	if (conf == NULL)
		return EXIT_USAGE;
	if (o.source != NULL && config_source(conf, o.source) == NULL) {
		done = usage_error("check", "%s has no source '%s'", o.path, o.source);
		config_free(conf);
		return done;
	}
	r.json = o.json;
	if (config_file_exposed(conf, why, sizeof(why)))
		find(&r, SEVERITY_WARNING, o.path, why, "chmod 0640, its group being the daemon's");
	check_files(&r, conf, &o);
	if (log_open(NULL, LOG_LEVEL_ERROR, false, &e) == 0 && !o.offline &&
		mysql_global_init(&e) == 0 && amqp_global_init(&e) == 0) {
		mysql_thread_enter();
		for (size_t i = 0; i < conf->source_count; i++)
			if (o.source == NULL || strcmp(o.source, conf->sources[i].name) == 0)
				check_source(&r, &conf->sources[i]);
		for (size_t i = 0; i < conf->inbox_count && o.source == NULL; i++)
			check_inbox(&r, &conf->inboxes[i]);
		mysql_thread_leave();
		for (size_t i = 0; i < conf->broker_count; i++)
			if (o.source == NULL ||
				config_source(conf, o.source)->broker == &conf->brokers[i])
				check_broker(&r, conf, &conf->brokers[i], &o);
		mysql_global_fini();
	}
	if (e.kind != ERR_NONE)
		find(&r, SEVERITY_FAULT, "client libraries", e.text, "");
	print(&r, conf, &o);
	buf_fini(&r.out);
	config_free(conf);
	return r.faults > 0 ? EXIT_FAILED : EXIT_DONE;
}

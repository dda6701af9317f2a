#include "config/config.h"

#include "log/log.h"
#include "test_config.h"

struct bad_case {
	const char *yaml, *faults;
};
#include "data/config/bad.inc"

static void quiet_environment(void)
{
	unsetenv("CREDENTIALS_DIRECTORY");
	unsetenv("OUTBOXD_TEST_UNSET");
	setenv("OUTBOXD_TEST_WORD", "hunter2", 1);
}

/* Line by line; one that ends in * only up to there. */
static bool same_faults(const char *got, const char *want)
{
	while (*want != '\0') {
		size_t w = strcspn(want, "\n"), g = strcspn(got, "\n");
		bool open = want[w - 1] == '*';

		if (open ? (g < w || strncmp(got, want, w - 1) != 0)
			 : (g != w || strncmp(got, want, w) != 0))
			return false;
		want += w + (want[w] == '\n');
		got += g + (got[g] == '\n');
	}
	return *got == '\0';
}

START_TEST(every_bad_configuration_gives_exactly_its_faults)
{
	size_t wrong = 0;

	quiet_environment();
	ck_assert_uint_ge(ARRAY_LEN(bad_cases), 80);
	for (size_t i = 0; i < ARRAY_LEN(bad_cases); i++) {
		char *got = faults_of_text(bad_cases[i].yaml);

		if (!same_faults(got, bad_cases[i].faults)) {
			fprintf(stderr, "--- configuration:\n%s--- faults wanted:\n%s--- got:\n%s",
				bad_cases[i].yaml, bad_cases[i].faults, got);
			wrong++;
		}
		free(got);
	}
	ck_assert_uint_eq(wrong, 0);
}
END_TEST

START_TEST(every_fault_has_place_what_and_what_to_do_and_no_secret)
{
	quiet_environment();
	for (size_t i = 0; i < ARRAY_LEN(bad_cases); i++) {
		char *got = faults_of_text(bad_cases[i].yaml), *save = NULL;
		unsigned last = 0;

		for (char *l = strtok_r(got, "\n", &save); l != NULL;
			l = strtok_r(NULL, "\n", &save)) {
			unsigned line = 0, column = 0;
			int at = 0;

			ck_assert_msg(sscanf(l, ":%u:%u: %n", &line, &column, &at) == 2 && at > 0,
				"no place: %s", l);
			ck_assert_uint_ge(line, 1);
			ck_assert_uint_ge(column, 1);
			ck_assert_msg(line >= last, "out of order: %s", l);
			last = line;
			ck_assert_msg(strstr(l + at, ": ") != NULL, "no advice: %s", l);
			ck_assert_msg(strstr(l, "hunter") == NULL, "a secret: %s", l);
			for (const char *p = l; *p != '\0'; p++)
				ck_assert((unsigned char)*p >= 0x20);
		}
		free(got);
	}
}
END_TEST

START_TEST(the_least_configuration_gets_every_default)
{
	struct config *c = load_text(B S);
	const struct source_conf *s = config_source(c, "s");
	const struct broker_conf *b = config_broker(c, "m");

	ck_assert_ptr_nonnull(s);
	ck_assert_ptr_nonnull(b);
	ck_assert_ptr_null(config_source(c, "S"));
	ck_assert_ptr_null(config_broker(c, ""));
	ck_assert_uint_gt(strlen(c->instance), 0);
	ck_assert_int_eq(c->shutdown_timeout_us, 20 * US_PER_SEC);
	ck_assert_ptr_null(c->log.file);
	ck_assert_int_eq(c->log.level, LOG_LEVEL_INFO);
	ck_assert(!c->log.json);
	ck_assert_int_eq(c->log.events, LOG_EVENTS_FAILURES);
	ck_assert_ptr_null(c->http.host);
	ck_assert_ptr_null(c->wakeup.socket);
	ck_assert_uint_eq(c->wakeup.mode, 0660);
	ck_assert_ptr_null(c->wakeup.group);

	ck_assert_uint_eq(b->line, 1);
	ck_assert_uint_eq(b->host_count, 1);
	ck_assert_str_eq(b->hosts[0].host, "localhost");
	ck_assert_uint_eq(b->hosts[0].port, 5672);
	ck_assert_str_eq(b->vhost, "/");
	ck_assert_int_eq(b->password.kind, SECRET_NONE);
	ck_assert_int_eq(b->tls.mode, TLS_DISABLED);
	ck_assert_int_eq(b->heartbeat_us, 30 * US_PER_SEC);
	ck_assert_int_eq(b->connect_timeout_us, 5 * US_PER_SEC);
	ck_assert_int_eq(b->confirm_timeout_us, 15 * US_PER_SEC);
	ck_assert_uint_eq(b->max_message_size, 16 << 20);

	ck_assert_uint_eq(s->line, 3);
	ck_assert_ptr_eq(s->broker, b);
	ck_assert_uint_eq(s->database.host_count, 1);
	ck_assert_str_eq(s->database.hosts[0].host, "127.0.0.1");
	ck_assert_uint_eq(s->database.hosts[0].port, 3306);
	ck_assert_int_eq(s->database.tls.mode, TLS_DISABLED);
	ck_assert_int_eq(s->database.connect_timeout_us, 5 * US_PER_SEC);
	ck_assert_int_eq(s->database.query_timeout_us, 10 * US_PER_SEC);
	ck_assert_int_eq(s->database.binlog_row_image, ROW_IMAGE_SERVER);
	ck_assert_str_eq(s->table, "outbox_event");
	ck_assert_int_eq(s->publish.body, BODY_PAYLOAD);
	ck_assert(s->publish.mandatory);
	ck_assert(s->publish.persistent);
	ck_assert_uint_eq(s->publish.header_count, 0);
	ck_assert_int_eq(s->ordering, ORDERING_AGGREGATE);
	ck_assert_int_eq(s->on_dead, ON_DEAD_BLOCK);
	ck_assert_uint_eq(s->workers, 1);
	ck_assert_uint_eq(s->batch, 500);
	ck_assert_uint_eq(s->max_in_flight, 2000);
	ck_assert_uint_eq(s->max_in_flight_bytes, 64 << 20);
	ck_assert_int_eq(s->poll_interval_us, US_PER_SEC);
	ck_assert_int_eq(s->lease_us, 60 * US_PER_SEC);
	ck_assert_uint_eq(s->retry.max_attempts, 10);
	ck_assert_int_eq(s->retry.base_us, 2 * US_PER_SEC);
	ck_assert_int_eq(s->retry.cap_us, 300 * US_PER_SEC);
	ck_assert(s->retry.jitter > 0.1999 && s->retry.jitter < 0.2001);
	ck_assert_int_eq(s->retention.sent_us, 7 * 86400 * US_PER_SEC);
	ck_assert_int_eq(s->retention.dead_us, AGE_NEVER);
	ck_assert_int_eq(s->retention.interval_us, 60 * US_PER_SEC);
	ck_assert_uint_eq(s->retention.batch, 5000);
	ck_assert_ptr_null(s->retention.archive_table);
	ck_assert(!s->retention.window.limited);
	ck_assert_uint_eq(s->retention.max_rate, 0);
	ck_assert_uint_eq(c->inbox_count, 0);
	config_free(c);
}
END_TEST

START_TEST(every_key_lands_in_its_field)
{
	struct config *c = load_text(
		"instance: relay-1\n"
		"shutdown_timeout: 0s\n"
		"log: {file: /l, level: debug, format: json, events: all}\n"
		"http: {listen: '[::1]:9788'}\n"
		"wakeup: {socket: /w, mode: 0600, group: g}\n"
		"brokers:\n"
		"- name: m\n"
		"  hosts: [a, 'b:1', '[::1]:65535']\n"
		"  vhost: on\n"
		"  username: u\n"
		"  password: no\n"
		"  tls: {mode: required, ca_file: /ca, cert_file: /ce, key_file: /ke}\n"
		"  heartbeat: 60s\n"
		"  connect_timeout: 100ms\n"
		"  confirm_timeout: 10m\n"
		"  max_message_size: 512MiB\n"
		"sources:\n"
		"- name: a.b_c-1\n"
		"  database: {socket: /s, name: d, username: '~', password: 0123, port: 1,\n"
		"    tls: {mode: verify_ca, ca_file: /ca2}, server_public_key_file: /pk,\n"
		"    connect_timeout: 5m, query_timeout: 1m, binlog_row_image: minimal}\n"
		"  table: my table\n"
		"  broker: m\n"
		"  publish: {exchange: '{source}', routing_key: '{{x}}', body: cloudevents,\n"
		"    mandatory: false, persistent: false, headers: {x: '{event_id}', y: , 'z z': "
		"~}}\n"
		"  ordering: none\n"
		"  on_dead: pass\n"
		"  workers: 64\n"
		"  batch: 5000\n"
		"  max_in_flight: 65535\n"
		"  max_in_flight_bytes: 4GiB\n"
		"  poll_interval: 10ms\n"
		"  lease: 1h\n"
		"  retry: {max_attempts: 100000, base: 365d, cap: 365d, jitter: 1}\n"
		"  retention: {sent: 36h, dead: 90d, interval: 5s, batch: 100, archive_table: "
		"old,\n"
		"    window: '23:30-05:00', max_rate: 10000}\n"
		"inboxes:\n"
		"- name: i\n"
		"  database: {hosts: ['h:1'], name: d, username: u}\n"
		"  table: t\n"
		"  processed_status: DONE\n"
		"  retention: {processed: 4d, batch: 7}\n"
		"  redelivery: {message_ttl: 1d, max_retry_wait: 0s, manual_window: 1h, queue: 'in "
		"v', broker: '"
		"m'}\n"
		"- {name: j, database: {name: d, username: u}, retention: {processed: never}}\n");
	const struct inbox_conf *in = config_inbox(c, "i");
	const struct source_conf *s = &c->sources[0];
	const struct broker_conf *b = &c->brokers[0];

	ck_assert_str_eq(c->instance, "relay-1");
	ck_assert_int_eq(c->shutdown_timeout_us, 0);
	ck_assert_str_eq(c->log.file, "/l");
	ck_assert_int_eq(c->log.level, LOG_LEVEL_DEBUG);
	ck_assert(c->log.json);
	ck_assert_int_eq(c->log.events, LOG_EVENTS_ALL);
	ck_assert_str_eq(c->http.host, "::1");
	ck_assert_uint_eq(c->http.port, 9788);
	ck_assert_str_eq(c->wakeup.socket, "/w");
	ck_assert_uint_eq(c->wakeup.mode, 0600);
	ck_assert_str_eq(c->wakeup.group, "g");
	ck_assert_uint_eq(b->host_count, 3);
	ck_assert_str_eq(b->hosts[0].host, "a");
	ck_assert_uint_eq(b->hosts[0].port, 5671); /* TLS is on */
	ck_assert_str_eq(b->hosts[1].host, "b");
	ck_assert_uint_eq(b->hosts[1].port, 1);
	ck_assert_str_eq(b->hosts[2].host, "::1");
	ck_assert_uint_eq(b->hosts[2].port, 65535);
	ck_assert_str_eq(b->vhost, "on");
	ck_assert_int_eq(b->password.kind, SECRET_LITERAL);
	ck_assert_str_eq(b->password.value, "no");
	ck_assert_int_eq(b->tls.mode, TLS_REQUIRED);
	ck_assert_str_eq(b->tls.ca_file, "/ca");
	ck_assert_str_eq(b->tls.cert_file, "/ce");
	ck_assert_str_eq(b->tls.key_file, "/ke");
	ck_assert_int_eq(b->heartbeat_us, 60 * US_PER_SEC);
	ck_assert_int_eq(b->connect_timeout_us, 100 * US_PER_MS);
	ck_assert_int_eq(b->confirm_timeout_us, 600 * US_PER_SEC);
	ck_assert_uint_eq(b->max_message_size, 512 << 20);
	ck_assert_str_eq(s->name, "a.b_c-1");
	ck_assert_uint_eq(s->database.host_count, 0);
	ck_assert_str_eq(s->database.socket, "/s");
	ck_assert_str_eq(s->database.username, "~");
	ck_assert_str_eq(s->database.password.value, "0123");
	ck_assert_int_eq(s->database.tls.mode, TLS_VERIFY_CA);
	ck_assert_str_eq(s->database.server_public_key_file, "/pk");
	ck_assert_int_eq(s->database.binlog_row_image, ROW_IMAGE_MINIMAL);
	ck_assert_str_eq(s->table, "my table");
	ck_assert_int_eq(s->publish.body, BODY_CLOUDEVENTS);
	ck_assert(!s->publish.mandatory);
	ck_assert(!s->publish.persistent);
	ck_assert_uint_eq(s->publish.header_count, 1);
	ck_assert_str_eq(s->publish.headers[0].name, "x");
	ck_assert_str_eq(s->publish.headers[0].template, "{event_id}");
	ck_assert_int_eq(s->ordering, ORDERING_NONE);
	ck_assert_int_eq(s->on_dead, ON_DEAD_PASS);
	ck_assert_uint_eq(s->workers, 64);
	ck_assert_uint_eq(s->max_in_flight_bytes, UINT64_C(4) << 30);
	ck_assert_int_eq(s->lease_us, 3600 * US_PER_SEC);
	ck_assert_uint_eq(s->retry.max_attempts, 100000);
	ck_assert_int_eq(s->retry.cap_us, 365 * 86400 * US_PER_SEC);
	ck_assert(s->retry.jitter >= 1.0);
	ck_assert_int_eq(s->retention.sent_us, 36 * 3600 * US_PER_SEC);
	ck_assert_int_eq(s->retention.dead_us, 90 * 86400 * US_PER_SEC);
	ck_assert_int_eq(s->retention.interval_us, 5 * US_PER_SEC);
	ck_assert_uint_eq(s->retention.batch, 100);
	ck_assert_str_eq(s->retention.archive_table, "old");
	ck_assert(s->retention.window.limited);
	ck_assert_uint_eq(s->retention.window.from, 23 * 60 + 30);
	ck_assert_uint_eq(s->retention.window.to, 5 * 60);
	ck_assert_uint_eq(s->retention.max_rate, 10000);
	ck_assert_uint_eq(c->inbox_count, 2);
	ck_assert_ptr_eq(in, &c->inboxes[0]);
	ck_assert_int_eq(in->database.tls.mode, TLS_VERIFY_IDENTITY);
	ck_assert_str_eq(in->table, "t");
	ck_assert_str_eq(in->processed_status, "DONE");
	ck_assert_int_eq(in->retention.processed_us, 4 * 86400 * US_PER_SEC);
	ck_assert_uint_eq(in->retention.batch, 7);
	ck_assert_int_eq(in->redelivery.message_ttl_us, 86400 * US_PER_SEC);
	ck_assert_int_eq(in->redelivery.max_retry_wait_us, 0);
	ck_assert_int_eq(in->redelivery.manual_window_us, 3600 * US_PER_SEC);
	ck_assert_str_eq(in->redelivery.queue, "in v");
	ck_assert_str_eq(in->redelivery.broker_name, "m");
	ck_assert_ptr_eq(in->redelivery.broker, b);
	ck_assert_str_eq(c->inboxes[1].table, "inbox_event");
	ck_assert_ptr_null(c->inboxes[1].redelivery.queue);
	ck_assert_ptr_null(c->inboxes[1].redelivery.broker);
	ck_assert_str_eq(c->inboxes[1].processed_status, "PROCESSED");
	ck_assert_int_eq(c->inboxes[1].retention.processed_us, AGE_NEVER);
	ck_assert_int_eq(c->inboxes[1].redelivery.manual_window_us, 2 * 86400 * US_PER_SEC);
	config_free(c);
}
END_TEST

START_TEST(an_inbox_names_the_broker_of_its_queue_unless_there_is_only_one)
{
	static const char *const brokers[] = {
		"brokers: [{name: m, hosts: [h], username: u}]\n",
		"brokers: [{name: n, hosts: [h], username: u}, {name: m, hosts: [h], username: "
		"u}]\n",
	};

	for (size_t i = 0; i < 2; i++) {
		char text[1000];
		struct config *c;

		snprintf(text, sizeof(text),
			"%ssources: [{name: s, broker: m, database: {name: d, username: u}, "
			"publish: {exchange: e, routing_key: r}}]\n"
			"inboxes: [{name: i, database: {name: d, username: u}, redelivery: {queue: "
			"q, broker: %s}}]\n",
			brokers[i], i == 0 ? "" : "m");
		c = load_text(text);
		ck_assert_str_eq(c->inboxes[0].redelivery.queue, "q");
		ck_assert_ptr_eq(c->inboxes[0].redelivery.broker, config_broker(c, "m"));
		config_free(c);
	}
}
END_TEST

static bool open_at(unsigned from, unsigned to, unsigned hour, unsigned minute)
{
	const struct window_conf w = { true, from * 60, to * 60 };

	return config_window_open(
		&w, ((INT64_C(20000) * 24 + hour) * 60 + minute) * 60 * US_PER_SEC + 999999);
}

START_TEST(a_window_is_open_from_its_first_minute_to_before_its_last_also_over_midnight)
{
	const struct window_conf any = { 0 };

	ck_assert(config_window_open(&any, 0));
	ck_assert(!open_at(1, 5, 0, 59));
	ck_assert(open_at(1, 5, 1, 0));
	ck_assert(open_at(1, 5, 4, 59));
	ck_assert(!open_at(1, 5, 5, 0));
	ck_assert(open_at(23, 2, 23, 0));
	ck_assert(open_at(23, 2, 0, 0));
	ck_assert(open_at(23, 2, 1, 59));
	ck_assert(!open_at(23, 2, 2, 0));
	ck_assert(!open_at(23, 2, 22, 59));
	ck_assert(open_at(12, 24, 23, 59));
	ck_assert(!open_at(12, 24, 0, 0));
}
END_TEST

START_TEST(a_source_inherits_defaults_key_by_key)
{
	const struct source_conf *p, *o, *t;
	struct config *c;
	char yaml[2048];

	snprintf(yaml, sizeof(yaml),
		B "defaults:\n"
		  "  broker: m\n"
		  "  batch: 7\n"
		  "  database: {hosts: ['db1', 'db2:1'], port: 3307, username: u, password: p,\n"
		  "    tls: {mode: required, ca_file: /ca}}\n"
		  "  publish: {exchange: e, routing_key: r, headers: {a: one, b: two}}\n"
		  "  retry: {base: 1s, cap: 9s}\n"
		  "sources:\n"
		  "- {name: plain, database: {name: d1}}\n"
		  "- name: other\n"
		  "  batch:\n" /* left out: inherited */
		  "  database: {name: d2, socket: /s, password_file: %s, tls: {mode: disabled}}\n"
		  "  publish: {routing_key: r2, headers: {b: 2, c: 3}}\n"
		  "  retry: {base: 2s}\n"
		  "- {name: third, database: {name: d3, host: h}}\n",
		put_text("pass", "p"));
	c = load_text(yaml);
	p = config_source(c, "plain");
	o = config_source(c, "other");
	t = config_source(c, "third");

	ck_assert_uint_eq(p->batch, 7);
	ck_assert_uint_eq(p->database.host_count, 2);
	ck_assert_uint_eq(p->database.hosts[0].port, 3307);
	ck_assert_uint_eq(p->database.hosts[1].port, 1);
	ck_assert_int_eq(p->database.password.kind, SECRET_LITERAL);
	ck_assert_int_eq(p->database.tls.mode, TLS_REQUIRED);
	ck_assert_uint_eq(p->publish.header_count, 2);
	ck_assert_int_eq(p->retry.cap_us, 9 * US_PER_SEC);

	ck_assert_uint_eq(o->batch, 7);
	ck_assert_uint_eq(o->database.host_count, 0);
	ck_assert_str_eq(o->database.socket, "/s");
	ck_assert_int_eq(o->database.password.kind, SECRET_FILE);
	ck_assert_int_eq(o->database.tls.mode, TLS_DISABLED);
	ck_assert_str_eq(o->database.tls.ca_file, "/ca");
	ck_assert_str_eq(o->publish.exchange, "e");
	ck_assert_str_eq(o->publish.routing_key, "r2");
	ck_assert_uint_eq(o->publish.header_count, 3);
	ck_assert_str_eq(o->publish.headers[0].template, "2");
	ck_assert_str_eq(o->publish.headers[1].template, "3");
	ck_assert_str_eq(o->publish.headers[2].template, "one");
	ck_assert_int_eq(o->retry.base_us, 2 * US_PER_SEC);
	ck_assert_int_eq(o->retry.cap_us, 9 * US_PER_SEC);

	ck_assert_uint_eq(t->database.host_count, 1);
	ck_assert_str_eq(t->database.hosts[0].host, "h");
	ck_assert_uint_eq(t->database.hosts[0].port, 3307);
	config_free(c);
}
END_TEST

START_TEST(a_fault_in_defaults_is_reported_once_and_where_it_stands)
{
	char *got = faults_of_text(
		B "defaults: {batch: 0, publish: {exchange: '{x}', headers: {source: a}}}\n"
		  "sources:\n"
		  "- {name: a, broker: m, database: {name: a, username: u}, publish: {routing_key: "
		  "r}}\n"
		  "- {name: b, broker: m, database: {name: b, username: u}, publish: {routing_key: "
		  "r}}\n");

	ck_assert(same_faults(got,
		":2:19: defaults.batch \"0\" is out of range: give 1 to 5000\n"
		":2:42: defaults.publish.exchange \"{x}\" is not a usable template: *\n"
		":2:59: defaults.publish.headers.source cannot be a header, *\n"));
	free(got);
	/* Not needed by anybody is no excuse, and a rule broken by inheritance names the heir. */
	got = faults_of_text(B "defaults: {lease: 20s}\n" S);
	ck_assert_str_eq(got,
		":2:19: sources.s.lease 20s does not exceed confirm_timeout 15s of broker m + "
		"query_timeout 10s: make it more than 25s\n");
	free(got);
}
END_TEST

static const struct {
	const char *hosts;
	enum tls_mode mode;
} loopback_cases[] = {
	{ "[localhost]", TLS_DISABLED },
	{ "[LocalHost]", TLS_DISABLED },
	{ "['127.9.9.9:1']", TLS_DISABLED },
	{ "['[::1]']", TLS_DISABLED },
	{ "[localhost, '127.0.0.1', '[::1]:1']", TLS_DISABLED },
	{ "[localhost, db]", TLS_VERIFY_IDENTITY },
	{ "[db]", TLS_VERIFY_IDENTITY },
	{ "['128.0.0.1']", TLS_VERIFY_IDENTITY },
	{ "['127.0.0.1.example.com']", TLS_VERIFY_IDENTITY },
	{ "[localhost.example.com]", TLS_VERIFY_IDENTITY },
	{ "['[::2]']", TLS_VERIFY_IDENTITY },
	{ "['[::ffff:10.0.0.1]']", TLS_VERIFY_IDENTITY },
};

START_TEST(tls_left_out_is_off_only_where_every_host_is_loopback)
{
	for (size_t i = 0; i < ARRAY_LEN(loopback_cases); i++) {
		char yaml[1024];
		struct config *c;

		snprintf(yaml, sizeof(yaml),
			"brokers: [{name: m, hosts: %s, username: u}]\n" HEAD
			"  database: {name: d, username: u, hosts: %s}\n" PB,
			loopback_cases[i].hosts, loopback_cases[i].hosts);
		c = load_text(yaml);
		ck_assert_msg(c->brokers[0].tls.mode == loopback_cases[i].mode, "%s", yaml);
		ck_assert_msg(
			c->sources[0].database.tls.mode == loopback_cases[i].mode, "%s", yaml);
		config_free(c);
	}
}
END_TEST

START_TEST(tls_said_to_be_off_is_off_anywhere)
{
	struct config *c = load_text(
		"brokers: [{name: m, hosts: [mq], username: u, tls: {mode: disabled}}]\n" S);

	ck_assert_int_eq(c->brokers[0].tls.mode, TLS_DISABLED);
	ck_assert_uint_eq(c->brokers[0].hosts[0].port, 5672);
	config_free(c);
	c = load_text("brokers: [{name: m, hosts: [mq], username: u}]\n" S);
	ck_assert_int_eq(c->brokers[0].tls.mode, TLS_VERIFY_IDENTITY);
	ck_assert_uint_eq(c->brokers[0].hosts[0].port, 5671);
	config_free(c);
}
END_TEST

static const struct {
	const char *uri, *more;
	const char *host;
	unsigned port;
	const char *vhost, *user, *password;
	enum tls_mode mode;
} uris[] = {
	{ "amqp://u@localhost", "", "localhost", 5672, "/", "u", NULL, TLS_DISABLED },
	{ "AMQP://u@localhost:1/v", "", "localhost", 1, "v", "u", NULL, TLS_DISABLED },
	{ "amqps://u@localhost", "", "localhost", 5671, "/", "u", NULL, TLS_VERIFY_IDENTITY },
	{ "amqps://u@mq:5672", "", "mq", 5672, "/", "u", NULL, TLS_VERIFY_IDENTITY },
	{ "amqps://u@mq", "tls: {mode: required}", "mq", 5671, "/", "u", NULL, TLS_REQUIRED },
	{ "amqp://u@mq", "", "mq", 5671, "/", "u", NULL, TLS_VERIFY_IDENTITY },
	{ "amqp://u@mq", "tls: {mode: disabled}", "mq", 5672, "/", "u", NULL, TLS_DISABLED },
	{ "amqp://u@[::1]:7/%2f", "", "::1", 7, "/", "u", NULL, TLS_DISABLED },
	{ "amqp://u@[::1]/%2Fa%2Fb", "", "::1", 5672, "/a/b", "u", NULL, TLS_DISABLED },
	{ "amqp://u%40x:p%40%23%25%3a%2F@localhost", "", "localhost", 5672, "/", "u@x", "p@#%:/",
		TLS_DISABLED },
	{ "amqp://u:@localhost", "", "localhost", 5672, "/", "u", NULL, TLS_DISABLED },
	{ "amqp://localhost", "username: v", "localhost", 5672, "/", "v", NULL, TLS_DISABLED },
	{ "amqp://u@localhost", "vhost: 'a%2fb'", "localhost", 5672, "a%2fb", "u", NULL,
		TLS_DISABLED },
	{ "amqp://u@localhost", "password: 'p%40'", "localhost", 5672, "/", "u", "p%40",
		TLS_DISABLED },
	{ "amqp://u%C3%A9@localhost", "", "localhost", 5672, "/", "u\xC3\xA9", NULL, TLS_DISABLED },
	{ "amqp://${OUTBOXD_TEST_WORD}@localhost", "", "localhost", 5672, "/", "hunter2", NULL,
		TLS_DISABLED },
};

START_TEST(a_uri_is_taken_apart_to_the_letter_of_the_amqp_uri_specification)
{
	quiet_environment();
	for (size_t i = 0; i < ARRAY_LEN(uris); i++) {
		char yaml[1024];
		struct config *c;
		const struct broker_conf *b;

		snprintf(yaml, sizeof(yaml), "brokers:\n- name: m\n  uri: '%s'\n  %s\n" S,
			uris[i].uri, uris[i].more);
		c = load_text(yaml);
		b = &c->brokers[0];
		ck_assert_uint_eq(b->host_count, 1);
		ck_assert_str_eq(b->hosts[0].host, uris[i].host);
		ck_assert_uint_eq(b->hosts[0].port, uris[i].port);
		ck_assert_str_eq(b->vhost, uris[i].vhost);
		ck_assert_str_eq(b->username, uris[i].user);
		ck_assert_int_eq(b->tls.mode, uris[i].mode);
		ck_assert_int_eq(
			b->password.kind, uris[i].password != NULL ? SECRET_LITERAL : SECRET_NONE);
		if (uris[i].password != NULL)
			ck_assert_str_eq(b->password.value, uris[i].password);
		config_free(c);
	}
}
END_TEST

START_TEST(separate_keys_are_taken_literally)
{
	static const char *const words[] = { "no", "on", "0123", "1e5", "1:00", "true", "'~'",
		"\"null\"", "'a: b'", "p@ss", "a%2fb", "$$x", "\"\\ttab\"", "'#x'", "''''" };
	static const char *const values[] = { "no", "on", "0123", "1e5", "1:00", "true", "~",
		"null", "a: b", "p@ss", "a%2fb", "$x", "\ttab", "#x", "'" };

	for (size_t i = 0; i < ARRAY_LEN(words); i++) {
		char yaml[1024];
		struct config *c;

		snprintf(yaml, sizeof(yaml),
			"brokers:\n- name: m\n  hosts: [localhost]\n  username: u\n  password: "
			"%s\n" S,
			words[i]);
		c = load_text(yaml);
		ck_assert_str_eq(c->brokers[0].password.value, values[i]);
		config_free(c);
	}
}
END_TEST

START_TEST(a_variable_fills_a_scalar_and_cannot_add_structure)
{
	struct config *c;

	setenv("OUTBOXD_TEST_A", "7", 1);
	setenv("OUTBOXD_TEST_B", "x: y\nbatch: 9 # }", 1);
	setenv("OUTBOXD_TEST_C", "", 1);
	setenv("OUTBOXD_TEST_D", "~", 1);
	setenv("OUTBOXD_TEST_E", "1", 1);
	c = load_text(
		B HEAD "  database: {name: d, username: u, password: \"${OUTBOXD_TEST_B}$$\"}\n"
		       "  publish: {exchange: \"a${OUTBOXD_TEST_A}b$${{\", routing_key: r,\n"
		       "    mandatory: \"${OUTBOXD_TEST_C}\"}\n"
		       "  batch: ${OUTBOXD_TEST_A}\n"
		       "  workers: \"${OUTBOXD_TEST_E}\"\n"
		       "  table: \"${OUTBOXD_TEST_D}\"\n");
	ck_assert_uint_eq(c->sources[0].batch, 7);
	ck_assert(c->sources[0].publish.mandatory);
	ck_assert_str_eq(c->sources[0].database.password.value, "x: y\nbatch: 9 # }$");
	ck_assert_str_eq(c->sources[0].table, "~");
	ck_assert_str_eq(c->sources[0].publish.exchange, "a7b${{");
	config_free(c);
}
END_TEST

START_TEST(three_faults_in_one_file_are_reported_in_one_go)
{
	char *got = faults_of_text(
		"log: {level: loud}\n"
		"brokers: [{name: m, hosts: [localhost], username: u, heartbeat: 5}]\n"
		"sources:\n"
		"- name: s\n"
		"  broker: n\n"
		"  database: {username: u}\n"
		"  publish: {exchange: e, routing_key: '{', colour: red}\n"
		"  batch: 1\n"
		"  batch: 2\n"
		"  workers: 3\n"
		"surces: 1\n");

	ck_assert(same_faults(got,
		":1:14: log.level \"loud\" is not a known word: *\n"
		":2:65: brokers.m.heartbeat \"5\" is not a duration in whole seconds: *\n"
		":5:11: sources.s.broker \"n\" is not a broker of this file: choose one of m\n"
		":6:13: sources.s.database.name is missing: *\n"
		":7:39: sources.s.publish.routing_key \"{\" is not a usable template: *\n"
		":7:44: sources.s.publish.colour is not a known key: *\n"
		":9:3: sources.s.batch is given twice, first on line 8: *\n"
		":10:12: sources.s.workers 3 needs ordering none: *\n"
		":11:1: surces is not a known key: did you mean sources?\n"));
	free(got);
}
END_TEST

UNIT_MAIN("config", every_bad_configuration_gives_exactly_its_faults,
	every_fault_has_place_what_and_what_to_do_and_no_secret,
	the_least_configuration_gets_every_default, every_key_lands_in_its_field,
	an_inbox_names_the_broker_of_its_queue_unless_there_is_only_one,
	a_window_is_open_from_its_first_minute_to_before_its_last_also_over_midnight,
	a_source_inherits_defaults_key_by_key,
	a_fault_in_defaults_is_reported_once_and_where_it_stands,
	tls_left_out_is_off_only_where_every_host_is_loopback, tls_said_to_be_off_is_off_anywhere,
	a_uri_is_taken_apart_to_the_letter_of_the_amqp_uri_specification,
	separate_keys_are_taken_literally, a_variable_fills_a_scalar_and_cannot_add_structure,
	three_faults_in_one_file_are_reported_in_one_go)

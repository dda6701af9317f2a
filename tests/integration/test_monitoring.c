/* What watches outboxd, against a daemon at work: the page that Prometheus reads, and the names
 * that the dashboard, the alert rules and the README use. */
#include "support/rig.h"

#include <check.h>
#include <json-c/json.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char page[1 << 20];

static const char *all(const struct daemon *d)
{
	REQUIRE_INT(daemon_get(d, "/metrics", page, sizeof(page)), ==, 200);
	return page;
}

/* An inbox with a row, in the source's own schema. */
static void add_inbox(struct rig *r, struct conf *c, const struct daemon *d)
{
	const struct schema *s = &r->schema[0];
	static char top[1000];
	char secret[200], path[600], *ddl;

	snprintf(path, sizeof(path), "%s/sql/inbox_event.sql", env_get()->repository);
	ddl = env_read_file(path);
	db_exec(r->db, "USE %s; %s", s->name, ddl);
	free(ddl);
	db_exec(r->db, "GRANT SELECT, DELETE ON %s.inbox_event TO '%s'@'%%'", s->name, s->user);
	db_exec(r->db,
		"INSERT INTO %s.inbox_event SET "
		"event_id='e1',consumer_name='c',event_type='created'",
		s->name);
	daemon_secret(d, "source-s0", secret, sizeof(secret));
	snprintf(top, sizeof(top),
		"inboxes:\n  - name: i\n    database: { host: %s, port: %u, name: %s, username: "
		"%s, "
		"password_file: %s }\n",
		env_get()->db_host, env_get()->db_port, s->name, s->user, secret);
	c->top = top;
}

/* A daemon that has sent events, and failed to send some, and counted its table. */
static void read_page(void)
{
	struct production good = { .first = 1, .count = 200, .aggregates = 20 };
	struct production bad = {
		.first = 201, .count = 3, .aggregates = 3, .event_type = "nobody-wants-this"
	};
	struct daemon *d = daemon_new("monitoring");
	struct conf c;
	struct rig r;

	rig_open(&r, 1);
	rig_conf(&r, &c);
	c.ordering = "aggregate";
	mq_unbind(r.mq, r.queue, r.exchange, "#");
	mq_bind(r.mq, r.queue, r.exchange, "order.created");
	mq_bind(r.mq, r.queue, r.exchange, "order.changed");
	add_inbox(&r, &c, d);
	daemon_configure(d, &c);
	daemon_start(d);
	daemon_wait_ready(d, true);
	db_produce(r.db, &r.schema[0], &good);
	db_produce(r.db, &r.schema[0], &bad);
	WAIT_FOR(20000,
		daemon_metric(d, "outboxd_events_published_total{source=\"s0\"}") == 200 &&
			daemon_metric(d, "outboxd_events_failed_total{class=\"UNROUTABLE\",source="
					 "\"s0\"}") > 0 &&
			daemon_metric(d, "outboxd_backlog_events{source=\"s0\"}") >= 0 &&
			strstr(all(d), "\noutboxd_inbox_events{") != NULL);
	(void)all(d);
	daemon_stop(d);
	daemon_free(d);
	rig_close(&r);
}

static bool exists(const char *name)
{
	char type[160];

	snprintf(type, sizeof(type), "\n# TYPE %s ", name);
	return strstr(page, type) != NULL || strncmp(page, type + 1, strlen(type) - 1) == 0;
}

/* What Prometheus makes of a histogram goes by names of its own. */
static void base_name(char *name)
{
	static const char *const tails[] = { "_bucket", "_sum", "_count" };

	for (size_t i = 0; i < ARRAY_LEN(tails); i++) {
		size_t n = strlen(name), m = strlen(tails[i]);

		if (n > m && strcmp(name + n - m, tails[i]) == 0 && !exists(name))
			name[n - m] = '\0';
	}
}

static char *read_file(const char *name)
{
	char path[600];

	snprintf(path, sizeof(path), "%s/%s", env_get()->repository, name);
	return env_read_file(path);
}

/* Every outboxd_... in the text; returns how many there are. */
static unsigned require_names(const char *file, const char *text)
{
	regex_t pattern;
	regmatch_t m;
	unsigned count = 0;

	REQUIRE(regcomp(&pattern, "outboxd_[a-z_]+[a-z]", REG_EXTENDED) == 0);
	for (; regexec(&pattern, text, 1, &m, 0) == 0; text += m.rm_eo) {
		char name[120];

		snprintf(name, sizeof(name), "%.*s", (int)(m.rm_eo - m.rm_so), text + m.rm_so);
		base_name(name);
		if (!exists(name))
			FAIL("%s names %s, which /metrics does not have:\n%s", file, name, page);
		count++;
	}
	regfree(&pattern);
	return count;
}

START_TEST(the_alert_rules_and_the_dashboard_name_metrics_that_there_are)
{
	char *rules = read_file("conf/outboxd.rules.yaml");
	char *dashboard = read_file("conf/outboxd.dashboard.json");

	read_page();
	REQUIRE_INT(require_names("conf/outboxd.rules.yaml", rules), >, 15);
	REQUIRE_INT(require_names("conf/outboxd.dashboard.json", dashboard), >, 30);
	free(rules);
	free(dashboard);
}
END_TEST

START_TEST(the_dashboard_shows_every_metric_and_says_what_each_panel_is)
{
	char *text = read_file("conf/outboxd.dashboard.json");
	struct json_object *o = json_tokener_parse(text), *panels;

	REQUIRE(o != NULL);
	REQUIRE(json_object_object_get_ex(o, "panels", &panels));
	for (size_t i = 0; i < json_object_array_length(panels); i++) {
		struct json_object *p = json_object_array_get_idx(panels, i), *title, *targets;

		REQUIRE(json_object_object_get_ex(p, "title", &title));
		REQUIRE(json_object_get_string_len(title) > 0);
		if (json_object_object_get_ex(p, "targets", &targets))
			REQUIRE_INT(json_object_array_length(targets), >, 0);
	}
	json_object_put(o);
	read_page();
	for (const char *at = page; (at = strstr(at, "# TYPE outboxd_")) != NULL; at++) {
		char name[120];

		REQUIRE(sscanf(at, "# TYPE %100s", name) == 1);
		if (strstr(text, name) == NULL)
			FAIL("conf/outboxd.dashboard.json does not show %s", name);
	}
	free(text);
}
END_TEST

/* The names are those of the table in README.md, and the other way round. */
START_TEST(the_readme_lists_the_metrics_that_there_are)
{
	char *text = read_file("README.md");

	read_page();
	for (const char *at = page; (at = strstr(at, "# TYPE outboxd_")) != NULL; at++) {
		char name[120], quoted[140];

		REQUIRE(sscanf(at, "# TYPE outboxd_%100s", name) == 1);
		snprintf(quoted, sizeof(quoted), "`%s`", name);
		if (strstr(text, quoted) == NULL)
			FAIL("README.md does not list %s", name);
	}
	free(text);
}
END_TEST

START_TEST(promtool_finds_nothing_to_complain_of_in_the_page)
{
	FILE *f;
	int status;

	if (system("command -v promtool >/dev/null 2>&1") != 0) {
		printf("SKIPPED promtool_finds_nothing_to_complain_of_in_the_page: no promtool "
		       "(package prometheus)\n");
		return;
	}
	read_page();
	f = popen("promtool check metrics >&2", "w");
	REQUIRE(f != NULL);
	REQUIRE(fwrite(page, strlen(page), 1, f) == 1);
	status = pclose(f);
	REQUIRE(WIFEXITED(status));
	REQUIRE_INT(WEXITSTATUS(status), ==, 0);
}
END_TEST

RIG_MAIN("monitoring", 60, the_alert_rules_and_the_dashboard_name_metrics_that_there_are,
	the_dashboard_shows_every_metric_and_says_what_each_panel_is,
	the_readme_lists_the_metrics_that_there_are,
	promtool_finds_nothing_to_complain_of_in_the_page)

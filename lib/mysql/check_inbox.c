/* check_inbox.c: `outboxd check` of one inbox: the table, its key, and what the account may do. */
#include "mysql/inbox.h"
#include "mysql/statements.h"

#include <stdio.h>
#include <string.h>

struct check {
	const struct inbox_conf *conf;
	const struct finding_sink *sink;
	struct session *session;
	unsigned faults;
	char where[160];
};

static void on_finding(void *arg, const struct finding *f)
{
	struct check *c = arg;

	c->faults += f->severity == SEVERITY_FAULT;
	c->sink->found(c->sink->arg, f);
}

static void report(struct check *c, enum severity severity, const char *what, const char *fix)
{
	on_finding(c, &(struct finding){ severity, c->where, what, fix });
}

/* Two ids that differ must differ for the key, or the second event is taken for the first. */
static void check_collation(struct check *c, const struct schema *s, const char *name)
{
	const struct schema_column *column = schema_column(s, name);
	char what[300], fix[300];
	size_t n;

	if (column == NULL || column->charset[0] == '\0')
		return;
	n = strlen(column->collation);
	if ((n >= 4 && strcmp(column->collation + n - 4, "_bin") == 0) ||
		strcmp(column->collation, "binary") == 0)
		return;
	snprintf(what, sizeof(what),
		"%s is compared by %s, for which different texts can be the same: of two such "
		"events "
		"the second is swallowed",
		name, column->collation);
	snprintf(fix, sizeof(fix),
		"ALTER TABLE `%.64s` MODIFY `%s` VARCHAR(%llu) COLLATE %s_bin NOT NULL",
		c->conf->table, name, (unsigned long long)column->length, column->charset);
	report(c, SEVERITY_FAULT, what, fix);
}

static void check_length(struct check *c, const struct schema *s)
{
	const struct schema_column *id = schema_column(s, "event_id");
	char what[200];

	if (id == NULL || id->length >= 64)
		return;
	snprintf(what, sizeof(what),
		"event_id holds %llu characters: longer ids must be refused by the consumer, for "
		"INSERT IGNORE would cut them to one and the same",
		(unsigned long long)id->length);
	report(c, SEVERITY_WARNING, what, "");
}

static void check_delete(struct check *c, const struct inbox_table *t)
{
	struct buf text = { 0 };
	char fix[800];
	struct err e;

	if (c->conf->retention.processed_us == AGE_NEVER || session_server(c->session)->read_only)
		return;
	buf_addf(&text, "DELETE i FROM %s AS i WHERE i.`event_id` IS NULL", t->name);
	session_begin(c->session);
	if (!text.failed && session_run(c->session, buf_slice(&text), NULL, &e) < 0) {
		snprintf(fix, sizeof(fix),
			"GRANT DELETE ON %.560s TO the account, or retention: { processed: never }",
			t->name);
		err_wrap(&e, "rows are never removed: the account %.60s may not delete",
			c->conf->database.username);
		report(c, SEVERITY_FAULT, e.text, fix);
	}
	buf_fini(&text);
}

static int examine(struct check *c, struct err *e)
{
	const struct finding_sink sink = { on_finding, c };
	struct inbox_table table;
	struct schema s;

	if (session_open(c->session, e) < 0)
		return -1;
	session_begin(c->session);
	if (session_server(c->session)->read_only)
		report(c, SEVERITY_FAULT, "the server is read-only: no row can be removed",
			"name the primary in hosts, or SET GLOBAL read_only = 0");
	if (schema_read(c->session, c->conf->database.name, c->conf->table, &s, e) < 0)
		return -1;
	inbox_judge(&s, &sink, &table);
	check_collation(c, &s, "event_id");
	check_collation(c, &s, "consumer_name");
	check_length(c, &s);
	schema_fini(&s);
	if (c->faults == 0)
		check_delete(c, &table);
	return 0;
}

int inbox_check(const struct inbox_conf *conf, const struct finding_sink *sink, struct err *e)
{
	const struct session_options options = {
		.wait_timeout_s = 60, .examine = true, .program = "outboxd check"
	};
	struct check c = { .conf = conf, .sink = sink };
	int rc = session_new(&c.session, &conf->database, &options, NULL, e);

	snprintf(c.where, sizeof(c.where), "%.70s.%.70s", conf->database.name, conf->table);
	if (rc == 0)
		rc = examine(&c, e);
	if (rc < 0)
		report(&c, SEVERITY_FAULT, e->text, "");
	session_free(c.session);
	return rc;
}

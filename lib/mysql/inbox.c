#include "mysql/inbox.h"

#include "base/str.h"
#include "mysql/statements.h"
#include "mysql/values.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

/* --- statements ----------------------------------------------------------------------------- */

static void add_cutoff(struct buf *b, const char *column, unsigned fraction, int64_t age_us)
{
	buf_addf(b, "`%s`<NOW(%u)-INTERVAL %" PRId64 " MICROSECOND", column, fraction, age_us);
}

static void add_index(struct buf *b, const struct inbox_table *t)
{
	buf_addf(b, " FROM %s FORCE INDEX (%s)", t->name,
		t->consumer_index[0] != '\0' ? t->consumer_index : "PRIMARY");
}

void sql_inbox_count(struct buf *b, const struct inbox_table *t)
{
	buf_adds(b, "SELECT `consumer_name`,`status`,COUNT(*),");
	if (t->has_received)
		buf_adds(b, "GREATEST(TIMESTAMPDIFF(MICROSECOND,MIN(`received_at`),NOW(6)),0)");
	else
		buf_adds(b, "-1");
	if (t->consumer_index[0] != '\0')
		add_index(b, t);
	else
		buf_addf(b, " FROM %s", t->name);
	buf_adds(b, " GROUP BY `consumer_name`,`status` ORDER BY `consumer_name`,`status`");
}

void sql_inbox_consumer(struct buf *b, const struct inbox_table *t, const struct slice *after)
{
	buf_adds(b, "SELECT `consumer_name`");
	add_index(b, t);
	if (after != NULL) {
		buf_adds(b, " WHERE `consumer_name`>");
		sql_add_string(b, *after);
	}
	buf_adds(b, " ORDER BY `consumer_name` LIMIT 1");
}

static void add_due(struct buf *b, const struct inbox_table *t, const char *status, int64_t age_us)
{
	buf_adds(b, "`status`=");
	sql_add_string(b, slice_str(status));
	buf_adds(b, " AND ");
	add_cutoff(b, "processed_at", t->processed_fraction, age_us);
}

/* (a, b) > ('x', 'y') in words that an index is used for */
static void add_after(
	struct buf *b, const char *first, struct slice x, const char *second, struct slice y)
{
	buf_addf(b, "(`%s`>", first);
	sql_add_string(b, x);
	buf_addf(b, " OR (`%s`=", first);
	sql_add_string(b, x);
	buf_addf(b, " AND `%s`>", second);
	sql_add_string(b, y);
	buf_adds(b, "))");
}

void sql_inbox_read(struct buf *b, const struct inbox_table *t, const char *status, int64_t age_us,
	const struct inbox_cursor *from, unsigned limit)
{
	buf_addf(b, "SELECT `event_id`,`consumer_name`,%s,(",
		t->consumer_index[0] != '\0' ? "`received_at`" : "''");
	add_due(b, t, status, age_us);
	buf_adds(b, ") IS TRUE");
	add_index(b, t);
	if (t->consumer_index[0] == '\0') {
		if (from->begun) {
			buf_adds(b, " WHERE ");
			add_after(b, "event_id", buf_slice(&from->event_id), "consumer_name",
				buf_slice(&from->consumer));
		}
		buf_addf(b, " ORDER BY `event_id`,`consumer_name` LIMIT %u", limit);
		return;
	}
	buf_adds(b, " WHERE `consumer_name`=");
	sql_add_string(b, buf_slice(&from->consumer));
	buf_adds(b, " AND `status`=");
	sql_add_string(b, slice_str(status));
	buf_adds(b, " AND ");
	if (from->begun) {
		add_after(b, "received_at", slice_str(from->received_at), "event_id",
			buf_slice(&from->event_id));
		buf_adds(b, " AND ");
	}
	add_cutoff(b, "received_at", t->received_fraction, age_us);
	buf_addf(b, " ORDER BY `received_at`,`event_id` LIMIT %u", limit);
}

/* Each by its primary key, see sql_add_rows(). */
static void add_rows(struct buf *b, const struct inbox_table *t, struct slice pairs)
{
	buf_adds(b, "JSON_TABLE(");
	sql_add_string(b, pairs);
	buf_addf(b,
		",'$[*]' COLUMNS (`e` VARCHAR(1024) CHARACTER SET utf8mb4 PATH '$[0]',`c` "
		"VARCHAR(1024) CHARACTER SET utf8mb4 PATH '$[1]')) AS "
		"k STRAIGHT_JOIN %s AS i FORCE INDEX (PRIMARY) ON i.`event_id`=%s AND "
		"i.`consumer_name`=%s",
		t->name, t->event_id_is, t->consumer_is);
}

void sql_inbox_lock(struct buf *b, const struct inbox_table *t, const char *status, int64_t age_us,
	struct slice pairs, bool mariadb)
{
	buf_adds(b, "SELECT i.`event_id`,i.`consumer_name` FROM ");
	add_rows(b, t, pairs);
	buf_adds(b, " WHERE ");
	add_due(b, t, status, age_us);
	buf_addf(b, " FOR UPDATE%s SKIP LOCKED", mariadb ? "" : " OF i");
}

void sql_inbox_delete(struct buf *b, const struct inbox_table *t, struct slice pairs)
{
	buf_adds(b, "DELETE i FROM ");
	add_rows(b, t, pairs);
}

/* --- counting ------------------------------------------------------------------------------- */

void inbox_sample_fini(struct inbox_sample *s)
{
	free(s->counts);
	*s = (struct inbox_sample){ 0 };
}

struct sampling {
	struct inbox_sample *out;
	const char *processed;
	struct buf last; /* the consumer of the last row */
	unsigned consumers, statuses;
};

static void copy(char *out, size_t size, struct slice v)
{
	size_t n = v.ptr != NULL ? utf8_prefix(v, size - 1) : 0;

	if (n > 0)
		memcpy(out, v.ptr, n);
	out[n] = '\0';
}

static struct inbox_count *count_of(
	struct inbox_sample *s, const char *consumer, const char *status, struct err *e)
{
	struct inbox_count *c;

	for (size_t i = 0; i < s->count_count; i++)
		if (strcmp(s->counts[i].consumer, consumer) == 0 &&
			strcmp(s->counts[i].status, status) == 0)
			return &s->counts[i];
	if (s->count_count == s->count_cap) {
		size_t cap = s->count_cap * 2 + 16;
		struct inbox_count *more = reallocarray(s->counts, cap, sizeof(*more));

		if (more == NULL) {
			err_set(e, ERR_NOMEM, errno, "counts");
			return NULL;
		}
		s->counts = more;
		s->count_cap = cap;
	}
	c = &s->counts[s->count_count++];
	*c = (struct inbox_count){ 0 };
	str_copy(c->consumer, sizeof(c->consumer), consumer);
	str_copy(c->status, sizeof(c->status), status);
	return c;
}

static struct inbox_age *age_of(struct inbox_sample *s, const char *consumer)
{
	for (size_t i = 0; i < s->age_count; i++)
		if (strcmp(s->ages[i].consumer, consumer) == 0)
			return &s->ages[i];
	if (s->age_count == ARRAY_LEN(s->ages))
		return &s->ages[s->age_count - 1];
	str_copy(s->ages[s->age_count].consumer, sizeof(s->ages[0].consumer), consumer);
	s->ages[s->age_count].oldest_us = 0;
	return &s->ages[s->age_count++];
}

static int row_count(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	struct sampling *s = arg;
	char consumer[129] = "other", status[65] = "other";
	struct inbox_count *c;
	struct inbox_age *age;
	int64_t oldest_us = value_int(v[3], 0);

	(void)statement, (void)count;
	if (s->consumers == 0 || !slice_eq(v[0], buf_slice(&s->last))) {
		s->consumers++;
		s->statuses = 0;
		buf_reset(&s->last);
		buf_add_slice(&s->last, v[0]);
	}
	if (s->consumers <= INBOX_CONSUMERS)
		copy(consumer, sizeof(consumer), v[0]);
	if (s->statuses++ < INBOX_STATUSES)
		copy(status, sizeof(status), v[1]);
	c = count_of(s->out, consumer, status, e);
	if (c == NULL)
		return -1;
	c->rows += value_int(v[2], 0);
	age = age_of(s->out, consumer);
	if (!value_is(v[1], s->processed) && (oldest_us < 0 || oldest_us > age->oldest_us))
		age->oldest_us = oldest_us;
	return 0;
}

int inbox_sample_read(struct session *c, const struct inbox_table *t, const struct inbox_conf *conf,
	struct inbox_sample *out, struct err *e)
{
	struct sampling s = { .out = out, .processed = conf->processed_status };
	struct reply r = { .row = row_count, .arg = &s };
	struct buf text = { 0 };
	int rc;

	out->count_count = out->age_count = 0;
	sql_inbox_count(&text, t);
	session_begin(c);
	rc = text.failed ? err_set(e, ERR_NOMEM, errno, "statement")
			 : session_run(c, buf_slice(&text), &r, e);
	buf_fini(&text);
	buf_fini(&s.last);
	return rc < 0 ? err_wrap(e, "count") : 0;
}

/* --- the table ------------------------------------------------------------------------------ */

struct judge {
	const struct schema *schema;
	const struct finding_sink *sink;
	char table[540], quoted[600];
};

static void found(struct judge *j, enum severity severity, const char *column, const char *fix,
	const char *fmt, ...) PRINTF(5, 6);
static void found(struct judge *j, enum severity severity, const char *column, const char *fix,
	const char *fmt, ...)
{
	char where[820], what[300];
	struct finding f = { severity, where, what, fix };
	va_list ap;

	snprintf(where, sizeof(where), column != NULL ? "%s.%s" : "%s", j->table,
		column != NULL ? column : "");
	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	j->sink->found(j->sink->arg, &f);
}

static const struct schema_column *need(struct judge *j, const char *name, const char *definition)
{
	const struct schema_column *c = schema_column(j->schema, name);
	char fix[900];

	if (c != NULL)
		return c;
	snprintf(fix, sizeof(fix), "ALTER TABLE %s ADD `%s` %s", j->quoted, name, definition);
	found(j, SEVERITY_FAULT, name, fix, "the column is missing");
	return NULL;
}

/* Text from a JSON list, as the key's own collation compares. */
static void add_comparison(
	char *out, size_t size, const char *column, const struct schema_column *c)
{
	if (c == NULL || c->charset[0] == '\0')
		snprintf(out, size, "CAST(k.`%s` AS BINARY)", column);
	else
		snprintf(out, size, "CONVERT(k.`%s` USING %s) COLLATE %s", column, c->charset,
			c->collation);
}

static bool is_time(const struct schema_column *c)
{
	return strcasecmp(c->type, "timestamp") == 0 || strcasecmp(c->type, "datetime") == 0;
}

static void judge_key(struct judge *j, struct inbox_table *out)
{
	const struct schema_column *c[] = { need(j, "event_id", "VARCHAR(64) NOT NULL"),
		need(j, "consumer_name", "VARCHAR(128) NOT NULL") };
	const struct schema_index *key = NULL;
	char fix[900];

	for (size_t i = 0; i < j->schema->index_count; i++)
		if (strcasecmp(j->schema->indexes[i].name, "PRIMARY") == 0)
			key = &j->schema->indexes[i];
	if (key == NULL || key->count != 2 || !key->part[0].whole || !key->part[1].whole ||
		strcasecmp(key->part[0].column, "event_id") != 0 ||
		strcasecmp(key->part[1].column, "consumer_name") != 0) {
		snprintf(fix, sizeof(fix),
			"ALTER TABLE %s %sADD PRIMARY KEY (`event_id`, `consumer_name`)", j->quoted,
			key != NULL ? "DROP PRIMARY KEY, " : "");
		found(j, SEVERITY_FAULT, NULL, fix,
			"the primary key is not (event_id, consumer_name): a repeated message is "
			"not recognised by it, and rows cannot be deleted by it");
	}
	add_comparison(out->event_id_is, sizeof(out->event_id_is), "e", c[0]);
	add_comparison(out->consumer_is, sizeof(out->consumer_is), "c", c[1]);
}

static void judge_status(struct judge *j, struct inbox_table *out)
{
	const struct schema_column *processed =
		need(j, "processed_at", "TIMESTAMP(6) NULL DEFAULT NULL");
	const struct schema_column *received = schema_column(j->schema, "received_at");

	(void)need(j, "status", "VARCHAR(32) NOT NULL DEFAULT 'RECEIVED'");
	if (processed != NULL && !is_time(processed))
		found(j, SEVERITY_FAULT, "processed_at", "make it TIMESTAMP(6) NULL",
			"it is %s, neither TIMESTAMP nor DATETIME", processed->full);
	if (processed != NULL)
		out->processed_fraction = processed->fraction > 6 ? 6 : processed->fraction;
	out->has_received = received != NULL && is_time(received);
	if (out->has_received)
		out->received_fraction = received->fraction > 6 ? 6 : received->fraction;
	else
		found(j, SEVERITY_NOTE, "received_at", "",
			"there is no such time: how long rows have been unprocessed is not known");
}

static void judge_index(struct judge *j, struct inbox_table *out)
{
	static const char *const columns[] = { "consumer_name", "status", "received_at" };
	char fix[900];

	for (size_t i = 0; i < j->schema->index_count && out->has_received; i++) {
		const struct schema_index *x = &j->schema->indexes[i];
		bool fits = x->usable && x->count == ARRAY_LEN(columns);

		for (size_t k = 0; fits && k < ARRAY_LEN(columns); k++)
			fits = strcasecmp(x->part[k].column, columns[k]) == 0 && x->part[k].whole &&
			       x->part[k].ascending;
		if (fits &&
			sql_quote_name(out->consumer_index, sizeof(out->consumer_index), x->name))
			return;
	}
	snprintf(fix, sizeof(fix),
		"CREATE INDEX `idx_inbox_consumer` ON %s (`consumer_name`, `status`, "
		"`received_at`)",
		j->quoted);
	found(j, SEVERITY_WARNING, NULL, out->has_received ? fix : "",
		"there is no index on (consumer_name, status, received_at): to count its rows and "
		"to look for old ones the whole table is read each time");
}

void inbox_judge(const struct schema *s, const struct finding_sink *sink, struct inbox_table *out)
{
	struct judge j = { .schema = s, .sink = sink };

	*out = (struct inbox_table){ 0 };
	snprintf(j.table, sizeof(j.table), "%s.%s", s->database, s->table);
	if (!sql_table_name(j.quoted, sizeof(j.quoted), s->database, s->table)) {
		found(&j, SEVERITY_FAULT, NULL, "use a shorter name",
			"the table's name is too long");
		return;
	}
	str_copy(out->name, sizeof(out->name), j.quoted);
	if (s->kind[0] == '\0') {
		found(&j, SEVERITY_FAULT, NULL,
			"create it with what `outboxd schema --inbox` prints, or let the account "
			"see it",
			"the table does not exist, or the account has no privilege on it");
		return;
	}
	if (strcmp(s->kind, "BASE TABLE") != 0 || strcasecmp(s->engine, "InnoDB") != 0) {
		found(&j, SEVERITY_FAULT, NULL, "make it an InnoDB table",
			"it is a %s of engine %s, not a table of InnoDB", s->kind, s->engine);
		return;
	}
	judge_key(&j, out);
	judge_status(&j, out);
	judge_index(&j, out);
}

static void first_fault(void *arg, const struct finding *f)
{
	struct err *e = arg;

	if (f->severity == SEVERITY_FAULT && e->kind == ERR_NONE)
		err_set(e, ERR_CONFIG, 0, "%s: %s: %s", f->where, f->what, f->fix);
}

int inbox_read(
	struct session *c, const struct inbox_conf *conf, struct inbox_table *out, struct err *e)
{
	struct err fault = { 0 };
	const struct finding_sink sink = { first_fault, &fault };
	struct schema s;

	session_begin(c);
	if (schema_read(c, conf->database.name, conf->table, &s, e) < 0)
		return -1;
	inbox_judge(&s, &sink, out);
	schema_fini(&s);
	if (fault.kind == ERR_NONE)
		return 0;
	*e = fault;
	return -1;
}

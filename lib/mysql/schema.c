#include "mysql/schema.h"

#include "mysql/values.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#define ROOM_FOR_OWNER 128

void schema_fini(struct schema *s)
{
	for (size_t i = 0; i < s->column_count; i++)
		free(s->columns[i].full);
	free(s->columns);
	free(s->indexes);
	*s = (struct schema){ 0 };
}

const struct schema_column *schema_column(const struct schema *s, const char *name)
{
	for (size_t i = 0; i < s->column_count; i++)
		if (strcasecmp(s->columns[i].name, name) == 0)
			return &s->columns[i];
	return NULL;
}

bool schema_generated(const struct schema_column *c)
{
	return strcasestr(c->extra, "GENERATED") != NULL &&
	       strcasestr(c->extra, "DEFAULT_GENERATED") == NULL;
}

void schema_add_columns(const struct schema *s, struct buf *out)
{
	for (size_t i = 0; i < s->column_count; i++) {
		if (schema_generated(&s->columns[i]))
			continue;
		if (out->len > 0)
			buf_addc(out, ',');
		sql_add_name(out, s->columns[i].name);
	}
}

const char *severity_name(enum severity s)
{
	static const char *const names[] = { "note", "warning", "fault" };

	return names[s];
}

/* --- reading -------------------------------------------------------------------------------- */

static void copy(char *out, size_t size, struct slice v)
{
	snprintf(out, size, "%.*s", (int)(v.len < size ? v.len : size - 1),
		v.ptr != NULL ? v.ptr : "");
}

static void *grown(void *list, size_t count, size_t each, struct err *e)
{
	void *more;

	if ((count & (count - 1)) != 0)
		return list; /* a power of two is when it is full */
	more = realloc(list, (count > 0 ? count * 2 : 1) * each);
	if (more == NULL)
		err_set(e, ERR_NOMEM, errno, "columns");
	return more;
}

static int row_table(struct schema *s, const struct slice *v)
{
	copy(s->database, sizeof(s->database), v[0]);
	copy(s->table, sizeof(s->table), v[1]);
	copy(s->kind, sizeof(s->kind), v[2]);
	copy(s->engine, sizeof(s->engine), v[3]);
	return 0;
}

static int row_column(struct schema *s, const struct slice *v, struct err *e)
{
	struct schema_column *list = grown(s->columns, s->column_count, sizeof(*s->columns), e);
	struct schema_column *c;

	if (list == NULL)
		return -1;
	s->columns = list;
	c = &list[s->column_count];
	*c = (struct schema_column){ 0 };
	copy(c->name, sizeof(c->name), v[0]);
	copy(c->type, sizeof(c->type), v[1]);
	copy(c->charset, sizeof(c->charset), v[6]);
	copy(c->collation, sizeof(c->collation), v[7]);
	copy(c->extra, sizeof(c->extra), v[8]);
	c->nullable = value_true(v[3]);
	c->length = (uint64_t)value_int(v[4], 0);
	c->fraction = value_count(v[5]);
	c->has_default = v[9].ptr != NULL || c->nullable;
	c->full = strndup(v[2].ptr != NULL ? v[2].ptr : "", v[2].len);
	if (c->full == NULL)
		return err_set(e, ERR_NOMEM, errno, "columns");
	s->column_count++;
	return 0;
}

static int row_index(struct schema *s, const struct slice *v, struct err *e)
{
	struct schema_index *index = s->index_count > 0 ? &s->indexes[s->index_count - 1] : NULL;
	char name[sizeof(index->name)];

	copy(name, sizeof(name), v[0]);
	if (index == NULL || strcmp(index->name, name) != 0) {
		struct schema_index *list =
			grown(s->indexes, s->index_count, sizeof(*s->indexes), e);

		if (list == NULL)
			return -1;
		s->indexes = list;
		index = &list[s->index_count++];
		*index = (struct schema_index){ 0 };
		copy(index->name, sizeof(index->name), v[0]);
		index->unique = !value_true(v[3]);
		/* IS_VISIBLE in MySQL, the opposite, IGNORED, in MariaDB: made equal by the query
		 */
		index->usable = value_is(v[5], "BTREE") && value_true(v[6]);
	}
	if (index->count < SCHEMA_PARTS) {
		struct schema_part *part = &index->part[index->count++];

		copy(part->column, sizeof(part->column), v[1]);
		part->whole = v[2].ptr == NULL;
		part->ascending = !value_is(v[4], "D");
	}
	return 0;
}

static int row_schema(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	(void)count;
	switch (statement) {
	case 0:
		return row_table(arg, v);
	case 1:
		return row_column(arg, v, e);
	default:
		return row_index(arg, v, e);
	}
}

int schema_read(struct session *c, const char *database, const char *table, struct schema *out,
	struct err *e)
{
	const bool mariadb = session_server(c)->mariadb;
	struct reply r = { .row = row_schema, .arg = out };
	struct buf text = { 0 }, where = { 0 };
	int rc = -1;

	*out = (struct schema){ 0 };
	copy(out->database, sizeof(out->database), slice_str(database));
	copy(out->table, sizeof(out->table), slice_str(table));
	buf_adds(&where, " WHERE TABLE_SCHEMA=");
	sql_add_string(&where, slice_str(database));
	buf_adds(&where, " AND TABLE_NAME=");
	sql_add_string(&where, slice_str(table));

	buf_adds(&text, "SELECT TABLE_SCHEMA,TABLE_NAME,TABLE_TYPE,ENGINE FROM "
			"information_schema.TABLES");
	buf_add_slice(&text, buf_slice(&where));
	buf_adds(&text,
		";SELECT COLUMN_NAME,DATA_TYPE,COLUMN_TYPE,IS_NULLABLE,CHARACTER_MAXIMUM_LENGTH,"
		"DATETIME_PRECISION,CHARACTER_SET_NAME,COLLATION_NAME,EXTRA,COLUMN_DEFAULT FROM "
		"information_schema.COLUMNS");
	buf_add_slice(&text, buf_slice(&where));
	buf_adds(&text, " ORDER BY ORDINAL_POSITION");
	buf_addf(&text,
		";SELECT INDEX_NAME,COLUMN_NAME,SUB_PART,NON_UNIQUE,COLLATION,INDEX_TYPE,%s FROM "
		"information_schema.STATISTICS",
		mariadb ? "IF(IGNORED='YES','NO','YES')" : "IS_VISIBLE");
	buf_add_slice(&text, buf_slice(&where));
	buf_adds(&text, " ORDER BY INDEX_NAME,SEQ_IN_INDEX");
	if (text.failed || where.failed)
		err_set(e, ERR_NOMEM, errno, "statement");
	else
		rc = session_run(c, buf_slice(&text), &r, e);
	buf_fini(&text);
	buf_fini(&where);
	if (rc < 0)
		schema_fini(out);
	return rc;
}

/* --- judging -------------------------------------------------------------------------------- */

struct judge {
	const struct schema *schema;
	const struct finding_sink *sink;
	char table[540]; /* shop.outbox_event */
	char quoted[1100];
	unsigned faults;
};

static void found(struct judge *j, enum severity severity, const char *column, const char *fix,
	const char *fmt, ...) PRINTF(5, 6);
static void found(struct judge *j, enum severity severity, const char *column, const char *fix,
	const char *fmt, ...)
{
	char where[820], what[300];
	struct finding f = { severity, where, what, fix };
	va_list ap;

	if (severity == SEVERITY_FAULT)
		j->faults++;
	snprintf(where, sizeof(where), column != NULL ? "%s.%s" : "%s", j->table,
		column != NULL ? column : "");
	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	j->sink->found(j->sink->arg, &f);
}

/* The statement that makes the column what it should be. */
static const char *modify(
	struct judge *j, char *out, size_t size, const char *column, const char *definition)
{
	snprintf(out, size, "ALTER TABLE %s MODIFY `%s` %s", j->quoted, column, definition);
	return out;
}

static bool one_of(const char *type, const char *const *list)
{
	for (; *list != NULL; list++)
		if (strcasecmp(type, *list) == 0)
			return true;
	return false;
}

static const char *const text_types[] = { "varchar", "char", "text", "tinytext", "mediumtext",
	"longtext", NULL };
static const char *const binary_types[] = { "binary", "varbinary", "blob", "tinyblob", NULL };
static const char *const integer_types[] = { "tinyint", "smallint", "mediumint", "int", "bigint",
	NULL };
static const char *const time_types[] = { "timestamp", "datetime", NULL };

/* What holds the states and the owner; compared with ASCII literals as they are. */
static bool bytewise_charset(const struct schema_column *c)
{
	return strncmp(c->charset, "utf16", 5) != 0 && strncmp(c->charset, "utf32", 5) != 0 &&
	       strncmp(c->charset, "ucs2", 4) != 0;
}

static bool case_insensitive(const struct schema_column *c)
{
	return strstr(c->collation, "_ci") != NULL;
}

static const struct schema_column *need(struct judge *j, const char *column, const char *definition)
{
	const struct schema_column *c = schema_column(j->schema, column);
	char fix[1500];

	if (c == NULL) {
		snprintf(fix, sizeof(fix), "ALTER TABLE %s ADD `%s` %s", j->quoted, column,
			definition);
		found(j, SEVERITY_FAULT, column, fix, "the column is missing");
	} else if (schema_generated(c)) {
		found(j, SEVERITY_FAULT, column, "make it an ordinary column",
			"it is a generated column, which cannot be written");
	}
	return c;
}

static void judge_time(struct judge *j, enum time_column which, struct outbox_table *table)
{
	const char *name = time_column_name[which];
	const char *definition = which == TIME_CREATED
					 ? "TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)"
					 : "TIMESTAMP(6) NULL DEFAULT NULL";
	const struct schema_column *c = need(j, name, definition);
	char fix[1500];

	if (c == NULL)
		return;
	if (!one_of(c->type, time_types)) {
		found(j, SEVERITY_FAULT, name, modify(j, fix, sizeof(fix), name, definition),
			"it is %s, neither TIMESTAMP nor DATETIME", c->full);
		return;
	}
	table->fraction[which] = c->fraction > 6 ? 6 : c->fraction;
	table->on_update[which] = strcasestr(c->extra, "on update") != NULL;
	if (which != TIME_CREATED && !c->nullable)
		found(j, SEVERITY_FAULT, name, modify(j, fix, sizeof(fix), name, definition),
			"it must allow NULL");
	if (which == TIME_CREATED && c->fraction < 6)
		found(j, SEVERITY_NOTE, name, modify(j, fix, sizeof(fix), name, definition),
			"%u digits of the second: events of an aggregate that share a created_at "
			"go by id",
			c->fraction);
	if (which == TIME_NEXT_RETRY && c->fraction == 0)
		found(j, SEVERITY_NOTE, name, modify(j, fix, sizeof(fix), name, definition),
			"no fractions of a second: waits are rounded up to whole ones");
	if (strcasecmp(c->type, "datetime") == 0)
		found(j, SEVERITY_NOTE, name, "",
			"DATETIME is taken as UTC: producers must write UTC_TIMESTAMP(), not NOW() "
			"in a session of another time zone");
	if (table->on_update[which])
		found(j, SEVERITY_WARNING, name, modify(j, fix, sizeof(fix), name, definition),
			"it has ON UPDATE CURRENT_TIMESTAMP: the relay keeps it as it is, other "
			"programs move it with every change%s",
			which == TIME_CREATED ? ", and with it the order" : "");
}

static const char *const states[] = { "PENDING", "PROCESSING", "SENT", "RETRY", "DEAD" };

static void judge_status(struct judge *j)
{
	const char *definition = "VARCHAR(32) NOT NULL DEFAULT 'PENDING'";
	const struct schema_column *c = need(j, "status", definition);
	char fix[1500];

	if (c == NULL)
		return;
	modify(j, fix, sizeof(fix), "status", definition);
	if (strcasecmp(c->type, "enum") == 0) {
		for (size_t i = 0; i < ARRAY_LEN(states); i++) {
			char quoted[20];

			snprintf(quoted, sizeof(quoted), "'%s'", states[i]);
			if (strcasestr(c->full, quoted) == NULL)
				found(j, SEVERITY_FAULT, "status", fix,
					"the ENUM lacks the state %s", states[i]);
		}
	} else if (strcasecmp(c->type, "varchar") != 0 && strcasecmp(c->type, "char") != 0) {
		found(j, SEVERITY_FAULT, "status", fix, "it is %s, not VARCHAR", c->full);
	} else if (c->length < strlen("PROCESSING")) {
		found(j, SEVERITY_FAULT, "status", fix,
			"%" PRIu64 " characters are too few for PROCESSING", c->length);
	}
	if (!bytewise_charset(c))
		found(j, SEVERITY_FAULT, "status", fix, "its character set is %s", c->charset);
}

static void judge_owner(struct judge *j, const struct schema_wish *wish)
{
	const char *definition = "VARCHAR(128) NULL DEFAULT NULL";
	const struct schema_column *c = need(j, "locked_by", definition);
	size_t want = wish->owner != NULL ? strlen(wish->owner) : ROOM_FOR_OWNER;
	char fix[1500];

	if (c == NULL)
		return;
	modify(j, fix, sizeof(fix), "locked_by", definition);
	if (!one_of(c->type, text_types) || !bytewise_charset(c))
		found(j, SEVERITY_FAULT, "locked_by", fix, "it is %s %s, not VARCHAR", c->full,
			c->charset);
	else if (c->length < want)
		found(j, wish->owner != NULL ? SEVERITY_FAULT : SEVERITY_WARNING, "locked_by", fix,
			"%" PRIu64 " characters are too few for the owner's name: %zu are needed",
			c->length, want);
	if (!c->nullable)
		found(j, SEVERITY_FAULT, "locked_by", fix, "it must allow NULL");
}

static void judge_error(struct judge *j, struct outbox_table *table)
{
	const char *definition = "VARCHAR(1024) NULL DEFAULT NULL";
	const struct schema_column *c = need(j, "last_error", definition);
	char fix[1500];

	if (c == NULL)
		return;
	modify(j, fix, sizeof(fix), "last_error", definition);
	if (!one_of(c->type, text_types)) {
		found(j, SEVERITY_FAULT, "last_error", fix, "it is %s, not VARCHAR", c->full);
		return;
	}
	if (!c->nullable)
		found(j, SEVERITY_FAULT, "last_error", fix, "it must allow NULL");
	if (c->length < 64)
		found(j, SEVERITY_FAULT, "last_error", fix,
			"%" PRIu64 " characters are too few for the reason of a failure",
			c->length);
	else if (c->length < SQL_ERROR_CHARS)
		found(j, SEVERITY_NOTE, "last_error", fix,
			"reasons are cut to %" PRIu64 " characters", c->length);
	table->error_chars = c->length < SQL_ERROR_CHARS ? (size_t)c->length : SQL_ERROR_CHARS;
	table->error_repertoire = strcmp(c->charset, "utf8mb4") == 0    ? REPERTOIRE_UNICODE
				  : strncmp(c->charset, "utf8", 4) == 0 ? REPERTOIRE_BMP
									: REPERTOIRE_ASCII;
}

static void judge_id(struct judge *j, struct outbox_table *table)
{
	const struct schema_column *c =
		need(j, "id", "BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY");

	if (c == NULL)
		return;
	if (!one_of(c->type, integer_types))
		found(j, SEVERITY_FAULT, "id", "give the table an integer primary key `id`",
			"it is %s, not an integer", c->full);
	table->id_signed = strcasestr(c->full, "unsigned") == NULL;
}

static void judge_texts(struct judge *j, struct outbox_table *table)
{
	static const struct {
		const char *name, *definition;
		bool identity;
	} columns[] = {
		{ "event_id", "VARCHAR(64) NOT NULL", true },
		{ "aggregate_type", "VARCHAR(64) NOT NULL", true },
		{ "aggregate_id", "VARCHAR(128) NOT NULL", true },
		{ "event_type", "VARCHAR(128) NOT NULL", false },
		{ "payload", "JSON NOT NULL", false },
	};

	const struct schema_column *payload = schema_column(j->schema, "payload");

	table->payload_json = payload != NULL && strcmp(payload->type, "json") == 0;
	for (size_t i = 0; i < ARRAY_LEN(columns); i++) {
		const struct schema_column *c = need(j, columns[i].name, columns[i].definition);

		if (c != NULL && columns[i].identity && case_insensitive(c))
			found(j, SEVERITY_NOTE, columns[i].name, "",
				"its collation, %s, takes 'a' and 'A' for the same; the relay goes "
				"by bytes",
				c->collation);
	}
	for (size_t i = 0; i < ARRAY_LEN(table->aggregate_binary); i++) {
		const struct schema_column *c =
			schema_column(j->schema, i == 0 ? "aggregate_type" : "aggregate_id");

		table->aggregate_binary[i] = c != NULL && one_of(c->type, binary_types);
	}
}

/* Columns of the operator's own: the relay only ever updates, so they are the producer's to fill.
 */
static void judge_others(struct judge *j)
{
	static const char *const known[] = { "id", "event_id", "aggregate_type", "aggregate_id",
		"event_type", "payload", "status", "retry_count", "next_retry_at", "locked_by",
		"locked_until", "created_at", "sent_at", "last_error", NULL };

	for (size_t i = 0; i < j->schema->column_count; i++) {
		const struct schema_column *c = &j->schema->columns[i];

		if (!one_of(c->name, known) && !c->has_default && c->extra[0] == '\0')
			found(j, SEVERITY_NOTE, c->name, "",
				"NOT NULL without a default: every producer has to fill it");
	}
}

static void judge_count(struct judge *j)
{
	const char *definition = "INT NOT NULL DEFAULT 0";
	const struct schema_column *c = need(j, "retry_count", definition);
	char fix[1500];

	if (c != NULL && !one_of(c->type, integer_types))
		found(j, SEVERITY_FAULT, "retry_count",
			modify(j, fix, sizeof(fix), "retry_count", definition),
			"it is %s, not an integer", c->full);
}

static bool index_starts(const struct schema_index *x, const char *const *columns, unsigned count)
{
	if (!x->usable || x->count < count)
		return false;
	for (unsigned i = 0; i < count; i++)
		if (strcasecmp(x->part[i].column, columns[i]) != 0 || !x->part[i].whole ||
			!x->part[i].ascending)
			return false;
	return true;
}

/* Exactly these columns, or followed by the primary key, which every index ends with anyway: only
 * then rows of equal keys come in the order of their ids. */
static const struct schema_index *index_on(
	const struct schema *s, const char *const *columns, unsigned count)
{
	for (size_t i = 0; i < s->index_count; i++) {
		const struct schema_index *x = &s->indexes[i];

		if (index_starts(x, columns, count) &&
			(x->count == count ||
				(x->count == count + 1 && x->part[count].ascending &&
					strcasecmp(x->part[count].column, "id") == 0)))
			return x;
	}
	return NULL;
}

static void judge_indexes(
	struct judge *j, const struct schema_wish *wish, struct outbox_table *table)
{
	static const char *const id[] = { "id" };
	static const char *const event[] = { "event_id" };
	static const char *const claim[] = { "status", "next_retry_at", "created_at" };
	static const char *const aggregate[] = { "aggregate_type", "aggregate_id", "created_at" };
	const struct schema_index *x;
	bool primary = false, unique = false;
	char fix[1500];

	for (size_t i = 0; i < j->schema->index_count; i++) {
		x = &j->schema->indexes[i];
		primary |= strcasecmp(x->name, "PRIMARY") == 0 && index_starts(x, id, 1);
		unique |= x->unique && x->count == 1 && index_starts(x, event, 1);
	}
	if (!primary) {
		snprintf(fix, sizeof(fix), "ALTER TABLE %s ADD PRIMARY KEY (`id`)", j->quoted);
		found(j, SEVERITY_FAULT, NULL, fix, "id is not the primary key");
	}
	if (!unique) {
		snprintf(fix, sizeof(fix),
			"ALTER TABLE %s ADD UNIQUE KEY `uq_outbox_event_id` (`event_id`)",
			j->quoted);
		found(j, SEVERITY_WARNING, NULL, fix,
			"event_id is not unique: consumers that drop duplicates by it would drop "
			"events");
	}
	x = index_on(j->schema, claim, ARRAY_LEN(claim));
	if (x == NULL) {
		snprintf(fix, sizeof(fix),
			"CREATE INDEX `idx_outbox_claim` ON %s (`status`, `next_retry_at`, "
			"`created_at`)",
			j->quoted);
		found(j, SEVERITY_FAULT, NULL, fix,
			"there is no index on (status, next_retry_at, created_at): each claim "
			"would "
			"read the whole table");
	} else if (!sql_quote_name(table->claim_index, sizeof(table->claim_index), x->name)) {
		found(j, SEVERITY_FAULT, NULL, "give the index a shorter name",
			"the name of the claim index is too long");
	}
	x = index_on(j->schema, aggregate, ARRAY_LEN(aggregate));
	if (x == NULL) {
		snprintf(fix, sizeof(fix),
			"CREATE INDEX `idx_outbox_aggregate` ON %s (`aggregate_type`, "
			"`aggregate_id`, "
			"`created_at`)",
			j->quoted);
		found(j, wish->ordered ? SEVERITY_FAULT : SEVERITY_NOTE, NULL, fix,
			"there is no index on (aggregate_type, aggregate_id, created_at)%s",
			wish->ordered ? ", which ordering: aggregate needs" : "");
	} else if (!sql_quote_name(
			   table->aggregate_index, sizeof(table->aggregate_index), x->name)) {
		found(j, SEVERITY_FAULT, NULL, "give the index a shorter name",
			"the name of the aggregates' index is too long");
	}
}

void plan_add(struct query_plan *p, const struct slice *values, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		struct slice value = values[i].ptr != NULL ? values[i] : SLICE_LIT("-");
		size_t n = strlen(p->text);

		p->scan |= value_is(value, "ALL");
		p->sort |= memmem(value.ptr, value.len, "filesort", 8) != NULL ||
			   memmem(value.ptr, value.len, "temporary", 9) != NULL;
		snprintf(p->text + n, sizeof(p->text) - n, "%s%.*s", n > 0 ? " " : "",
			(int)(value.len > 100 ? 100 : value.len), value.ptr);
	}
}

void schema_judge(const struct schema *s, const struct schema_wish *wish,
	const struct finding_sink *sink, struct outbox_table *table)
{
	struct judge j = { .schema = s, .sink = sink };

	*table = (struct outbox_table){ .extra = wish->extra, .extra_count = wish->extra_count };
	snprintf(j.table, sizeof(j.table), "%s.%s", s->database, s->table);
	if (!sql_table_name(j.quoted, sizeof(j.quoted), s->database, s->table) ||
		!sql_table_name(table->name, sizeof(table->name), s->database, s->table)) {
		found(&j, SEVERITY_FAULT, NULL, "use a shorter name",
			"the table's name is too long");
		return;
	}
	if (s->kind[0] == '\0') {
		found(&j, SEVERITY_FAULT, NULL,
			"create it with what `outboxd schema --outbox` prints, or let the account "
			"see it",
			"the table does not exist, or the account has no privilege on it");
		return;
	}
	if (strcmp(s->kind, "BASE TABLE") != 0) {
		found(&j, SEVERITY_FAULT, NULL, "name the table itself", "it is a %s, not a table",
			s->kind);
		return;
	}
	if (strcasecmp(s->engine, "InnoDB") != 0) {
		char fix[1500];

		snprintf(fix, sizeof(fix), "ALTER TABLE %s ENGINE=InnoDB", j.quoted);
		found(&j, SEVERITY_FAULT, NULL, fix, "its engine is %s, not InnoDB", s->engine);
	}
	judge_id(&j, table);
	judge_texts(&j, table);
	judge_status(&j);
	judge_count(&j);
	for (unsigned c = 0; c < TIME_COLUMNS; c++)
		judge_time(&j, c, table);
	judge_owner(&j, wish);
	judge_error(&j, table);
	for (unsigned c = 0; c < OPTIONAL_COLUMNS; c++)
		table->has[c] = schema_column(s, optional_column_name[c]) != NULL;
	for (size_t i = 0; i < wish->extra_count; i++)
		if (schema_column(s, wish->extra[i]) == NULL)
			found(&j, SEVERITY_FAULT, wish->extra[i],
				"add the column, or take it out of the templates",
				"a template names this column, which the table does not have");
	judge_others(&j);
	judge_indexes(&j, wish, table);
}

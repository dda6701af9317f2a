#include "mysql/statements.h"

#include "base/str.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <time.h>

#define ASSIGNS(c) (1u << (c))

const char *const time_column_name[TIME_COLUMNS] = {
	[TIME_CREATED] = "created_at",
	[TIME_NEXT_RETRY] = "next_retry_at",
	[TIME_LOCKED] = "locked_until",
	[TIME_SENT] = "sent_at",
};

const char *const optional_column_name[OPTIONAL_COLUMNS] = {
	[OPTIONAL_AGGREGATE_VERSION] = "aggregate_version",
	[OPTIONAL_TRACE_ID] = "trace_id",
	[OPTIONAL_TRACEPARENT] = "traceparent",
	[OPTIONAL_TRACESTATE] = "tracestate",
	[OPTIONAL_HEADERS] = "headers",
};

/* What makes a row one of its class, and the order it is read in: that of the claim index. A
 * PROCESSING row without owner or lease was written half, or by hand: it counts as expired at once.
 */
static const struct {
	const char *where;
	const char *order;
} class_rule[ROW_CLASSES] = {
	[ROW_FRESH] = { "`status`='PENDING' AND `next_retry_at` IS NULL", "`created_at`,`id`" },
	[ROW_DUE] = { "`status`='PENDING' AND `next_retry_at`<=NOW(6)",
		"`next_retry_at`,`created_at`,`id`" },
	[ROW_RETRY] = { "`status`='RETRY' AND (`next_retry_at` IS NULL OR `next_retry_at`<=NOW(6))",
		"`next_retry_at`,`created_at`,`id`" },
	/* and not our own, see add_where() */
	[ROW_EXPIRED] = { "`status`='PROCESSING'", "`next_retry_at`,`created_at`,`id`" },
};

/* A row under this very owner is never expired to itself: it knows better. */
static void add_where(struct buf *b, enum row_class class, const char *owner, int64_t since_us)
{
	buf_adds(b, class_rule[class].where);
	if (class == ROW_FRESH && since_us != 0) {
		buf_adds(b, " AND `created_at`>=");
		sql_add_time(b, since_us);
	}
	if (class == ROW_EXPIRED)
		buf_addf(b,
			" AND (`locked_by` IS NULL OR (`locked_by`<>_binary%s AND "
			"(`locked_until`<NOW(6) OR `locked_until` IS NULL)))",
			owner);
}

void sql_add_name(struct buf *b, const char *name)
{
	buf_addc(b, '`');
	for (; *name != '\0'; name++) {
		if (*name == '`')
			buf_addc(b, '`');
		buf_addc(b, *name);
	}
	buf_addc(b, '`');
}

bool sql_quote_name(char *out, size_t size, const char *name)
{
	size_t n = 0;

	if (size < 3)
		return false;
	out[n++] = '`';
	for (; *name != '\0'; name++) {
		if (n + 4 > size)
			return false;
		if (*name == '`')
			out[n++] = '`';
		out[n++] = *name;
	}
	out[n++] = '`';
	out[n] = '\0';
	return true;
}

bool sql_table_name(char *out, size_t size, const char *schema, const char *table)
{
	size_t n;

	if (!sql_quote_name(out, size, schema))
		return false;
	n = strlen(out);
	if (n + 1 >= size)
		return false;
	out[n++] = '.';
	return sql_quote_name(out + n, size - n, table);
}

void sql_add_string(struct buf *b, struct slice text)
{
	size_t from = 0;

	buf_addc(b, '\'');
	for (size_t i = 0; i < text.len; i++) {
		char as;

		switch (text.ptr[i]) {
		case '\0':
			as = '0';
			break;
		case '\n':
			as = 'n';
			break;
		case '\r':
			as = 'r';
			break;
		case 0x1A:
			as = 'Z';
			break;
		case '\'':
		case '"':
		case '\\':
			as = text.ptr[i];
			break;
		default:
			continue;
		}
		buf_add(b, text.ptr + from, i - from);
		buf_addc(b, '\\');
		buf_addc(b, as);
		from = i + 1;
	}
	if (text.len > from)
		buf_add(b, text.ptr + from, text.len - from);
	buf_addc(b, '\'');
}

void sql_add_time(struct buf *b, int64_t us)
{
	int64_t fraction = us % US_PER_SEC;
	time_t second;
	struct tm tm;

	if (fraction < 0)
		fraction += US_PER_SEC;
	second = (time_t)((us - fraction) / US_PER_SEC);
	if (gmtime_r(&second, &tm) == NULL || tm.tm_year < -1900 || tm.tm_year > 8099) {
		buf_adds(b, "'1970-01-01 00:00:00'");
		return;
	}
	buf_addf(b, "'%04d-%02d-%02d %02d:%02d:%02d.%06d'", tm.tm_year + 1900, tm.tm_mon + 1,
		tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec, (int)fraction);
}

static size_t widest(enum repertoire r)
{
	return r == REPERTOIRE_ASCII ? 1 : r == REPERTOIRE_BMP ? 3 : 4;
}

void sql_add_error(struct buf *b, const struct outbox_table *t, const char *text)
{
	size_t len = strlen(text), chars = 0;
	size_t width = widest(t->error_repertoire);

	buf_addc(b, '\'');
	for (size_t i = 0; i < len && chars < t->error_chars; chars++) {
		size_t n = utf8_sequence(text + i, len - i);

		if (n == 0 || n > width)
			buf_addc(b, '?');
		else if (text[i] == '\'' || text[i] == '\\')
			buf_addf(b, "\\%c", text[i]);
		else if (n == 1 && (unsigned char)text[i] < 0x20)
			buf_addc(b, ' ');
		else
			buf_add(b, text + i, n);
		i += n > 0 ? n : 1;
	}
	buf_addc(b, '\'');
}

/* Now plus a length of time, rounded up to what the column can hold: a lease or a delay never ends
 * early. */
static void add_after(
	struct buf *b, const struct outbox_table *t, enum time_column column, int64_t us)
{
	unsigned digits = t->fraction[column];
	int64_t unit = 1;

	if (digits >= 6) {
		buf_addf(b, "NOW(6)+INTERVAL %" PRId64 " MICROSECOND", us);
		return;
	}
	for (unsigned i = digits; i < 6; i++)
		unit *= 10;
	buf_addf(b,
		"NOW(0)+INTERVAL CEIL((%" PRId64 "+MICROSECOND(NOW(6)))/%" PRId64 ")*%" PRId64
		" MICROSECOND",
		us, unit, unit);
}

/* Time columns that would move by themselves stay as they are, except those just assigned. */
static void add_unmoved(struct buf *b, const struct outbox_table *t, unsigned assigned)
{
	for (unsigned c = 0; c < TIME_COLUMNS; c++)
		if (t->on_update[c] && !(assigned & ASSIGNS(c)))
			buf_addf(b, ",`%s`=`%s`", time_column_name[c], time_column_name[c]);
}

void sql_add_id(struct buf *b, const struct outbox_table *t, uint64_t id)
{
	if (t->id_signed && (int64_t)id < 0) {
		buf_addc(b, '-');
		id = 0 - id;
	}
	buf_addu(b, id);
}

void sql_add_ids(struct buf *b, const struct outbox_table *t, const uint64_t *ids, size_t count)
{
	buf_adds(b, "`id` IN (");
	for (size_t i = 0; i < count; i++) {
		if (i > 0)
			buf_addc(b, ',');
		sql_add_id(b, t, ids[i]);
	}
	buf_addc(b, ')');
}

void sql_add_rows(struct buf *b, const struct outbox_table *t, const uint64_t *ids, size_t count)
{
	buf_adds(b, "JSON_TABLE('[");
	for (size_t i = 0; i < count; i++) {
		if (i > 0)
			buf_addc(b, ',');
		sql_add_id(b, t, ids[i]);
	}
	buf_addf(b,
		"]','$[*]' COLUMNS (`id` BIGINT%s PATH '$')) AS k STRAIGHT_JOIN %s AS o FORCE "
		"INDEX "
		"(PRIMARY) ON o.`id`=k.`id`",
		t->id_signed ? "" : " UNSIGNED", t->name);
}

/* Compared by bytes, whatever the column's collation makes equal. */
static void add_fence(struct buf *b, const char *owner)
{
	buf_addf(b, "`status`='PROCESSING' AND `locked_by`=_binary%s", owner);
}

static void add_update(struct buf *b, const struct outbox_table *t)
{
	buf_addf(b, "UPDATE %s FORCE INDEX (PRIMARY) SET ", t->name);
}

void sql_assert(struct buf *b, const char *isolation, const char *lock)
{
	buf_addf(b, "SELECT CONNECTION_ID(),@@SESSION.time_zone,@@SESSION.%s,", isolation);
	if (lock == NULL)
		buf_addc(b, '1');
	else
		buf_addf(b, "IS_USED_LOCK('%s')<=>CONNECTION_ID()", lock);
}

void sql_look(struct buf *b, const struct outbox_table *t, const char *owner, const char *isolation,
	const char *lock, bool expired_too)
{
	static const char *const waiting[] = { "PENDING", "RETRY" };

	buf_addf(b, "SELECT CONNECTION_ID(),@@SESSION.time_zone,@@SESSION.%s,", isolation);
	if (lock == NULL)
		buf_addc(b, '1');
	else /* locks of one name add up: it is taken once */
		buf_addf(b, "IF(IS_USED_LOCK('%s')<=>CONNECTION_ID(),1,GET_LOCK('%s',0))", lock,
			lock);
	buf_adds(b, ",@@GLOBAL.read_only,NOW(6)");
	for (unsigned c = 0; c < ROW_CLASSES; c++) {
		if (c == ROW_EXPIRED && !expired_too) {
			buf_adds(b, ",0");
		} else {
			buf_addf(b, ",EXISTS(SELECT 1 FROM %s FORCE INDEX (%s) WHERE ", t->name,
				t->claim_index);
			add_where(b, c, owner, 0);
			buf_addc(b, ')');
		}
	}
	for (size_t i = 0; i < ARRAY_LEN(waiting); i++)
		buf_addf(b,
			",(SELECT TIMESTAMPDIFF(MICROSECOND,NOW(6),`next_retry_at`) FROM %s FORCE "
			"INDEX (%s) "
			"WHERE `status`='%s' AND `next_retry_at`>NOW(6) ORDER BY `next_retry_at` "
			"LIMIT 1)",
			t->name, t->claim_index, waiting[i]);
}

static void add_event_columns(struct buf *b, const struct outbox_table *t)
{
	buf_adds(b,
		"SELECT `id`,`created_at`,`retry_count`,`event_id`,`aggregate_type`,`aggregate_id`,"
		"`event_type`,`payload`,`last_error`");
	for (unsigned c = 0; c < OPTIONAL_COLUMNS; c++)
		if (t->has[c])
			buf_addf(b, ",`%s`", optional_column_name[c]);
	for (size_t i = 0; i < t->extra_count; i++) {
		buf_addc(b, ',');
		sql_add_name(b, t->extra[i]);
	}
}

void sql_events(struct buf *b, const struct outbox_table *t, const uint64_t *ids, size_t count)
{
	add_event_columns(b, t);
	buf_addf(b, " FROM %s FORCE INDEX (PRIMARY) WHERE `status`='SENT' AND ", t->name);
	sql_add_ids(b, t, ids, count);
}

void sql_claim_select(struct buf *b, const struct outbox_table *t, const char *owner,
	enum row_class class, unsigned limit, int64_t since_us)
{
	add_event_columns(b, t);
	if (class == ROW_EXPIRED)
		buf_adds(b, ",`locked_by`");
	buf_addf(b, " FROM %s FORCE INDEX (%s) WHERE ", t->name, t->claim_index);
	add_where(b, class, owner, since_us);
	buf_addf(b, " ORDER BY %s LIMIT %u", class_rule[class].order, limit);
}

void sql_lock_rows(struct buf *b, bool nowait)
{
	buf_adds(b, nowait ? " FOR UPDATE NOWAIT" : " FOR UPDATE SKIP LOCKED");
}

void sql_fresh_keys(struct buf *b, const struct outbox_table *t, unsigned limit, int64_t since_us)
{
	buf_addf(b, "SELECT `id`,`created_at` FROM %s FORCE INDEX (%s) WHERE ", t->name,
		t->claim_index);
	add_where(b, ROW_FRESH, NULL, since_us);
	buf_addf(b, " ORDER BY %s LIMIT %u", class_rule[ROW_FRESH].order, limit);
}

void sql_keys(struct buf *b, const struct outbox_table *t, const uint64_t *ids, size_t count)
{
	buf_addf(b,
		"SELECT `id`,`created_at`,`event_id`,`aggregate_type`,`aggregate_id` FROM %s FORCE "
		"INDEX (PRIMARY) WHERE `status`<>'SENT' AND ",
		t->name);
	sql_add_ids(b, t, ids, count);
}

static void add_claimed(
	struct buf *b, const struct outbox_table *t, const char *owner, int64_t lease_us)
{
	add_update(b, t);
	buf_addf(b, "`status`='PROCESSING',`locked_by`=%s,`locked_until`=", owner);
	add_after(b, t, TIME_LOCKED, lease_us);
	add_unmoved(b, t, ASSIGNS(TIME_LOCKED));
}

void sql_claim_update(struct buf *b, const struct outbox_table *t, const char *owner,
	int64_t lease_us, const uint64_t *ids, size_t count)
{
	assert(count > 0 && count <= SQL_IDS_MAX);
	add_claimed(b, t, owner, lease_us);
	buf_adds(b, " WHERE ");
	sql_add_ids(b, t, ids, count);
}

void sql_takeover_update(struct buf *b, const struct outbox_table *t, const char *owner,
	int64_t lease_us, const struct takeover *list, size_t count)
{
	assert(count > 0 && count <= SQL_IDS_MAX);
	add_claimed(b, t, owner, lease_us);
	buf_adds(b, ",`last_error`=CASE `id`");
	for (size_t i = 0; i < count; i++) {
		char text[240];

		snprintf(text, sizeof(text),
			"LEASE_EXPIRED: taken over %u time%s in a row, last from %s", list[i].times,
			list[i].times == 1 ? "" : "s",
			list[i].from[0] != '\0' ? list[i].from : "nobody");
		buf_adds(b, " WHEN ");
		sql_add_id(b, t, list[i].id);
		buf_adds(b, " THEN ");
		sql_add_error(b, t, text);
	}
	buf_adds(b, " END WHERE `id` IN (");
	for (size_t i = 0; i < count; i++) {
		if (i > 0)
			buf_addc(b, ',');
		sql_add_id(b, t, list[i].id);
	}
	buf_addc(b, ')');
}

/* A row whose value differs costs a comparison for each row before it: the caller keeps lists with
 * different values short, and a value all share is written once. */
static bool same_error(const struct settle *const *list, size_t count)
{
	for (size_t i = 1; i < count; i++)
		if (list[i]->error != list[0]->error && strcmp(list[i]->error, list[0]->error) != 0)
			return false;
	return true;
}

static void add_errors(
	struct buf *b, const struct outbox_table *t, const struct settle *const *list, size_t count)
{
	if (same_error(list, count)) {
		buf_adds(b, ",`last_error`=");
		sql_add_error(b, t, list[0]->error);
		return;
	}
	buf_adds(b, ",`last_error`=CASE `id`");
	for (size_t i = 0; i < count; i++) {
		buf_adds(b, " WHEN ");
		sql_add_id(b, t, list[i]->id);
		buf_adds(b, " THEN ");
		sql_add_error(b, t, list[i]->error);
	}
	buf_adds(b, " END");
}

static void add_retry_counts(
	struct buf *b, const struct outbox_table *t, const struct settle *const *list, size_t count)
{
	bool same = true;

	for (size_t i = 1; i < count; i++)
		same &= list[i]->retry_count == list[0]->retry_count;
	if (same) {
		buf_addf(b, ",`retry_count`=%" PRIu32, list[0]->retry_count);
		return;
	}
	buf_adds(b, ",`retry_count`=CASE `id`");
	for (size_t i = 0; i < count; i++) {
		buf_adds(b, " WHEN ");
		sql_add_id(b, t, list[i]->id);
		buf_addf(b, " THEN %" PRIu32, list[i]->retry_count);
	}
	buf_adds(b, " END");
}

static void add_delays(
	struct buf *b, const struct outbox_table *t, const struct settle *const *list, size_t count)
{
	bool same = true;

	for (size_t i = 1; i < count; i++)
		same &= list[i]->delay_us == list[0]->delay_us;
	buf_adds(b, ",`next_retry_at`=");
	if (same) {
		add_after(b, t, TIME_NEXT_RETRY, list[0]->delay_us);
		return;
	}
	buf_adds(b, "CASE `id`");
	for (size_t i = 0; i < count; i++) {
		buf_adds(b, " WHEN ");
		sql_add_id(b, t, list[i]->id);
		buf_adds(b, " THEN ");
		add_after(b, t, TIME_NEXT_RETRY, list[i]->delay_us);
	}
	buf_adds(b, " END");
}

static void add_settled_delete(struct buf *b, const struct outbox_table *t, const char *owner,
	const struct settle *const *list, size_t count)
{
	uint64_t ids[SQL_IDS_MAX];

	for (size_t i = 0; i < count; i++)
		ids[i] = list[i]->id;
	buf_adds(b, "DELETE o FROM ");
	sql_add_rows(b, t, ids, count);
	buf_adds(b, " WHERE ");
	add_fence(b, owner);
}

void sql_settle(struct buf *b, const struct outbox_table *t, const char *owner,
	enum settle_kind kind, const struct settle *const *list, size_t count)
{
	unsigned assigned = ASSIGNS(TIME_LOCKED);

	assert(count > 0 && count <= SQL_IDS_MAX);
	if (kind == SETTLE_SENT && t->delete_sent) {
		add_settled_delete(b, t, owner, list, count);
		return;
	}
	add_update(b, t);
	switch (kind) {
	case SETTLE_SENT:
		/* cut, not rounded, so that it never lies in the future */
		buf_addf(b,
			"`status`='SENT',`sent_at`=NOW(%u),`next_retry_at`=NULL,`last_error`=NULL",
			t->fraction[TIME_SENT]);
		assigned |= ASSIGNS(TIME_SENT) | ASSIGNS(TIME_NEXT_RETRY);
		break;
	case SETTLE_RETRY:
		buf_adds(b, "`status`='RETRY'");
		add_retry_counts(b, t, list, count);
		add_delays(b, t, list, count);
		add_errors(b, t, list, count);
		assigned |= ASSIGNS(TIME_NEXT_RETRY);
		break;
	case SETTLE_DEAD:
		buf_adds(b, "`status`='DEAD',`next_retry_at`=NULL");
		add_retry_counts(b, t, list, count);
		add_errors(b, t, list, count);
		assigned |= ASSIGNS(TIME_NEXT_RETRY);
		break;
	case SETTLE_RELEASE:
		buf_adds(b, "`status`=IF(`retry_count`>0,'RETRY','PENDING')");
		break;
	case SETTLE_HOLD:
		buf_adds(b, "`status`=IF(`retry_count`>0,'RETRY','PENDING')");
		add_delays(b, t, list, count);
		add_errors(b, t, list, count);
		assigned |= ASSIGNS(TIME_NEXT_RETRY);
		break;
	}
	buf_adds(b, ",`locked_by`=NULL,`locked_until`=NULL");
	add_unmoved(b, t, assigned);
	buf_adds(b, " WHERE `id` IN (");
	for (size_t i = 0; i < count; i++) {
		if (i > 0)
			buf_addc(b, ',');
		sql_add_id(b, t, list[i]->id);
	}
	buf_adds(b, ") AND ");
	add_fence(b, owner);
}

void sql_renew(struct buf *b, const struct outbox_table *t, const char *owner, int64_t lease_us,
	const uint64_t *ids, size_t count)
{
	assert(count > 0 && count <= SQL_IDS_MAX);
	add_update(b, t);
	buf_adds(b, "`locked_until`=");
	add_after(b, t, TIME_LOCKED, lease_us);
	add_unmoved(b, t, ASSIGNS(TIME_LOCKED));
	buf_adds(b, " WHERE ");
	sql_add_ids(b, t, ids, count);
	buf_adds(b, " AND ");
	add_fence(b, owner);
}

void sql_held(struct buf *b, const struct outbox_table *t, const char *owner, const uint64_t *ids,
	size_t count)
{
	buf_adds(b, "SELECT `id`,(");
	add_fence(b, owner);
	buf_addf(b, ") IS TRUE,`status`,`retry_count` FROM %s FORCE INDEX (PRIMARY) WHERE ",
		t->name);
	sql_add_ids(b, t, ids, count);
}

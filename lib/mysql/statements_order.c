#include "mysql/statements_order.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#define WAITS "`next_retry_at` IS NOT NULL AND `last_error` LIKE '" WAITING_BEHIND "%'"

void sql_add_aggregate(
	struct buf *b, const struct outbox_table *t, struct slice type, struct slice id)
{
	static const char *const columns[] = { "aggregate_type", "aggregate_id" };
	const struct slice values[] = { type, id };

	for (size_t i = 0; i < ARRAY_LEN(columns); i++) {
		if (i > 0)
			buf_adds(b, " AND ");
		buf_addf(b, "`%s`", columns[i]);
		if (values[i].ptr == NULL) {
			buf_adds(b, " IS NULL");
			continue;
		}
		buf_adds(b, t->aggregate_binary[i] ? "=_binary" : "=");
		sql_add_string(b, values[i]);
	}
	for (size_t i = 0; i < ARRAY_LEN(columns); i++) {
		if (values[i].ptr == NULL || t->aggregate_binary[i])
			continue;
		buf_addf(b, " AND CAST(CONVERT(`%s` USING utf8mb4) AS BINARY)=_binary", columns[i]);
		sql_add_string(b, values[i]);
	}
}

static void add_from(struct buf *b, const struct outbox_table *t, struct slice aggregate_type,
	struct slice aggregate_id)
{
	buf_addf(b, " FROM %s FORCE INDEX (%s) WHERE ", t->name, t->aggregate_index);
	sql_add_aggregate(b, t, aggregate_type, aggregate_id);
}

/* In a direction from a place: the rows at it and on one side of it, less those on the other side
 * that are as old. So both MySQL and MariaDB read one range of the index. */
static void add_place(
	struct buf *b, const struct outbox_table *t, bool back, struct place at, unsigned limit)
{
	buf_addf(b, " AND `created_at`%s", back ? "<=" : ">=");
	sql_add_time(b, at.created_us);
	buf_adds(b, " AND NOT (`created_at`=");
	sql_add_time(b, at.created_us);
	buf_addf(b, " AND `id`%s", back ? ">=" : "<=");
	sql_add_id(b, t, at.id);
	buf_addf(b,
		back ? ") ORDER BY `created_at` DESC,`id` DESC LIMIT %u"
		     : ") ORDER BY `created_at`,`id` LIMIT %u",
		limit);
}

static void add_walk(struct buf *b, const struct outbox_table *t, const char *owner,
	struct slice aggregate_type, struct slice aggregate_id)
{
	buf_addf(b,
		"SELECT `id`,`created_at`,`event_id`,`status`,`last_error` LIKE 'SKIPPED%%',"
		"(`status`='PROCESSING' AND `locked_by`=_binary%s) IS TRUE,"
		"`next_retry_at` IS NOT NULL,"
		"TIMESTAMPDIFF(MICROSECOND,NOW(6),`next_retry_at`),"
		"TIMESTAMPDIFF(MICROSECOND,NOW(6),`locked_until`),",
		owner);
	buf_adds(b, "IF(" WAITS ",SUBSTRING(`last_error`,");
	buf_addu(b, sizeof(WAITING_BEHIND)); /* counted from 1: what follows it */
	buf_adds(b, "),NULL)");
	add_from(b, t, aggregate_type, aggregate_id);
}

void sql_before(struct buf *b, const struct outbox_table *t, const char *owner,
	struct slice aggregate_type, struct slice aggregate_id, struct place at, unsigned limit)
{
	add_walk(b, t, owner, aggregate_type, aggregate_id);
	add_place(b, t, true, at, limit);
}

void sql_behind(struct buf *b, const struct outbox_table *t, const char *owner,
	struct slice aggregate_type, struct slice aggregate_id, struct place at, unsigned limit)
{
	add_walk(b, t, owner, aggregate_type, aggregate_id);
	add_place(b, t, false, at, limit);
}

void sql_overtaken(struct buf *b, const struct outbox_table *t, struct slice aggregate_type,
	struct slice aggregate_id, struct place at, unsigned limit)
{
	buf_adds(b, "SELECT MAX(`status`='SENT') FROM (SELECT `status`");
	add_from(b, t, aggregate_type, aggregate_id);
	add_place(b, t, false, at, limit);
	buf_adds(b, ") AS next");
}

void sql_release_waiting(
	struct buf *b, const struct outbox_table *t, const uint64_t *ids, size_t count)
{
	assert(count > 0 && count <= SQL_IDS_MAX);
	buf_addf(b, "UPDATE %s FORCE INDEX (PRIMARY) SET `next_retry_at`=NULL,`last_error`=NULL",
		t->name);
	for (unsigned c = 0; c < TIME_COLUMNS; c++)
		if (t->on_update[c] && c != TIME_NEXT_RETRY)
			buf_addf(b, ",`%s`=`%s`", time_column_name[c], time_column_name[c]);
	buf_adds(b, " WHERE `id` IN (");
	for (size_t i = 0; i < count; i++) {
		if (i > 0)
			buf_addc(b, ',');
		sql_add_id(b, t, ids[i]);
	}
	buf_adds(b, ") AND `status` IN ('PENDING','RETRY') AND " WAITS);
}

/* PENDING without a delay bars nobody: it is claimed in its turn. */
static const struct {
	const char *status;
	bool delayed; /* next_retry_at is not NULL */
	enum order_head head;
} stages[SQL_BARRED_STAGES] = {
	/* First: a former leader may still write its last rows back as RETRY or held while the
	 * pages are read. Those are then met twice, not missed. */
	{ "PROCESSING", false, HEAD_PROCESSING },
	{ "PROCESSING", true, HEAD_PROCESSING },
	{ "RETRY", false, HEAD_RETRY },
	{ "RETRY", true, HEAD_RETRY },
	/* next_retry_at of DEAD is NULL, whoever wrote it */
	{ "DEAD", false, HEAD_DEAD },
	/* Last: by then it is known which of them have something to wait for. */
	{ "PENDING", true, HEAD_DELAYED },
};

enum order_head sql_barred_head(unsigned stage)
{
	assert(stage < SQL_BARRED_STAGES);
	return stages[stage].head;
}

void sql_barred(struct buf *b, const struct outbox_table *t, const struct barred_cursor *cursor,
	unsigned limit)
{
	const unsigned stage = cursor->stage;

	assert(stage < SQL_BARRED_STAGES);
	buf_addf(b,
		"SELECT `id`,`created_at`,`event_id`,`aggregate_type`,`aggregate_id`,"
		"`next_retry_at`,`last_error` FROM %s FORCE INDEX (%s) WHERE `status`='%s'",
		t->name, t->claim_index, stages[stage].status);
	if (stages[stage].delayed)
		buf_adds(b, " AND `next_retry_at` IS NOT NULL");
	else
		buf_adds(b, " AND `next_retry_at` IS NULL");
	if (stage == SQL_BARRED_DEAD)
		buf_adds(b, " AND (`last_error` IS NULL OR `last_error` NOT LIKE 'SKIPPED%')");
	if (cursor->started) {
		buf_adds(b, " AND (");
		if (stages[stage].delayed)
			buf_addf(b, "`next_retry_at`>'%s' OR (`next_retry_at`='%s' AND (",
				cursor->next_retry_at, cursor->next_retry_at);
		if (cursor->created_at[0] == '\0') /* NULL, which sorts first */
			buf_adds(b, "`created_at` IS NOT NULL OR (`created_at` IS NULL");
		else
			buf_addf(b, "`created_at`>'%s' OR (`created_at`='%s'", cursor->created_at,
				cursor->created_at);
		buf_adds(b, " AND `id`>");
		sql_add_id(b, t, cursor->id);
		buf_adds(b, stages[stage].delayed ? "))))" : "))");
	}
	buf_addf(b, " ORDER BY `next_retry_at`,`created_at`,`id` LIMIT %u", limit);
}

void sql_last_sent(struct buf *b, const struct outbox_table *t)
{
	buf_addf(b,
		"SELECT `id`,`created_at` FROM %s FORCE INDEX (%s) WHERE `status`='SENT' AND "
		"`next_retry_at` IS NULL AND `created_at`<=NOW(6) ORDER BY `created_at` "
		"DESC,`id` DESC LIMIT 1",
		t->name, t->claim_index);
}

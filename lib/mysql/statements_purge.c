#include "mysql/statements_purge.h"

#include <assert.h>
#include <inttypes.h>

static const char *const status_of[PURGE_KINDS] = { [PURGE_SENT] = "SENT", [PURGE_DEAD] = "DEAD" };

/* The column's own precision: what was cut off the time of sending must not make a row older. */
static void add_cutoff(
	struct buf *b, const struct outbox_table *t, enum time_column column, int64_t age_us)
{
	buf_addf(b, "`%s`<NOW(%u)-INTERVAL %" PRId64 " MICROSECOND", time_column_name[column],
		t->fraction[column], age_us);
}

void sql_purge_read(struct buf *b, const struct outbox_table *t, enum purge_kind kind,
	int64_t age_us, const struct purge_cursor *from, unsigned limit)
{
	buf_adds(b, "SELECT `id`,`created_at`,");
	if (kind == PURGE_SENT) {
		buf_addc(b, '(');
		add_cutoff(b, t, TIME_SENT, age_us);
		buf_adds(b, ") IS TRUE");
	} else {
		buf_addc(b, '1');
	}
	buf_addf(b,
		" FROM %s FORCE INDEX (%s) WHERE `status`='%s' AND `next_retry_at` IS NULL AND ",
		t->name, t->claim_index, status_of[kind]);
	if (from->created_at[0] != '\0') {
		buf_addf(b, "(`created_at`>'%s' OR (`created_at`='%s' AND `id`>", from->created_at,
			from->created_at);
		sql_add_id(b, t, from->id);
		buf_adds(b, ")) AND ");
	}
	add_cutoff(b, t, TIME_CREATED, age_us);
	buf_addf(b, " ORDER BY `created_at`,`id` LIMIT %u", limit);
}

void sql_purge_waiting(struct buf *b, const struct outbox_table *t)
{
	buf_addf(b,
		"SELECT TIMESTAMPDIFF(MICROSECOND,(SELECT `created_at` FROM %s FORCE INDEX (%s) "
		"WHERE `status`='PENDING' AND `next_retry_at` IS NULL ORDER BY `created_at` LIMIT "
		"1),NOW(6))",
		t->name, t->claim_index);
}

void sql_purge_lock(struct buf *b, const struct outbox_table *t, enum purge_kind kind,
	int64_t age_us, const uint64_t *ids, size_t count, bool mariadb)
{
	assert(count > 0 && count <= SQL_IDS_MAX);
	buf_adds(b, "SELECT o.`id`,`event_id` FROM ");
	sql_add_rows(b, t, ids, count);
	buf_addf(b, " WHERE `status`='%s' AND ", status_of[kind]);
	add_cutoff(b, t, kind == PURGE_SENT ? TIME_SENT : TIME_CREATED, age_us);
	buf_addf(b, " FOR UPDATE%s SKIP LOCKED", mariadb ? "" : " OF o");
}

void sql_purge_archive(struct buf *b, const struct outbox_table *t, const char *archive,
	const char *columns, const uint64_t *ids, size_t count)
{
	assert(count > 0 && count <= SQL_IDS_MAX);
	buf_addf(b, "INSERT INTO %s (%s) SELECT %s FROM %s FORCE INDEX (PRIMARY) WHERE ", archive,
		columns, columns, t->name);
	sql_add_ids(b, t, ids, count);
}

void sql_purge_delete(
	struct buf *b, const struct outbox_table *t, const uint64_t *ids, size_t count)
{
	assert(count > 0 && count <= SQL_IDS_MAX);
	buf_adds(b, "DELETE o FROM ");
	sql_add_rows(b, t, ids, count);
}

#include "mysql/ddl.h"
#include "mysql/statements.h"
#include "mysql/statements_order.h"

#include "unit.h"

#include <stdio.h>

static struct outbox_table table_of(void)
{
	return (struct outbox_table){
		.name = "`shop`.`outbox_event`",
		.claim_index = "`i`",
		.aggregate_index = "`a`",
		.fraction = { 6, 6, 6, 6 },
		.error_chars = SQL_ERROR_CHARS,
		.error_repertoire = REPERTOIRE_UNICODE,
	};
}

static const char *text_of(struct buf *b)
{
	ck_assert(!b->failed);
	return b->data;
}

START_TEST(names_are_quoted)
{
	struct buf b = { 0 };
	char out[20];

	sql_add_name(&b, "a`b");
	ck_assert_str_eq(text_of(&b), "`a``b`");
	ck_assert(sql_quote_name(out, sizeof(out), "a`b"));
	ck_assert_str_eq(out, "`a``b`");
	ck_assert(sql_table_name(out, sizeof(out), "shop", "t"));
	ck_assert_str_eq(out, "`shop`.`t`");
	ck_assert(!sql_quote_name(out, sizeof(out), "12345678901234567890"));
	ck_assert(!sql_quote_name(out, 5, "```"));
	ck_assert(!sql_table_name(out, sizeof(out), "1234567890", "123456789"));
	buf_fini(&b);
}
END_TEST

START_TEST(no_string_can_end_its_literal)
{
	struct buf b = { 0 };

	sql_add_string(&b, (struct slice){ "a'b\\c\"d\0e\nf\rg\x1Ah\xF0\x9F\x98\x80", 19 });
	ck_assert_str_eq(text_of(&b), "'a\\'b\\\\c\\\"d\\0e\\nf\\rg\\Zh\xF0\x9F\x98\x80'");
	buf_reset(&b);
	sql_add_string(&b, SLICE_LIT(""));
	ck_assert_str_eq(text_of(&b), "''");
	buf_fini(&b);
}
END_TEST

START_TEST(error_texts_fit_their_column)
{
	struct outbox_table t = table_of();
	struct buf b = { 0 };
	static const char text[] = "it's \\ \xC3\xA4 \xE2\x82\xAC \xF0\x9F\x98\x80 \xFF \n.";

	sql_add_error(&b, &t, text);
	ck_assert_str_eq(text_of(&b), "'it\\'s \\\\ \xC3\xA4 \xE2\x82\xAC \xF0\x9F\x98\x80 ?  .'");
	buf_reset(&b);
	t.error_repertoire = REPERTOIRE_BMP;
	sql_add_error(&b, &t, text);
	ck_assert_str_eq(text_of(&b), "'it\\'s \\\\ \xC3\xA4 \xE2\x82\xAC ? ?  .'");
	buf_reset(&b);
	t.error_repertoire = REPERTOIRE_ASCII;
	t.error_chars = 9;
	sql_add_error(&b, &t, text);
	ck_assert_str_eq(text_of(&b), "'it\\'s \\\\ ? '");
	buf_fini(&b);
}
END_TEST

START_TEST(a_claim_names_its_index_and_order)
{
	struct outbox_table t = table_of();
	static const char *const extra[] = { "tenant" };
	struct buf b = { 0 };

	sql_claim_select(&b, &t, "'me'", ROW_FRESH, 500, 0);
	sql_lock_rows(&b, false);
	ck_assert_str_eq(text_of(&b),
		"SELECT `id`,`created_at`,`retry_count`,`event_id`,`aggregate_type`,`aggregate_id`,"
		"`event_type`,`payload`,`last_error` FROM `shop`.`outbox_event` FORCE INDEX (`i`) "
		"WHERE `status`='PENDING' AND `next_retry_at` IS NULL ORDER BY `created_at`,`id` "
		"LIMIT 500 FOR UPDATE SKIP LOCKED");
	buf_reset(&b);
	t.has[OPTIONAL_TRACE_ID] = true;
	t.extra = extra;
	t.extra_count = 1;
	sql_claim_select(&b, &t, "'me'", ROW_EXPIRED, 5, INT64_C(1767225600000000));
	ck_assert_ptr_nonnull(
		strstr(text_of(&b), "`last_error`,`trace_id`,`tenant`,`locked_by` FROM"));
	ck_assert_ptr_nonnull(strstr(text_of(&b), "`locked_by`<>_binary'me'"));
	ck_assert_ptr_null(strstr(text_of(&b), "`created_at`>="));
	buf_reset(&b);
	sql_claim_select(&b, &t, "'me'", ROW_FRESH, 5, INT64_C(1767225600000000));
	ck_assert_ptr_nonnull(
		strstr(text_of(&b), " AND `created_at`>='2026-01-01 00:00:00.000000' ORDER"));
	buf_fini(&b);
}
END_TEST

START_TEST(every_write_back_is_fenced_by_bytes)
{
	struct outbox_table t = table_of();
	struct settle list[2] = { { .id = 7, .retry_count = 1, .delay_us = 5, .error = "X: a" },
		{ .id = 9, .retry_count = 1, .delay_us = 5, .error = "X: a" } };
	const struct settle *const some[2] = { &list[0], &list[1] };
	uint64_t ids[2] = { 7, 9 };
	struct buf b = { 0 };

	for (unsigned kind = 0; kind <= SETTLE_HOLD; kind++) {
		buf_reset(&b);
		sql_settle(&b, &t, "'me'", kind, some, 2);
		ck_assert_ptr_nonnull(
			strstr(text_of(&b), " WHERE `id` IN (7,9) AND `status`='PROCESSING' AND "
					    "`locked_by`=_binary'me'"));
		ck_assert_ptr_nonnull(strstr(text_of(&b), "FORCE INDEX (PRIMARY)"));
		ck_assert_ptr_nonnull(strstr(text_of(&b), "`locked_by`=NULL,`locked_until`=NULL"));
		ck_assert_ptr_null(strstr(text_of(&b), "CASE"));
		/* replication by statement has no order to keep to */
		ck_assert_ptr_null(strstr(text_of(&b), "LIMIT"));
	}
	buf_reset(&b);
	sql_renew(&b, &t, "'me'", 1000000, ids, 2);
	ck_assert_str_eq(text_of(&b),
		"UPDATE `shop`.`outbox_event` FORCE INDEX (PRIMARY) SET "
		"`locked_until`=NOW(6)+INTERVAL "
		"1000000 MICROSECOND WHERE `id` IN (7,9) AND `status`='PROCESSING' AND "
		"`locked_by`=_binary'me'");
	buf_fini(&b);
}
END_TEST

START_TEST(values_that_differ_are_written_a_row)
{
	struct outbox_table t = table_of();
	struct settle list[2] = { { .id = 7, .retry_count = 1, .delay_us = 5, .error = "X: a" },
		{ .id = 9, .retry_count = 2, .delay_us = 6, .error = "X: b" } };
	const struct settle *const some[2] = { &list[0], &list[1] };
	struct buf b = { 0 };

	t.id_signed = true;
	list[0].id = (uint64_t)-7;
	sql_settle(&b, &t, "'me'", SETTLE_RETRY, some, 2);
	ck_assert_str_eq(text_of(&b),
		"UPDATE `shop`.`outbox_event` FORCE INDEX (PRIMARY) SET `status`='RETRY',"
		"`retry_count`=CASE `id` WHEN -7 THEN 1 WHEN 9 THEN 2 END,"
		"`next_retry_at`=CASE `id` WHEN -7 THEN NOW(6)+INTERVAL 5 MICROSECOND WHEN 9 THEN "
		"NOW(6)+INTERVAL 6 MICROSECOND END,"
		"`last_error`=CASE `id` WHEN -7 THEN 'X: a' WHEN 9 THEN 'X: b' END,"
		"`locked_by`=NULL,`locked_until`=NULL WHERE `id` IN (-7,9) AND "
		"`status`='PROCESSING' AND `locked_by`=_binary'me'");
	buf_fini(&b);
}
END_TEST

START_TEST(columns_that_move_are_assigned_to_themselves_once)
{
	struct outbox_table t = table_of();
	struct settle one = { .id = 7, .retry_count = 1, .delay_us = 5, .error = "X: a" };
	const struct settle *const some[1] = { &one };
	uint64_t id = 7;
	struct buf b = { 0 };

	for (unsigned c = 0; c < TIME_COLUMNS; c++)
		t.on_update[c] = true;
	sql_claim_update(&b, &t, "'me'", 1, &id, 1);
	ck_assert_ptr_nonnull(strstr(text_of(&b), ",`created_at`=`created_at`"));
	ck_assert_ptr_nonnull(strstr(text_of(&b), ",`next_retry_at`=`next_retry_at`"));
	ck_assert_ptr_nonnull(strstr(text_of(&b), ",`sent_at`=`sent_at`"));
	ck_assert_ptr_null(strstr(text_of(&b), "`locked_until`=`locked_until`"));
	buf_reset(&b);
	sql_settle(&b, &t, "'me'", SETTLE_SENT, some, 1);
	ck_assert_ptr_nonnull(strstr(text_of(&b), ",`created_at`=`created_at`"));
	ck_assert_ptr_null(strstr(text_of(&b), "`next_retry_at`=`next_retry_at`"));
	ck_assert_ptr_null(strstr(text_of(&b), "`sent_at`=`sent_at`"));
	buf_fini(&b);
}
END_TEST

START_TEST(times_in_coarse_columns_are_rounded_up)
{
	struct outbox_table t = table_of();
	uint64_t id = 7;
	struct buf b = { 0 };

	t.fraction[TIME_LOCKED] = 0;
	sql_renew(&b, &t, "'me'", 1500000, &id, 1);
	ck_assert_ptr_nonnull(strstr(text_of(&b),
		"NOW(0)+INTERVAL CEIL((1500000+MICROSECOND(NOW(6)))/1000000)*1000000 MICROSECOND"));
	buf_reset(&b);
	t.fraction[TIME_LOCKED] = 3;
	sql_renew(&b, &t, "'me'", 1500000, &id, 1);
	ck_assert_ptr_nonnull(strstr(text_of(&b), "/1000)*1000 MICROSECOND"));
	buf_fini(&b);
}
END_TEST

START_TEST(the_idle_poll_is_one_statement)
{
	struct outbox_table t = table_of();
	struct buf b = { 0 };

	sql_look(&b, &t, "'me'", "tx_isolation", "outboxd.x", true);
	ck_assert_ptr_null(strchr(text_of(&b), ';'));
	ck_assert_ptr_nonnull(strstr(text_of(&b),
		"IF(IS_USED_LOCK('outboxd.x')<=>CONNECTION_ID(),1,GET_LOCK('outboxd.x',0))"));
	ck_assert_ptr_nonnull(strstr(text_of(&b), "PROCESSING"));
	buf_reset(&b);
	sql_look(&b, &t, "'me'", "tx_isolation", NULL, false);
	ck_assert_ptr_null(strstr(text_of(&b), "LOCK("));
	ck_assert_ptr_null(strstr(text_of(&b), "PROCESSING"));
	buf_fini(&b);
}
END_TEST

START_TEST(times_are_written_as_utc)
{
	struct buf b = { 0 };

	sql_add_time(&b, INT64_C(1772323199000001));
	ck_assert_str_eq(text_of(&b), "'2026-02-28 23:59:59.000001'");
	buf_reset(&b);
	sql_add_time(&b, -1);
	ck_assert_str_eq(text_of(&b), "'1969-12-31 23:59:59.999999'");
	buf_reset(&b);
	sql_add_time(&b, INT64_MAX);
	ck_assert_str_eq(text_of(&b), "'1970-01-01 00:00:00'");
	buf_fini(&b);
}
END_TEST

START_TEST(aggregates_are_told_apart_by_bytes)
{
	struct outbox_table t = table_of();
	struct buf b = { 0 };

	sql_before(
		&b, &t, "'me'", SLICE_LIT("order"), SLICE_LIT("it's"), (struct place){ 0, 5 }, 8);
	ck_assert_ptr_nonnull(strstr(text_of(&b), "FORCE INDEX (`a`)"));
	ck_assert_ptr_nonnull(strstr(text_of(&b),
		"CAST(CONVERT(`aggregate_id` USING utf8mb4) AS BINARY)=_binary'it\\'s'"));
	buf_reset(&b);
	t.aggregate_binary[1] = true;
	sql_before(&b, &t, "'me'", SLICE_LIT("order"), (struct slice){ "\0\xFF", 2 },
		(struct place){ 0, 5 }, 8);
	ck_assert_ptr_nonnull(strstr(text_of(&b), "`aggregate_id`=_binary'\\0\xFF'"));
	buf_fini(&b);
}
END_TEST

START_TEST(what_is_compiled_in_is_what_the_files_say)
{
	static const struct {
		const char *path, *text;
	} files[] = {
		{ "sql/outbox_event.sql", ddl_outbox },
		{ "sql/outbox_event_minimal.sql", ddl_outbox_minimal },
		{ "sql/outbox_event_archive.sql", ddl_archive },
		{ "sql/inbox_event.sql", ddl_inbox },
		{ "sql/grants.sql", ddl_grants },
	};

	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		char text[16384];
		FILE *f = fopen(files[i].path, "r");
		size_t n;

		ck_assert_msg(f != NULL, "%s: run from the repository's root", files[i].path);
		n = fread(text, 1, sizeof(text) - 1, f);
		fclose(f);
		text[n] = '\0';
		ck_assert_str_eq(text, files[i].text);
	}
}
END_TEST

UNIT_MAIN("mysql statements", names_are_quoted, no_string_can_end_its_literal,
	error_texts_fit_their_column, a_claim_names_its_index_and_order,
	every_write_back_is_fenced_by_bytes, values_that_differ_are_written_a_row,
	columns_that_move_are_assigned_to_themselves_once, times_in_coarse_columns_are_rounded_up,
	the_idle_poll_is_one_statement, times_are_written_as_utc,
	aggregates_are_told_apart_by_bytes, what_is_compiled_in_is_what_the_files_say)

/* Retention: when, how fast, and in which statements. */
#include "mysql/inbox.h"
#include "mysql/purge_pace.h"
#include "mysql/statements_purge.h"

#include "unit.h"

#include <stdio.h>

/* --- pace ----------------------------------------------------------------------------------- */

static int64_t now_us = 1000 * US_PER_SEC;

/* A batch of 500 that took 10 ms; the oldest event has been waiting for so long. */
static int64_t batch(struct purge_pace *p, unsigned max_rate, int64_t waiting_us)
{
	int64_t pause_us;

	now_us += 10 * US_PER_MS;
	pause_us = purge_pause(p, max_rate, 500, 10 * US_PER_MS, waiting_us, now_us);
	now_us += pause_us;
	return pause_us;
}

static struct purge_pace pace_of(void)
{
	struct purge_pace p = { 0 };

	purge_pace_begin(&p);
	return p;
}

#define T (10 * US_PER_MS)

START_TEST(a_purge_begins_gently_and_never_takes_more_than_half_of_the_time)
{
	struct purge_pace p = pace_of();

	for (unsigned i = 0; i < 7; i++)
		ck_assert_int_eq(batch(&p, 0, 0), 4 * T);
	for (unsigned i = 0; i < 8; i++)
		ck_assert_int_eq(batch(&p, 0, 0), 2 * T);
	for (unsigned i = 0; i < 100; i++)
		ck_assert_int_eq(batch(&p, 0, 0), T);
	/* a backlog that shrinks, or stays as it is, is no reason to hold back */
	(void)batch(&p, 0, 101 * US_PER_SEC);
	for (unsigned i = 0; i < 20; i++)
		(void)batch(&p, 0, (100 - i) * US_PER_SEC);
	for (unsigned i = 0; i < 10; i++)
		ck_assert_int_eq(batch(&p, 0, 80 * US_PER_SEC), T);
	/* nor is one that is none */
	for (unsigned i = 0; i < 10; i++)
		ck_assert_int_eq(batch(&p, 0, i * 90 * US_PER_MS), T);
	purge_pace_begin(&p);
	ck_assert_int_eq(batch(&p, 0, 0), 4 * T);
}
END_TEST

START_TEST(it_holds_back_while_events_wait_longer_and_longer_and_comes_back)
{
	struct purge_pace p = pace_of();
	int64_t waiting_us = 2 * US_PER_SEC, pause_us = batch(&p, 0, waiting_us), before_us;

	ck_assert_int_eq(pause_us, 4 * T);
	for (unsigned i = 3; i <= 4; i++) {
		waiting_us += pause_us + T;
		pause_us = batch(&p, 0, waiting_us);
		ck_assert_int_eq(pause_us, T << i);
	}
	waiting_us += pause_us + T;
	ck_assert_int_eq(batch(&p, 0, waiting_us), 16 * T);
	before_us = 16 * T;
	for (unsigned i = 0; i < 2; i++) {
		pause_us = batch(&p, 0, waiting_us - i * US_PER_MS);
		ck_assert_int_eq(pause_us, before_us / 2);
		before_us = pause_us;
	}
	ck_assert_int_eq(batch(&p, 0, 0), 4 * T);
}
END_TEST

START_TEST(a_backlog_that_grows_for_ever_holds_a_pass_back_for_two_minutes_only)
{
	struct purge_pace p = pace_of();
	int64_t began_us = now_us, pause_us = 0;

	while (now_us - began_us < 119 * US_PER_SEC)
		pause_us = batch(&p, 0, now_us);
	ck_assert_int_eq(pause_us, 16 * T);
	while (now_us - began_us < 130 * US_PER_SEC)
		pause_us = batch(&p, 0, now_us);
	ck_assert_int_eq(pause_us, 4 * T);
	purge_pace_begin(&p); /* of the next pass it holds back again */
	ck_assert_int_eq(batch(&p, 0, now_us), 16 * T);
}
END_TEST

/* As it does when a relay claims every 700 ms what a busy producer writes. */
START_TEST(a_backlog_that_rises_and_falls_with_each_claim_is_none_that_grows)
{
	struct purge_pace p = pace_of();
	unsigned slow = 0;

	for (unsigned i = 0; i < 1000; i++)
		slow += batch(&p, 0, 1200 * US_PER_MS + now_us % (700 * US_PER_MS)) > T && i > 100;
	ck_assert_uint_eq(slow, 0);
	/* one that grows does, from where it was at most */
	(void)batch(&p, 0, 2 * US_PER_SEC);
	ck_assert_int_eq(batch(&p, 0, 2100 * US_PER_MS), 4 * T);
	ck_assert_int_eq(batch(&p, 0, 2200 * US_PER_MS), 8 * T);
}
END_TEST

START_TEST(what_it_was_long_ago_is_forgotten)
{
	struct purge_pace p = pace_of();

	for (unsigned i = 0; i < 1000; i++)
		(void)batch(&p, 0, i < 10 ? 60 * US_PER_SEC : 2 * US_PER_SEC);
	ck_assert_int_eq(batch(&p, 0, 3 * US_PER_SEC), 2 * T);
	ck_assert_int_eq(batch(&p, 0, 4 * US_PER_SEC), 4 * T);
}
END_TEST

START_TEST(a_rate_is_kept_and_its_batches_are_small)
{
	struct purge_pace p = pace_of();

	ck_assert_uint_eq(purge_chunk(0), 500);
	ck_assert_uint_eq(purge_chunk(1), 1);
	ck_assert_uint_eq(purge_chunk(3), 1);
	ck_assert_uint_eq(purge_chunk(100), 25);
	ck_assert_uint_eq(purge_chunk(1000000), 500);
	ck_assert_int_eq(batch(&p, 1000, 0), 490 * US_PER_MS);
	ck_assert_int_eq(batch(&p, 1000000, 0), 4 * T);
}
END_TEST

/* --- statements ----------------------------------------------------------------------------- */

static struct outbox_table table_of(void)
{
	return (struct outbox_table){
		.name = "`shop`.`outbox_event`",
		.claim_index = "`i`",
		.fraction = { 6, 6, 6, 3 },
	};
}

static const char *text_of(struct buf *b)
{
	ck_assert(!b->failed);
	return b->data;
}

START_TEST(reading_goes_along_the_claim_index_from_where_it_ended)
{
	struct outbox_table t = table_of();
	struct purge_cursor c = { 0 };
	struct buf b = { 0 };

	sql_purge_read(&b, &t, PURGE_SENT, 5 * US_PER_SEC, &c, 100);
	ck_assert_str_eq(text_of(&b),
		"SELECT `id`,`created_at`,(`sent_at`<NOW(3)-INTERVAL 5000000 MICROSECOND) IS TRUE "
		"FROM `shop`.`outbox_event` FORCE INDEX (`i`) WHERE `status`='SENT' AND "
		"`next_retry_at` IS NULL AND `created_at`<NOW(6)-INTERVAL 5000000 MICROSECOND "
		"ORDER BY `created_at`,`id` LIMIT 100");
	buf_reset(&b);
	c = (struct purge_cursor){ "2026-01-02 03:04:05.6", UINT64_MAX };
	t.id_signed = true;
	sql_purge_read(&b, &t, PURGE_DEAD, 5 * US_PER_SEC, &c, 1);
	ck_assert_str_eq(text_of(&b),
		"SELECT `id`,`created_at`,1 FROM `shop`.`outbox_event` FORCE INDEX (`i`) WHERE "
		"`status`='DEAD' AND `next_retry_at` IS NULL AND (`created_at`>'2026-01-02 "
		"03:04:05.6' OR (`created_at`='2026-01-02 03:04:05.6' AND `id`>-1)) AND "
		"`created_at`<NOW(6)-INTERVAL 5000000 MICROSECOND ORDER BY `created_at`,`id` LIMIT "
		"1");
	buf_fini(&b);
}
END_TEST

#define ROWS                                                                                       \
	"JSON_TABLE('[3,18446744073709551615]','$[*]' COLUMNS (`id` BIGINT UNSIGNED PATH '$')) "   \
	"AS k STRAIGHT_JOIN `shop`.`outbox_event` AS o FORCE INDEX (PRIMARY) ON o.`id`=k.`id`"

START_TEST(removal_touches_the_rows_named_and_judges_them_again)
{
	const uint64_t ids[] = { 3, UINT64_MAX };
	struct outbox_table t = table_of();
	struct buf b = { 0 };

	sql_purge_lock(&b, &t, PURGE_SENT, US_PER_SEC, ids, 2, false);
	ck_assert_str_eq(text_of(&b),
		"SELECT o.`id`,`event_id` FROM " ROWS " WHERE `status`='SENT' AND "
		"`sent_at`<NOW(3)-INTERVAL 1000000 MICROSECOND FOR UPDATE OF o SKIP LOCKED");
	buf_reset(&b);
	sql_purge_lock(&b, &t, PURGE_DEAD, US_PER_SEC, ids, 2, true);
	ck_assert_str_eq(text_of(&b),
		"SELECT o.`id`,`event_id` FROM " ROWS " WHERE `status`='DEAD' AND "
		"`created_at`<NOW(6)-INTERVAL 1000000 MICROSECOND FOR UPDATE SKIP LOCKED");
	buf_reset(&b);
	sql_purge_delete(&b, &t, ids, 2);
	ck_assert_str_eq(text_of(&b), "DELETE o FROM " ROWS);
	buf_reset(&b);
	sql_purge_archive(&b, &t, "`shop`.`old`", "`id`,`payload`", ids, 2);
	ck_assert_str_eq(text_of(&b),
		"INSERT INTO `shop`.`old` (`id`,`payload`) SELECT `id`,`payload` FROM "
		"`shop`.`outbox_event` FORCE INDEX (PRIMARY) WHERE `id` IN "
		"(3,18446744073709551615)");
	buf_fini(&b);
}
END_TEST

START_TEST(what_is_deleted_as_it_is_sent_is_fenced_like_everything_else)
{
	const struct settle a = { .id = 3, .kind = SETTLE_SENT },
			    b3 = { .id = UINT64_MAX, .kind = SETTLE_SENT };
	const struct settle *list[] = { &a, &b3 };
	struct outbox_table t = table_of();
	struct buf b = { 0 };

	t.delete_sent = true;
	sql_settle(&b, &t, "'me/1'", SETTLE_SENT, list, 2);
	ck_assert_str_eq(text_of(&b), "DELETE o FROM " ROWS " WHERE `status`='PROCESSING' AND "
				      "`locked_by`=_binary'me/1'");
	buf_reset(&b);
	sql_settle(&b, &t, "'me/1'", SETTLE_RELEASE, list, 2);
	ck_assert_int_eq(strncmp(text_of(&b), "UPDATE ", 7), 0);
	buf_fini(&b);
}
END_TEST

static struct inbox_table inbox_of(const char *index)
{
	struct inbox_table t = { .name = "`d`.`inbox_event`",
		.event_id_is = "E",
		.consumer_is = "C",
		.has_received = true,
		.received_fraction = 6,
		.processed_fraction = 3 };

	snprintf(t.consumer_index, sizeof(t.consumer_index), "%s", index);
	return t;
}

START_TEST(an_inbox_is_read_along_its_index_or_else_by_its_key)
{
	struct inbox_table t = inbox_of("`i`");
	struct inbox_cursor c = { 0 };
	struct slice after = SLICE_LIT("it's");
	struct buf b = { 0 };

	sql_inbox_consumer(&b, &t, NULL);
	ck_assert_str_eq(text_of(&b), "SELECT `consumer_name` FROM `d`.`inbox_event` FORCE INDEX "
				      "(`i`) ORDER BY `consumer_name` LIMIT 1");
	buf_reset(&b);
	sql_inbox_consumer(&b, &t, &after);
	ck_assert_str_eq(text_of(&b),
		"SELECT `consumer_name` FROM `d`.`inbox_event` FORCE INDEX (`i`) WHERE "
		"`consumer_name`>'it\\'s' ORDER BY `consumer_name` LIMIT 1");
	buf_reset(&b);
	buf_adds(&c.consumer, "c");
	buf_adds(&c.event_id, "e");
	sql_inbox_read(&b, &t, "DONE", US_PER_SEC, &c, 7);
	ck_assert_str_eq(text_of(&b),
		"SELECT `event_id`,`consumer_name`,`received_at`,(`status`='DONE' AND "
		"`processed_at`<NOW(3)-INTERVAL 1000000 MICROSECOND) IS TRUE FROM "
		"`d`.`inbox_event` FORCE INDEX (`i`) WHERE `consumer_name`='c' AND "
		"`status`='DONE' AND `received_at`<NOW(6)-INTERVAL 1000000 MICROSECOND ORDER BY "
		"`received_at`,`event_id` LIMIT 7");
	buf_reset(&b);
	t = inbox_of("");
	c.begun = true;
	sql_inbox_read(&b, &t, "DONE", US_PER_SEC, &c, 7);
	ck_assert_str_eq(text_of(&b),
		"SELECT `event_id`,`consumer_name`,'',(`status`='DONE' AND "
		"`processed_at`<NOW(3)-INTERVAL 1000000 MICROSECOND) IS TRUE FROM "
		"`d`.`inbox_event` FORCE INDEX (PRIMARY) WHERE (`event_id`>'e' OR (`event_id`='e' "
		"AND `consumer_name`>'c')) ORDER BY `event_id`,`consumer_name` LIMIT 7");
	buf_fini(&c.consumer);
	buf_fini(&c.event_id);
	buf_fini(&b);
}
END_TEST

START_TEST(rows_of_an_inbox_are_removed_by_their_key_in_its_own_collation)
{
	struct inbox_table t = inbox_of("`i`");
	struct buf b = { 0 };

	sql_inbox_lock(&b, &t, "DONE", US_PER_SEC, SLICE_LIT("[[\"a\\\"\",\"c\"]]"), false);
	ck_assert_str_eq(text_of(&b),
		"SELECT i.`event_id`,i.`consumer_name` FROM "
		"JSON_TABLE('[[\\\"a\\\\\\\"\\\",\\\"c\\\"]]','$[*]' COLUMNS (`e` VARCHAR(1024) "
		"CHARACTER SET utf8mb4 PATH '$[0]',`c` VARCHAR(1024) CHARACTER SET utf8mb4 PATH "
		"'$[1]')) AS k STRAIGHT_JOIN `d`.`inbox_event` AS i FORCE INDEX (PRIMARY) ON "
		"i.`event_id`=E AND i.`consumer_name`=C WHERE `status`='DONE' AND "
		"`processed_at`<NOW(3)-INTERVAL 1000000 MICROSECOND FOR UPDATE OF i SKIP LOCKED");
	buf_fini(&b);
}
END_TEST

UNIT_MAIN("purge", a_purge_begins_gently_and_never_takes_more_than_half_of_the_time,
	it_holds_back_while_events_wait_longer_and_longer_and_comes_back,
	a_backlog_that_grows_for_ever_holds_a_pass_back_for_two_minutes_only,
	a_backlog_that_rises_and_falls_with_each_claim_is_none_that_grows,
	what_it_was_long_ago_is_forgotten, a_rate_is_kept_and_its_batches_are_small,
	reading_goes_along_the_claim_index_from_where_it_ended,
	removal_touches_the_rows_named_and_judges_them_again,
	what_is_deleted_as_it_is_sent_is_fenced_like_everything_else,
	an_inbox_is_read_along_its_index_or_else_by_its_key,
	rows_of_an_inbox_are_removed_by_their_key_in_its_own_collation)

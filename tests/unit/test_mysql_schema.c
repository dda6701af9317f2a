#include "mysql/schema.h"

#include "unit.h"

#include <stdio.h>

/* A table as issue reports show it, to be spoilt by each test. */
static struct schema_column columns[] = {
	{ .name = "id", .type = "bigint", .full = (char[]){ "bigint" } },
	{ .name = "event_id",
		.type = "varchar",
		.full = (char[]){ "varchar(64)" },
		.charset = "utf8mb4",
		.length = 64 },
	{ .name = "aggregate_type",
		.type = "varchar",
		.full = (char[]){ "varchar(64)" },
		.charset = "utf8mb4",
		.length = 64 },
	{ .name = "aggregate_id",
		.type = "varchar",
		.full = (char[]){ "varchar(128)" },
		.charset = "utf8mb4",
		.length = 128 },
	{ .name = "event_type",
		.type = "varchar",
		.full = (char[]){ "varchar(128)" },
		.charset = "utf8mb4",
		.length = 128 },
	{ .name = "payload", .type = "json", .full = (char[]){ "json" } },
	{ .name = "status",
		.type = "varchar",
		.full = (char[]){ "varchar(32)" },
		.charset = "utf8mb4",
		.length = 32 },
	{ .name = "retry_count", .type = "int", .full = (char[]){ "int" } },
	{ .name = "next_retry_at",
		.type = "timestamp",
		.full = (char[]){ "timestamp" },
		.nullable = true },
	{ .name = "locked_by",
		.type = "varchar",
		.full = (char[]){ "varchar(128)" },
		.charset = "utf8mb4",
		.length = 128,
		.nullable = true },
	{ .name = "locked_until",
		.type = "timestamp",
		.full = (char[]){ "timestamp" },
		.nullable = true },
	{ .name = "created_at", .type = "timestamp", .full = (char[]){ "timestamp" } },
	{ .name = "sent_at",
		.type = "timestamp",
		.full = (char[]){ "timestamp" },
		.nullable = true },
	{ .name = "last_error",
		.type = "varchar",
		.full = (char[]){ "varchar(1024)" },
		.charset = "utf8mb4",
		.length = 1024,
		.nullable = true },
};

static struct schema_index indexes[] = {
	{ "PRIMARY", true, true, 1, { { "id", true, true } } },
	{ "uk", true, true, 1, { { "event_id", true, true } } },
	{ "ic", false, true, 3,
		{ { "status", true, true }, { "next_retry_at", true, true },
			{ "created_at", true, true } } },
	{ "ia", false, true, 3,
		{ { "aggregate_type", true, true }, { "aggregate_id", true, true },
			{ "created_at", true, true } } },
};

static struct schema_column *column(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(columns); i++)
		if (strcmp(columns[i].name, name) == 0)
			return &columns[i];
	return NULL;
}

struct all {
	unsigned count[3];
	char text[4000];
};

static void found(void *arg, const struct finding *f)
{
	struct all *a = arg;
	size_t n = strlen(a->text);

	a->count[f->severity]++;
	snprintf(a->text + n, sizeof(a->text) - n, "%s|%s|%s|%s\n", severity_name(f->severity),
		f->where, f->what, f->fix);
}

static struct all judge(struct outbox_table *table, bool ordered)
{
	struct schema s = { "shop", "outbox_event", "BASE TABLE", "InnoDB", columns,
		ARRAY_LEN(columns), indexes, ARRAY_LEN(indexes) };
	const struct schema_wish wish = { NULL, 0, ordered, "me" };
	struct all a = { 0 };
	const struct finding_sink sink = { found, &a };

	schema_judge(&s, &wish, &sink, table);
	return a;
}

START_TEST(the_minimal_table_has_no_fault)
{
	struct outbox_table t;
	struct all a = judge(&t, true);

	ck_assert_uint_eq(a.count[SEVERITY_FAULT], 0);
	ck_assert_uint_eq(a.count[SEVERITY_WARNING], 0);
	ck_assert_str_eq(t.name, "`shop`.`outbox_event`");
	ck_assert_str_eq(t.claim_index, "`ic`");
	ck_assert_str_eq(t.aggregate_index, "`ia`");
	ck_assert(t.id_signed);
	ck_assert_uint_eq(t.fraction[TIME_NEXT_RETRY], 0);
	ck_assert_uint_eq(t.error_chars, 1024);
	ck_assert_int_eq(t.error_repertoire, REPERTOIRE_UNICODE);
	for (unsigned c = 0; c < OPTIONAL_COLUMNS; c++)
		ck_assert(!t.has[c]);
}
END_TEST

START_TEST(each_fault_comes_with_the_statement_that_mends_it)
{
	struct outbox_table t;
	struct all a;

	strcpy(column("locked_until")->name, "gone");
	column("next_retry_at")->nullable = false;
	column("status")->length = 8;
	column("last_error")->length = 200;
	a = judge(&t, false);
	ck_assert_ptr_nonnull(strstr(a.text,
		"fault|shop.outbox_event.locked_until|the column is missing|ALTER TABLE "
		"`shop`.`outbox_event` ADD `locked_until` TIMESTAMP(6) NULL DEFAULT NULL"));
	ck_assert_ptr_nonnull(strstr(a.text,
		"fault|shop.outbox_event.next_retry_at|it must allow NULL|ALTER TABLE "
		"`shop`.`outbox_event` MODIFY `next_retry_at`"));
	ck_assert_ptr_nonnull(strstr(a.text, "8 characters are too few for PROCESSING"));
	ck_assert_ptr_nonnull(
		strstr(a.text, "note|shop.outbox_event.last_error|reasons are cut to 200"));
	ck_assert_uint_eq(a.count[SEVERITY_FAULT], 3);
	ck_assert_uint_eq(t.error_chars, 200);
}
END_TEST

START_TEST(an_index_must_be_whole_visible_and_in_order)
{
	struct outbox_table t;

	indexes[2].part[0].whole = false;
	ck_assert_uint_eq(judge(&t, false).count[SEVERITY_FAULT], 1);
	indexes[2].part[0].whole = true;
	indexes[2].part[2].ascending = false;
	ck_assert_uint_eq(judge(&t, false).count[SEVERITY_FAULT], 1);
	indexes[2].part[2].ascending = true;
	indexes[2].usable = false;
	ck_assert_uint_eq(judge(&t, false).count[SEVERITY_FAULT], 1);
	indexes[2].usable = true;
	indexes[2].count = 4;
	strcpy(indexes[2].part[3].column, "id");
	indexes[2].part[3].ascending = true;
	ck_assert_uint_eq(judge(&t, false).count[SEVERITY_FAULT], 0);
	strcpy(indexes[2].part[3].column, "event_id");
	ck_assert_uint_eq(judge(&t, false).count[SEVERITY_FAULT], 1);
	indexes[2].count = 3;
	indexes[3].usable = false;
	ck_assert_uint_eq(judge(&t, false).count[SEVERITY_FAULT], 0);
	ck_assert_uint_eq(judge(&t, true).count[SEVERITY_FAULT], 1);
}
END_TEST

START_TEST(what_is_odd_but_works_is_told_and_no_fault)
{
	struct outbox_table t;
	struct all a;

	strcpy(column("created_at")->extra, "DEFAULT_GENERATED on update CURRENT_TIMESTAMP");
	strcpy(column("sent_at")->type, "datetime");
	column("sent_at")->fraction = 3;
	strcpy(column("event_id")->collation, "utf8mb4_0900_ai_ci");
	strcpy(column("last_error")->charset, "utf8mb3");
	column("id")->full = (char[]){ "bigint unsigned" };
	a = judge(&t, true);
	ck_assert_uint_eq(a.count[SEVERITY_FAULT], 0);
	ck_assert_uint_eq(a.count[SEVERITY_WARNING], 1);
	ck_assert_uint_eq(a.count[SEVERITY_NOTE], 4);
	ck_assert(t.on_update[TIME_CREATED]);
	ck_assert_uint_eq(t.fraction[TIME_SENT], 3);
	ck_assert_int_eq(t.error_repertoire, REPERTOIRE_BMP);
	ck_assert(!t.id_signed);
}
END_TEST

static struct query_plan explained(const char *type, const char *extra)
{
	const struct slice row[] = { SLICE_LIT("1"), SLICE_LIT("SIMPLE"), SLICE_LIT("outbox_event"),
		{ 0 }, slice_str(type), SLICE_LIT("idx_outbox_claim"),
		SLICE_LIT("idx_outbox_claim"), SLICE_LIT("130"), SLICE_LIT("const"), SLICE_LIT("1"),
		slice_str(extra) };
	struct query_plan p = { 0 };

	plan_add(&p, row, ARRAY_LEN(row));
	return p;
}

START_TEST(a_plan_is_bad_if_it_reads_all_or_sorts)
{
	ck_assert(!explained("ref", "Using index condition").scan);
	ck_assert(!explained("range", "Using where").sort);
	ck_assert(explained("ALL", "Using where").scan);
	ck_assert(!explained("index", "Using where; Using index").scan);
	ck_assert(explained("ref", "Using where; Using filesort").sort);
	ck_assert(explained("ref", "Using temporary").sort);
	ck_assert(
		strstr(explained("ref", "x").text, "outbox_event - ref idx_outbox_claim") != NULL);
}
END_TEST

START_TEST(an_enum_needs_every_state)
{
	struct outbox_table t;
	struct all a;

	strcpy(column("status")->type, "enum");
	column("status")->full = (char[]){ "enum('PENDING','PROCESSING','SENT','DEAD')" };
	a = judge(&t, true);
	ck_assert_uint_eq(a.count[SEVERITY_FAULT], 1);
	ck_assert_ptr_nonnull(strstr(a.text, "lacks the state RETRY"));
}
END_TEST

UNIT_MAIN("mysql schema", the_minimal_table_has_no_fault,
	each_fault_comes_with_the_statement_that_mends_it,
	an_index_must_be_whole_visible_and_in_order, what_is_odd_but_works_is_told_and_no_fault,
	a_plan_is_bad_if_it_reads_all_or_sorts, an_enum_needs_every_state)

/* What arrives of a payload, whatever is in it, and what large ones cost. */
#include "base/buf.h"
#include "base/rng.h"
#include "support/rig.h"

#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- random documents ----------------------------------------------------------------------- */

#define DOCUMENTS 2000
#define DOCUMENTS_LONG 100000
#define SEED 20261129
#define AT_ONCE 100
#define TEXT_MAX 100000

/* MySQL takes 100 levels, MariaDB 32. */
static unsigned depth_max(void)
{
	return env_get()->mariadb ? 28 : 90;
}

static void add_utf8(struct buf *b, unsigned c)
{
	char t[4];
	size_t n = 0;

	if (c < 0x80) {
		t[n++] = (char)c;
	} else if (c < 0x800) {
		t[n++] = (char)(0xC0 | c >> 6);
	} else if (c < 0x10000) {
		t[n++] = (char)(0xE0 | c >> 12);
		t[n++] = (char)(0x80 | (c >> 6 & 0x3F));
	} else {
		t[n++] = (char)(0xF0 | c >> 18);
		t[n++] = (char)(0x80 | (c >> 12 & 0x3F));
		t[n++] = (char)(0x80 | (c >> 6 & 0x3F));
	}
	if (c >= 0x80)
		t[n++] = (char)(0x80 | (c & 0x3F));
	buf_add(b, t, n);
}

/* Of any plane, half of them of the first 256; no half of a surrogate pair. */
static unsigned some_character(struct rng *r)
{
	unsigned c;

	switch (rng_below(r, 4)) {
	case 0:
	case 1:
		return (unsigned)rng_below(r, 256);
	case 2:
		c = (unsigned)rng_below(r, 0x10000);
		return c >= 0xD800 && c < 0xE000 ? 0xFFFD : c;
	default:
		return (unsigned)(0x10000 + rng_below(r, 0x100000));
	}
}

static void add_escaped(struct buf *b, unsigned c)
{
	if (c >= 0x10000)
		buf_addf(b, "\\u%04x\\u%04X", 0xD800 + ((c - 0x10000) >> 10), 0xDC00 + (c & 0x3FF));
	else
		buf_addf(b, "\\u%04X", c);
}

static void add_string(struct buf *b, struct rng *r, size_t characters)
{
	static const char short_ones[] = "\"\\/bfnrt";

	buf_addc(b, '"');
	for (size_t i = 0; i < characters; i++) {
		unsigned c = some_character(r);
		uint64_t how = rng_below(r, 12);

		if (how == 0)
			buf_addf(b, "\\%c", short_ones[rng_below(r, 8)]);
		else if (how == 1 || c < 0x20 || c == '"' || c == '\\')
			add_escaped(b, c);
		else
			add_utf8(b, c);
	}
	buf_addc(b, '"');
}

static void add_number(struct buf *b, struct rng *r)
{
	uint64_t n = rng_next(r) >> rng_below(r, 64);

	if (rng_below(r, 3) == 0)
		buf_addc(b, '-');
	switch (rng_below(r, 5)) {
	case 0: /* beyond 64 bits */
		buf_addf(b, "%" PRIu64 "%" PRIu64, n + 1, rng_next(r));
		break;
	case 1:
		buf_addf(b, "%" PRIu64 ".%" PRIu64, n, rng_next(r));
		break;
	case 2:
		buf_addf(b, "%" PRIu64 ".%" PRIu64 "%s%d", n % 10, rng_next(r) % 100000,
			rng_below(r, 2) == 0 ? "e" : "E+", (int)rng_below(r, 300));
		break;
	case 3:
		buf_addf(b, "%" PRIu64 "e-%d", n % 1000, (int)rng_below(r, 300));
		break;
	default:
		buf_addu(b, n);
	}
}

static void add_blanks(struct buf *b, struct rng *r)
{
	static const char blanks[] = " \t\r\n";

	while (rng_below(r, 5) == 0)
		buf_addc(b, blanks[rng_below(r, 4)]);
}

static void add_value(struct buf *b, struct rng *r, unsigned levels)
{
	static const char *const words[] = { "true", "false", "null", "{}", "[]", "\"\"", "0",
		"-0" };
	uint64_t kind = rng_below(r, levels > 0 ? 8 : 4);
	bool object = kind >= 6;
	unsigned members = (unsigned)rng_below(r, 5);

	add_blanks(b, r);
	if (kind == 0) {
		buf_adds(b, words[rng_below(r, levels > 0 ? ARRAY_LEN(words) : 3)]);
	} else if (kind == 1) {
		add_number(b, r);
	} else if (kind < 4) {
		add_string(b, r, rng_below(r, 30));
	} else {
		buf_addc(b, object ? '{' : '[');
		for (unsigned i = 0; i < members; i++) {
			if (i > 0)
				buf_addc(b, ',');
			if (object) {
				add_string(b, r, rng_below(r, 12));
				buf_addc(b, ':');
			}
			add_value(b, r, levels - 1);
		}
		buf_addc(b, object ? '}' : ']');
	}
	add_blanks(b, r);
}

/* Now and then very deep, or with a very long string. */
static void add_document(struct buf *b, struct rng *r)
{
	uint64_t kind = rng_below(r, 500);
	unsigned levels = kind < 5 ? 1 + (unsigned)rng_below(r, depth_max()) : 0;

	for (unsigned i = 0; i < levels; i++)
		buf_adds(b, i % 2 == 0 ? "[1," : "{\"k\":");
	if (kind == 10)
		add_string(b, r, rng_below(r, TEXT_MAX / 3));
	else
		add_value(b, r, levels > 0 ? 1 : 6);
	for (unsigned i = levels; i > 0; i--)
		buf_adds(b, (i - 1) % 2 == 0 ? "]" : "}");
}

static void write_documents(struct rig *r, struct rng *rng, unsigned first, unsigned count)
{
	struct buf sql = { 0 }, doc = { 0 };

	buf_addf(&sql,
		"INSERT INTO %s.outbox_event (event_id,aggregate_type,aggregate_id,event_type,"
		"payload) VALUES ",
		r->schema[0].name);
	for (unsigned i = first; i < first + count; i++) {
		buf_reset(&doc);
		if (i == 0)
			add_string(
				&doc, rng, TEXT_MAX / 3); /* one is long, whatever the dice say */
		else
			add_document(&doc, rng);
		buf_addf(&sql, "%s('d-%u','doc','a%u','written','", i > first ? "," : "", i,
			i % 997);
		for (size_t at = 0; at < doc.len; at++) {
			if (doc.data[at] == '\'' || doc.data[at] == '\\')
				buf_addc(&sql, '\\');
			buf_addc(&sql, doc.data[at]);
		}
		buf_adds(&sql, "')");
	}
	db_exec(r->db, "%s", sql.data);
	buf_fini(&sql);
	buf_fini(&doc);
}

struct comparison {
	const struct inbox *inbox;
	unsigned rows;
	size_t longest;
};

static int by_id(const void *a, const void *b)
{
	const struct message *x = a, *y = b;

	return strcmp(x->message_id, y->message_id);
}

static void on_document(void *arg, const struct db_row *row)
{
	struct comparison *c = arg;
	struct message key = { .message_id = (char *)(uintptr_t)row->value[0] };
	const struct message *m =
		bsearch(&key, c->inbox->messages, c->inbox->count, sizeof(key), by_id);

	if (m == NULL)
		FAIL("%s did not arrive", row->value[0]);
	if (m->len != row->len[1] || memcmp(m->body, row->value[1], m->len) != 0)
		FAIL("%s: %zu bytes arrived, the server has %lu: \"%.300s\", \"%.300s\"",
			row->value[0], m->len, row->len[1], m->body, row->value[1]);
	c->rows++;
	c->longest = m->len > c->longest ? m->len : c->longest;
}

START_TEST(whatever_is_in_a_document_the_queue_gets_the_bytes_the_server_has)
{
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("bodies");
	/* as the simulation's: always the same in make check, others in the long form */
	struct rng rng = { env_get()->thorough ? env_random() : SEED };
	unsigned count = env_get()->thorough ? DOCUMENTS_LONG : DOCUMENTS;
	struct comparison comparison = { .inbox = &r.inbox };

	printf("documents of seed %" PRIu64 "\n", rng.state);
	rig_open(&r, 1);
	rig_conf(&r, &c);
	c.ordering = "aggregate";
	daemon_configure(d, &c);
	daemon_start(d);
	for (unsigned i = 0; i < count; i += AT_ONCE)
		write_documents(&r, &rng, i, AT_ONCE);
	rig_wait_sent(&r, 0, 120000);
	daemon_stop(d);
	REQUIRE_INT(rig_rows(&r, 0, "status='SENT'"), ==, count);
	mq_drain(r.mq, r.queue, &r.inbox);
	REQUIRE_INT(r.inbox.count, ==, count);
	qsort(r.inbox.messages, r.inbox.count, sizeof(r.inbox.messages[0]), by_id);
	db_rows(r.db, on_document, &comparison,
		"SELECT event_id,CAST(payload AS CHAR) FROM %s.outbox_event", r.schema[0].name);
	REQUIRE_INT(comparison.rows, ==, count);
	printf("%u documents, the longest of %zu bytes\n", count, comparison.longest);
	REQUIRE_INT(comparison.longest, >, 10000);
	daemon_free(d);
	rig_close(&r);
}
END_TEST

/* --- large rows ----------------------------------------------------------------------------- */

#define LARGE_ROWS 150
#define LARGE_ROWS_LONG 1000
#define IN_FLIGHT_KB (64 * 1024)

static int64_t peak_kb(const struct daemon *d)
{
	char path[64], *text, *at;
	int64_t kb = -1;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)d->pid);
	text = env_read_file(path);
	at = text != NULL ? strstr(text, "VmHWM:") : NULL;
	if (at != NULL)
		kb = strtoll(at + strlen("VmHWM:"), NULL, 10);
	free(text);
	REQUIRE(kb > 0);
	return kb;
}

START_TEST(rows_of_a_mebibyte_take_no_more_memory_than_may_be_in_flight)
{
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("large");
	unsigned rows = env_get()->thorough ? LARGE_ROWS_LONG : LARGE_ROWS;
	int64_t idle_kb, kb;

	rig_open(&r, 1);
	rig_conf(&r, &c);
	c.ordering = "aggregate";
	c.lease_ms = 120000;
	c.confirm_ms = 60000;
	c.source[0].more = "    max_in_flight_bytes: 64MiB\n";
	daemon_configure(d, &c);
	daemon_start(d);
	daemon_wait_ready(d, true);
	idle_kb = peak_kb(d);
	daemon_stop(d);
	for (unsigned i = 0; i < rows; i++)
		db_exec(r.db,
			"INSERT INTO %s.outbox_event SET event_id='l-%u',aggregate_type='order',"
			"aggregate_id='a%u',event_type='created',"
			"payload=JSON_QUOTE(REPEAT('%c',1048574))",
			r.schema[0].name, i, i % 200, 'a' + (int)(i % 26));
	daemon_start(d);
	rig_wait_sent(&r, 0, 300000);
	kb = peak_kb(d);
	printf("%u rows of 1 MiB: %" PRId64 " kB at most, %" PRId64 " kB without rows\n", rows, kb,
		idle_kb);
	REQUIRE_INT(kb, <=, idle_kb + IN_FLIGHT_KB * 11 / 10);
	daemon_stop(d);
	REQUIRE_INT(rig_rows(&r, 0, "status='SENT'"), ==, rows);
	daemon_free(d);
	rig_close(&r);
}
END_TEST

RIG_MAIN("daemon: bodies", 900, whatever_is_in_a_document_the_queue_gets_the_bytes_the_server_has,
	rows_of_a_mebibyte_take_no_more_memory_than_may_be_in_flight)

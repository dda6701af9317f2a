#include "amqp/confirms.h"
#include "base/rng.h"

#include "unit.h"

#include <stdio.h>
#include <string.h>

/* What was reported, in order. */
struct log {
	uintptr_t cookies[4096];
	bool acks[4096], returned[4096];
	unsigned codes[4096];
	char text[128];
	size_t count;
};

static void on_confirmed(void *arg, const struct confirmed *m)
{
	struct log *l = arg;

	ck_assert_uint_lt(l->count, ARRAY_LEN(l->cookies));
	l->cookies[l->count] = (uintptr_t)m->cookie;
	l->acks[l->count] = m->ack;
	l->returned[l->count] = m->returned;
	l->codes[l->count] = m->code;
	snprintf(l->text, sizeof(l->text), "%s", m->text);
	l->count++;
}

static uint64_t sent(struct confirms *c, uintptr_t cookie, const char *id)
{
	ck_assert_int_eq(confirms_reserve(c, strlen(id)), 0);
	return confirms_sent(c, (void *)cookie, slice_str(id));
}

static void send_many(struct confirms *c, unsigned n)
{
	for (unsigned i = 1; i <= n; i++) {
		char id[16];

		snprintf(id, sizeof(id), "m%u", i);
		ck_assert_uint_eq(sent(c, i, id), i);
	}
}

static void settle(struct confirms *c, struct log *l, uint64_t tag, bool multiple)
{
	confirms_settle(c, tag, multiple, true, on_confirmed, l);
}

START_TEST(acks_merged_repeated_out_of_order_and_unknown_settle_each_message_once)
{
	static const uintptr_t want[] = { 1, 2, 3, 5, 4, 6, 7, 8, 9, 10 };
	struct confirms c = { 0 };
	struct log l = { 0 };

	send_many(&c, 10);
	settle(&c, &l, 3, true);
	settle(&c, &l, 1, false);
	settle(&c, &l, 5, false);
	settle(&c, &l, 4, false);
	settle(&c, &l, 7, true);
	settle(&c, &l, 0, true);
	settle(&c, &l, 999, false);
	settle(&c, &l, 999, true);
	settle(&c, &l, 0, false);
	ck_assert_uint_eq(l.count, 10);
	for (size_t i = 0; i < 10; i++)
		ck_assert_uint_eq(l.cookies[i], want[i]);
	ck_assert_uint_eq(c.open, 0);
	ck_assert_uint_eq(c.duplicates, 1);
	ck_assert_uint_eq(c.unknown, 3);
	confirms_fini(&c);
}
END_TEST

START_TEST(a_return_is_reported_with_the_ack_behind_it)
{
	struct confirms c = { 0 };
	struct log l = { 0 };

	send_many(&c, 3);
	confirms_returned(&c, SLICE_LIT("m2"), 312, SLICE_LIT("NO_ROUTE"));
	ck_assert_uint_eq(l.count, 0);
	settle(&c, &l, 3, true);
	ck_assert_uint_eq(l.count, 3);
	ck_assert(!l.returned[0] && l.returned[1] && !l.returned[2]);
	ck_assert_uint_eq(l.codes[1], 312);
	confirms_fini(&c);
}
END_TEST

START_TEST(the_text_of_a_return_is_kept_and_a_ninth_kind_of_text_is_left_out)
{
	struct confirms c = { 0 };
	struct log l = { 0 };

	send_many(&c, 10);
	for (int i = 1; i <= 10; i++) {
		char id[16], text[16];

		snprintf(id, sizeof(id), "m%d", i);
		snprintf(text, sizeof(text), "WHY %d", i);
		confirms_returned(&c, slice_str(id), 312, slice_str(text));
	}
	settle(&c, &l, 8, false);
	ck_assert_str_eq(l.text, "WHY 8");
	settle(&c, &l, 9, false);
	ck_assert_str_eq(l.text, "");
	ck_assert(l.returned[1]);
	confirms_fini(&c);
}
END_TEST

START_TEST(equal_ids_are_told_apart_by_the_order_of_their_returns)
{
	struct confirms c = { 0 };
	struct log l = { 0 };

	sent(&c, 1, "same");
	sent(&c, 2, "same");
	sent(&c, 3, "same");
	confirms_returned(&c, SLICE_LIT("same"), 312, SLICE_LIT(""));
	confirms_returned(&c, SLICE_LIT("same"), 312, SLICE_LIT(""));
	settle(&c, &l, 0, true);
	ck_assert(l.returned[0] && l.returned[1] && !l.returned[2]);
	confirms_fini(&c);
}
END_TEST

START_TEST(a_return_out_of_order_is_still_found_and_a_strange_one_counted)
{
	struct confirms c = { 0 };
	struct log l = { 0 };

	send_many(&c, 5);
	confirms_returned(&c, SLICE_LIT("m4"), 312, SLICE_LIT(""));
	confirms_returned(&c, SLICE_LIT("m2"), 312, SLICE_LIT(""));
	confirms_returned(&c, SLICE_LIT("m2"), 312, SLICE_LIT("")); /* twice */
	confirms_returned(&c, SLICE_LIT("m"), 312, SLICE_LIT(""));
	confirms_returned(&c, SLICE_LIT("m44"), 312, SLICE_LIT(""));
	confirms_returned(&c, (struct slice){ NULL, 0 }, 312, SLICE_LIT(""));
	ck_assert_uint_eq(c.unknown_returns, 4);
	settle(&c, &l, 0, true);
	for (int i = 0; i < 5; i++)
		ck_assert_int_eq(l.returned[i], i == 3 || i == 1);
	confirms_fini(&c);
}
END_TEST

START_TEST(after_a_reset_tags_start_at_one_and_old_messages_are_forgotten)
{
	struct confirms c = { 0 };
	struct log l = { 0 };

	send_many(&c, 100);
	confirms_returned(&c, SLICE_LIT("m60"), 312, SLICE_LIT(""));
	confirms_reset(&c);
	settle(&c, &l, 50, true);
	ck_assert_uint_eq(l.count, 0);
	ck_assert_uint_eq(c.unknown, 1);
	send_many(&c, 2);
	confirms_returned(&c, SLICE_LIT("m50"), 312, SLICE_LIT(""));
	ck_assert_uint_eq(c.unknown_returns, 1);
	confirms_returned(&c, SLICE_LIT("m1"), 312, SLICE_LIT(""));
	confirms_returned(&c, SLICE_LIT("m2"), 312, SLICE_LIT(""));
	settle(&c, &l, 2, true);
	ck_assert_uint_eq(l.count, 2);
	ck_assert(l.returned[0] && l.returned[1]);
	confirms_fini(&c);
}
END_TEST

START_TEST(what_a_reset_forgets_takes_no_room_for_ever)
{
	struct confirms c = { 0 };

	for (int i = 0; i < 1000; i++) {
		send_many(&c, 100);
		confirms_reset(&c);
	}
	ck_assert_uint_le(c.cap, 128);
	ck_assert_uint_le(c.ids_cap, 1024);
	confirms_fini(&c);
}
END_TEST

static void send_again(void *arg, const struct confirmed *m)
{
	struct confirms *c = arg;

	(void)m;
	/* Grows the rings while confirms_settle() walks them. */
	for (int i = 0; i < 40; i++)
		sent(c, 0, "a message sent from the callback");
}

START_TEST(a_callback_may_send)
{
	struct confirms c = { 0 };
	struct log l = { 0 };

	send_many(&c, 60);
	confirms_settle(&c, 60, true, true, send_again, &c);
	ck_assert_uint_eq(c.open, 60 * 40);
	settle(&c, &l, 0, true);
	ck_assert_uint_eq(l.count, 60 * 40);
	confirms_fini(&c);
}
END_TEST

START_TEST(a_window_that_never_empties_needs_no_more_memory)
{
	struct confirms c = { 0 };
	struct log l = { 0 };
	size_t cap = 0, ids_cap = 0;

	send_many(&c, 1000);
	for (uint64_t tag = 1; tag < 200000; tag++) {
		if (tag == 1001) {
			cap = c.cap;
			ids_cap = c.ids_cap;
		}
		settle(&c, &l, tag, false);
		l.count = 0;
		sent(&c, 1, "01234567-89ab-cdef-0123-456789abcdef");
	}
	ck_assert_uint_eq(c.cap, cap);
	ck_assert_uint_eq(c.ids_cap, ids_cap);
	ck_assert_uint_eq(c.open, 1000);
	confirms_fini(&c);
}
END_TEST

/* The same in the plainest way: an array of everything ever sent. */
struct model {
	struct {
		char id[256];
		bool open, returned;
		unsigned code;
	} m[4096];
	size_t sent;
};

static void model_settle(struct model *m, uint64_t tag, bool multiple, bool ack, struct log *l)
{
	uint64_t last = tag == 0 && multiple ? m->sent : tag;

	if (last > m->sent || last == 0)
		return;
	for (uint64_t i = multiple ? 1 : last; i <= last; i++) {
		if (!m->m[i].open)
			continue;
		m->m[i].open = false;
		l->cookies[l->count] = (uintptr_t)i;
		l->acks[l->count] = ack;
		l->returned[l->count] = m->m[i].returned;
		l->codes[l->count] = m->m[i].returned ? m->m[i].code : 0;
		l->count++;
	}
}

static void model_return(struct model *m, const char *id, uint64_t after, unsigned code)
{
	for (int round = 0; round < 2; round++) {
		for (uint64_t i = round == 0 ? after + 1 : 1; i <= m->sent; i++) {
			if (m->m[i].open && !m->m[i].returned && strcmp(m->m[i].id, id) == 0) {
				m->m[i].returned = true;
				m->m[i].code = code;
				return;
			}
		}
	}
}

static void random_id(struct rng *r, char id[256])
{
	size_t len = rng_below(r, 20) == 0 ? (size_t)rng_below(r, 256) : (size_t)rng_below(r, 4);

	for (size_t i = 0; i < len; i++)
		id[i] = (char)('a' + rng_below(r, 3));
	id[len] = '\0';
}

START_TEST(random_histories_agree_with_a_naive_set)
{
	for (uint64_t seed = 1; seed <= 200; seed++) {
		struct rng r = { seed };
		struct confirms c = { 0 };
		struct model *m = calloc(1, sizeof(*m));
		struct log *got = calloc(1, sizeof(*got)), *want = calloc(1, sizeof(*want));

		for (int step = 0; step < 1500; step++) {
			char id[256];
			uint64_t tag;

			switch (rng_below(&r, 8)) {
			case 0:
			case 1:
			case 2:
			case 3:
				random_id(&r, id);
				tag = sent(&c, m->sent + 1, id);
				ck_assert_uint_eq(tag, ++m->sent);
				strcpy(m->m[tag].id, id);
				m->m[tag].open = true;
				break;
			case 4:
				random_id(&r, id);
				model_return(m, id, c.cursor, 300 + (unsigned)seed);
				confirms_returned(
					&c, slice_str(id), (uint16_t)(300 + seed), SLICE_LIT("t"));
				break;
			default: {
				bool multiple = rng_below(&r, 10) == 0;
				bool ack = rng_below(&r, 4) > 0;
				uint64_t back = rng_below(&r, rng_below(&r, 5) == 0 ? 2000 : 40);

				tag = rng_below(&r, 100) == 0 ? 0
				      : m->sent + 3 > back    ? m->sent + 3 - back
							      : 1;
				model_settle(m, tag, multiple, ack, want);
				confirms_settle(&c, tag, multiple, ack, on_confirmed, got);
			}
			}
			ck_assert_msg(
				got->count == want->count, "seed %d step %d", (int)seed, step);
		}
		model_settle(m, 0, true, true, want);
		confirms_settle(&c, 0, true, true, on_confirmed, got);
		ck_assert_uint_eq(got->count, m->sent);
		for (size_t i = 0; i < got->count; i++) {
			ck_assert_msg(got->cookies[i] == want->cookies[i] &&
					      got->acks[i] == want->acks[i] &&
					      got->returned[i] == want->returned[i] &&
					      got->codes[i] == want->codes[i],
				"seed %d outcome %zu", (int)seed, i);
		}
		confirms_fini(&c);
		free(m);
		free(got);
		free(want);
	}
}
END_TEST

UNIT_MAIN("confirms", acks_merged_repeated_out_of_order_and_unknown_settle_each_message_once,
	a_return_is_reported_with_the_ack_behind_it,
	the_text_of_a_return_is_kept_and_a_ninth_kind_of_text_is_left_out,
	equal_ids_are_told_apart_by_the_order_of_their_returns,
	a_return_out_of_order_is_still_found_and_a_strange_one_counted,
	after_a_reset_tags_start_at_one_and_old_messages_are_forgotten,
	what_a_reset_forgets_takes_no_room_for_ever, a_callback_may_send,
	a_window_that_never_empties_needs_no_more_memory, random_histories_agree_with_a_naive_set)

#include "relay/order.h"

#include "base/rng.h"
#include "relay/event.h"
#include "unit.h"

#include <stdio.h>

#define KEYS 400

static uint64_t key(const struct order *o, unsigned n)
{
	char id[16];

	snprintf(id, sizeof(id), "a%u", n);
	return order_hash(o, SLICE_LIT("order"), slice_str(id));
}

START_TEST(names_are_told_apart_by_bytes_and_by_where_they_end)
{
	struct order o;

	ck_assert_int_eq(order_init(&o, 10, 42), 0);
	ck_assert_uint_ne(order_hash(&o, SLICE_LIT("ab"), SLICE_LIT("c")),
		order_hash(&o, SLICE_LIT("a"), SLICE_LIT("bc")));
	ck_assert_uint_ne(order_hash(&o, SLICE_LIT("t"), SLICE_LIT("A")),
		order_hash(&o, SLICE_LIT("t"), SLICE_LIT("a")));
	ck_assert_uint_ne(order_hash(&o, SLICE_LIT("t"), SLICE_LIT("a ")),
		order_hash(&o, SLICE_LIT("t"), SLICE_LIT("a")));
	ck_assert_uint_ne(order_hash(&o, SLICE_LIT("t"), SLICE_LIT("")),
		order_hash(&o, SLICE_LIT("t"), (struct slice){ NULL, 0 }));
	ck_assert_uint_eq(key(&o, 5), key(&o, 5));
	order_fini(&o);
}
END_TEST

START_TEST(barred_counts_agree_with_a_plain_table_of_counts)
{
	struct rng rng = { 99 };
	uint64_t model[KEYS] = { 0 };
	struct order o;

	ck_assert_int_eq(order_init(&o, 10, 7), 0);
	for (int i = 0; i < 200000; i++) {
		unsigned n = (unsigned)rng_below(&rng, KEYS);
		/* swings between nearly empty and full, so that the table grows and thins out */
		bool add = rng_below(&rng, 100) < ((i / 5000) % 2 == 0 ? 70u : 30u);

		if (add) {
			ck_assert_int_eq(barred_add(&o, key(&o, n)), 0);
			model[n]++;
		} else {
			uint64_t rows = 1 + rng_below(&rng, 3);

			barred_sub(&o, key(&o, n), rows);
			model[n] -= rows < model[n] ? rows : model[n];
		}
		ck_assert_uint_eq(barred_rows(&o, key(&o, n)), model[n]);
		if (i % 1000 == 0) {
			size_t count = 0;

			for (unsigned k = 0; k < KEYS; k++) {
				ck_assert_uint_eq(barred_rows(&o, key(&o, k)), model[k]);
				count += model[k] > 0;
			}
			ck_assert_uint_eq(o.barred_count, count);
		}
	}
	barred_clear(&o);
	for (unsigned k = 0; k < KEYS; k++)
		ck_assert_uint_eq(barred_rows(&o, key(&o, k)), 0);
	order_fini(&o);
}
END_TEST

START_TEST(hashes_that_collide_in_their_low_bits_do_not_disturb_each_other)
{
	struct order o;

	ck_assert_int_eq(order_init(&o, 10, 7), 0);
	for (uint64_t i = 1; i <= 40; i++) /* all at home in the last slot: they wrap around */
		ck_assert_int_eq(barred_add(&o, i << 32 | o.slot_mask), 0);
	for (uint64_t i = 1; i <= 40; i += 2)
		barred_sub(&o, i << 32 | 63, 1);
	for (uint64_t i = 1; i <= 40; i++)
		ck_assert_uint_eq(barred_rows(&o, i << 32 | 63), i % 2 == 0);
	order_fini(&o);
}
END_TEST

START_TEST(a_lane_lives_as_long_as_it_has_events_or_drains)
{
	struct event a = { .id = 1 }, b = { .id = 2 };
	struct lane *lane;
	struct order o;

	ck_assert_int_eq(order_init(&o, 10, 7), 0);
	ck_assert_ptr_null(lane_find(&o, 5));
	lane = lane_get(&o, 5);
	ck_assert_ptr_eq(lane_get(&o, 5), lane);
	lane_attach(lane, &a);
	lane_attach(lane, &b);
	lane->head = &a;
	ck_assert_int_eq(
		lane_drain(&o, lane, SLICE_LIT("t"), SLICE_LIT("i"), (struct place){ 100, 7 }), 0);
	ck_assert_int_eq(
		lane_drain(&o, lane, SLICE_LIT("t"), SLICE_LIT("i"), (struct place){ 200, 8 }), 0);
	ck_assert_int_eq(lane->walk.created_us, 100); /* it goes on from where it is */
	lane_detach(&o, &a);
	ck_assert_ptr_null(lane->head);
	ck_assert_ptr_null(a.lane);
	lane_detach(&o, &b);
	ck_assert_ptr_eq(lane_find(&o, 5), lane);
	ck_assert_uint_eq(o.lane_count, 1);
	lane_drained(&o, lane);
	ck_assert_ptr_null(lane_find(&o, 5));
	ck_assert_uint_eq(o.lane_count, 0);
	ck_assert(list_empty(&o.drain));
	order_fini(&o);
}
END_TEST

START_TEST(a_walk_goes_back_to_before_a_row_that_waits_as_well)
{
	struct event a = { .id = 1 };
	struct lane *lane;
	struct order o;

	ck_assert_int_eq(order_init(&o, 10, 7), 0);
	lane = lane_get(&o, 5);
	lane_attach(lane, &a);
	ck_assert_int_eq(barred_add(&o, 5), 0);
	ck_assert(!barred_walked(&o, 5));
	ck_assert_int_eq(
		lane_drain(&o, lane, SLICE_LIT("t"), SLICE_LIT("i"), (struct place){ 100, 7 }), 0);
	ck_assert(barred_walked(&o, 5));
	lane_drain_from(lane, (struct place){ 100, 8 });
	ck_assert_uint_eq(lane->walk.id, 7); /* still before it */
	lane_drain_from(lane, (struct place){ 100, 7 });
	ck_assert_int_eq(lane->walk.created_us, 100);
	ck_assert_uint_eq(lane->walk.id, 6);
	lane_drain_from(lane, (struct place){ 50, 0 });
	ck_assert_int_eq(lane->walk.created_us, 49);
	ck_assert_uint_eq(lane->walk.id, UINT64_MAX);
	ck_assert_int_eq(barred_load(&o, 5, false), 0);
	ck_assert(!barred_walked(&o, 5));
	ck_assert(!barred_headless(&o, 5)); /* barred_add() counts one that heads */
	ck_assert_int_eq(barred_load(&o, 6, false), 0);
	ck_assert(barred_headless(&o, 6));
	lane_drained(&o, lane);
	lane_detach(&o, &a);
	order_fini(&o);
}
END_TEST

START_TEST(events_queue_by_created_at_then_id_however_they_come)
{
	struct event ev[200];
	struct rng rng = { 3 };
	struct lane *lane;
	struct order o;
	const struct event *last = NULL;
	unsigned seen = 0;

	ck_assert_int_eq(order_init(&o, 10, 7), 0);
	lane = lane_get(&o, 5);
	for (unsigned i = 0; i < ARRAY_LEN(ev); i++) {
		ev[i] = (struct event){ .id = 1 + rng_below(&rng, 1000000),
			.created_us = (int64_t)rng_below(&rng, 20) };
		list_init(&ev[i].link);
		lane_attach(lane, &ev[i]);
		lane_queue(lane, &ev[i]);
	}
	list_each (pos, &lane->queue) {
		const struct event *at = container_of(pos, struct event, link);

		if (last != NULL)
			ck_assert(!event_before(at, last));
		last = at;
		seen++;
	}
	ck_assert_uint_eq(seen, ARRAY_LEN(ev));
	for (unsigned i = 0; i < ARRAY_LEN(ev); i++) {
		list_del(&ev[i].link);
		lane_detach(&o, &ev[i]);
	}
	order_fini(&o);
}
END_TEST

START_TEST(many_lanes_are_all_found_again)
{
	struct event ev[KEYS];
	struct order o;

	ck_assert_int_eq(order_init(&o, 1, 7), 0);
	for (unsigned i = 0; i < KEYS; i++)
		lane_attach(lane_get(&o, key(&o, i)), &ev[i]);
	for (unsigned i = 0; i < KEYS; i++)
		ck_assert_ptr_eq(lane_find(&o, key(&o, i)), ev[i].lane);
	ck_assert_uint_eq(o.lane_count, KEYS);
	for (unsigned i = 0; i < KEYS; i++) {
		lane_detach(&o, &ev[i]);
		ck_assert_ptr_null(lane_find(&o, key(&o, i)));
	}
	order_fini(&o);
}
END_TEST

UNIT_MAIN("order", names_are_told_apart_by_bytes_and_by_where_they_end,
	barred_counts_agree_with_a_plain_table_of_counts,
	hashes_that_collide_in_their_low_bits_do_not_disturb_each_other,
	a_walk_goes_back_to_before_a_row_that_waits_as_well,
	a_lane_lives_as_long_as_it_has_events_or_drains,
	events_queue_by_created_at_then_id_however_they_come, many_lanes_are_all_found_again)

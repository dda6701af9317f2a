#include "relay/order.h"

#include "relay/event.h"

#include <stdlib.h>
#include <string.h>

int order_init(struct order *o, unsigned window, uint64_t seed)
{
	size_t buckets = 64;

	while (buckets < window)
		buckets *= 2;
	*o = (struct order){ .seed = seed, .bucket_mask = buckets - 1, .slot_mask = 63 };
	list_init(&o->drain);
	o->buckets = calloc(buckets, sizeof(struct lane *));
	o->slots = calloc(o->slot_mask + 1, sizeof(o->slots[0]));
	if (o->buckets == NULL || o->slots == NULL) {
		order_fini(o);
		return -1;
	}
	return 0;
}

static void lane_free(struct lane *lane)
{
	free(lane->type);
	free(lane->id);
	free(lane);
}

void order_fini(struct order *o)
{
	for (size_t i = 0; o->buckets != NULL && i <= o->bucket_mask; i++)
		while (o->buckets[i] != NULL) {
			struct lane *lane = o->buckets[i];

			o->buckets[i] = lane->next;
			lane_free(lane);
		}
	free((void *)o->buckets);
	free(o->slots);
	*o = (struct order){ 0 };
}

/* FNV-1a over both names with their lengths, seeded, then mixed as in MurmurHash3's fmix64. */
uint64_t order_hash(const struct order *o, struct slice type, struct slice id)
{
	const struct slice parts[] = { type, id };
	uint64_t h = UINT64_C(0xCBF29CE484222325) ^ o->seed;

	for (size_t p = 0; p < ARRAY_LEN(parts); p++) {
		for (size_t i = 0; i < parts[p].len; i++)
			h = (h ^ (unsigned char)parts[p].ptr[i]) * UINT64_C(0x100000001B3);
		h = (h ^ parts[p].len ^ (parts[p].ptr == NULL ? UINT64_C(1) << 63 : 0)) *
		    UINT64_C(0x100000001B3);
	}
	h = (h ^ (h >> 33)) * UINT64_C(0xFF51AFD7ED558CCD);
	h = (h ^ (h >> 33)) * UINT64_C(0xC4CEB9FE1A85EC53);
	h ^= h >> 33;
	return h != 0 ? h : 1;
}

struct lane *lane_find(const struct order *o, uint64_t hash)
{
	struct lane *lane = o->buckets[hash & o->bucket_mask];

	while (lane != NULL && lane->hash != hash)
		lane = lane->next;
	return lane;
}

struct lane *lane_get(struct order *o, uint64_t hash)
{
	struct lane **bucket = &o->buckets[hash & o->bucket_mask];
	struct lane *lane = lane_find(o, hash);

	if (lane != NULL)
		return lane;
	lane = calloc(1, sizeof(*lane));
	if (lane == NULL)
		return NULL;
	lane->hash = hash;
	list_init(&lane->queue);
	list_init(&lane->drain);
	lane->next = *bucket;
	*bucket = lane;
	o->lane_count++;
	return lane;
}

static void lane_put(struct order *o, struct lane *lane)
{
	struct lane **at = &o->buckets[lane->hash & o->bucket_mask];

	if (lane->events > 0 || lane_drains(lane))
		return;
	while (*at != lane)
		at = &(*at)->next;
	*at = lane->next;
	o->lane_count--;
	lane_free(lane);
}

void lane_attach(struct lane *lane, struct event *ev)
{
	ev->lane = lane;
	lane->events++;
	if (lane->released > 0)
		lane->released--;
}

void lane_detach(struct order *o, struct event *ev)
{
	struct lane *lane = ev->lane;

	if (lane == NULL)
		return;
	ev->lane = NULL;
	if (lane->head == ev)
		lane->head = NULL;
	lane->events--;
	lane_put(o, lane);
}

static char *copy(struct slice s)
{
	char *p = malloc(s.len + 1);

	if (p != NULL && s.len > 0)
		memcpy(p, s.ptr, s.len);
	return p;
}

bool lane_drains(const struct lane *lane)
{
	return lane->type != NULL;
}

int lane_drain(
	struct order *o, struct lane *lane, struct slice type, struct slice id, struct place behind)
{
	if (lane_drains(lane))
		return 0;
	lane->type = copy(type);
	lane->id = copy(id);
	if (lane->type == NULL || lane->id == NULL) {
		free(lane->type);
		free(lane->id);
		lane->type = lane->id = NULL;
		return -1;
	}
	lane->type_len = type.len;
	lane->id_len = id.len;
	lane->walk = behind;
	lane->walk_after_us = 0;
	lane->released = 0;
	lane->waits = false;
	barred_set_walked(o, lane->hash, true);
	list_push_back(&o->drain, &lane->drain);
	return 0;
}

void lane_drain_from(struct lane *lane, struct place at)
{
	if (place_before(lane->walk, at))
		return;
	/* of 0: the last one of the microsecond before */
	lane->walk = (struct place){ at.id > 0 ? at.created_us : at.created_us - 1, at.id - 1 };
}

void lane_drained(struct order *o, struct lane *lane)
{
	list_del(&lane->drain);
	free(lane->type);
	free(lane->id);
	lane->type = lane->id = NULL;
	lane_put(o, lane);
}

void lane_queue(struct lane *lane, struct event *ev)
{
	struct list *at = &lane->queue;

	while (at->prev != &lane->queue &&
		event_before(ev, container_of(at->prev, struct event, link)))
		at = at->prev;
	list_insert_before(at, &ev->link);
}

static struct barred *slot_of(const struct order *o, uint64_t hash)
{
	size_t i = hash & o->slot_mask;

	while (o->slots[i].hash != 0 && o->slots[i].hash != hash)
		i = (i + 1) & o->slot_mask;
	return &o->slots[i];
}

uint64_t barred_rows(const struct order *o, uint64_t hash)
{
	return o->barred_count > 0 ? slot_of(o, hash)->rows : 0;
}

static int grow(struct order *o)
{
	struct order bigger = { .slot_mask = o->slot_mask * 2 + 1 };

	bigger.slots = calloc(bigger.slot_mask + 1, sizeof(bigger.slots[0]));
	if (bigger.slots == NULL)
		return -1;
	for (size_t i = 0; i <= o->slot_mask; i++)
		if (o->slots[i].hash != 0)
			*slot_of(&bigger, o->slots[i].hash) = o->slots[i];
	free(o->slots);
	o->slots = bigger.slots;
	o->slot_mask = bigger.slot_mask;
	return 0;
}

int barred_load(struct order *o, uint64_t hash, bool heads)
{
	struct barred *slot;

	if ((o->barred_count + 1) * 3 > (o->slot_mask + 1) * 2 && grow(o) < 0)
		return -1;
	slot = slot_of(o, hash);
	if (slot->hash == 0)
		o->barred_count++;
	slot->hash = hash;
	slot->rows++;
	slot->headed |= heads;
	slot->walked = false;
	return 0;
}

int barred_add(struct order *o, uint64_t hash)
{
	return barred_load(o, hash, true);
}

bool barred_walked(const struct order *o, uint64_t hash)
{
	return slot_of(o, hash)->walked;
}

void barred_set_walked(struct order *o, uint64_t hash, bool walked)
{
	struct barred *slot = slot_of(o, hash);

	if (slot->hash != 0)
		slot->walked = walked;
}

bool barred_headless(const struct order *o, uint64_t hash)
{
	const struct barred *slot = slot_of(o, hash);

	return slot->hash != 0 && !slot->headed;
}

void barred_sub(struct order *o, uint64_t hash, uint64_t rows)
{
	struct barred *slot = slot_of(o, hash);
	size_t hole = (size_t)(slot - o->slots), i = hole;

	if (slot->hash == 0)
		return;
	if (slot->rows > rows) {
		slot->rows -= rows;
		return;
	}
	o->barred_count--;
	/* Backward-shift deletion (Knuth, TAOCP 3, 6.4 R): no tombstones. */
	for (;;) {
		size_t home;

		o->slots[hole] = (struct barred){ 0 };
		do {
			i = (i + 1) & o->slot_mask;
			if (o->slots[i].hash == 0)
				return;
			home = o->slots[i].hash & o->slot_mask;
		} while (hole <= i ? (hole < home && home <= i) : (hole < home || home <= i));
		o->slots[hole] = o->slots[i];
		hole = i;
	}
}

void barred_clear(struct order *o)
{
	memset(o->slots, 0, (o->slot_mask + 1) * sizeof(o->slots[0]));
	o->barred_count = 0;
}

#include "amqp/confirms.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* `head` and `sent` count settled and sent tags, so that zero is the state of a fresh channel: tags
 * head + 1 ... sent have slots. */

static struct confirms_slot *slot(const struct confirms *c, uint64_t tag)
{
	return &c->slots[tag & (c->cap - 1)];
}

void confirms_fini(struct confirms *c)
{
	free(c->slots);
	free(c->ids);
	*c = (struct confirms){ 0 };
}

void confirms_reset(struct confirms *c)
{
	c->head = c->sent = c->cursor = 0;
	c->open = 0;
	c->ids_head = c->ids_end = 0;
}

static int grow_slots(struct confirms *c)
{
	size_t cap = c->cap > 0 ? c->cap * 2 : 64;
	struct confirms_slot *slots = calloc(cap, sizeof(*slots));

	if (slots == NULL)
		return -1;
	for (uint64_t tag = c->head + 1; tag <= c->sent; tag++)
		slots[tag & (cap - 1)] = *slot(c, tag);
	free(c->slots);
	c->slots = slots;
	c->cap = cap;
	return 0;
}

static void ids_copy_in(char *ids, size_t cap, uint64_t at, const char *from, size_t len)
{
	size_t pos = (size_t)(at & (cap - 1));
	size_t first = len < cap - pos ? len : cap - pos;

	memcpy(ids + pos, from, first);
	if (len > first)
		memcpy(ids, from + first, len - first);
}

static bool ids_equal(const struct confirms *c, uint64_t at, struct slice id)
{
	size_t pos = (size_t)(at & (c->ids_cap - 1));
	size_t first = id.len < c->ids_cap - pos ? id.len : c->ids_cap - pos;

	return memcmp(c->ids + pos, id.ptr, first) == 0 &&
	       memcmp(c->ids, id.ptr + first, id.len - first) == 0;
}

static int grow_ids(struct confirms *c, size_t need)
{
	size_t cap = c->ids_cap > 0 ? c->ids_cap : 1024;
	size_t used = (size_t)(c->ids_end - c->ids_head);
	char *ids;

	while (cap < need)
		cap *= 2;
	ids = malloc(cap);
	if (ids == NULL)
		return -1;
	if (used > 0) {
		size_t pos = (size_t)(c->ids_head & (c->ids_cap - 1));
		size_t first = used < c->ids_cap - pos ? used : c->ids_cap - pos;

		ids_copy_in(ids, cap, c->ids_head, c->ids + pos, first);
		ids_copy_in(ids, cap, c->ids_head + first, c->ids, used - first);
	}
	free(c->ids);
	c->ids = ids;
	c->ids_cap = cap;
	return 0;
}

int confirms_reserve(struct confirms *c, size_t id_len)
{
	size_t need = (size_t)(c->ids_end - c->ids_head) + id_len;

	if (c->sent - c->head >= c->cap && grow_slots(c) < 0)
		return -1;
	if (need > c->ids_cap && grow_ids(c, need) < 0)
		return -1;
	return 0;
}

uint64_t confirms_sent(struct confirms *c, void *cookie, struct slice message_id)
{
	uint64_t tag = ++c->sent;

	assert(message_id.len <= UINT8_MAX && tag - c->head <= c->cap);
	*slot(c, tag) = (struct confirms_slot){
		.cookie = cookie,
		.id_at = c->ids_end,
		.id_len = (uint8_t)message_id.len,
		.reason = CONFIRMS_REASONS,
		.open = true,
	};
	if (message_id.len > 0)
		ids_copy_in(c->ids, c->ids_cap, c->ids_end, message_id.ptr, message_id.len);
	c->ids_end += message_id.len;
	c->open++;
	return tag;
}

static uint8_t reason_index(struct confirms *c, uint16_t code, struct slice text)
{
	size_t len = text.len < sizeof(c->reasons[0].text) - 1 ? text.len
							       : sizeof(c->reasons[0].text) - 1;
	uint8_t i;

	for (i = 0; i < c->reason_count; i++) {
		if (c->reasons[i].code == code && strlen(c->reasons[i].text) == len &&
			(len == 0 || memcmp(c->reasons[i].text, text.ptr, len) == 0))
			return i;
	}
	if (c->reason_count == CONFIRMS_REASONS)
		return CONFIRMS_REASONS;
	c->reason_count++;
	c->reasons[i].code = code;
	if (len > 0)
		memcpy(c->reasons[i].text, text.ptr, len);
	c->reasons[i].text[len] = '\0';
	return i;
}

static uint64_t find_id(const struct confirms *c, struct slice id, uint64_t first, uint64_t last)
{
	for (uint64_t tag = first; tag <= last; tag++) {
		const struct confirms_slot *s = slot(c, tag);

		if (s->open && !s->returned && s->id_len == id.len &&
			(id.len == 0 || ids_equal(c, s->id_at, id)))
			return tag;
	}
	return 0;
}

void confirms_returned(
	struct confirms *c, struct slice message_id, uint16_t code, struct slice text)
{
	uint64_t from = c->cursor > c->head ? c->cursor : c->head;
	uint64_t tag = find_id(c, message_id, from + 1, c->sent);
	struct confirms_slot *s;

	if (tag == 0)
		tag = find_id(c, message_id, c->head + 1, from);
	if (tag == 0) {
		c->unknown_returns++;
		return;
	}
	c->cursor = tag;
	s = slot(c, tag);
	s->returned = true;
	s->code = code;
	s->reason = reason_index(c, code, text);
}

static void retire_head(struct confirms *c)
{
	while (c->head < c->sent && !slot(c, c->head + 1)->open) {
		c->head++;
		c->ids_head += slot(c, c->head)->id_len;
	}
}

static void settle_one(
	struct confirms *c, struct confirms_slot *s, bool ack, confirms_cb *cb, void *arg)
{
	struct confirmed m = {
		.cookie = s->cookie,
		.ack = ack,
		.returned = s->returned,
		.code = s->code,
		.text = s->reason < CONFIRMS_REASONS ? c->reasons[s->reason].text : "",
	};

	s->open = false;
	c->open--;
	retire_head(c); /* before the callback: it may send, and so move the slots */
	cb(arg, &m);
}

void confirms_settle(
	struct confirms *c, uint64_t tag, bool multiple, bool ack, confirms_cb *cb, void *arg)
{
	uint64_t last = tag;
	bool any = false;

	if (tag == 0 && multiple)
		last = c->sent;
	if (last > c->sent || (tag == 0 && !multiple)) {
		c->unknown++;
		return;
	}
	if (!multiple) {
		if (tag > c->head && slot(c, tag)->open)
			settle_one(c, slot(c, tag), ack, cb, arg);
		else
			c->duplicates++;
		return;
	}
	/* The head is always open, if there is one: so this takes each slot once. */
	while (c->head < last) {
		any = true;
		settle_one(c, slot(c, c->head + 1), ack, cb, arg);
	}
	if (!any)
		c->duplicates++;
}

#include "relay/impl.h"

/* Of what waits to be written, a batch of SENT: nothing else is written beside. */
static unsigned collect(struct relay *r)
{
	unsigned count = 0;

	list_each (pos, &r->settling) {
		struct event *ev = container_of(pos, struct event, link);

		if (count == relay_rows(r, STATEMENT_IDS))
			break;
		if (ev->verdict == SETTLE_SENT && !ev->left)
			r->events[count++] = ev;
	}
	return count;
}

static void rest(struct relay *r, const struct err *e)
{
	r->beside_rest_us = r->now_us + BESIDE_REST_US;
	log_info("relay", "not settled beside, but by the first session",
		F_STR("source", r->source->name), F_STR("kind", err_kind_name(e->kind)),
		F_INT("code", e->code), F_ERR(e));
}

bool beside_begin(struct relay *r)
{
	struct err e = { 0 };
	unsigned count;

	if (!r->pacer.hot || r->stopping || r->beside_count + r->first_count > 0 ||
		r->now_us < r->beside_rest_us)
		return false;
	/* a batch is full, or has waited for company long enough */
	count = collect(r);
	if (count == 0 ||
		(count < settle_full(r) && r->now_us < r->events[0]->since_us + SETTLE_AGE_US))
		return false;
	events_sort_by_id(r->events, count);
	for (unsigned i = 0; i < count; i++)
		r->ids[i] = r->events[i]->id;
	if (r->store->ops->settle_begin(r->store, r->ids, count, &e) < 0) {
		relay_clock(r);
		rest(r, &e);
		return false;
	}
	relay_clock(r);
	for (unsigned i = 0; i < count; i++) {
		list_del(&r->events[i]->link);
		list_push_back(&r->beside, &r->events[i]->link);
	}
	r->settling_count -= count;
	r->beside_count = count;
	r->beside_until_us = r->now_us + r->source->database.query_timeout_us;
	return true;
}

void beside_give_up(struct relay *r)
{
	while (!list_empty(&r->beside)) {
		struct event *ev = list_last(&r->beside, struct event, link);

		settle_again(r, ev);
		list_del(&ev->link);
		list_push_front(&r->settling, &ev->link);
	}
	r->settling_count += r->beside_count;
	r->beside_count = 0;
}

void beside_end(struct relay *r)
{
	struct err e = { 0 };
	int rc;

	if (r->beside_count == 0)
		return;
	rc = r->store->ops->settle_end(r->store, &e);
	if (rc > 0)
		return;
	relay_clock(r);
	if (rc < 0) {
		beside_give_up(r);
		rest(r, &e);
		return;
	}
	r->beside_count = 0;
	list_each_safe (pos, tmp, &r->beside) {
		struct event *ev = container_of(pos, struct event, link);

		list_del(&ev->link);
		settle_written(r, ev, false);
	}
}

#include "relay/resend.h"

#include "relay/event.h"
#include "relay/failure.h"
#include "relay/order.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW_MAX 1000
#define PROVEN_MAX 16
/* Nothing but failures, so many of them one after another: it is not the events' fault. */
#define STREAK_MAX 50

struct resend {
	struct resend_conf conf;
	struct publisher *publisher;
	struct route *route;
	struct envelope_arena arena;
	struct event_pool pool;
	struct order order; /* lanes; barred: aggregates one of whose events failed */
	unsigned window;
	struct list added, ready, out[CHANNELS];
	unsigned out_count[CHANNELS];
	bool open[CHANNELS];
	uint64_t proven[PROVEN_MAX]; /* exchanges that a confirm has proven */
	unsigned proven_count;
	bool is_blocked;
	char blocked_reason[200];
	int64_t now_us;
	unsigned streak;
	struct err stop; /* ERR_NONE: goes on */
};

/* --- life ----------------------------------------------------------------------------------- */

static void on_outcome(void *arg, void *cookie, enum outcome how, unsigned code, const char *text);
static void on_channel_closed(void *arg, enum channel ch, unsigned code, const char *text);
static void on_blocked(void *arg, bool on, const char *reason);

int resend_new(
	struct resend **out, const struct resend_conf *conf, struct publisher *p, struct err *e)
{
	struct resend *r = calloc(1, sizeof(*r));
	const char *const *extra;

	if (r == NULL)
		return err_set(e, ERR_NOMEM, 0, "out of memory");
	r->conf = *conf;
	r->publisher = p;
	r->window =
		conf->source->max_in_flight < WINDOW_MAX ? conf->source->max_in_flight : WINDOW_MAX;
	list_init(&r->added);
	list_init(&r->ready);
	for (int ch = 0; ch < CHANNELS; ch++) {
		list_init(&r->out[ch]);
		r->open[ch] = true;
	}
	event_pool_init(&r->pool, r->window, 0);
	if (source_make_route(
		    &r->route, conf->source, p->ops->max_header_bytes(p), conf->marker, e) < 0)
		goto fail;
	r->pool.extra_count = route_extra_columns(r->route, &extra);
	if (order_init(&r->order, r->window, conf->seed) < 0) {
		err_set(e, ERR_NOMEM, 0, "out of memory");
		goto fail;
	}
	p->events = (struct publisher_events){ on_outcome, on_channel_closed, on_blocked, r };
	*out = r;
	return 0;
fail:
	resend_free(r);
	return -1;
}

/* Takes an event that is in no list out of the window. */
static void put_back(struct resend *r, struct event *ev)
{
	lane_detach(&r->order, ev);
	if (ev->state != EVENT_SETTLED)
		event_move(ev, EVENT_LOST);
	event_free(&r->pool, ev);
}

static void drop_all(struct resend *r, struct list *l)
{
	list_each_safe (pos, tmp, l) {
		struct event *ev = container_of(pos, struct event, link);
		struct lane *lane = ev->lane;

		/* those queued behind it first: the lane goes with its last event */
		if (lane != NULL && lane->head == ev)
			drop_all(r, &lane->queue);
		list_del(&ev->link);
		put_back(r, ev);
	}
}

void resend_drop(struct resend *r)
{
	drop_all(r, &r->added);
	drop_all(r, &r->ready);
	for (int ch = 0; ch < CHANNELS; ch++)
		list_each (pos, &r->out[ch]) {
			struct lane *lane = container_of(pos, struct event, link)->lane;

			if (lane != NULL)
				drop_all(r, &lane->queue);
		}
}

void resend_free(struct resend *r)
{
	if (r == NULL)
		return;
	resend_drop(r);
	for (int ch = 0; ch < CHANNELS; ch++)
		drop_all(r, &r->out[ch]);
	event_pool_fini(&r->pool);
	order_fini(&r->order);
	envelope_arena_fini(&r->arena);
	route_free(r->route);
	r->publisher->events = (struct publisher_events){ 0 };
	free(r);
}

/* --- the window ----------------------------------------------------------------------------- */

unsigned resend_room(const struct resend *r)
{
	if (r->pool.bytes >= r->conf.source->max_in_flight_bytes)
		return r->pool.used == 0 ? 1 : 0;
	return r->window - r->pool.used;
}

unsigned resend_left(const struct resend *r)
{
	return r->pool.used;
}

unsigned resend_unconfirmed(const struct resend *r)
{
	return r->out_count[CHANNEL_FAST] + r->out_count[CHANNEL_QUARANTINE];
}

const char *resend_blocked(const struct resend *r)
{
	return r->is_blocked ? r->blocked_reason : NULL;
}

static void insert_in_order(struct list *l, struct event *ev)
{
	struct list *at = l;

	while (at->prev != l && event_before(ev, container_of(at->prev, struct event, link)))
		at = at->prev;
	list_insert_before(at, &ev->link);
}

int resend_add(struct resend *r, const struct row *row, struct err *e)
{
	struct event *ev = event_new(&r->pool, row);
	struct lane *lane = NULL;

	if (ev != NULL)
		lane = lane_get(
			&r->order, order_hash(&r->order, row->aggregate_type, row->aggregate_id));
	if (lane == NULL) {
		if (ev != NULL)
			put_back(r, ev);
		return err_set(e, ERR_NOMEM, 0, "out of memory");
	}
	lane_attach(lane, ev);
	insert_in_order(&r->added, ev);
	return 0;
}

static bool is_barred(const struct resend *r, const struct lane *lane)
{
	return barred_rows(&r->order, lane->hash) > 0;
}

/* The event is in no list, and its lane goes with it if it was the last. */
static void conclude(struct resend *r, struct event *ev, const char *failure)
{
	event_move(ev, failure == NULL ? EVENT_CONFIRMED : EVENT_FAILED);
	event_move(ev, EVENT_SETTLED);
	r->conf.done(r->conf.arg, ev->id, event_part(ev, PART_EVENT_ID), failure);
	put_back(r, ev);
}

static void conclude_behind(struct resend *r, struct event *ev)
{
	conclude(r, ev,
		"WAITING: an event before it of its aggregate failed: not sent, to keep the order");
}

static void lead(struct resend *r, struct event *ev)
{
	ev->lane->head = ev;
	insert_in_order(&r->ready, ev);
}

/* The head of its lane, in no list. The next one goes; behind a failed one of an ordered source
 * none does, now or later. */
static void finish(struct resend *r, struct event *ev, const char *failure)
{
	struct lane *lane = ev->lane;

	if (failure != NULL && r->conf.source->ordering == ORDERING_AGGREGATE)
		(void)barred_add(&r->order, lane->hash);
	lane->head = NULL;
	list_each_safe (pos, tmp, &lane->queue) {
		struct event *next = container_of(pos, struct event, link);

		list_del(&next->link);
		if (!is_barred(r, lane)) {
			lead(r, next);
			break;
		}
		conclude_behind(r, next);
	}
	conclude(r, ev, failure);
}

static void fail_with(struct resend *r, struct event *ev, const char *fmt, ...) PRINTF(3, 4);
static void fail_with(struct resend *r, struct event *ev, const char *fmt, ...)
{
	char why[900];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	r->streak++;
	finish(r, ev, why);
	if (r->streak >= STREAK_MAX && r->stop.kind == ERR_NONE)
		err_set(&r->stop, ERR_REFUSED, 0,
			"the last %u events all failed, and none was confirmed meanwhile: %s",
			r->streak, why);
}

static void take_added(struct resend *r)
{
	list_each_safe (pos, tmp, &r->added) {
		struct event *ev = container_of(pos, struct event, link);
		struct lane *lane = ev->lane;

		list_del(&ev->link);
		if (is_barred(r, lane))
			conclude_behind(r, ev);
		else if (lane->head == NULL)
			lead(r, ev);
		else
			lane_queue(lane, ev);
	}
}

/* --- sending -------------------------------------------------------------------------------- */

static uint64_t exchange_hash(struct slice name)
{
	uint64_t h = UINT64_C(0xCBF29CE484222325);

	for (size_t i = 0; i < name.len; i++)
		h = (h ^ (unsigned char)name.ptr[i]) * UINT64_C(0x100000001B3);
	return h != 0 ? h : 1;
}

static bool is_proven(const struct resend *r, uint64_t exchange)
{
	for (unsigned i = 0; i < r->proven_count && i < PROVEN_MAX; i++)
		if (r->proven[i] == exchange)
			return true;
	return false;
}

static void prove(struct resend *r, uint64_t exchange)
{
	if (!is_proven(r, exchange))
		r->proven[r->proven_count++ % PROVEN_MAX] = exchange;
}

static int build(struct resend *r, const struct event *ev, struct envelope *env, struct err *e)
{
	struct slice extra[ROW_EXTRA_MAX];
	struct row row;

	event_row(&r->pool, ev, &row, extra);
	if (envelope_build(env, &r->arena, r->route, &row, e) < 0)
		return -1;
	if (r->conf.expiration != NULL)
		env->expiration = slice_str(r->conf.expiration);
	return 0;
}

/* One message that may close its channel must be alone on it. */
static enum channel channel_of(const struct resend *r, const struct event *ev)
{
	return ev->alone || !is_proven(r, ev->exchange) ? CHANNEL_QUARANTINE : CHANNEL_FAST;
}

static bool may_go(const struct resend *r, enum channel ch)
{
	return r->open[ch] && (ch == CHANNEL_FAST || r->out_count[ch] == 0);
}

enum sent { SENT_ON, SENT_LATER, SENT_FULL };

static enum sent send_one(struct resend *r, struct event *ev)
{
	struct envelope env;
	struct err e = { 0 };
	enum channel ch;

	if (ev->exchange != 0 && !may_go(r, channel_of(r, ev)))
		return SENT_LATER;
	if (build(r, ev, &env, &e) < 0)
		goto refused;
	ev->exchange = exchange_hash(env.exchange);
	ch = channel_of(r, ev);
	if (!may_go(r, ch))
		return SENT_LATER;
	if (r->publisher->ops->send(r->publisher, ch, &env, ev, &e) < 0)
		goto refused;
	list_del(&ev->link);
	event_move(ev, EVENT_PUBLISHED);
	ev->channel = (uint8_t)ch;
	ev->since_us = r->now_us;
	list_push_back(&r->out[ch], &ev->link);
	r->out_count[ch]++;
	return SENT_ON;
refused:
	if (e.kind == ERR_AGAIN)
		return SENT_FULL;
	if (e.kind != ERR_REFUSED) {
		r->stop = e;
		return SENT_FULL;
	}
	list_del(&ev->link);
	finish(r, ev, e.text); /* its own fault: says nothing about the others */
	return SENT_ON;
}

static void send_some(struct resend *r)
{
	if (r->is_blocked)
		return;
	list_each_safe (pos, tmp, &r->ready)
		if (send_one(r, container_of(pos, struct event, link)) == SENT_FULL)
			return;
}

/* --- what the broker says ------------------------------------------------------------------- */

static void on_outcome(void *arg, void *cookie, enum outcome how, unsigned code, const char *text)
{
	struct resend *r = arg;
	struct event *ev = cookie;
	struct envelope env;

	list_del(&ev->link);
	r->out_count[ev->channel]--;
	prove(r, ev->exchange);
	switch (how) {
	case OUTCOME_ACK:
		r->streak = 0;
		finish(r, ev, NULL);
		break;
	case OUTCOME_NACK:
		fail_with(r, ev, "%s: the broker refused responsibility for the message",
			failure_name(FAIL_NACKED));
		break;
	case OUTCOME_RETURNED:
		if (build(r, ev, &env, NULL) < 0)
			env = (struct envelope){ 0 };
		fail_with(r, ev, "%s: %u %s: exchange '%.*s', routing key '%.*s'",
			failure_name(FAIL_UNROUTABLE), code, text != NULL ? text : "",
			(int)env.exchange.len, env.exchange.ptr != NULL ? env.exchange.ptr : "",
			(int)env.routing_key.len,
			env.routing_key.ptr != NULL ? env.routing_key.ptr : "");
		break;
	}
}

static bool about_exchange(unsigned code)
{
	return code == 404 || code == 403;
}

static void on_channel_closed(void *arg, enum channel ch, unsigned code, const char *text)
{
	struct resend *r = arg;

	r->open[ch] = false;
	if (about_exchange(code))
		r->proven_count = 0;
	list_each_safe (pos, tmp, &r->out[ch]) {
		struct event *ev = container_of(pos, struct event, link);

		list_del(&ev->link);
		r->out_count[ch]--;
		if (ch == CHANNEL_QUARANTINE) {
			if (about_exchange(code) && route_exchange_fixed(r->route))
				err_set(&r->stop, ERR_REFUSED, code, "%u %s", code, text);
			fail_with(r, ev, "%s: %u %s",
				failure_name(strstr(text, "message size") != NULL ? FAIL_TOO_LARGE
										  : FAIL_REFUSED),
				code, text);
			return;
		}
		/* one of them is to blame: they go again, one at a time */
		event_move(ev, EVENT_UNKNOWN);
		ev->alone = true;
		insert_in_order(&r->ready, ev);
	}
}

static void on_blocked(void *arg, bool on, const char *reason)
{
	struct resend *r = arg;

	r->is_blocked = on;
	snprintf(r->blocked_reason, sizeof(r->blocked_reason), "%s",
		reason != NULL && reason[0] != '\0' ? reason : "no reason given");
	if (!on)
		for (int ch = 0; ch < CHANNELS; ch++)
			list_each (pos, &r->out[ch])
				container_of(pos, struct event, link)->since_us = r->now_us;
}

/* --- turns ---------------------------------------------------------------------------------- */

static struct event *oldest_out(const struct resend *r)
{
	struct event *oldest = NULL;

	for (int ch = 0; ch < CHANNELS; ch++) {
		struct event *ev = list_first(&r->out[ch], struct event, link);

		if (ev != NULL && (oldest == NULL || ev->since_us < oldest->since_us))
			oldest = ev;
	}
	return oldest;
}

static void look_at_deadline(struct resend *r)
{
	const int64_t timeout_us = r->conf.source->broker->confirm_timeout_us;
	const struct event *ev = oldest_out(r);

	if (ev == NULL || r->is_blocked || r->now_us - ev->since_us < timeout_us)
		return;
	err_set(&r->stop, ERR_LINK, 0, "no confirm within %" PRId64 " ms: the outcome is unknown",
		timeout_us / US_PER_MS);
}

int resend_turn(struct resend *r, int64_t now_us, int64_t *next_us, struct err *e)
{
	const struct event *ev;

	r->now_us = now_us;
	if (r->publisher->ops->pump(r->publisher, &r->stop) < 0)
		goto stop;
	for (int ch = 0; ch < CHANNELS && r->stop.kind == ERR_NONE; ch++) {
		if (r->open[ch])
			continue;
		if (r->publisher->ops->reopen(r->publisher, ch, &r->stop) < 0)
			goto stop;
		r->open[ch] = true;
	}
	take_added(r);
	if (r->stop.kind == ERR_NONE)
		send_some(r);
	if (r->stop.kind == ERR_NONE)
		look_at_deadline(r);
	if (r->stop.kind != ERR_NONE)
		goto stop;
	*next_us = r->publisher->ops->next_pump_us(r->publisher);
	ev = oldest_out(r);
	if (ev != NULL && !r->is_blocked &&
		ev->since_us + r->conf.source->broker->confirm_timeout_us < *next_us)
		*next_us = ev->since_us + r->conf.source->broker->confirm_timeout_us;
	return 0;
stop:
	*e = r->stop;
	return -1;
}

#include "relay/impl.h"

#include "relay/backoff.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

void log_event(struct relay *r, enum log_level level, const char *message, const struct event *ev,
	const char *class, const char *text)
{
	if (!log_enabled(level))
		return;
	buf_reset(&r->text);
	buf_add_slice(&r->text, event_part(ev, PART_AGGREGATE_TYPE));
	buf_addc(&r->text, '/');
	buf_add_slice(&r->text, event_part(ev, PART_AGGREGATE_ID));
	log_fields(level, "relay", message, F_STR("source", r->source->name),
		F_SLICE("event_id", event_part(ev, PART_EVENT_ID)),
		F_SLICE("aggregate", buf_slice(&r->text)),
		F_SLICE("trace_id", event_part(ev, PART_TRACE_ID)), F_STR("class", class),
		F_UINT("retry_count", ev->retry_count), F_STR("err", text));
}

/* What rows behind an event say for themselves: they wait for it, or for what it waits for. */
static void wait_text(const struct event *ev, char *out, size_t size)
{
	struct slice id = event_part(ev, PART_EVENT_ID);

	if (ev->verdict == SETTLE_HOLD && ev->error != NULL &&
		slice_starts(slice_str(ev->error), WAITING_BEHIND))
		snprintf(out, size, "%s", ev->error);
	else
		snprintf(out, size, WAITING_BEHIND "%.*s", (int)id.len, id.ptr);
}

/* The queue behind a head that goes back shares its fate; `delay_us` < 0: released, else held. */
static void send_back_queue(
	struct relay *r, struct lane *lane, const struct event *head, int64_t delay_us)
{
	char text[WAITING_SIZE];

	wait_text(head, text, sizeof(text));
	list_each_safe (pos, tmp, &lane->queue) {
		struct event *ev = container_of(pos, struct event, link);

		if (delay_us < 0)
			verdict_released(r, ev);
		else
			verdict_held(r, ev, delay_us, text);
	}
}

/* Aggregates share the window; this much of what waits in the table comes back at a time. */
unsigned lane_share(const struct relay *r)
{
	unsigned least = r->pool.max / 8 < LANE_LEAST ? r->pool.max / 8 + 1 : LANE_LEAST;
	size_t share = r->pool.max / 4 / (r->order.lane_count + 1);

	return share > least ? (unsigned)share : least;
}

static void lane_next(struct relay *r, struct lane *lane)
{
	struct event *ev = list_first(&lane->queue, struct event, link);

	lane->head = NULL;
	if (ev != NULL) {
		list_del(&ev->link);
		claim_admit(r, ev);
	}
}

static void take_out(struct relay *r, struct event *ev, enum event_state to)
{
	bool counted = ev->state == EVENT_UNKNOWN ||
		       (ev->state == EVENT_CLAIMED && (ev->lane == NULL || ev->lane->head == ev));

	if (!list_empty(&ev->link)) {
		list_del(&ev->link);
		if (counted)
			r->ready_count--;
	}
	publish_queued_alone(r, ev, false);
	event_move(ev, to);
}

/* What is claimed next could be the same row, or one of its aggregate that comes after it. */
static bool goes_first(const struct event *ev)
{
	return ev->again || (ev->verdict == SETTLE_RELEASE && !ev->left);
}

/* The second session writes SENT, and nothing of what was left. */
static bool for_the_first(const struct event *ev)
{
	return ev->verdict != SETTLE_SENT || ev->left;
}

static void to_settling(
	struct relay *r, struct event *ev, enum event_state to, enum settle_kind verdict)
{
	take_out(r, ev, to);
	ev->verdict = (uint8_t)verdict;
	r->first_count += goes_first(ev);
	ev->since_us = r->now_us;
	list_push_back(&r->settling, &ev->link);
	r->settling_count++;
	r->first_only_count += for_the_first(ev);
}

static void leave_lane(struct relay *r, struct event *ev)
{
	struct lane *lane = ev->lane;

	if (lane == NULL)
		return;
	if (lane->held == ev)
		lane->held = NULL;
	lane_detach(&r->order, ev);
}

/* The aggregate has passed this event: the next one may go, and what waits in the table may come
 * back. The event stays in its lane until that is written. */
static void lane_passed(struct relay *r, struct event *ev)
{
	struct lane *lane = ev->lane;

	if (lane == NULL)
		return;
	/* Without memory they come back when they fall due. */
	if (barred_rows(&r->order, lane->hash) > 0 &&
		(ev->hazard || !barred_walked(&r->order, lane->hash)))
		(void)lane_drain(&r->order, lane, event_part(ev, PART_AGGREGATE_TYPE),
			event_part(ev, PART_AGGREGATE_ID), event_place(ev));
	if (ev->hazard && lane_drains(lane))
		lane_drain_from(lane, event_place(ev)); /* others wait behind it */
	if (lane->head == ev)
		lane_next(r, lane);
}

void verdict_confirmed(struct relay *r, struct event *ev)
{
	double lag = (double)(r->now_us + r->db_offset_us - ev->created_us) / US_PER_SEC;

	to_settling(r, ev, EVENT_CONFIRMED, SETTLE_SENT);
	r->published_total++;
	metric_add(r->metrics->published, 1);
	metric_observe(r->metrics->lag_seconds, lag > 0 ? lag : 0);
	if (ev->hazard) {
		metric_add(r->metrics->hazards, 1);
		log_event(r, LOG_LEVEL_WARN, "sent after later events of its aggregate", ev, NULL,
			"it was committed late, or put back");
	}
	if (r->conf.log_events == LOG_EVENTS_ALL)
		log_event(r, LOG_LEVEL_INFO, "event sent", ev, NULL, NULL);
	if (ev->lane != NULL &&
		(ev->lane->passed.id == 0 || place_before(ev->lane->passed, event_place(ev))))
		ev->lane->passed = event_place(ev);
	lane_passed(r, ev);
}

static void bar(struct relay *r, const struct lane *lane)
{
	/* Without memory to keep the order with: lead anew, with a fresh look at the table. */
	if (barred_add(&r->order, lane->hash) < 0)
		r->leads = false;
}

/* The row is about to stand unsent in the table, out of the FRESH scan's sight: it bars its
 * aggregate until it has gone its way. Rows that are waiting already wait on, now for this one. */
static void lane_barred(struct relay *r, struct event *ev, int64_t delay_us)
{
	struct lane *lane = ev->lane;

	if (lane == NULL)
		return;
	bar(r, lane);
	if (lane->head == ev) {
		if (lane_drains(lane))
			lane_drained(&r->order, lane);
		send_back_queue(r, lane, ev, delay_us);
	}
}

/* How long rows are held behind one that goes again after `delay_us`. It goes first, and they are
 * released as soon as it has gone; coming back at the very moment it falls due would only mean to
 * be held again. */
int64_t hold_behind_retry(const struct relay *r, int64_t delay_us)
{
	const int64_t pad_us = r->source->poll_interval_us + HOLD_MIN_US;

	if (delay_us > HOLD_MAX_US - pad_us)
		return HOLD_MAX_US;
	return delay_us + pad_us > HOLD_RETRY_US ? delay_us + pad_us : HOLD_RETRY_US;
}

void verdict_dead(struct relay *r, struct event *ev, enum failure f, const char *text)
{
	event_set_error(ev, "%s: %s", failure_name(f), text);
	to_settling(r, ev, EVENT_FAILED, SETTLE_DEAD);
	r->failed_total++;
	metric_add(r->metrics->failed[f], 1);
	metric_add(r->metrics->dead[f], 1);
	if (r->conf.log_events != LOG_EVENTS_NONE)
		log_event(r, LOG_LEVEL_ERROR, "event dead", ev, failure_name(f), text);
	/* Where the dead are passed by, that waits for DEAD to be written: if it never is, the row
	 * comes back, and nothing may have overtaken it. */
	if (r->source->on_dead == ON_DEAD_BLOCK)
		lane_barred(r, ev, HOLD_MAX_US);
}

void verdict_charged(struct relay *r, struct event *ev, enum failure f, const char *text)
{
	const struct retry_conf *retry = &r->source->retry;

	if (ev->retry_count < INT32_MAX) /* the column is an INT */
		ev->retry_count++;
	if (ev->retry_count >= retry->max_attempts) {
		verdict_dead(r, ev, f, text);
		return;
	}
	event_set_error(ev, "%s: %s", failure_name(f), text);
	to_settling(r, ev, EVENT_FAILED, SETTLE_RETRY);
	ev->delay_us = backoff_us(
		retry->base_us, retry->cap_us, ev->retry_count, retry->jitter, rng_unit(&r->rng));
	r->failed_total++;
	metric_add(r->metrics->failed[f], 1);
	metric_add(r->metrics->retried, 1);
	if (r->conf.log_events != LOG_EVENTS_NONE)
		log_event(r, LOG_LEVEL_WARN, "event failed", ev, failure_name(f), text);
	lane_barred(r, ev, hold_behind_retry(r, ev->delay_us));
}

void verdict_released(struct relay *r, struct event *ev)
{
	struct lane *lane = ev->lane;

	to_settling(r, ev, EVENT_RELEASED, SETTLE_RELEASE);
	scan_released(&r->scan, ev->created_us);
	if (lane != NULL && ev->origin != ROW_FRESH)
		bar(r, lane);
	if (lane != NULL && lane->head == ev)
		send_back_queue(r, lane, ev, -1);
}

void verdict_held(struct relay *r, struct event *ev, int64_t delay_us, const char *text)
{
	struct lane *lane = ev->lane;

	event_set_error(ev, "%s", text);
	to_settling(r, ev, EVENT_RELEASED, SETTLE_HOLD);
	ev->delay_us = delay_us;
	if (lane == NULL)
		return;
	bar(r, lane);
	lane->holding++;
	lane->held = ev;
	if (lane_drains(lane))
		lane_drain_from(lane, event_place(ev));
	if (lane->head == ev)
		send_back_queue(r, lane, ev, delay_us);
}

void verdict_held_too(struct relay *r, struct event *ev)
{
	const struct event *held = ev->lane->held;
	char text[WAITING_SIZE];

	wait_text(held, text, sizeof(text));
	verdict_held(r, ev, held->delay_us, text);
}

/* Another relay's now. Those behind it wait for whoever has it, also where it was not the head but
 * in the queue: the head goes on, they must not follow it. */
void verdict_lost(struct relay *r, struct event *ev)
{
	struct lane *lane = ev->lane;
	char text[WAITING_SIZE];

	take_out(r, ev, EVENT_LOST);
	metric_add(r->metrics->lease_lost, 1);
	log_event(r, LOG_LEVEL_WARN, "lease lost to another relay", ev, NULL, NULL);
	lane_barred(r, ev, US_PER_SEC);
	if (lane != NULL && lane->head != ev) {
		wait_text(ev, text, sizeof(text));
		list_each_safe (pos, tmp, &lane->queue) {
			struct event *behind = container_of(pos, struct event, link);

			if (event_before(ev, behind))
				verdict_held(r, behind, US_PER_SEC, text);
		}
	}
	leave_lane(r, ev);
	event_free(&r->pool, ev);
}

static void release_list(struct relay *r, struct list *l)
{
	list_each_safe (pos, tmp, l) {
		struct event *ev = container_of(pos, struct event, link);

		if (ev->state == EVENT_CLAIMED)
			verdict_released(r, ev);
	}
}

void release_unsent(struct relay *r)
{
	release_list(r, &r->ready);
	release_list(r, &r->quarantine);
	/* What queues behind a head that is out goes with the next outcome of that head; behind one
	 * whose outcome is unknown it stays: that one goes again first. */
}

unsigned settle_full(const struct relay *r)
{
	return relay_rows(r, r->source->batch < STATEMENT_IDS ? r->source->batch : STATEMENT_IDS);
}

int64_t settle_next(const struct relay *r)
{
	const struct event *oldest = list_first(&r->settling, struct event, link);
	bool claims = claim_at_once(r);
	bool busy =
		claims && r->beside_count > 0; /* both sessions: these are the second one's next */
	bool full = r->settling_count >= settle_full(r) && !busy;
	bool idle = relay_in_flight(r) == 0 && !claims;

	if (oldest == NULL)
		return r->left_count > 0 ? r->left_until_us : TIME_NEVER;
	if (r->first_count > 0 || full || idle || r->stopping)
		return r->now_us;
	return oldest->since_us + (busy ? SETTLE_LATE_US : SETTLE_AGE_US);
}

void settle_again(struct relay *r, struct event *ev)
{
	r->first_count += !goes_first(ev);
	ev->again = true;
}

/* It bars its aggregate as long as it stands as ours, although it goes back to where it was. */
static bool bars_while_left(const struct event *ev)
{
	return ev->left && ev->lane != NULL && ev->verdict == SETTLE_RELEASE &&
	       ev->origin == ROW_FRESH;
}

/* The row is written. Where it was its aggregate's head, what follows is decided now. */
static void settled(struct relay *r, struct event *ev, bool lost)
{
	struct lane *lane = ev->lane;

	r->first_count -= goes_first(ev);
	if (bars_while_left(ev))
		barred_sub(&r->order, lane->hash, 1);
	if (lane != NULL && ev->verdict == SETTLE_DEAD && r->source->on_dead == ON_DEAD_PASS) {
		if (lost)
			lane_barred(r, ev, US_PER_SEC);
		else
			lane_passed(r, ev);
		lane = ev->lane;
	}
	if (lane != NULL) {
		if (ev->verdict == SETTLE_HOLD)
			lane->holding--;
		if (lane->head == ev) /* rows that came while the verdict was being written */
			send_back_queue(
				r, lane, ev, ev->verdict == SETTLE_RELEASE ? -1 : HOLD_MIN_US);
		leave_lane(r, ev);
	}
	event_move(ev, EVENT_SETTLED);
	event_free(&r->pool, ev);
}

void settle_written(struct relay *r, struct event *ev, bool lost)
{
	if (lost) {
		metric_add(r->metrics->lease_lost, 1);
		log_event(r, LOG_LEVEL_WARN,
			ev->verdict == SETTLE_SENT
				? "lease lost: sent, and may be sent again by another relay"
				: "lease lost to another relay",
			ev, NULL, NULL);
	} else if (ev->verdict == SETTLE_SENT && r->source->retention.sent_us == 0) {
		metric_add(r->metrics->purged, 1); /* the store deleted it */
	}
	settled(r, ev, lost);
}

static void leave(struct relay *r, struct event *ev, const struct err *why)
{
	enum err_kind kind = why->kind == ERR_REFUSED ? ERR_REFUSED : ERR_RETRY; /* a lock */
	bool barred = bars_while_left(ev);
	uint64_t suppressed;

	metric_add(r->metrics->db_errors[kind], 1);
	r->first_count -= goes_first(ev);
	ev->left = true;
	r->first_count += goes_first(ev);
	if (bars_while_left(ev) && !barred)
		bar(r, ev->lane);
	list_push_back(&r->left, &ev->link);
	r->left_count++;
	r->left_until_us = r->now_us + LEFT_US;
	if (log_limit_pass(&r->left_log, r->now_us, LOG_EVERY_US, &suppressed))
		log_event(r, LOG_LEVEL_WARN,
			"not settled, the others were: will be tried every second", ev, NULL,
			kind == ERR_REFUSED ? why->text : "somebody has locked the row");
}

static void take_up_left(struct relay *r)
{
	while (!list_empty(&r->left)) {
		struct event *ev = list_last(&r->left, struct event, link);

		list_del(&ev->link);
		list_push_front(&r->settling, &ev->link);
	}
	r->settling_count += r->left_count;
	r->first_only_count += r->left_count;
	r->left_count = 0;
}

static void note_due(struct relay *r, const struct event *ev, const struct settle *s)
{
	if (s->kind == SETTLE_RETRY || s->kind == SETTLE_HOLD)
		claim_due_after(r, s->delay_us);
	else if (s->kind == SETTLE_RELEASE && ev->origin != ROW_FRESH)
		claim_due_after(r, 0);
}

bool settle_turn(struct relay *r)
{
	unsigned count = 0;
	bool unknown = false;
	struct err e = { 0 };
	int64_t start_us;

	if (r->left_count > 0 && r->now_us >= r->left_until_us)
		take_up_left(r);
	if (r->now_us < settle_next(r))
		return false;
	if (beside_begin(r))
		return true;
	list_each (pos, &r->settling) {
		if (count == relay_rows(r, STATEMENT_IDS))
			break;
		r->events[count++] = container_of(pos, struct event, link);
	}
	events_sort_by_id(r->events, count);
	for (unsigned i = 0; i < count; i++) {
		const struct event *ev = r->events[i];

		r->settles[i] = (struct settle){
			.id = ev->id,
			.kind = (enum settle_kind)ev->verdict,
			.retry_count = ev->retry_count,
			.delay_us = ev->delay_us,
			.error = ev->error != NULL ? ev->error : "",
			.again = ev->again,
		};
	}
	start_us = relay_clock(r);
	if (r->store->ops->settle(r->store, r->settles, count, &unknown, &e) < 0) {
		relay_clock(r);
		relay_db_took(r, start_us, &e);
		for (unsigned i = 0; unknown && i < count; i++)
			settle_again(r, r->events[i]);
		relay_db_failed(r, "settle", &e);
		return true;
	}
	relay_clock(r);
	relay_db_took(r, start_us, NULL);
	relay_db_worked(r);
	for (unsigned i = 0; i < count; i++) {
		struct event *ev = r->events[i];

		list_del(&ev->link);
		r->settling_count--;
		r->first_only_count -= for_the_first(ev);
		if (r->settles[i].left) {
			leave(r, ev, &e);
			continue;
		}
		note_due(r, ev, &r->settles[i]);
		settle_written(r, ev, r->settles[i].lost);
	}
	assert(r->first_only_count <= r->settling_count);
	return true;
}

static unsigned collect_renewals(struct relay *r, struct list *l, int64_t before_us, unsigned count)
{
	list_each (pos, l) {
		struct event *ev = container_of(pos, struct event, link);

		if (count == relay_rows(r, STATEMENT_IDS))
			break;
		if (!ev->lost && ev->lease_end_us < before_us)
			r->events[count++] = ev;
		/* Those queued in its lane are in no other list. */
		if (ev->lane == NULL || ev->lane->head != ev)
			continue;
		list_each (q, &ev->lane->queue) {
			struct event *queued = container_of(q, struct event, link);

			if (count == relay_rows(r, STATEMENT_IDS))
				break;
			if (queued->lease_end_us < before_us)
				r->events[count++] = queued;
		}
	}
	return count;
}

/* Where an outcome, or a settlement, is still to come, the event waits for it. */
static void found_lost(struct relay *r, struct event *ev)
{
	if (ev->state == EVENT_PUBLISHED)
		ev->lost = true;
	else if (ev->state == EVENT_CLAIMED || ev->state == EVENT_UNKNOWN)
		verdict_lost(r, ev);
}

/* Leases are renewed once half is over, or once they no longer leave room for a statement and a
 * confirm; then all that have less than three quarters left, so that few statements do. */
bool renew_turn(struct relay *r)
{
	const int64_t lease_us = r->source->lease_us;
	const int64_t need_us =
		r->source->broker->confirm_timeout_us + r->source->database.query_timeout_us;
	int64_t low_us = lease_us / 2 > need_us ? lease_us / 2 : need_us;
	int64_t high_us = low_us > lease_us / 4 * 3 ? low_us : lease_us / 4 * 3;
	struct list *lists[] = { &r->ready, &r->quarantine, &r->in_flight[CHANNEL_FAST],
		&r->in_flight[CHANNEL_QUARANTINE], &r->settling, &r->left };
	unsigned count = 0;
	int64_t start_us;
	struct err e = { 0 };

	if (r->pool.used == 0 || r->now_us < r->next_renew_us)
		return false;
	for (size_t i = 0; i < ARRAY_LEN(lists); i++)
		count = collect_renewals(r, lists[i], r->now_us + low_us, count);
	if (count == 0) {
		r->next_renew_us = r->now_us + lease_us / 8;
		return false;
	}
	count = 0;
	for (size_t i = 0; i < ARRAY_LEN(lists); i++)
		count = collect_renewals(r, lists[i], r->now_us + high_us, count);
	if (count < relay_rows(r, STATEMENT_IDS))
		r->next_renew_us = r->now_us + lease_us / 8;
	events_sort_by_id(r->events, count);
	for (unsigned i = 0; i < count; i++)
		r->ids[i] = r->events[i]->id;
	start_us = relay_clock(r);
	if (r->store->ops->renew(r->store, r->ids, r->leases, count, lease_us, &e) < 0) {
		relay_clock(r);
		relay_db_took(r, start_us, &e);
		relay_db_failed(r, "renew", &e);
		return true;
	}
	relay_clock(r);
	relay_db_took(r, start_us, NULL);
	relay_db_worked(r);
	for (unsigned i = 0; i < count; i++) {
		struct event *ev = r->events[i];

		if (r->leases[i] == LEASE_LOCKED) { /* tried again, but not at once */
			r->next_renew_us = r->now_us + lease_us / 8;
			continue;
		}
		/* of one that is lost: so that it is not asked about again */
		ev->lease_end_us = start_us + lease_us;
		if (r->leases[i] == LEASE_LOST)
			found_lost(r, ev);
	}
	return true;
}

/* Its next page is due once there is room for what it releases, and nothing behind is on its way to
 * being held; and after a while in any case, lest it wait for rows that somebody took away. */
static bool page_is_due(const struct relay *r, const struct lane *lane)
{
	if (lane->holding > 0)
		return false;
	if (r->now_us >= lane->walk_after_us)
		return true;
	return !lane->waits && lane->events + lane->released <= lane_share(r) / 2;
}

/* Those that are not due go to the end, so that a turn looks at a few of many only. */
static struct lane *lane_to_drain(struct relay *r)
{
	struct list *drain = &r->order.drain;

	for (unsigned i = 0; i < DRAIN_LOOKS && !list_empty(drain); i++) {
		struct lane *lane = list_first(drain, struct lane, drain);

		list_del(&lane->drain);
		list_push_back(drain, &lane->drain);
		if (page_is_due(r, lane))
			return lane;
	}
	return NULL;
}

bool drain_turn(struct relay *r)
{
	struct order_walk walk;
	struct lane *lane;
	struct err e = { 0 };

	if (!r->ordered || !r->leads || r->loading || r->stopping)
		return false;
	lane = lane_to_drain(r);
	if (lane == NULL)
		return false;
	walk = (struct order_walk){
		.aggregate_type = { lane->type, lane->type_len },
		.aggregate_id = { lane->id, lane->id_len },
		.limit = lane_share(r),
		.at = lane->walk,
	};
	if (r->store->ops->release_waiting(
		    r->store, &walk, r->source->on_dead == ON_DEAD_PASS, &e) < 0) {
		relay_clock(r);
		relay_db_failed(r, "release of waiting rows", &e);
		return true;
	}
	relay_clock(r);
	relay_db_worked(r);
	if (walk.released > 0)
		scan_released(&r->scan, lane->walk.created_us);
	if (walk.released > walk.fresh)
		claim_due_after(r, 0);
	lane->walk = walk.at;
	lane->walk_after_us = r->now_us + US_PER_SEC;
	lane->released = walk.released;
	/* another owner's: nobody tells us when it has gone */
	lane->waits = walk.barred && (walk.by == HEAD_PROCESSING || walk.by == HEAD_OWNED);
	if (lane->waits && walk.due_us < US_PER_SEC)
		lane->walk_after_us = r->now_us + HOLD_MIN_US + walk.due_us;
	barred_sub(&r->order, lane->hash, walk.fresh);
	if (walk.released > 0)
		pacer_poke(&r->pacer, r->now_us);
	if (walk.barred && !lane->waits)
		barred_set_walked(&r->order, lane->hash, false); /* anew, once that one has gone */
	if (walk.ended || (walk.barred && !lane->waits))
		lane_drained(&r->order, lane);
	return true;
}

#include "relay/impl.h"

#include <stdlib.h>
#include <string.h>

static unsigned claim_limit(const struct relay *r)
{
	unsigned limit = r->source->batch;
	unsigned room = r->pool.max - r->pool.used;
	double bytes = (double)r->source->max_in_flight_bytes - (double)r->pool.bytes;

	if (limit > r->source->max_in_flight)
		limit = r->source->max_in_flight;
	limit = relay_rows(r, limit);
	/* What is left of the byte bound, in rows of the size seen so far. One row always fits an
	 * empty window. */
	if (r->row_bytes > 0 && bytes < (double)limit * r->row_bytes)
		limit = bytes > r->row_bytes ? (unsigned)(bytes / r->row_bytes) : r->pool.used == 0;
	return limit < room ? limit : room;
}

/* While the route is broken. A message to an exchange that is missing closes the channel over what
 * is beside it; one that comes back harms nobody. */
static unsigned probe_size(const struct relay *r)
{
	return r->broken_returns ? r->probe_rows : 1;
}

/* The broker takes messages now, and the window has room worth a transaction. */
bool claim_allowed(const struct relay *r)
{
	unsigned batch = r->source->batch < r->source->max_in_flight ? r->source->batch
								     : r->source->max_in_flight;

	if ((r->solo || r->suspects) && r->pool.used > 0)
		return false;
	if (r->first_count > 0)
		return false;
	if (r->stopping || !r->mq_up || r->blocked || !r->channel_open[CHANNEL_FAST] ||
		!r->channel_open[CHANNEL_QUARANTINE])
		return false;
	if (r->broken.open)
		return circuit_may_try(&r->broken, r->now_us) && r->pool.used == 0;
	return r->ready_count - r->quarantine_count <= batch / 2 &&
	       r->pool.max - r->pool.used >= (batch + 1) / 2 && claim_limit(r) > 0 &&
	       (r->pool.bytes < r->source->max_in_flight_bytes / 2 || r->pool.used == 0);
}

/* Its relays died holding it, twice in a row or more: it may be what kills them. */
static bool is_suspect(const struct row *row, unsigned takeovers)
{
	return takeovers >= SUSPECT_TAKEOVERS ||
	       failure_takeovers(row->last_error) >= SUSPECT_TAKEOVERS;
}

static int on_row(void *arg, enum row_class class, const struct row *row, unsigned takeovers)
{
	struct relay *r = arg;
	struct event *ev;

	if (class == ROW_FRESH && r->claimed[class] == 0)
		r->first_fresh_us = relay_clock(r);
	if (r->solo)
		return 1;
	if (r->pool.used > 0 && r->pool.bytes >= r->source->max_in_flight_bytes)
		return 1;
	if (is_suspect(row, takeovers)) {
		if (!r->suspects)
			r->suspects_since_us = r->now_us;
		r->suspects = true;
		r->suspect_class = class;
		if (r->pool.used > 0)
			return 1;
		r->solo = true;
	}
	ev = event_new(&r->pool, row);
	if (ev == NULL)
		return r->pool.used >= r->pool.max ? 1 : -1;
	ev->origin = (uint8_t) class;
	ev->takeovers = takeovers;
	ev->sent_before = class == ROW_EXPIRED; /* its last owner may have sent it */
	if (failure_is(FAIL_CONFIRM_TIMEOUT, row->last_error)) { /* not at its neighbours' cost */
		ev->alone = ev->sent_before = true;
		ev->timeouts = 1;
	}
	list_push_back(&r->staged, &ev->link);
	r->staged_count++;
	r->claimed[class]++;
	r->row_bytes = r->row_bytes == 0 ? (double)event_bytes(ev)
					 : r->row_bytes * 0.99 + (double)event_bytes(ev) * 0.01;
	return 0;
}

static int on_skipped(void *arg, const struct row *key)
{
	struct relay *r = arg;

	if (r->skipped_count < ARRAY_LEN(r->skipped))
		r->skipped[r->skipped_count] =
			order_hash(&r->order, key->aggregate_type, key->aggregate_id);
	r->skipped_count++; /* too many to remember: then every row of the claim is asked about */
	return 0;
}

/* Nothing of the claim stands: the rows go as if they had never been seen. */
static void drop_staged(struct relay *r)
{
	list_each_safe (pos, tmp, &r->staged) {
		struct event *ev = container_of(pos, struct event, link);

		list_del(&ev->link);
		event_move(ev, EVENT_LOST);
		event_free(&r->pool, ev);
	}
}

/* Whether the claim was committed is unknown: the rows may stand as ours. They are handed back
 * unsent. */
static void release_staged(struct relay *r)
{
	list_each_safe (pos, tmp, &r->staged) {
		struct event *ev = container_of(pos, struct event, link);

		list_del(&ev->link);
		/* whoever sends it next does not know that its last owner may have */
		if (ev->origin == ROW_EXPIRED)
			log_event(r, LOG_LEVEL_INFO,
				"lease taken over, and handed back: the claim may stand", ev, NULL,
				NULL);
		verdict_released(r, ev);
		settle_again(r, ev); /* no loss if they do not */
	}
}

static struct event *lane_member(const struct lane *lane, uint64_t id)
{
	if (lane->head != NULL && lane->head->id == id)
		return lane->head;
	list_each (pos, &lane->queue) {
		struct event *ev = container_of(pos, struct event, link);

		if (ev->id == id)
			return ev;
	}
	return NULL;
}

/* Its aggregate has passed it, and SENT is about to be written, or being written. */
static bool is_confirmed(const struct relay *r, uint64_t id)
{
	const struct list *lists[] = { &r->settling, &r->beside };

	for (size_t i = 0; i < ARRAY_LEN(lists); i++)
		list_each (pos, lists[i]) {
			const struct event *ev = container_of(pos, struct event, link);

			if (ev->id == id)
				return ev->state == EVENT_CONFIRMED;
		}
	return false;
}

static void to_ready(struct relay *r, struct event *ev)
{
	publish_queued_alone(r, ev, ev->timeouts > 0);
	list_push_back(ev->queued_alone ? &r->quarantine : &r->ready, &ev->link);
	r->ready_count++;
}

/* Later ones of its aggregate are out, or have been confirmed. */
static bool is_overtaken(const struct lane *lane, const struct event *ev)
{
	const struct event *head = lane->head;

	if (lane->passed.id != 0 && place_before(event_place(ev), lane->passed))
		return true;
	return head != NULL && head->state != EVENT_CLAIMED && event_before(ev, head);
}

/* It would be the last of more than its aggregate can have while others want to come in: of a
 * quarter of the window; of twice the share where so few aggregates are in it that their confirms,
 * one at a time each, are what it waits for. */
static bool is_too_much(const struct relay *r, const struct lane *lane, const struct event *ev)
{
	const struct event *last = list_last(&lane->queue, struct event, link);
	unsigned most = r->pool.max / 4;

	if (r->order.lane_count < LANES_ENOUGH && most > 2 * lane_share(r))
		most = 2 * lane_share(r);
	return lane->events > most && last != NULL && event_before(last, ev);
}

/* The event's turn comes as soon as its lane is free; at once where there are no lanes. */
void claim_admit(struct relay *r, struct event *ev)
{
	struct lane *lane = ev->lane;

	if (lane != NULL)
		ev->hazard |= is_overtaken(lane, ev);
	if (lane == NULL || lane->head == NULL) {
		if (lane != NULL)
			lane->head = ev;
		to_ready(r, ev);
	} else if (lane->head->state == EVENT_CLAIMED && event_before(ev, lane->head)) {
		struct event *later = lane->head; /* committed late, in time all the same */

		list_insert_before(&later->link, &ev->link);
		list_del(&later->link);
		publish_queued_alone(r, ev, later->queued_alone);
		publish_queued_alone(r, later, false);
		lane->head = ev;
		lane_queue(lane, later);
	} else if (is_too_much(r, lane, ev)) {
		char text[WAITING_SIZE];
		struct slice id = event_part(lane->head, PART_EVENT_ID);

		snprintf(text, sizeof(text), WAITING_BEHIND "%.*s", (int)id.len, id.ptr);
		verdict_held(r, ev, HOLD_MAX_US, text);
	} else {
		lane_queue(lane, ev);
	}
}

/* Somebody else has locked a row of it just now; too many to remember: that may be so. */
static bool was_skipped(const struct relay *r, const struct lane *lane)
{
	for (unsigned i = 0; i < r->skipped_count && i < ARRAY_LEN(r->skipped); i++)
		if (r->skipped[i] == lane->hash)
			return true;
	return r->skipped_count > ARRAY_LEN(r->skipped);
}

static int64_t hold_delay(
	const struct relay *r, const struct lane *lane, const struct order_probe *probe)
{
	const int64_t pad_us = r->source->poll_interval_us + HOLD_MIN_US;
	int64_t delay_us = probe->head_due_us;

	switch (probe->head) {
	case HEAD_DEAD:
		return HOLD_MAX_US;
	case HEAD_RETRY:
		return hold_behind_retry(r, delay_us);
	case HEAD_READY: /* committed since: it comes with the next claim */
		delay_us = was_skipped(r, lane) ? pad_us : HOLD_MIN_US;
		break;
	case HEAD_WAITING: /* comes back along with that one */
		if (delay_us < pad_us)
			delay_us = pad_us;
		break;
	default:
		delay_us = delay_us < HOLD_MAX_US ? delay_us + pad_us : HOLD_MAX_US;
		break;
	}
	return delay_us < HOLD_MAX_US ? delay_us : HOLD_MAX_US;
}

/* The table has said what stands before the row. */
static void admit_probed(struct relay *r, struct event *ev, const struct order_probe *probe)
{
	struct lane *lane = ev->lane;
	char text[WAITING_SIZE];

	ev->hazard |= probe->overtaken;
	if (probe->head_at.id == 0) {
		claim_admit(r, ev);
	} else if (probe->head == HEAD_OWNED && (lane_member(lane, probe->head_at.id) != NULL ||
							is_confirmed(r, probe->head_at.id))) {
		claim_admit(r, ev);
	} else if (lane->held != NULL && lane->held->id == probe->head_at.id) {
		verdict_held_too(r, ev);
	} else {
		if (lane_drains(lane) && probe->head == HEAD_WAITING)
			lane_drain_from(lane, probe->head_at);
		else if (lane_drains(lane) && probe->head != HEAD_OWNED)
			lane_drained(&r->order, lane); /* it passed what bars the way */
		snprintf(text, sizeof(text), WAITING_BEHIND "%s", probe->head_event_id);
		verdict_held(r, ev, hold_delay(r, lane, probe), text);
	}
}

/* What was sent may have been later than this one. */
static bool is_late(const struct relay *r, const struct event *ev)
{
	return place_before(event_place(ev), r->high);
}

/* Once the table is asked about one row of a lane, it is asked about all that come behind it: the
 * answer may send that one back. */
static bool must_ask(const struct relay *r, const struct event *ev)
{
	return ev->origin != ROW_FRESH || r->scan.kind == SCAN_PART ||
	       ev->lane->asked_in == r->claims || barred_rows(&r->order, ev->lane->hash) > 0 ||
	       was_skipped(r, ev->lane) || is_late(r, ev);
}

/* An event of its lane has just been found to wait: then so must those that follow. */
static bool waits_too(const struct event *ev)
{
	return ev->lane->held != NULL && event_before(ev->lane->held, ev);
}

/* Only a death while alone is the row's own doing. */
static bool charge_death(struct relay *r, struct event *ev)
{
	char text[100];

	if (ev->takeovers <= SUSPECT_TAKEOVERS)
		return false;
	snprintf(text, sizeof(text), "taken over %u times in a row, last while alone",
		ev->takeovers);
	verdict_charged(r, ev, FAIL_LEASE_EXPIRED, text);
	return true;
}

/* Asks the table about `count` of r->events, and admits them. 0, or -1: none was. */
static int ask(struct relay *r, unsigned count)
{
	struct err e = { 0 };

	if (count == 0)
		return 0;
	for (unsigned i = 0; i < count; i++) {
		const struct event *ev = r->events[i];

		r->probes[i] = (struct order_probe){
			.at = event_place(ev),
			.aggregate_type = event_part(ev, PART_AGGREGATE_TYPE),
			.aggregate_id = event_part(ev, PART_AGGREGATE_ID),
			.look_behind = is_late(r, ev),
		};
	}
	if (r->store->ops->predecessors(
		    r->store, r->probes, count, r->source->on_dead == ON_DEAD_PASS, &e) < 0) {
		relay_clock(r);
		relay_db_failed(r, "predecessors", &e);
		return -1;
	}
	relay_clock(r);
	for (unsigned i = 0; i < count; i++)
		admit_probed(r, r->events[i], &r->probes[i]);
	return 0;
}

/* First about the first of each aggregate: where that one has to wait, the others need not be asked
 * about. The others are kept in r->staged meanwhile. */
static void ask_in_turns(struct relay *r, unsigned count)
{
	unsigned first = 0, rest = 0;
	int rc;

	for (unsigned i = 0; i < count; i++) {
		struct event *ev = r->events[i];

		if (ev->lane->asked == ev)
			r->events[first++] = ev;
		else
			list_push_back(&r->staged, &ev->link);
	}
	rc = ask(r, first);
	for (unsigned i = 0; rc < 0 && i < first; i++)
		verdict_released(r, r->events[i]);
	list_each_safe (pos, tmp, &r->staged) {
		struct event *ev = container_of(pos, struct event, link);

		list_del(&ev->link);
		if (rc < 0)
			verdict_released(r, ev);
		else if (waits_too(ev))
			verdict_held_too(r, ev);
		else
			r->events[rest++] = ev;
	}
	if (rc == 0 && ask(r, rest) < 0)
		for (unsigned i = 0; i < rest; i++)
			verdict_released(r, r->events[i]);
}

static void admit_ordered(struct relay *r, unsigned count)
{
	unsigned asked = 0;

	events_sort_by_place(r->events, count);
	for (unsigned i = 0; i < count; i++) {
		struct event *ev = r->events[i];
		uint64_t hash = order_hash(&r->order, event_part(ev, PART_AGGREGATE_TYPE),
			event_part(ev, PART_AGGREGATE_ID));
		struct lane *lane = lane_get(&r->order, hash);

		if (lane == NULL) {
			verdict_released(r, ev);
			continue;
		}
		lane_attach(lane, ev);
		if (!must_ask(r, ev)) {
			claim_admit(r, ev);
			continue;
		}
		if (lane->asked_in != r->claims)
			lane->asked = ev;
		lane->asked_in = r->claims;
		if (ev->origin != ROW_FRESH)
			barred_sub(&r->order, hash, 1); /* in the window now */
		if (charge_death(r, ev))
			continue;
		if (waits_too(ev))
			verdict_held_too(r, ev);
		else
			r->events[asked++] = ev;
	}
	ask_in_turns(r, asked);
}

void claim_due_after(struct relay *r, int64_t delay_us)
{
	if (r->now_us + delay_us < r->next_due_us)
		r->next_due_us = r->now_us + delay_us;
}

static unsigned admit_staged(struct relay *r, int64_t lease_end_us)
{
	unsigned count = 0;

	list_each_safe (pos, tmp, &r->staged) {
		struct event *ev = container_of(pos, struct event, link);

		list_del(&ev->link);
		ev->lease_end_us = lease_end_us;
		if (ev->origin == ROW_FRESH)
			scan_claimed(&r->scan, ev->created_us);
		if (ev->origin == ROW_EXPIRED) {
			r->next_expired_us = r->now_us; /* there may be more */
			metric_add(r->metrics->recovered, 1);
			log_event(r, LOG_LEVEL_INFO, "lease taken over", ev, NULL, NULL);
		}
		if (r->broken.open && !r->broken_returns)
			ev->alone = true;
		r->events[count++] = ev;
	}
	if (r->ordered) {
		admit_ordered(r, count);
	} else {
		for (unsigned i = 0; i < count; i++)
			if (!charge_death(r, r->events[i]))
				claim_admit(r, r->events[i]);
	}
	return count;
}

static void set_leads(struct relay *r, bool leads)
{
	if (leads == r->leads)
		return;
	r->leads = leads;
	metric_set(r->metrics->leader, leads);
	scan_restart(&r->scan);
	if (leads) {
		barred_clear(&r->order);
		r->cursor = (struct barred_cursor){ 0 };
		r->loading = true;
	} else {
		log_info("relay", "standing by", F_STR("source", r->source->name));
	}
}

/* Those that wait for another try get their share, but never the whole batch while there are
 * others. Expired leases have their own rhythm, that of looks. */
static void share_out(const struct relay *r, struct claim_spec *spec, const struct store_look *look)
{
	bool due = r->now_us >= r->next_due_us;
	bool exists[ROW_CLASSES] = {
		[ROW_FRESH] = true,
		[ROW_DUE] = r->may_exist[ROW_DUE] || due,
		[ROW_RETRY] = r->may_exist[ROW_RETRY] || due,
	};
	unsigned limit = spec->total;
	bool many;

	for (int c = 0; look != NULL && c < ROW_CLASSES; c++)
		exists[c] = look->exists[c];
	exists[ROW_EXPIRED] &= r->now_us >= r->suspects_rest_us;
	many = exists[ROW_FRESH] || exists[ROW_EXPIRED];
	for (int c = 0; c < ROW_CLASSES; c++)
		spec->limit[c] = exists[c] ? limit : 0;
	if (limit < 8) { /* too few to share: take turns */
		for (unsigned i = 0; i < ROW_CLASSES; i++) {
			unsigned turn = (unsigned)(r->claims + i) % ROW_CLASSES;

			if (exists[ROW_EXPIRED])
				turn = ROW_EXPIRED; /* seldom asked for, and never many */
			if (!exists[turn])
				continue;
			for (unsigned c = 0; c < ROW_CLASSES; c++)
				spec->limit[c] = c == turn ? limit : 0;
			return;
		}
	}
	if (exists[ROW_RETRY] && (many || exists[ROW_DUE]))
		spec->limit[ROW_RETRY] = limit / 4;
	if (exists[ROW_DUE] && many)
		spec->limit[ROW_DUE] = limit / 8;
}

/* Of a class that gave less than was asked for there is no more for now. */
static void note_classes(struct relay *r, const struct claim_spec *spec)
{
	static const enum row_class delayed[] = { ROW_DUE, ROW_RETRY };
	bool all = true;

	for (size_t i = 0; i < ARRAY_LEN(delayed); i++) {
		enum row_class c = delayed[i];

		if (spec->limit[c] > 0)
			r->may_exist[c] =
				r->claimed[c] >= spec->limit[c] || r->staged_count >= spec->total;
		else
			all = false;
	}
	if (all && r->now_us >= r->next_due_us)
		r->next_due_us = TIME_NEVER; /* until a look, or a write, tells of another */
}

static void claim(struct relay *r, const struct store_look *look)
{
	unsigned limit = claim_limit(r);
	struct row_sink sink = { on_row, r->ordered ? on_skipped : NULL, relay_meanwhile, r };
	bool broken = r->broken.open;
	int64_t start_us = relay_clock(r);
	struct claim_spec spec = { .total = limit,
		.lease_us = r->source->lease_us,
		.since_us = scan_begin(&r->scan, start_us, look != NULL && !r->pacer.hot),
		/* far from the end, where rows are being added, it is seldom in vain */
		.nowait = r->ordered && r->pacer.hot && start_us >= r->nowait_rest_us };
	struct err e = { 0 };
	bool unknown = false, sought;
	unsigned got;

	if (r->broken.open && limit > probe_size(r))
		spec.total = limit = probe_size(r);
	if (r->suspects && limit > SUSPECT_CLAIM)
		spec.total = limit = SUSPECT_CLAIM;
	if (limit == 0)
		return;
	if (r->solo && start_us - r->suspects_since_us >= SUSPECT_SPELL_US) {
		r->suspects = false;
		r->suspects_rest_us = start_us + (start_us - r->suspects_since_us);
	}
	r->solo = false;
	share_out(r, &spec, look);
	if (r->suspects)
		for (int c = 0; c < ROW_CLASSES; c++)
			spec.limit[c] = c == (int)r->suspect_class ? limit : 0;
	sought = r->suspects;
	r->staged_count = 0;
	memset(r->claimed, 0, sizeof(r->claimed));
	r->skipped_count = 0;
	r->claims++;
	if (r->store->ops->claim(r->store, &spec, &sink, &unknown, &e) < 0) {
		relay_clock(r);
		relay_db_took(r, start_us, &e);
		if (unknown)
			release_staged(r);
		else
			drop_staged(r);
		if (e.kind == ERR_AGAIN) {
			set_leads(r, false);
			pacer_idle(&r->pacer, r->now_us, TIME_NEVER);
		} else if (e.kind == ERR_REFUSED) {
			r->nowait_rest_us = r->now_us + NOWAIT_REST_US;
		} else {
			relay_db_failed(r, "claim", &e);
		}
		return;
	}
	relay_clock(r);
	relay_db_took(r, start_us, NULL);
	relay_db_worked(r);
	metric_observe(r->metrics->claim_seconds, (double)(r->now_us - start_us) / US_PER_SEC);
	/* One met while others were in the window was left for when that is empty. Leases that
	 * expired come together, whole windows of them. */
	if ((sought && r->staged_count == 0) || (r->solo && r->suspect_class != ROW_EXPIRED))
		r->suspects = false;
	note_classes(r, &spec);
	/* until the first row: what comes after it costs the same wherever the scan began */
	if (look == NULL && r->staged_count == limit && r->claimed[ROW_FRESH] > 0)
		scan_took(&r->scan, r->now_us, r->first_fresh_us - start_us);
	got = admit_staged(r, start_us + r->source->lease_us);
	if (!r->mq_up || r->blocked || (r->broken.open && !broken))
		release_unsent(r); /* it went while the database was at work */
	pacer_claimed(&r->pacer, r->now_us, got, limit);
	if (got == 0 && r->now_us < r->suspects_rest_us) { /* nobody needs that turn */
		r->suspects_rest_us = r->next_expired_us = r->now_us;
		pacer_poke(&r->pacer, r->now_us);
	}
	if (got > 0)
		log_debug("relay", "claimed", F_STR("source", r->source->name), F_UINT("rows", got),
			F_US("took", r->now_us - start_us));
}

/* What rows wait for may have gone while nobody led, or be written as gone by its owner, who tells
 * nobody: aggregates without a head are walked along from the first row known. Without memory an
 * entry is missing, and a row might pass its head: count on the next one being refused too, and do
 * not lead.
 */
static void on_barred(void *arg, const struct row *key, enum order_head what)
{
	const struct place at = { key->created_us, key->id };
	struct relay *r = arg;
	uint64_t hash = order_hash(&r->order, key->aggregate_type, key->aggregate_id);
	struct lane *lane;

	if (barred_load(&r->order, hash, what != HEAD_PROCESSING && what != HEAD_WAITING) < 0) {
		r->leads = false;
		return;
	}
	if (!barred_headless(&r->order, hash)) {
		lane = lane_find(&r->order, hash);
		if (lane != NULL && lane_drains(lane))
			lane_drained(&r->order, lane); /* it begins once the head has gone */
		return;
	}
	lane = lane_get(&r->order, hash);
	if (lane == NULL ||
		lane_drain(&r->order, lane, key->aggregate_type, key->aggregate_id, at) < 0) {
		r->leads = false;
		return;
	}
	lane_drain_from(lane, at);
}

/* Newly leading: one page of what stands unsent where the FRESH scan will not see it. */
static void load_barred(struct relay *r)
{
	struct err e = { 0 };
	bool more = false;

	if ((!r->cursor.started && r->cursor.stage == 0 &&
		    r->store->ops->last_sent(r->store, &r->high, &e) < 0) ||
		r->store->ops->barred(r->store, r->source->on_dead == ON_DEAD_PASS, &r->cursor,
			&more, on_barred, r, &e) < 0) {
		relay_clock(r);
		relay_db_failed(r, "barred aggregates", &e);
		return;
	}
	relay_clock(r);
	if (more)
		return;
	r->loading = false;
	log_info("relay", "leading", F_STR("source", r->source->name),
		F_UINT("barred", r->order.barred_count));
	pacer_poke(&r->pacer, r->now_us);
}

static bool look(struct relay *r, struct store_look *out)
{
	bool expired = r->now_us >= r->next_expired_us;
	int64_t before_us = relay_clock(r), rest_us;
	struct err e = { 0 };

	if (r->store->ops->look(r->store, expired, out, &e) < 0) {
		relay_clock(r);
		relay_db_failed(r, "poll", &e);
		return false;
	}
	relay_clock(r);
	relay_db_worked(r);
	for (int c = 0; c < ROW_CLASSES; c++)
		r->may_exist[c] = out->exists[c];
	r->next_due_us = TIME_NEVER;
	if (out->next_due_us < TIME_NEVER - r->now_us)
		claim_due_after(r, out->next_due_us);
	r->db_offset_us = out->now_us - (before_us + (r->now_us - before_us) / 2);
	if (r->conf.wall_us != NULL)
		metric_set(r->metrics->last_poll,
			(double)r->conf.wall_us(r->conf.clock_arg) / US_PER_SEC);
	if (r->ordered)
		set_leads(r, out->leads);
	/* A look that is slow time and again has its share of the time, and no more. */
	rest_us = LOOK_SHARE *
		  (r->now_us - before_us < r->look_us ? r->now_us - before_us : r->look_us);
	r->look_us = r->now_us - before_us;
	if (rest_us > LOOK_REST_US)
		rest_us = LOOK_REST_US;
	if (expired)
		r->next_expired_us = r->now_us + (rest_us > r->source->poll_interval_us
								 ? rest_us
								 : r->source->poll_interval_us);
	return true;
}

/* Without a look beforehand. */
bool claim_at_once(const struct relay *r)
{
	return (r->pacer.hot || r->suspects) && (!r->ordered || r->leads) && claim_allowed(r);
}

bool claim_turn(struct relay *r)
{
	struct store_look seen;
	bool any = false;

	if (r->loading && r->leads) {
		load_barred(r);
		return true;
	}
	/* Seen when the window was full. */
	if (r->may_exist[ROW_EXPIRED] && r->now_us >= r->suspects_rest_us && claim_allowed(r))
		r->next_expired_us = r->now_us;
	/* Under load one claim follows the other; but the look for expired leases, and for who
	 * leads, comes round. */
	if (claim_at_once(r) && (r->suspects || r->now_us < r->next_expired_us)) {
		claim(r, NULL);
		return true;
	}
	/* After a failed call anything that works closes the circuit, and this asks for nothing. */
	if (r->now_us < r->pacer.next_us && !(r->pacer.hot && claim_allowed(r)) && !r->db.open)
		return false;
	if (!claim_allowed(r) && !r->db.open && (r->now_us < r->next_expired_us || r->stopping))
		return false;
	if (!look(r, &seen))
		return true;
	for (int c = 0; c < ROW_CLASSES; c++)
		any |= seen.exists[c];
	if (r->ordered && (!r->leads || r->loading))
		pacer_idle(&r->pacer, r->now_us, TIME_NEVER);
	else if (!any)
		pacer_idle(&r->pacer, r->now_us, seen.next_due_us);
	else if (claim_allowed(r))
		claim(r, &seen);
	return true;
}

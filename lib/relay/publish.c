#include "relay/impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static uint64_t exchange_hash(struct slice name)
{
	uint64_t h = UINT64_C(0xCBF29CE484222325);

	for (size_t i = 0; i < name.len; i++)
		h = (h ^ (unsigned char)name.ptr[i]) * UINT64_C(0x100000001B3);
	return h;
}

static bool is_proven(const struct relay *r, uint64_t exchange)
{
	for (unsigned i = 0; i < r->proven_count; i++)
		if (r->proven[i] == exchange)
			return true;
	return false;
}

void publish_queued_alone(struct relay *r, struct event *ev, bool queued)
{
	r->quarantine_count += (unsigned)queued - (unsigned)ev->queued_alone;
	ev->queued_alone = queued;
}

/* An answer to a message proves that its exchange exists and may be written to. Those that waited
 * for the proof, not for being alone, go the fast way now. */
static void prove(struct relay *r, uint64_t exchange)
{
	struct list *at = &r->ready;

	if (is_proven(r, exchange))
		return;
	r->proven[r->proven_next] = exchange;
	r->proven_next = (r->proven_next + 1) % PROVEN_MAX;
	if (r->proven_count < PROVEN_MAX)
		r->proven_count++;
	list_each_safe (pos, tmp, &r->quarantine) {
		struct event *ev = container_of(pos, struct event, link);

		if (ev->alone || ev->exchange != exchange)
			continue;
		list_del(&ev->link);
		publish_queued_alone(r, ev, false);
		list_insert_before(at->next, &ev->link);
		at = &ev->link;
	}
}

static bool lease_leaves_room(const struct relay *r, const struct event *ev)
{
	return ev->lease_end_us - r->now_us > r->source->broker->confirm_timeout_us;
}

/* One dated in the future would make all that follow look late. */
static void note_highest(struct relay *r, const struct event *ev)
{
	if (ev->created_us > r->now_us + r->db_offset_us)
		return;
	if (place_before(r->high, event_place(ev)))
		r->high = event_place(ev);
}

enum sent { SENT_YES, SENT_NO_ROOM, SENT_NEVER, SENT_BROKEN };

static enum sent send_now(
	struct relay *r, struct event *ev, enum channel ch, const struct envelope *env)
{
	bool again = ev->sent_before;
	struct err e = { 0 };

	if (r->publisher->ops->send(r->publisher, ch, env, ev, &e) < 0) {
		if (e.kind == ERR_AGAIN)
			return SENT_NO_ROOM;
		if (e.kind == ERR_REFUSED) {
			const char *colon = strchr(e.text, ':');
			bool large = strncmp(e.text, "TOO_LARGE", 9) == 0;

			verdict_dead(r, ev, large ? FAIL_TOO_LARGE : FAIL_INVALID,
				colon != NULL ? colon + 2 : e.text);
			return SENT_NEVER;
		}
		relay_mq_down(r, "publish", &e);
		return SENT_BROKEN;
	}
	list_del(&ev->link);
	publish_queued_alone(r, ev, false);
	r->ready_count--;
	event_move(ev, EVENT_PUBLISHED);
	ev->channel = (uint8_t)ch;
	ev->since_us = r->now_us;
	ev->sent_before = true;
	note_highest(r, ev);
	list_push_back(&r->in_flight[ch], &ev->link);
	r->out_count[ch]++;
	if (again) {
		metric_add(r->metrics->redelivered, 1);
		log_event(r, LOG_LEVEL_DEBUG, "sent again", ev, NULL, NULL);
	}
	return SENT_YES;
}

/* When the oldest confirm of the fast channel is, or was, overdue. */
static int64_t overdue_since(const struct relay *r)
{
	const struct event *oldest = list_first(&r->in_flight[CHANNEL_FAST], struct event, link);

	return oldest != NULL ? oldest->since_us + r->source->broker->confirm_timeout_us
			      : TIME_NEVER;
}

/* When the fast channel starts anew because of that: not before those sent after the one overdue
 * had time to be confirmed, or all would be sent twice for the sake of one. */
static int64_t recycle_us(const struct relay *r)
{
	const struct list *open = &r->in_flight[CHANNEL_FAST];
	int64_t overdue_us = overdue_since(r), grace_us = r->source->broker->confirm_timeout_us;
	const struct event *newest;

	if (overdue_us == TIME_NEVER)
		return TIME_NEVER;
	newest = container_of(open->prev, struct event, link);
	if (grace_us > OVERDUE_GRACE_US)
		grace_us = OVERDUE_GRACE_US;
	return newest->since_us + grace_us > overdue_us ? newest->since_us + grace_us : overdue_us;
}

/* The envelope is valid until the next one is built. */
static int build(struct relay *r, const struct event *ev, struct envelope *env, struct err *e)
{
	struct slice extra[ROW_EXTRA_MAX];
	struct row row;

	event_row(&r->pool, ev, &row, extra);
	return envelope_build(env, &r->arena, r->route, &row, e);
}

/* false: nothing more can be sent at the moment. */
static bool send_one(struct relay *r, struct event *ev, bool in_quarantine)
{
	struct envelope env;
	struct err e = { 0 };
	enum channel ch;

	if (build(r, ev, &env, &e) < 0) {
		const char *colon = strchr(e.text, ':');

		if (e.kind == ERR_NOMEM)
			return false;
		verdict_dead(r, ev,
			strncmp(e.text, "TOO_LARGE", 9) == 0 ? FAIL_TOO_LARGE : FAIL_INVALID,
			colon != NULL ? colon + 2 : e.text);
		return true;
	}
	ev->exchange = exchange_hash(env.exchange);
	ch = ev->alone || !is_proven(r, ev->exchange) ? CHANNEL_QUARANTINE : CHANNEL_FAST;
	if (ch == CHANNEL_QUARANTINE && (!r->channel_open[ch] || r->out_count[ch] > 0)) {
		if (!in_quarantine) {
			list_del(&ev->link);
			publish_queued_alone(r, ev, true);
			list_push_back(&r->quarantine, &ev->link);
		}
		return true;
	}
	if (!r->channel_open[ch] || (ch == CHANNEL_FAST && overdue_since(r) <= r->now_us))
		return false;
	switch (send_now(r, ev, ch, &env)) {
	case SENT_YES:
	case SENT_NEVER:
		return true;
	default:
		return false;
	}
}

/* While the exchange is missing one message at a time goes out, when the circuit allows. */
static void probe_exchange(struct relay *r)
{
	struct event *ev = list_first(&r->quarantine, struct event, link);

	if (relay_in_flight(r) > 0 || !circuit_may_try(&r->broken, r->now_us))
		return;
	if (ev == NULL)
		ev = list_first(&r->ready, struct event, link);
	if (ev == NULL || !lease_leaves_room(r, ev))
		return;
	ev->alone = true;
	(void)send_one(r, ev, false);
}

static bool window_full(const struct relay *r)
{
	return relay_in_flight(r) >= r->source->max_in_flight ||
	       relay_in_flight(r) + r->settling_count + r->beside_count >= r->sent_max;
}

/* Those that wait to be alone come before the fast ones, which would leave no room for them; but
 * behind, those whose confirm once did not come: such a row may hold the channel for as long as it
 * can, and meanwhile no other could prove its exchange. */
static void publish_alone(struct relay *r, bool late)
{
	if (!r->channel_open[CHANNEL_QUARANTINE] || r->out_count[CHANNEL_QUARANTINE] > 0)
		return;
	list_each_safe (pos, tmp, &r->quarantine) {
		struct event *ev = container_of(pos, struct event, link);

		if (window_full(r))
			return;
		if (late != (ev->timeouts > 0) || !lease_leaves_room(r, ev))
			continue;
		if (!send_one(r, ev, true) || r->out_count[CHANNEL_QUARANTINE] > 0)
			return;
	}
}

bool publish_some(struct relay *r)
{
	unsigned before = r->settling_count;

	if (!r->mq_up || r->blocked || r->route == NULL)
		return false;
	if (r->broken.open && !r->broken_returns) {
		probe_exchange(r);
		return false;
	}
	if (!circuit_may_try(&r->broken, r->now_us))
		return false;
	publish_alone(r, false);
	list_each_safe (pos, tmp, &r->ready) {
		struct event *ev = container_of(pos, struct event, link);

		if (window_full(r))
			break;
		if (lease_leaves_room(r, ev) && !send_one(r, ev, false))
			break;
	}
	publish_alone(r, true);
	return r->mq_up && r->settling_count > before && r->ready_count > 0;
}

/* Everything open on the channel has an unknown outcome now, and goes again: alone, where one of
 * them may be to blame. It keeps its place before what was never sent. */
void publish_forget(struct relay *r, enum channel ch, bool alone)
{
	struct list *to = alone ? &r->quarantine : &r->ready;
	struct list *at = to;

	list_each_safe (pos, tmp, &r->in_flight[ch]) {
		struct event *ev = container_of(pos, struct event, link);

		list_del(&ev->link);
		r->out_count[ch]--;
		if (ev->lost) {
			verdict_lost(r, ev);
			continue;
		}
		event_move(ev, EVENT_UNKNOWN);
		ev->alone |= alone;
		publish_queued_alone(r, ev, alone);
		list_insert_before(at->next, &ev->link);
		at = &ev->link;
		r->ready_count++;
	}
}

/* "exchange 'x', routing key 'y'" for people; the envelope is built once more, this path is rare.
 */
static void describe_route(struct relay *r, struct event *ev, char *out, size_t size)
{
	struct envelope env;

	out[0] = '\0';
	if (build(r, ev, &env, NULL) == 0)
		snprintf(out, size, "exchange '%.*s', routing key '%.*s'", (int)env.exchange.len,
			env.exchange.ptr, (int)env.routing_key.len, env.routing_key.ptr);
}

/* As did everything before it. A probe has failed once the last of its rows is back. */
static void all_returned(struct relay *r, const char *why)
{
	if (!r->broken.open || !r->broken_returns) {
		r->probe_rows = 1;
		relay_route_failed(r, true, why);
	} else if (circuit_may_try(&r->broken, r->now_us) &&
		   relay_in_flight(r) + r->ready_count == 0) {
		r->probe_rows *= ROUTE_PROBE_GROWTH;
		if (r->probe_rows > r->source->batch)
			r->probe_rows = r->source->batch;
		relay_route_failed(r, true, why);
	}
}

/* A few rows that nobody wants come back time and again, and tell nothing of the route. */
static void note_returned(struct relay *r, uint64_t id)
{
	for (unsigned i = 0; i < r->returned_rows; i++)
		if (r->returned_ids[i] == id)
			return;
	if (r->returned_rows < ROUTE_ROWS)
		r->returned_ids[r->returned_rows++] = id;
}

static void on_returned(struct relay *r, struct event *ev, unsigned code, const char *text)
{
	char where[600], why[800], held[900];

	describe_route(r, ev, where, sizeof(where));
	snprintf(why, sizeof(why), "%u %s: %s", code, text != NULL ? text : "", where);
	if (r->returned_streak < ROUTE_RETURNS)
		r->returned_streak++;
	note_returned(r, ev->id);
	if (r->returned_streak >= ROUTE_RETURNS && r->returned_rows >= ROUTE_ROWS) {
		all_returned(r, why);
		snprintf(held, sizeof(held), "UNROUTABLE: not charged, everything comes back: %s",
			why);
		verdict_held(r, ev, ROUTE_HOLD_US, held);
		return;
	}
	verdict_charged(r, ev, FAIL_UNROUTABLE, why);
}

static void route_works(struct relay *r)
{
	if (!r->broken.open)
		return;
	circuit_succeed(&r->broken, r->now_us);
	r->route_err = (struct err){ 0 };
	log_info("relay", "route works again", F_STR("source", r->source->name),
		F_US("after", r->now_us - r->broken.opened_us));
	pacer_poke(&r->pacer, r->now_us);
}

static void on_outcome(void *arg, void *cookie, enum outcome how, unsigned code, const char *text)
{
	struct relay *r = arg;
	struct event *ev = cookie;

	list_del(&ev->link);
	r->out_count[ev->channel]--;
	prove(r, ev->exchange);
	if (ev->since_us > r->answered_us)
		r->answered_us = ev->since_us;
	if (ev->lost) {
		verdict_lost(r, ev);
		return;
	}
	metric_observe(
		r->metrics->confirm_seconds, (double)(r->now_us - ev->since_us) / US_PER_SEC);
	if (how != OUTCOME_RETURNED) {
		r->returned_streak = r->returned_rows = 0;
		route_works(r);
	} else if (r->broken.open && !r->broken_returns) {
		route_works(r); /* the exchange is back; that nothing is bound to it is another
				   matter */
	}
	pacer_outcome(&r->pacer, how == OUTCOME_ACK);
	switch (how) {
	case OUTCOME_ACK:
		verdict_confirmed(r, ev);
		break;
	case OUTCOME_NACK:
		verdict_charged(
			r, ev, FAIL_NACKED, "the broker refused responsibility for the message");
		break;
	case OUTCOME_RETURNED:
		on_returned(r, ev, code, text);
		break;
	}
}

/* The exchange itself is missing or may not be written to. */
static bool about_exchange(unsigned code)
{
	return code == 404 || code == 403;
}

/* The exchange may be written to, but not with this routing key (topic permissions of RabbitMQ). */
static bool about_topic(const char *text)
{
	return strstr(text, "access to topic '") != NULL;
}

static void on_guilty(struct relay *r, struct event *ev, unsigned code, const char *text)
{
	char why[400], held[500];

	list_del(&ev->link);
	r->out_count[CHANNEL_QUARANTINE]--;
	snprintf(why, sizeof(why), "%u %s", code, text);
	snprintf(held, sizeof(held), "%s: not charged, unless others get through: %s",
		failure_name(FAIL_REFUSED), why);
	if (ev->lost) {
		verdict_lost(r, ev);
	} else if (about_exchange(code) && r->exchange_fixed &&
		   !(about_topic(text) && is_proven(r, ev->exchange))) {
		relay_route_failed(r, false, why);
		/* where it may be the row's own key, the next probe takes another */
		if (about_topic(text))
			verdict_held(r, ev, ROUTE_HOLD_US, held);
		else
			verdict_released(r, ev);
	} else {
		verdict_dead(r, ev,
			strstr(text, "message size") != NULL ? FAIL_TOO_LARGE : FAIL_REFUSED, why);
	}
}

static void on_channel_closed(void *arg, enum channel ch, unsigned code, const char *text)
{
	struct relay *r = arg;
	struct event *guilty = list_first(&r->in_flight[CHANNEL_QUARANTINE], struct event, link);
	uint64_t suppressed;

	r->channel_open[ch] = false;
	metric_add(r->metrics->broker_errors[BROKER_ERR_CHANNEL], 1);
	if (log_limit_pass(&r->channel_log, r->now_us, LOG_EVERY_US, &suppressed))
		log_warn("relay", "channel closed by the broker", F_STR("source", r->source->name),
			F_STR("channel", ch == CHANNEL_FAST ? "fast" : "quarantine"),
			F_UINT("code", code), F_STR("text", text),
			F_UINT("unconfirmed", r->out_count[ch]), F_UINT("suppressed", suppressed));
	if (ch == CHANNEL_QUARANTINE) {
		if (guilty != NULL)
			on_guilty(r, guilty, code, text);
		return;
	}
	if (about_exchange(code) && !about_topic(text))
		r->proven_count = r->proven_next = 0;
	publish_forget(r, CHANNEL_FAST, true);
}

static void on_blocked(void *arg, bool on, const char *reason)
{
	struct relay *r = arg;

	if (on == r->blocked)
		return;
	r->blocked = on;
	if (on) {
		log_warn("relay", "broker blocked", F_STR("source", r->source->name),
			F_STR("reason", reason));
		release_unsent(r);
		return;
	}
	log_info("relay", "broker unblocked", F_STR("source", r->source->name));
	/* It did not read meanwhile: the time for their confirms begins now. */
	for (int ch = 0; ch < CHANNELS; ch++)
		list_each (pos, &r->in_flight[ch])
			container_of(pos, struct event, link)->since_us = r->now_us;
	pacer_poke(&r->pacer, r->now_us);
}

void publish_events(struct relay *r, struct publisher_events *ev)
{
	*ev = (struct publisher_events){ on_outcome, on_channel_closed, on_blocked, r };
}

int64_t publish_next_deadline(const struct relay *r)
{
	const struct event *alone =
		list_first(&r->in_flight[CHANNEL_QUARANTINE], struct event, link);
	int64_t next = r->blocked ? TIME_NEVER : recycle_us(r);

	if (!r->blocked && alone != NULL &&
		alone->since_us + r->source->broker->confirm_timeout_us < next)
		next = alone->since_us + r->source->broker->confirm_timeout_us;
	return next;
}

/* A confirm that comes after all must not find the event: it goes another way by then. */
static void abandon(struct relay *r, enum channel ch)
{
	r->channel_open[ch] = false;
	r->publisher->ops->abandon(r->publisher, ch);
}

/* Whose confirm did not come in time has an unknown outcome. The channel starts anew, and all that
 * was open on it goes again, one at a time. A row that alone gets no confirm, while others sent
 * after it did, is charged; where nobody got any, the broker is what does not work. */
void publish_deadlines(struct relay *r)
{
	const int64_t timeout_us = r->source->broker->confirm_timeout_us;
	struct event *alone = list_first(&r->in_flight[CHANNEL_QUARANTINE], struct event, link);
	struct err e = { 0 };

	if (!r->mq_up || r->now_us < publish_next_deadline(r))
		return;
	metric_add(r->metrics->broker_errors[BROKER_ERR_TIMEOUT], 1);
	if (alone != NULL && r->now_us - alone->since_us >= timeout_us) {
		bool others = r->answered_us > alone->since_us;

		list_del(&alone->link);
		r->out_count[CHANNEL_QUARANTINE]--;
		abandon(r, CHANNEL_QUARANTINE);
		if (alone->lost) {
			verdict_lost(r, alone);
		} else if (others) {
			snprintf(e.text, sizeof(e.text),
				"no confirm within %" PRId64
				" ms, alone, while others were confirmed",
				timeout_us / US_PER_MS);
			verdict_charged(r, alone, FAIL_CONFIRM_TIMEOUT, e.text);
		} else {
			/* It stands back, or it would be the first again and again, and nobody else
			 * would ever prove that the broker works. */
			snprintf(e.text, sizeof(e.text),
				"%s: not charged, nothing was confirmed within %" PRId64 " ms",
				failure_name(FAIL_CONFIRM_TIMEOUT), timeout_us / US_PER_MS);
			verdict_held(r, alone, ROUTE_HOLD_US, e.text);
		}
		if (!others) {
			err_set(&e, ERR_LINK, 0,
				"no confirm within %" PRId64 " ms, for any message",
				timeout_us / US_PER_MS);
			relay_mq_down(r, "confirm", &e);
			return;
		}
	}
	if (r->now_us >= recycle_us(r)) {
		log_warn("relay", "confirms overdue: channel starts anew",
			F_STR("source", r->source->name),
			F_UINT("unconfirmed", r->out_count[CHANNEL_FAST]));
		abandon(r, CHANNEL_FAST);
		list_each (pos, &r->in_flight[CHANNEL_FAST]) {
			struct event *ev = container_of(pos, struct event, link);

			if (r->now_us - ev->since_us >= timeout_us)
				ev->timeouts++;
		}
		publish_forget(r, CHANNEL_FAST, true);
	}
}

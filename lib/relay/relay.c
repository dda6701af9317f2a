#include "relay/impl.h"

#include "base/str.h"

#include <stdlib.h>
#include <string.h>

#define HALVINGS_MAX 12 /* of a write that takes too long */
/* After an outage every relay of a fleet comes back within seconds of the server, but not all at
 * once. */
#define CIRCUIT_BASE_US (200 * US_PER_MS)
#define CIRCUIT_CAP_US (5 * US_PER_SEC)
#define ROUTE_BASE_US (1 * US_PER_SEC)
#define ROUTE_CAP_US (10 * US_PER_SEC)

int64_t relay_clock(struct relay *r)
{
	r->now_us = r->conf.mono_us(r->conf.clock_arg);
	return r->now_us;
}

static int64_t min64(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/* What repeats is what has this kind and code. Each of the last few has a limit of its own: two
 * that come in turns, as of two hosts, are no news either. */
static struct log_limit *limit_of(struct relay_log *logs, const struct err *e)
{
	struct relay_log *oldest = &logs[0];

	for (size_t i = 0; i < RELAY_LOGS; i++) {
		if (logs[i].kind == e->kind && logs[i].code == e->code)
			return &logs[i].limit;
		if (logs[i].limit.next_us < oldest->limit.next_us)
			oldest = &logs[i];
	}
	*oldest =
		(struct relay_log){ e->kind, e->code, { .suppressed = oldest->limit.suppressed } };
	return &oldest->limit;
}

void relay_db_failed(struct relay *r, const char *what, struct err *e)
{
	uint64_t suppressed;

	err_wrap(e, "%s", what);
	r->db_err = *e;
	if (e->kind > ERR_NONE && e->kind < ERR_AGAIN)
		metric_add(r->metrics->db_errors[e->kind], 1);
	if (log_limit_pass(limit_of(r->db_log, e), r->now_us,
		    e->kind == ERR_RETRY && r->db.failures < 3 ? US_PER_SEC : LOG_EVERY_US,
		    &suppressed))
		log_warn("relay", "database call failed", F_STR("source", r->source->name),
			F_STR("kind", err_kind_name(e->kind)), F_INT("code", e->code), F_ERR(e),
			F_UINT("suppressed", suppressed));
	circuit_fail(&r->db, r->now_us, e->kind == ERR_CONFIG, &r->rng);
	if (e->kind != ERR_LINK && e->kind != ERR_CONFIG)
		return;
	r->store->ops->close(r->store);
	beside_give_up(r);
	r->db_up = false;
	r->leads = false;
	r->loading = false;
	metric_set(r->metrics->source_up, 0);
	metric_set(r->metrics->leader, 0);
}

void relay_db_took(struct relay *r, int64_t start_us, const struct err *e)
{
	int64_t limit_us = r->source->database.query_timeout_us, took_us = r->now_us - start_us;

	if (e == NULL) {
		r->halvings -= r->halvings > 0 && took_us < limit_us / 8;
	} else if (e->kind == ERR_LINK && took_us >= limit_us / 4 * 3 &&
		   r->halvings < HALVINGS_MAX) {
		r->halvings++;
		log_warn("relay", "took longer than query_timeout: with fewer rows from now on",
			F_STR("source", r->source->name), F_US("took", took_us),
			F_UINT("rows", relay_rows(r, r->source->batch)));
	}
}

void relay_db_worked(struct relay *r)
{
	if (r->db.open)
		circuit_succeed(&r->db, r->now_us);
	r->db_err.kind = ERR_NONE;
}

/* What the broker says when it closes a connection over something that was sent on it, rather than
 * over itself. */
static bool about_a_message(long code)
{
	return code >= 500 && code < 541 && code != 506;
}

void relay_mq_down(struct relay *r, const char *what, struct err *e)
{
	uint64_t suppressed;

	err_wrap(e, "%s", what);
	r->mq_err = *e;
	metric_add(r->metrics->broker_errors[e->kind == ERR_CONFIG ? BROKER_ERR_CONFIG
								   : BROKER_ERR_LINK],
		1);
	if (log_limit_pass(limit_of(r->mq_log, e), r->now_us, LOG_EVERY_US, &suppressed))
		log_warn("relay", "broker away", F_STR("source", r->source->name),
			F_STR("broker", r->source->broker->name),
			F_STR("kind", err_kind_name(e->kind)), F_INT("code", e->code), F_ERR(e),
			F_UINT("unconfirmed", relay_in_flight(r)),
			F_UINT("suppressed", suppressed));
	circuit_fail(&r->mq, r->now_us, e->kind == ERR_CONFIG, &r->rng);
	r->publisher->ops->close(r->publisher);
	r->mq_up = false;
	r->blocked = false;
	r->proven_count = r->proven_next = 0;
	for (int ch = 0; ch < CHANNELS; ch++) {
		r->channel_open[ch] = false;
		publish_forget(r, (enum channel)ch, about_a_message(e->code));
	}
	release_unsent(r);
}

void relay_route_failed(struct relay *r, bool returns, const char *text)
{
	bool was_open = r->broken.open;

	circuit_fail(&r->broken, r->now_us, false, &r->rng);
	r->broken_returns = returns;
	err_set(&r->route_err, ERR_REFUSED, 0, "%s", text);
	if (was_open)
		return;
	log_error("relay",
		returns ? "route broken: everything comes back"
			: "route broken: exchange missing or forbidden",
		F_STR("source", r->source->name), F_STR("err", text));
	release_unsent(r);
}

static void connect_store(struct relay *r)
{
	struct err e = { 0 };

	if (r->db_up || !circuit_may_try(&r->db, r->now_us))
		return;
	if (r->store->ops->connect(r->store, &e) < 0) {
		relay_clock(r);
		relay_db_failed(r, "connect", &e);
		return;
	}
	relay_clock(r);
	r->db_up = true;
	metric_set(r->metrics->source_up, 1);
	log_info("relay", "database connected", F_STR("source", r->source->name),
		F_STR("server", r->store->peer),
		F_US("outage", r->db.open ? r->now_us - r->db.opened_us : 0));
	relay_db_worked(r);
	r->next_expired_us = r->now_us;
	pacer_poke(&r->pacer, r->now_us);
}

static int remake_route(struct relay *r, struct err *e)
{
	route_free(r->route);
	r->route = NULL;
	return source_make_route(
		&r->route, r->source, r->publisher->ops->max_header_bytes(r->publisher), NULL, e);
}

static void connect_publisher(struct relay *r)
{
	struct err e = { 0 };

	if (r->mq_up || !circuit_may_try(&r->mq, r->now_us))
		return;
	if (r->publisher->ops->connect(r->publisher, &e) < 0 || remake_route(r, &e) < 0) {
		relay_clock(r);
		relay_mq_down(r, "connect", &e);
		return;
	}
	relay_clock(r);
	r->mq_up = true;
	r->channel_open[CHANNEL_FAST] = r->channel_open[CHANNEL_QUARANTINE] = true;
	log_info("relay", "broker connected", F_STR("source", r->source->name),
		F_STR("broker", r->source->broker->name), F_STR("server", r->publisher->peer),
		F_US("outage", r->mq.open ? r->now_us - r->mq.opened_us : 0));
	circuit_succeed(&r->mq, r->now_us);
	r->mq_err.kind = ERR_NONE;
	pacer_poke(&r->pacer, r->now_us);
}

static void mend_channels(struct relay *r)
{
	struct err e = { 0 };

	for (int ch = 0; ch < CHANNELS && r->mq_up; ch++) {
		if (r->channel_open[ch] || r->blocked)
			continue;
		if (r->publisher->ops->reopen(r->publisher, (enum channel)ch, &e) < 0) {
			relay_clock(r);
			relay_mq_down(r, "channel", &e);
			return;
		}
		relay_clock(r);
		r->channel_open[ch] = true;
	}
}

static void serve_publisher(struct relay *r)
{
	struct err e = { 0 };

	if (r->mq_up && r->publisher->ops->pump(r->publisher, &e) < 0)
		relay_mq_down(r, "connection", &e);
}

void relay_meanwhile(void *relay)
{
	struct relay *r = relay;

	relay_clock(r);
	serve_publisher(r);
	beside_end(r);
	(void)publish_some(r);
	(void)beside_begin(r);
}

/* At most one transaction. */
static bool db_turn(struct relay *r)
{
	if (!r->db_up || !circuit_may_try(&r->db, r->now_us))
		return false;
	/* In turns: neither leases nor verdicts wait while there are many of the other kind; nor
	 * does anybody for what comes back behind one head. */
	r->odd_turn = !r->odd_turn;
	return r->odd_turn ? renew_turn(r) || settle_turn(r) || claim_turn(r) || drain_turn(r)
			   : settle_turn(r) || renew_turn(r) || drain_turn(r) || claim_turn(r);
}

static int64_t next_turn(const struct relay *r)
{
	int64_t next = TIME_NEVER;

	if (relay_stopped(r))
		return TIME_NEVER;
	if (r->stopping)
		next = min64(next, r->stop_us);
	if (r->db_up && !r->db.open) {
		next = min64(next, settle_next(r));
		if (r->pool.used > 0)
			next = min64(next, r->next_renew_us);
		if (!r->stopping) {
			if (claim_allowed(r))
				next = min64(next, claim_at_once(r) ? r->now_us : r->pacer.next_us);
			next = min64(next, r->next_expired_us > r->pacer.next_us
						   ? r->next_expired_us
						   : r->pacer.next_us);
		}
	} else {
		next = min64(next, r->db.open ? r->db.retry_us : r->now_us);
	}
	if (r->beside_count > 0)
		next = min64(next, r->beside_until_us);
	if (r->mq_up) {
		next = min64(next, publish_next_deadline(r));
		next = min64(next, r->publisher->ops->next_pump_us(r->publisher));
		if (r->broken.open)
			next = min64(next,
				r->broken.retry_us > r->now_us ? r->broken.retry_us : TIME_NEVER);
		if (!r->blocked &&
			(!r->channel_open[CHANNEL_FAST] || !r->channel_open[CHANNEL_QUARANTINE]))
			next = r->now_us;
	} else {
		next = min64(next, r->mq.open ? r->mq.retry_us : r->now_us);
	}
	return next;
}

int64_t relay_turn(struct relay *r)
{
	bool more;

	relay_clock(r);
	if (relay_stopped(r))
		return TIME_NEVER;
	connect_store(r);
	connect_publisher(r);
	serve_publisher(r);
	beside_end(r);
	publish_deadlines(r);
	mend_channels(r);
	if (r->stopping)
		release_unsent(r);
	more = publish_some(r);
	more |= db_turn(r);
	serve_publisher(r);
	more |= publish_some(r);
	metric_set(r->metrics->in_flight, relay_in_flight(r));
	relay_clock(r);
	return more ? r->now_us : next_turn(r);
}

/* Rows sent and not yet settled: what may be in flight, and with a small window still enough for
 * one batch to be sent while another is being written. */
static unsigned sent_rows(const struct source_conf *source)
{
	unsigned two =
		source->batch +
		(source->batch < source->max_in_flight ? source->batch : source->max_in_flight);

	return source->max_in_flight > two ? source->max_in_flight : two;
}

int relay_new(struct relay **out, const struct relay_conf *conf, struct store *store,
	struct publisher *publisher, struct relay_metrics *metrics, struct err *e)
{
	const struct source_conf *source = conf->source;
	struct relay *r = calloc(1, sizeof(*r));
	size_t scratch = source->batch > STATEMENT_IDS ? source->batch : STATEMENT_IDS;
	const char *const *extra;

	if (r == NULL)
		return err_set(e, ERR_NOMEM, 0, "source %s: out of memory", source->name);
	r->conf = *conf;
	r->source = source;
	r->metrics = metrics;
	r->rng.state = conf->seed;
	r->ordered = source->ordering == ORDERING_AGGREGATE;
	list_init(&r->ready);
	list_init(&r->quarantine);
	list_init(&r->settling);
	list_init(&r->beside);
	list_init(&r->left);
	list_init(&r->staged);
	for (int ch = 0; ch < CHANNELS; ch++)
		list_init(&r->in_flight[ch]);
	list_init(&r->pool.free);
	relay_clock(r);
	circuit_init(&r->db, CIRCUIT_BASE_US, CIRCUIT_CAP_US);
	circuit_init(&r->mq, CIRCUIT_BASE_US, CIRCUIT_CAP_US);
	circuit_init(&r->broken, ROUTE_BASE_US, ROUTE_CAP_US);
	r->db.closed_us = r->mq.closed_us = r->broken.closed_us = r->now_us - CIRCUIT_STABLE_US;
	scan_init(&r->scan, r->ordered ? SCAN_GAIN_ORDERED_US : SCAN_GAIN_US);
	pacer_init(&r->pacer, source->poll_interval_us, r->now_us);
	r->next_expired_us = r->now_us;
	/* The templates alone, to learn which columns they need; the connection's limits come with
	 * the connection. */
	if (source_make_route(&r->route, source, SIZE_MAX, NULL, e) < 0)
		goto fail;
	r->sent_max = sent_rows(source);
	/* while so many are out another batch can be claimed */
	event_pool_init(&r->pool, source->max_in_flight + source->batch,
		route_extra_columns(r->route, &extra));
	r->exchange_fixed = route_exchange_fixed(r->route);
	r->settles = calloc(STATEMENT_IDS, sizeof(r->settles[0]));
	r->ids = calloc(STATEMENT_IDS, sizeof(r->ids[0]));
	r->leases = calloc(STATEMENT_IDS, sizeof(r->leases[0]));
	r->events = calloc(scratch, sizeof(r->events[0]));
	r->probes = calloc(r->ordered ? scratch : 1, sizeof(r->probes[0]));
	if (r->settles == NULL || r->ids == NULL || r->leases == NULL || r->events == NULL ||
		r->probes == NULL ||
		(r->ordered &&
			order_init(&r->order, source->max_in_flight, rng_next(&r->rng)) < 0)) {
		err_set(e, ERR_NOMEM, 0, "out of memory");
		goto fail;
	}
	r->store = store;
	r->publisher = publisher;
	publish_events(r, &publisher->events);
	*out = r;
	return 0;
fail:
	relay_free(r); /* store and publisher are still the caller's */
	return err_wrap(e, "source %s", source->name);
}

static void forget_list(struct relay *r, struct list *l)
{
	list_each_safe (pos, tmp, l) {
		struct event *ev = container_of(pos, struct event, link);

		if (ev->lane != NULL && ev->lane->head == ev)
			forget_list(r, &ev->lane->queue);
		list_del(&ev->link);
		lane_detach(&r->order, ev);
		event_move(ev, EVENT_LOST);
		event_free(&r->pool, ev);
	}
}

void relay_free(struct relay *r)
{
	if (r == NULL)
		return;
	if (r->publisher != NULL) {
		r->publisher->ops->close(r->publisher);
		r->publisher->ops->free(r->publisher);
	}
	if (r->store != NULL) {
		r->store->ops->close(r->store);
		r->store->ops->free(r->store);
	}
	forget_list(r, &r->ready);
	forget_list(r, &r->quarantine);
	forget_list(r, &r->settling);
	forget_list(r, &r->beside);
	forget_list(r, &r->left);
	for (int ch = 0; ch < CHANNELS; ch++)
		forget_list(r, &r->in_flight[ch]);
	event_pool_fini(&r->pool);
	if (r->ordered)
		order_fini(&r->order);
	route_free(r->route);
	envelope_arena_fini(&r->arena);
	buf_fini(&r->text);
	free(r->settles);
	free(r->ids);
	free(r->leases);
	free((void *)r->events);
	free(r->probes);
	free(r);
}

void relay_poke(struct relay *r)
{
	pacer_ring(&r->pacer, relay_clock(r));
}

void relay_stop(struct relay *r, int64_t deadline_us)
{
	if (!r->stopping || deadline_us < r->stop_us)
		r->stop_us = deadline_us;
	r->stopping = true;
}

bool relay_stopped(const struct relay *r)
{
	return r->stopping && (r->pool.used == 0 || r->now_us >= r->stop_us);
}

void relay_view(const struct relay *r, struct relay_view *out)
{
	*out = (struct relay_view){
		.database_up = r->db_up && !r->db.open,
		.broker_up = r->mq_up,
		.blocked = r->blocked,
		.leads = r->ordered ? r->leads && !r->loading : true,
		.route_open = r->broken.open,
		.stopped = relay_stopped(r),
		.in_flight = relay_in_flight(r),
		.window = r->pool.used,
		.published = r->published_total,
		.failed = r->failed_total,
	};
	if (!out->database_up)
		str_copy(out->database_error, sizeof(out->database_error), r->db_err.text);
	if (!out->broker_up)
		str_copy(out->broker_error, sizeof(out->broker_error), r->mq_err.text);
	if (out->route_open)
		str_copy(out->route_error, sizeof(out->route_error), r->route_err.text);
}

int relay_fd(const struct relay *r)
{
	return r->mq_up ? r->publisher->ops->fd(r->publisher) : -1;
}

int relay_store_fd(const struct relay *r)
{
	return r->beside_count > 0 ? r->store->ops->settle_fd(r->store) : -1;
}

bool relay_wants_write(const struct relay *r)
{
	return r->mq_up && r->publisher->ops->wants_write(r->publisher);
}

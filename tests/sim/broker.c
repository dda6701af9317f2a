/* The fake broker: struct publisher_ops over connections whose bytes take time both ways.
 *
 *	send() --> out (in order, the socket) --> broker reads --> queues; acks, returns, closures
 *	pump() <-- in (by time) <-----------------------------------------'
 *
 * A channel closed over one message keeps what came before it and forgets to confirm it, and throws
 * away what comes behind it. */
#include "sim.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BROKER_LIMIT 1500 /* bytes of body the broker itself takes */

struct message {
	struct message *next; /* in `out`, or in the free list */
	struct trow *row;
	void *cookie;
	enum channel channel;
	unsigned epoch; /* of its channel when it was sent */
	int64_t arrive_us, claimed_us;
	size_t bytes;
	bool known; /* its exchange exists */
};

enum news_kind { NEWS_OUTCOME, NEWS_CLOSED, NEWS_BLOCKED, NEWS_UNBLOCKED };

struct news {
	int64_t at_us;
	uint64_t seq;
	enum news_kind kind;
	enum channel channel;
	unsigned epoch;
	struct trow *row;
	void *cookie;
	enum outcome outcome;
	unsigned code;
	const char *text;
};

struct chan {
	unsigned epoch; /* moves on with each reopening */
	bool closed;    /* by the broker, which reads on and throws away */
	int64_t closed_us;
	bool known_closed;    /* and the client has been told */
	unsigned unconfirmed; /* sent, nothing told yet */
};

struct conn {
	struct conn *next;
	struct actor *a;
	uint32_t owner;
	struct fake_publisher *client; /* NULL: closed from there */
	bool dead;                     /* nothing gets through any more, either way */
	bool said_blocked, used;
	struct message *out, **out_end;
	size_t out_bytes, out_count;
	int64_t last_arrive_us;
	struct chan chan[CHANNELS];
	struct news *heap;
	size_t heap_count, heap_cap;
	int64_t last_ack_us;
	int64_t heard_us; /* the client's last sign of life */
	int64_t pumped_us;
	bool want_room; /* a send found none */
	struct message *spare;
	uint64_t seq;
};

struct fake_publisher {
	struct publisher base;
	struct actor *a;
	struct conn *conn;
	bool in_call;
};

static struct fake_publisher *self(struct publisher *p)
{
	return container_of(p, struct fake_publisher, base);
}

static const struct fake_publisher *peek(const struct publisher *p)
{
	return (const struct fake_publisher *)((const char *)p -
					       offsetof(struct fake_publisher, base));
}

static bool cut(const struct conn *c)
{
	return c->a->w->now_us < c->a->w->spell.mq_cut[c->a->index];
}

/* ---- news: a binary heap by time ---- */

static bool sooner(const struct news *a, const struct news *b)
{
	return a->at_us != b->at_us ? a->at_us < b->at_us : a->seq < b->seq;
}

static void news_push(struct conn *c, const struct news *n)
{
	size_t i = c->heap_count++;

	if (c->heap_count > c->heap_cap) {
		c->heap_cap = c->heap_cap > 0 ? c->heap_cap * 2 : 64;
		c->heap = realloc(c->heap, c->heap_cap * sizeof(*c->heap));
		if (c->heap == NULL)
			abort();
	}
	c->heap[i] = *n;
	c->heap[i].seq = ++c->seq;
	while (i > 0 && sooner(&c->heap[i], &c->heap[(i - 1) / 2])) {
		struct news swap = c->heap[i];

		c->heap[i] = c->heap[(i - 1) / 2];
		c->heap[(i - 1) / 2] = swap;
		i = (i - 1) / 2;
	}
}

static struct news news_pop(struct conn *c)
{
	struct news top = c->heap[0];
	size_t i = 0;

	c->heap[0] = c->heap[--c->heap_count];
	for (;;) {
		size_t best = i;

		for (size_t k = 2 * i + 1; k <= 2 * i + 2 && k < c->heap_count; k++)
			if (sooner(&c->heap[k], &c->heap[best]))
				best = k;
		if (best == i)
			return top;
		struct news swap = c->heap[i];

		c->heap[i] = c->heap[best];
		c->heap[best] = swap;
		i = best;
	}
}

/* ---- the broker's side ---- */

static struct message *out_pop(struct conn *c)
{
	struct message *m = c->out;

	c->out = m->next;
	if (c->out == NULL)
		c->out_end = &c->out;
	c->out_bytes -= m->bytes;
	c->out_count--;
	return m;
}

static void keep(struct conn *c, struct message *m)
{
	m->next = c->spare;
	c->spare = m;
}

static void drop_out(struct conn *c)
{
	while (c->out != NULL)
		keep(c, out_pop(c));
}

static void close_channel(struct conn *c, const struct message *m, unsigned code, const char *text)
{
	struct chan *ch = &c->chan[m->channel];
	struct world *w = c->a->w;

	ch->closed = true;
	ch->closed_us = w->now_us;
	trace(w, 2, "broker closes channel %d of relay %u over %s: %u %s", m->channel, c->a->index,
		m->row->event_id, code, text);
	news_push(c, &(struct news){ .at_us = w->now_us + between(w, 200, 2000),
			     .kind = NEWS_CLOSED,
			     .channel = m->channel,
			     .epoch = ch->epoch,
			     .code = code,
			     .text = text });
}

static int64_t ack_time(struct conn *c, const struct message *m)
{
	struct world *w = c->a->w;
	int64_t at_us = w->now_us;

	if (w->now_us < w->spell.mq_hold && w->spell.mq_hold < TIME_NEVER)
		at_us = w->spell.mq_hold;
	at_us += between(w, 300, 3000);
	if (w->now_us < w->spell.mq_slow)
		at_us += between(w, 0, 500 * MS);
	if (w->now_us < w->spell.mq_merge) /* one ack for many */
		at_us += 20 * MS - at_us % (20 * MS);
	else if (w->now_us >= w->spell.mq_disorder && at_us < c->last_ack_us)
		at_us = c->last_ack_us;
	if (at_us > c->last_ack_us)
		c->last_ack_us = at_us;
	(void)m;
	return at_us;
}

static void answer(
	struct conn *c, const struct message *m, enum outcome how, unsigned code, const char *text)
{
	news_push(c, &(struct news){ .at_us = ack_time(c, m),
			     .kind = NEWS_OUTCOME,
			     .channel = m->channel,
			     .epoch = c->chan[m->channel].epoch,
			     .row = m->row,
			     .cookie = m->cookie,
			     .outcome = how,
			     .code = code,
			     .text = text });
}

static bool exchange_missing(const struct world *w, const struct message *m)
{
	return m->row->poison == POISON_GHOST || w->now_us < w->spell.mq_missing;
}

/* The broker reads one message. */
static void process(struct conn *c, struct message *m)
{
	struct world *w = c->a->w;
	struct trow *r = m->row;

	if (c->chan[m->channel].closed || m->epoch != c->chan[m->channel].epoch)
		return;
	if (exchange_missing(w, m)) {
		close_channel(c, m, 404, "NOT_FOUND - no exchange");
		return;
	}
	switch (r->poison) {
	case POISON_SECRET:
		close_channel(c, m, 403, "ACCESS_REFUSED - write access refused");
		return;
	case POISON_BROKER_BIG:
		close_channel(c, m, 406, "PRECONDITION_FAILED - message size 2000 is larger");
		return;
	case POISON_CLOSES:
		close_channel(c, m, 406, "PRECONDITION_FAILED - invalid expiration");
		return;
	case POISON_UNBOUND:
		w->tally->returned++;
		answer(c, m, OUTCOME_RETURNED, 312, "NO_ROUTE");
		return;
	case POISON_NACKED:
		w->tally->nacked++;
		answer(c, m, OUTCOME_NACK, 0, NULL);
		return;
	default:
		break;
	}
	if (w->now_us < w->spell.mq_unbound) {
		w->tally->returned++;
		r->nack_once = true;
		answer(c, m, OUTCOME_RETURNED, 312, "NO_ROUTE");
		return;
	}
	if (w->now_us < w->spell.mq_nack && (r->id * 2654435761u >> 7) % 4 == 0) {
		w->tally->nacked++;
		r->nack_once = true;
		answer(c, m, OUTCOME_NACK, 0, NULL);
		return;
	}
	w->tally->arrivals++;
	w->progress_us = w->now_us;
	oracle_arrived(w, r, c->owner, m->claimed_us);
	if (r->poison == POISON_MUTE || w->now_us < w->spell.mq_mute)
		return;
	if (w->now_us < w->spell.mq_swallow && chance(w, 0.1)) {
		r->nack_once = true;
		trace(w, 2, "broker never confirms this copy of %s", r->event_id);
		return;
	}
	answer(c, m, OUTCOME_ACK, 0, NULL);
}

static bool reads(const struct conn *c)
{
	return !c->dead && c->a->w->now_us >= c->a->w->spell.mq_blocked && !cut(c);
}

static int64_t conn_next_us(const struct conn *c)
{
	const struct world *w = c->a->w;
	int64_t next_us;

	if (c->out == NULL || c->dead)
		return TIME_NEVER;
	next_us = c->out->arrive_us;
	if (next_us < w->spell.mq_blocked)
		next_us = w->spell.mq_blocked;
	if (next_us < w->spell.mq_cut[c->a->index])
		next_us = w->spell.mq_cut[c->a->index];
	return next_us;
}

static void read_out(struct conn *c)
{
	struct world *w = c->a->w;

	while (c->out != NULL && c->out->arrive_us <= w->now_us && w->failure == NULL) {
		struct message *m = out_pop(c);

		process(c, m);
		keep(c, m);
	}
}

int64_t broker_next_us(const struct world *w)
{
	int64_t next_us = TIME_NEVER;

	for (const struct conn *c = w->conns; c != NULL; c = c->next)
		if (conn_next_us(c) < next_us)
			next_us = conn_next_us(c);
	return next_us;
}

static void conn_free(struct conn *c)
{
	drop_out(c);
	while (c->spare != NULL) {
		struct message *m = c->spare;

		c->spare = m->next;
		free(m);
	}
	free(c->heap);
	free(c);
}

static void sweep(struct world *w)
{
	for (struct conn **at = &w->conns; *at != NULL;) {
		struct conn *c = *at;

		if (c->client == NULL && (c->dead || c->out == NULL)) {
			*at = c->next;
			conn_free(c);
		} else {
			at = &c->next;
		}
	}
}

void broker_step(struct world *w)
{
	for (struct conn *c = w->conns; c != NULL; c = c->next)
		if (conn_next_us(c) <= w->now_us)
			read_out(c);
	sweep(w);
}

/* Part of what is on its way still arrives, the rest never does. */
static void conn_die(struct conn *c)
{
	struct world *w = c->a->w;
	size_t arrive = c->out_count > 0 && reads(c) ? rng_below(&w->rng, c->out_count + 1) : 0;

	for (; arrive > 0 && w->failure == NULL; arrive--) {
		struct message *m = out_pop(c);

		process(c, m);
		keep(c, m);
	}
	drop_out(c);
	c->dead = true;
}

void broker_drop(struct world *w, unsigned which)
{
	for (struct conn *c = w->conns; c != NULL; c = c->next)
		if (!c->dead && (which == RELAYS_MAX || c->a->index == which))
			conn_die(c);
}

void broker_changed(struct world *w)
{
	bool blocked = w->now_us < w->spell.mq_blocked;

	for (struct conn *c = w->conns; c != NULL; c = c->next) {
		if (c->dead || c->said_blocked == blocked || (blocked && !c->used))
			continue;
		c->said_blocked = blocked;
		news_push(c, &(struct news){ .at_us = w->now_us + between(w, 100, 3000),
				     .kind = blocked ? NEWS_BLOCKED : NEWS_UNBLOCKED });
	}
}

/* ---- the client's side ---- */

static int fail(struct err *e, const char *text)
{
	return err_set(e, ERR_LINK, 0, "%s", text);
}

static int mq_connect(struct publisher *base, struct err *e)
{
	struct fake_publisher *p = self(base);
	struct world *w = p->a->w;
	struct conn *c;

	w->tally->connects++;
	if (p->conn != NULL)
		wrong(w, "connect() of a publisher that is connected");
	if (!actor_wait(p->a, between(w, 1 * MS, 10 * MS)))
		return fail(e, "killed");
	if (w->now_us < w->spell.mq_cut[p->a->index]) {
		(void)actor_wait(p->a, w->broker.connect_timeout_us);
		return fail(e, "connect timed out");
	}
	if (w->now_us < w->spell.mq_refuse)
		return fail(e, "connection refused");
	if (w->now_us < w->spell.mq_auth)
		return err_set(e, ERR_CONFIG, 403, "ACCESS_REFUSED - login refused");
	c = calloc(1, sizeof(*c));
	if (c == NULL)
		abort();
	*c = (struct conn){ .next = w->conns,
		.a = p->a,
		.owner = p->a->owner,
		.client = p,
		.heard_us = w->now_us,
		.pumped_us = w->now_us };
	c->out_end = &c->out;
	w->conns = c;
	p->conn = c;
	return 0;
}

/* What is open on the channel has an unknown outcome from now on. */
static void forget(struct conn *c, enum channel channel)
{
	struct actor *a = c->a;

	for (size_t i = a->open_count; i-- > 0;)
		if (channel == CHANNELS || a->open[i]->seen[a->index].channel == channel)
			oracle_forgotten(a, a->open[i]);
}

static void mq_close(struct publisher *base)
{
	struct fake_publisher *p = self(base);
	struct conn *c = p->conn;

	if (c == NULL)
		return;
	if (p->in_call)
		wrong(p->a->w, "close() inside a callback");
	p->conn = NULL;
	c->client = NULL;
	/* The system sends what is in the socket all the same, or gives up. */
	if (!c->dead && chance(p->a->w, 0.5))
		conn_die(c);
	forget(c, CHANNELS);
}

void broker_client_died(struct actor *a, bool linger)
{
	struct conn *c = a->publisher->conn;

	if (c == NULL)
		return;
	a->publisher->conn = NULL;
	c->client = NULL;
	if (!linger && !c->dead)
		conn_die(c);
	forget(c, CHANNELS);
}

static void check_message(struct world *w, const struct envelope *env, const struct trow *r)
{
	const char *exchange = w->p.fixed_exchange          ? "events"
			       : r->poison == POISON_GHOST  ? "ghost"
			       : r->poison == POISON_SECRET ? "secret"
			       : r->id % 7 == 0             ? "moved"
							    : "changed";

	if (!slice_eq(env->message_id, slice_str(r->event_id)) ||
		(r->poison != POISON_BROKER_BIG && !slice_eq(env->body, slice_str(r->event_id))) ||
		env->delivery_mode != 2 || !env->mandatory)
		wrong(w, "the message of %s is not its own", r->event_id);
	if ((r->poison == POISON_NONE || r->poison == POISON_GHOST) &&
		!slice_eq(env->exchange, slice_str(exchange)))
		wrong(w, "%s goes to exchange %.*s", r->event_id, (int)env->exchange.len,
			env->exchange.ptr);
}

static uint64_t id_of(struct slice event_id)
{
	uint64_t id = 0;

	for (size_t i = 4; i < event_id.len; i++)
		id = id * 10 + (uint64_t)(event_id.ptr[i] - '0');
	return id;
}

static int mq_send(struct publisher *base, enum channel channel, const struct envelope *env,
	void *cookie, struct err *e)
{
	struct fake_publisher *p = self(base);
	struct world *w = p->a->w;
	struct conn *c = p->conn;
	struct message *m;
	struct trow *r = w->table.rows[id_of(env->message_id)];

	if (p->in_call)
		wrong(w, "send() inside a callback");
	if (p->a->killed || c == NULL)
		return fail(e, "not connected");
	if (c->chan[channel].known_closed)
		wrong(w, "%s sent over a closed channel", r->event_id);
	if (r->poison == POISON_ENCODING)
		return err_set(e, ERR_REFUSED, 0, "INVALID: property too long");
	if (c->out_bytes + 100 + env->body.len > w->p.socket_bytes) {
		c->want_room = true;
		return err_set(e, ERR_AGAIN, 0, "no room");
	}
	if (c->dead && chance(w, 0.5))
		return fail(e, "broken pipe");
	check_message(w, env, r);
	m = c->spare;
	if (m != NULL)
		c->spare = m->next;
	else
		m = malloc(sizeof(*m));
	if (m == NULL)
		abort();
	*m = (struct message){ .row = r,
		.cookie = cookie,
		.channel = channel,
		.epoch = c->chan[channel].epoch,
		.claimed_us = r->claimed_us[p->a->index],
		.bytes = 100 + env->body.len };
	m->arrive_us = w->now_us + between(w, 50, 1000);
	if (m->arrive_us < c->last_arrive_us)
		m->arrive_us = c->last_arrive_us;
	c->last_arrive_us = m->arrive_us;
	if (channel == CHANNEL_QUARANTINE && c->chan[channel].unconfirmed > 0)
		wrong(w, "%s is not alone on the quarantine channel", r->event_id);
	c->chan[channel].unconfirmed++;
	oracle_sent(w, p->a, r, channel);
	if (c->dead) {
		keep(c, m); /* into a socket nobody reads */
		return 0;
	}
	*c->out_end = m;
	c->out_end = &m->next;
	c->out_bytes += m->bytes;
	c->out_count++;
	if (!c->used) {
		c->used = true;
		broker_changed(w);
	}
	return 0;
}

static void tell(struct fake_publisher *p, const struct news *n)
{
	struct conn *c = p->conn;
	struct chan *ch = &c->chan[n->channel];
	const struct publisher_events *ev = &p->base.events;

	if (n->kind == NEWS_BLOCKED || n->kind == NEWS_UNBLOCKED) {
		ev->blocked(ev->arg, n->kind == NEWS_BLOCKED, "low on memory");
		return;
	}
	if (n->epoch != ch->epoch || ch->known_closed)
		return;
	if (n->kind == NEWS_CLOSED) {
		ch->known_closed = true;
		ch->unconfirmed = 0;
		forget(c, n->channel);
		ev->channel_closed(ev->arg, n->channel, n->code, n->text);
		return;
	}
	if (ch->closed && n->at_us > ch->closed_us)
		return; /* never sent any more */
	ch->unconfirmed--;
	oracle_told(p->a->w, p->a, n->row, n->outcome);
	ev->outcome(ev->arg, n->cookie, n->outcome, n->code, n->text);
}

static void tell_all(struct fake_publisher *p)
{
	struct world *w = p->a->w;

	p->in_call = true;
	while (p->conn->heap_count > 0 && p->conn->heap[0].at_us <= w->now_us &&
		w->failure == NULL) {
		struct news n = news_pop(p->conn);

		tell(p, &n);
		p->a->work++;
	}
	p->in_call = false;
}

static int mq_pump(struct publisher *base, struct err *e)
{
	struct fake_publisher *p = self(base);
	struct world *w = p->a->w;
	struct conn *c = p->conn;

	if (p->a->killed || c == NULL)
		return fail(e, "not connected");
	c->want_room = false;
	c->pumped_us = w->now_us;
	if (c->dead && chance(w, 0.5))
		c->heap_count = 0; /* lost in the reset */
	if (!c->dead && w->now_us - c->heard_us > 2 * w->broker.heartbeat_us && chance(w, 0.9))
		conn_die(c); /* the broker missed our heartbeats */
	if (!cut(c)) {
		if (!c->dead)
			c->heard_us = w->now_us;
		tell_all(p);
	} else if (w->now_us - c->heard_us > 2 * w->broker.heartbeat_us) {
		return fail(e, "heartbeat missed");
	}
	if (c->dead)
		return fail(e, "connection reset");
	return 0;
}

static void mq_abandon(struct publisher *base, enum channel channel)
{
	struct fake_publisher *p = self(base);
	struct conn *c = p->conn;

	if (p->in_call)
		wrong(p->a->w, "abandon() inside a callback");
	if (c == NULL)
		return;
	c->chan[channel].known_closed = true; /* messages under way still reach the broker */
	c->chan[channel].unconfirmed = 0;
	forget(c, channel);
}

static int mq_reopen(struct publisher *base, enum channel channel, struct err *e)
{
	struct fake_publisher *p = self(base);
	struct world *w = p->a->w;
	struct conn *c = p->conn;
	struct chan *ch = &c->chan[channel];
	int64_t start_us = w->now_us;

	if (p->in_call)
		wrong(w, "reopen() inside a callback");
	do {
		if (!actor_wait(p->a, between(w, 500, 3000)))
			return fail(e, "killed");
		if (c->dead)
			return fail(e, "connection reset");
		if (w->now_us - start_us > w->broker.connect_timeout_us)
			return fail(e, "channel.open timed out");
	} while (cut(c) || c->out != NULL);
	c->heard_us = w->now_us;
	ch->epoch++;
	ch->closed = ch->known_closed = false;
	ch->unconfirmed = 0;
	forget(c, channel);
	tell_all(p);
	return 0;
}

static size_t mq_max_header_bytes(const struct publisher *base)
{
	(void)base;
	return 100000;
}

static int mq_fd(const struct publisher *base)
{
	return peek(base)->conn != NULL ? 3 : -1;
}

static bool mq_wants_write(const struct publisher *base)
{
	return peek(base)->conn != NULL && peek(base)->conn->want_room;
}

static int64_t mq_next_pump_us(const struct publisher *base)
{
	const struct conn *c = peek(base)->conn;

	return c != NULL ? c->pumped_us + c->a->w->broker.heartbeat_us / 2 : TIME_NEVER;
}

static void mq_free(struct publisher *base)
{
	free(self(base));
}

static const struct publisher_ops ops = {
	.connect = mq_connect,
	.close = mq_close,
	.send = mq_send,
	.pump = mq_pump,
	.abandon = mq_abandon,
	.reopen = mq_reopen,
	.max_header_bytes = mq_max_header_bytes,
	.fd = mq_fd,
	.wants_write = mq_wants_write,
	.next_pump_us = mq_next_pump_us,
	.free = mq_free,
};

struct publisher *fake_publisher_new(struct actor *a)
{
	struct fake_publisher *p = calloc(1, sizeof(*p));

	if (p == NULL)
		abort();
	p->base.ops = &ops;
	p->a = a;
	a->publisher = p;
	snprintf(p->base.peer, sizeof(p->base.peer), "fake broker");
	return &p->base;
}

int64_t broker_ready_us(const struct actor *a)
{
	const struct conn *c = a->publisher->conn;
	int64_t ready_us = TIME_NEVER;

	if (c == NULL)
		return TIME_NEVER;
	if (c->dead)
		return a->w->now_us;
	if (c->heap_count > 0)
		ready_us = c->heap[0].at_us;
	if (c->want_room && c->out_bytes <= a->w->p.socket_bytes / 2 &&
		mq_wants_write(&a->publisher->base))
		ready_us = a->w->now_us;
	if (ready_us < a->w->spell.mq_cut[a->index])
		ready_us = a->w->spell.mq_cut[a->index];
	return ready_us;
}

void broker_fini(struct world *w)
{
	while (w->conns != NULL) {
		struct conn *c = w->conns;

		w->conns = c->next;
		conn_free(c);
	}
}

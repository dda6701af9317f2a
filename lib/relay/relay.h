/* relay.h: one source's relay: claims rows, publishes them, settles them. Its decisions live here
 *and nowhere else; the database, the broker and the clock are ports, so that the same code runs in
 *production and in the simulation.
 *
 *	claim --> [ready] --publish--> [in flight] --outcome--> [settling] --> settled
 *	             ^  ^--- [quarantine] ---^              |
 *	             +----------- unknown: goes again ------+
 *
 * Everything happens inside relay_turn(), on one thread. */
#ifndef OUTBOXD_RELAY_H
#define OUTBOXD_RELAY_H

#include "base/err.h"
#include "config/config.h"
#include "relay/publisher.h"
#include "relay/relay_metrics.h"
#include "relay/store.h"

#include <stdbool.h>

struct relay;

struct relay_conf {
	const struct source_conf *source; /* must outlive the relay, and its broker too */
	const char *owner;                /* what is written into locked_by, for logs */
	enum log_events log_events;
	uint64_t seed;                 /* of jitter */
	int64_t (*mono_us)(void *arg); /* monotonic clock; read again after each blocking call */
	int64_t (*wall_us)(void *arg); /* for delivery_lag_seconds and gauges only */
	void *clock_arg;
};

/* What a relay looks like from outside, for logs, status and health. */
struct relay_view {
	bool database_up, broker_up, blocked, leads, route_open, stopped;
	unsigned in_flight; /* sent, outcome open */
	unsigned window;    /* claimed and not yet settled */
	uint64_t published, failed;
	char database_error[200], broker_error[200], route_error[200]; /* empty while all is well */
};

/* Takes *store and *publisher over, to be freed with the relay, on success only. The metrics stay
 * the caller's. */
int relay_new(struct relay **out, const struct relay_conf *conf, struct store *store,
	struct publisher *publisher, struct relay_metrics *metrics, struct err *e) MUST_CHECK;

/* Closes both connections; rows still in the window stay PROCESSING until their lease expires.
 * Takes NULL. */
void relay_free(struct relay *r);

/* Does what can be done now, at most one database transaction, and returns the monotonic instant of
 * the next call; a moment not in the future means: again at once, once other events of the thread
 * were seen to. Call it also whenever the publisher's socket is ready. */
int64_t relay_turn(struct relay *r);

/* A wake-up: poll now. */
void relay_poke(struct relay *r);

/* No more claims; what was never sent goes back; outstanding confirms are awaited until deadline_us
 * (monotonic). Called again with an earlier deadline it shortens the wait. */
void relay_stop(struct relay *r, int64_t deadline_us);
/* Nothing is left to be done, or the deadline has passed. */
bool relay_stopped(const struct relay *r);

void relay_view(const struct relay *r, struct relay_view *out);

/* For the loop: the publisher's socket (-1: none) and whether output waits for it. */
int relay_fd(const struct relay *r);
bool relay_wants_write(const struct relay *r);
/* Readable when the database has answered what was not waited for; -1: there is no such thing. */
int relay_store_fd(const struct relay *r);

#endif

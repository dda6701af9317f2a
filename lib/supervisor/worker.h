/* worker.h: a relay on a thread of its own, with its own loop, database connection and AMQP
 * connection. What blocks here harms nobody else. The main thread talks to it through flags and a
 * wake-up, and reads copies of its view. */
#ifndef OUTBOXD_WORKER_H
#define OUTBOXD_WORKER_H

#include "base/list.h"
#include "relay/relay.h"

#include <stdbool.h>

struct worker;

struct worker_conf {
	const struct source_conf *source; /* must outlive the worker */
	const char *instance;
	const char *identity; /* of this start of the process */
	unsigned number;      /* unique in this process */
	enum log_events log_events;
	struct metrics *metrics;
};

/* Starts the thread. `ended` is called on the worker's thread as its last act: it may only wake the
 * main loop. */
int worker_start(struct worker **out, const struct worker_conf *conf, void (*ended)(void *arg),
	void *arg, struct err *e) MUST_CHECK;

/* Main thread from here on. */

void worker_poke(struct worker *w);
/* See relay_stop(). */
void worker_stop(struct worker *w, int64_t deadline_us);
bool worker_stopping(const struct worker *w);
/* Its thread has ended, or is about to: worker_free() will not wait for long. */
bool worker_ended(const struct worker *w);
/* Joins the thread. */
void worker_free(struct worker *w);

/* Cuts off a blocking call that is past its deadline; to be called several times a second. Returns
 * for how long the worker has been stuck: in a call that stays overdue although it was cut off, or
 * outside any call; 0: it turns. */
int64_t worker_check(struct worker *w, int64_t now_us);
/* Cuts off whatever call it is in. */
void worker_cut(struct worker *w);
/* It is connecting, which cannot be cut off, and holds no row: a process that ends need not wait
 * for it. */
bool worker_is_dispensable(struct worker *w);

const struct source_conf *worker_source(const struct worker *w);
const char *worker_owner(const struct worker *w);
void worker_view(struct worker *w, struct relay_view *out);

#endif

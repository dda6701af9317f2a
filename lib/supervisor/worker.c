#include "supervisor/worker.h"

#include "amqp/publisher.h"
#include "base/rng.h"
#include "log/log.h"
#include "mysql/store.h"
#include "sys/clock.h"
#include "sys/guard.h"

#include <ev.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The loop turns at least this often, so that a thread that hangs outside any call is noticed. */
#define TURN_EVERY_US (5 * US_PER_SEC)
/* A resolver may take so long by itself: seconds a try, tries a server, several servers. While it
 * does it is an outage like any other. */
#define RESOLVER_US (300 * US_PER_SEC)
#define STACK_BYTES ((size_t)1 << 20)

struct worker {
	struct worker_conf conf;
	char owner[129];
	char connection_name[200];
	pthread_t thread;

	/* its thread only */
	struct relay *relay;
	struct route *route; /* owns the names of the columns the store reads */
	struct relay_metrics metrics;
	struct ev_loop *loop;
	ev_timer timer;
	ev_io io, store_io;

	/* shared */
	ev_async wake;
	struct guard db_guard, mq_guard;
	atomic_bool poked, ended;
	_Atomic int64_t stop_us; /* 0: run */
	_Atomic int64_t turned_us;
	pthread_mutex_t view_lock;
	struct relay_view view;
	void (*on_ended)(void *arg);
	void *arg;
};

static int64_t mono(void *arg)
{
	(void)arg;
	return clock_mono_us();
}

static int64_t wall(void *arg)
{
	(void)arg;
	return clock_wall_us();
}

/* Sockets change with each connection; the poll backend keeps nothing of the last one. */
static void watch_socket(struct worker *w, ev_io *io, int fd, bool for_room)
{
	int events = EV_READ | (for_room ? EV_WRITE : 0);

	if (ev_is_active(io) && io->fd == fd && (io->events & (EV_READ | EV_WRITE)) == events)
		return;
	ev_io_stop(w->loop, io);
	if (fd < 0)
		return;
	ev_io_set(io, fd, events);
	ev_io_start(w->loop, io);
}

static void turn(struct worker *w)
{
	int64_t stop_us = atomic_load(&w->stop_us), next_us, now_us;
	double after;

	if (stop_us != 0)
		relay_stop(w->relay, stop_us);
	if (atomic_exchange(&w->poked, false))
		relay_poke(w->relay);
	next_us = relay_turn(w->relay);
	now_us = clock_mono_us();
	atomic_store(&w->turned_us, now_us);
	pthread_mutex_lock(&w->view_lock);
	relay_view(w->relay, &w->view);
	pthread_mutex_unlock(&w->view_lock);
	if (relay_stopped(w->relay)) {
		ev_break(w->loop, EVBREAK_ALL);
		return;
	}
	watch_socket(w, &w->io, relay_fd(w->relay), relay_wants_write(w->relay));
	watch_socket(w, &w->store_io, relay_store_fd(w->relay), false);
	if (next_us > now_us + TURN_EVERY_US)
		next_us = now_us + TURN_EVERY_US;
	after = next_us > now_us ? (double)(next_us - now_us) / US_PER_SEC : 0;
	ev_now_update(w->loop);
	ev_timer_stop(w->loop, &w->timer);
	ev_timer_set(&w->timer, after, 0);
	ev_timer_start(w->loop, &w->timer);
}

static void on_timer(struct ev_loop *loop, ev_timer *t, int revents)
{
	(void)loop, (void)revents;
	turn(container_of(t, struct worker, timer));
}

static void on_io(struct ev_loop *loop, ev_io *io, int revents)
{
	(void)loop, (void)revents;
	turn(io->data);
}

static void on_wake(struct ev_loop *loop, ev_async *a, int revents)
{
	(void)loop, (void)revents;
	turn(container_of(a, struct worker, wake));
}

static void *run(void *arg)
{
	struct worker *w = arg;
	char name[16];

	snprintf(name, sizeof(name), "%s", w->conf.source->name);
	pthread_setname_np(pthread_self(), name);
	mysql_thread_enter();
	turn(w);
	if (!relay_stopped(w->relay))
		ev_run(w->loop, 0);
	relay_free(w->relay);
	w->relay = NULL;
	mysql_thread_leave();
	log_info("worker", "ended", F_STR("source", w->conf.source->name), F_STR("owner", w->owner),
		F_UINT("published", w->view.published), F_UINT("left", w->view.window));
	atomic_store(&w->ended, true);
	w->on_ended(w->arg);
	return NULL;
}

/* Signals are the main thread's. */
static int start_thread(struct worker *w, struct err *e)
{
	pthread_attr_t attr;
	sigset_t all, old;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	rc = pthread_create(&w->thread, &attr, run, w);
	pthread_attr_destroy(&attr);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return rc == 0 ? 0 : err_set(e, ERR_NOMEM, rc, "cannot start a thread: %s", strerror(rc));
}

static int build_relay(struct worker *w, struct err *e)
{
	struct relay_conf conf = {
		.source = w->conf.source,
		.owner = w->owner,
		.log_events = w->conf.log_events,
		.seed = rng_os_seed(),
		.mono_us = mono,
		.wall_us = wall,
	};
	struct store *store = NULL;
	struct publisher *publisher = NULL;
	const char *const *extra;
	size_t extra_count;

	if (source_make_route(&w->route, w->conf.source, SIZE_MAX, NULL, e) < 0)
		return -1;
	extra_count = route_extra_columns(w->route, &extra);
	if (mysql_store_new(&store, w->conf.source, w->owner, extra, extra_count, &w->db_guard, e) <
			0 ||
		amqp_publisher_new(&publisher, w->conf.source->broker, w->connection_name,
			&w->mq_guard, e) < 0 ||
		relay_new(&w->relay, &conf, store, publisher, &w->metrics, e) < 0) {
		if (store != NULL)
			store->ops->free(store);
		if (publisher != NULL)
			publisher->ops->free(publisher);
		return -1;
	}
	return 0;
}

static void release(struct worker *w)
{
	relay_free(w->relay);
	route_free(w->route);
	relay_metrics_fini(&w->metrics);
	if (w->loop != NULL)
		ev_loop_destroy(w->loop);
	guard_fini(&w->db_guard);
	guard_fini(&w->mq_guard);
	pthread_mutex_destroy(&w->view_lock);
	free(w);
}

int worker_start(struct worker **out, const struct worker_conf *conf, void (*ended)(void *arg),
	void *arg, struct err *e)
{
	struct worker *w = calloc(1, sizeof(*w));

	if (w == NULL)
		return err_set(e, ERR_NOMEM, 0, "source %s: out of memory", conf->source->name);
	if (guard_init(&w->db_guard, e) < 0) {
		free(w);
		return err_wrap(e, "source %s", conf->source->name);
	}
	if (guard_init(&w->mq_guard, e) < 0) {
		guard_fini(&w->db_guard);
		free(w);
		return err_wrap(e, "source %s", conf->source->name);
	}
	pthread_mutex_init(&w->view_lock, NULL);
	w->conf = *conf;
	w->on_ended = ended;
	w->arg = arg;
	snprintf(w->owner, sizeof(w->owner), "%.80s/%s/%u", conf->instance, conf->identity,
		conf->number);
	snprintf(w->connection_name, sizeof(w->connection_name), "outboxd %.80s source %s",
		conf->instance, conf->source->name);
	relay_metrics_init(&w->metrics, conf->metrics, conf->source->name,
		conf->source->ordering == ORDERING_AGGREGATE);
	w->loop = ev_loop_new(EVBACKEND_POLL | EVFLAG_NOENV);
	if (w->loop == NULL) {
		err_set(e, ERR_NOMEM, 0, "cannot make an event loop");
		goto fail;
	}
	ev_timer_init(&w->timer, on_timer, 0, 0);
	ev_io_init(&w->io, on_io, -1, EV_READ);
	ev_io_init(&w->store_io, on_io, -1, EV_READ);
	w->io.data = w->store_io.data = w;
	ev_async_init(&w->wake, on_wake);
	ev_async_start(w->loop, &w->wake);
	atomic_store(&w->turned_us, clock_mono_us());
	if (build_relay(w, e) < 0)
		goto fail;
	relay_view(w->relay, &w->view);
	if (start_thread(w, e) < 0)
		goto fail;
	*out = w;
	return 0;
fail:
	release(w);
	return err_wrap(e, "source %s", conf->source->name);
}

void worker_poke(struct worker *w)
{
	atomic_store(&w->poked, true);
	ev_async_send(w->loop, &w->wake);
}

void worker_stop(struct worker *w, int64_t deadline_us)
{
	int64_t before_us = atomic_load(&w->stop_us);

	if (before_us == 0 || deadline_us < before_us)
		atomic_store(&w->stop_us, deadline_us);
	ev_async_send(w->loop, &w->wake);
}

bool worker_stopping(const struct worker *w)
{
	return atomic_load(&w->stop_us) != 0;
}

bool worker_ended(const struct worker *w)
{
	return atomic_load(&w->ended);
}

void worker_free(struct worker *w)
{
	if (w == NULL)
		return;
	pthread_join(w->thread, NULL);
	release(w);
}

int64_t worker_check(struct worker *w, int64_t now_us)
{
	bool blind = guard_is_blind(&w->db_guard) || guard_is_blind(&w->mq_guard);
	struct guard *guards[] = { &w->db_guard, &w->mq_guard };
	int64_t stuck_us = now_us - atomic_load(&w->turned_us) -
			   w->conf.source->database.connect_timeout_us -
			   w->conf.source->database.query_timeout_us -
			   w->conf.source->broker->connect_timeout_us - 2 * TURN_EVERY_US;

	for (size_t i = 0; i < ARRAY_LEN(guards); i++) {
		int64_t overdue_us = guard_overdue_us(guards[i], now_us);

		if (guard_check(guards[i], now_us))
			log_warn("worker", "a call is past its deadline: connection cut",
				F_STR("source", w->conf.source->name),
				F_STR("server", i == 0 ? "database" : "broker"),
				F_US("overdue", overdue_us));
		if (overdue_us > 0 && overdue_us > stuck_us)
			stuck_us = overdue_us;
	}
	if (blind)
		stuck_us -= RESOLVER_US;
	return stuck_us > 0 && !worker_ended(w) ? stuck_us : 0;
}

void worker_cut(struct worker *w)
{
	(void)guard_check(&w->db_guard, TIME_NEVER);
	(void)guard_check(&w->mq_guard, TIME_NEVER);
}

bool worker_is_dispensable(struct worker *w)
{
	struct relay_view v;

	worker_view(w, &v);
	return v.window == 0 && (guard_is_blind(&w->db_guard) || guard_is_blind(&w->mq_guard));
}

const struct source_conf *worker_source(const struct worker *w)
{
	return w->conf.source;
}

const char *worker_owner(const struct worker *w)
{
	return w->owner;
}

void worker_view(struct worker *w, struct relay_view *out)
{
	pthread_mutex_lock(&w->view_lock);
	*out = w->view;
	pthread_mutex_unlock(&w->view_lock);
}

#include "supervisor/supervisor.h"

#include "amqp/publisher.h"
#include "base/str.h"
#include "config/config.h"
#include "config/diff.h"
#include "http/http.h"
#include "log/log.h"
#include "metrics/metrics.h"
#include "mysql/session.h"
#include "supervisor/pages.h"
#include "supervisor/upkeep.h"
#include "supervisor/worker.h"
#include "sys/clock.h"
#include "sys/notify.h"
#include "sys/proc.h"
#include "sys/wakeup.h"

#include <ev.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* How often the deadlines of the workers' calls are looked at, and the state is compared with what
 * is wanted. */
#define TICK_S 0.1
#define STATUS_EVERY_US (5 * US_PER_SEC)
#define RETRY_EVERY_US (5 * US_PER_SEC)
/* How long after the shutdown deadline a thread may take to come back from a call that was cut off.
 */
#define CUT_GRACE_US (2 * US_PER_SEC)
/* How long after TERM one that is connecting, and holds nothing, is waited for. */
#define LEAVE_AFTER_US (500 * US_PER_MS)
/* A worker stuck for longer starves the watchdog. */
#define STUCK_US (5 * US_PER_SEC)

/* A configuration lives as long as a worker built from it. */
struct snapshot {
	struct config *conf;
	unsigned users;
	unsigned generation; /* counted from 1 */
};

struct member {
	struct list link;
	struct worker *worker;
	struct snapshot *snapshot;
	unsigned kept_for; /* generation it was last compared with and found equal to */
	unsigned index;    /* which of its source's workers */
};

struct supervisor {
	const char *path;
	char identity[PROC_IDENTITY_MAX];
	char instance[81]; /* as it was at the start: owners of one process agree in it */
	unsigned next_number;
	struct snapshot *wanted;
	struct list members;
	struct metrics *metrics;
	struct metric *reloads_applied, *reloads_rejected, *reload_ok, *reload_time;

	struct ev_loop *loop;
	ev_signal signals[6];
	ev_timer tick;
	ev_async ended;
	ev_io wakeup_io;

	struct wakeup *wakeup;
	struct http *http;
	struct pages pages;
	struct upkeep *upkeep;
	int64_t retry_us; /* when to try the wake-up socket and HTTP again */
	int64_t fed_us, status_us;
	char status[256];
	int64_t failed_start_us;

	bool stopping;
	int64_t stopping_us, stop_us; /* since when, and until when */
};

static void snapshot_put(struct snapshot *s)
{
	if (s == NULL || --s->users > 0)
		return;
	config_free(s->conf);
	free(s);
}

static struct snapshot *snapshot_new(struct config *conf)
{
	static unsigned generations;
	struct snapshot *s = calloc(1, sizeof(*s));

	if (s != NULL)
		*s = (struct snapshot){ conf, 1, ++generations };
	return s;
}

static void on_worker_ended(void *arg)
{
	struct supervisor *sv = arg;

	ev_async_send(sv->loop, &sv->ended);
}

static struct member *find_member(struct supervisor *sv, const char *source, unsigned index)
{
	list_each (pos, &sv->members) {
		struct member *m = container_of(pos, struct member, link);

		if (m->index == index && strcmp(worker_source(m->worker)->name, source) == 0)
			return m;
	}
	return NULL;
}

static int start_member(
	struct supervisor *sv, const struct source_conf *source, unsigned index, struct err *e)
{
	struct member *m = calloc(1, sizeof(*m));
	const struct config *conf = sv->wanted->conf;
	struct worker_conf wc = {
		.source = source,
		.instance = sv->instance,
		.identity = sv->identity,
		.number = sv->next_number++,
		.log_events = conf->log.events,
		.metrics = sv->metrics,
	};

	if (m == NULL)
		return err_set(e, ERR_NOMEM, 0, "source %s: out of memory", source->name);
	if (worker_start(&m->worker, &wc, on_worker_ended, sv, e) < 0) {
		free(m);
		return -1;
	}
	m->index = index;
	m->snapshot = sv->wanted;
	m->snapshot->users++;
	list_push_back(&sv->members, &m->link);
	log_info("supervisor", "source started", F_STR("source", source->name),
		F_STR("owner", worker_owner(m->worker)));
	return 0;
}

static bool is_wanted(const struct supervisor *sv, struct member *m)
{
	const struct source_conf *now =
		config_source(sv->wanted->conf, worker_source(m->worker)->name);

	if (sv->stopping || now == NULL || m->index >= now->workers)
		return false;
	if (m->snapshot == sv->wanted || m->kept_for == sv->wanted->generation)
		return true;
	if (!config_source_equal(now, worker_source(m->worker)) ||
		m->snapshot->conf->log.events != sv->wanted->conf->log.events)
		return false;
	m->kept_for = sv->wanted->generation;
	return true;
}

/* Brings what runs towards what is wanted; called whenever either may have changed. A source that
 * changed is drained first and built anew once its last worker has ended. */
static void reconcile(struct supervisor *sv)
{
	const struct config *conf = sv->wanted->conf;
	int64_t now_us = clock_mono_us();
	struct err e = { 0 };

	list_each_safe (pos, tmp, &sv->members) {
		struct member *m = container_of(pos, struct member, link);

		if (worker_ended(m->worker)) {
			list_del(&m->link);
			worker_free(m->worker);
			snapshot_put(m->snapshot);
			free(m);
		} else if (!worker_stopping(m->worker) && !is_wanted(sv, m)) {
			worker_stop(m->worker,
				sv->stopping ? sv->stop_us : now_us + conf->shutdown_timeout_us);
		}
	}
	if (sv->stopping) {
		if (list_empty(&sv->members))
			ev_break(sv->loop, EVBREAK_ALL);
		return;
	}
	if (now_us < sv->failed_start_us)
		return;
	for (size_t i = 0; i < conf->source_count; i++) {
		for (unsigned n = 0; n < conf->sources[i].workers; n++) {
			if (find_member(sv, conf->sources[i].name, n) != NULL)
				continue;
			if (start_member(sv, &conf->sources[i], n, &e) < 0) {
				log_error("supervisor", "source not started, will try again",
					F_ERR(&e));
				sv->failed_start_us = now_us + RETRY_EVERY_US;
				return;
			}
		}
	}
}

static void on_wakeup(void *arg, struct slice source)
{
	struct supervisor *sv = arg;

	list_each (pos, &sv->members) {
		struct member *m = container_of(pos, struct member, link);

		if (source.len == 0 || slice_eq(source, slice_str(worker_source(m->worker)->name)))
			worker_poke(m->worker);
	}
}

static void on_wakeup_io(struct ev_loop *loop, ev_io *io, int revents)
{
	struct supervisor *sv = container_of(io, struct supervisor, wakeup_io);

	(void)loop, (void)revents;
	wakeup_read(sv->wakeup, on_wakeup, sv);
}

static void close_wakeup(struct supervisor *sv)
{
	if (sv->wakeup == NULL)
		return;
	ev_io_stop(sv->loop, &sv->wakeup_io);
	wakeup_close(sv->wakeup);
	sv->wakeup = NULL;
}

/* Neither is worth a refusal to relay: what cannot be had now is tried again. */
static void open_listeners(struct supervisor *sv)
{
	const struct config *conf = sv->wanted->conf;
	struct http_pages callbacks = { pages_metrics, pages_livez, pages_readyz, pages_status };
	struct err e = { 0 };

	sv->retry_us = clock_mono_us() + RETRY_EVERY_US;
	if (conf->wakeup.socket != NULL && sv->wakeup == NULL) {
		if (wakeup_open(&sv->wakeup, conf->wakeup.socket, conf->wakeup.mode,
			    conf->wakeup.group, &e) < 0) {
			log_error("supervisor", "no wake-up socket, will try again", F_ERR(&e));
		} else {
			ev_io_init(&sv->wakeup_io, on_wakeup_io, wakeup_fd(sv->wakeup), EV_READ);
			ev_io_start(sv->loop, &sv->wakeup_io);
		}
	}
	if (conf->http.host != NULL && sv->http == NULL) {
		if (http_start(&sv->http, conf->http.host, conf->http.port, &callbacks, &sv->pages,
			    &e) < 0)
			log_error("supervisor", "no HTTP, will try again", F_ERR(&e));
		else
			log_info("supervisor", "HTTP listening", F_STR("address", conf->http.host),
				F_UINT("port", http_port(sv->http)));
	}
}

static bool same(const char *a, const char *b)
{
	return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

/* What lies outside the sources. `old` is NULL at the start. */
static void apply_process_wide(struct supervisor *sv, const struct config *old)
{
	const struct config *conf = sv->wanted->conf;
	struct err e = { 0 };

	if (old != NULL &&
		(!same(old->log.file, conf->log.file) || old->log.level != conf->log.level ||
			old->log.json != conf->log.json)) {
		if (log_open(conf->log.file, (enum log_level)conf->log.level, conf->log.json, &e) <
			0)
			log_error("supervisor", "log stays where it was", F_ERR(&e));
	}
	if (strcmp(sv->instance, conf->instance) != 0)
		log_warn("supervisor", "instance changes with the next restart only",
			F_STR("instance", conf->instance));
	if (old != NULL && (!same(old->wakeup.socket, conf->wakeup.socket) ||
				   old->wakeup.mode != conf->wakeup.mode ||
				   !same(old->wakeup.group, conf->wakeup.group)))
		close_wakeup(sv);
	if (old != NULL &&
		(!same(old->http.host, conf->http.host) || old->http.port != conf->http.port)) {
		http_stop(sv->http);
		sv->http = NULL;
	}
	open_listeners(sv);
}

/* Without it relaying goes on, and the gauges of the tables are absent. */
static void configure_upkeep(struct supervisor *sv)
{
	struct err e = { 0 };

	if (sv->upkeep == NULL && upkeep_start(&sv->upkeep, sv->metrics, &e) < 0) {
		sv->upkeep = NULL;
		log_error("supervisor", "tables are not counted", F_ERR(&e));
	} else if (upkeep_configure(sv->upkeep, sv->wanted->conf, sv->wanted, &e) < 0) {
		log_error("supervisor", "tables are counted as before", F_ERR(&e));
	} else {
		sv->wanted->users++;
	}
}

static void see_to_upkeep(struct supervisor *sv, int64_t now_us)
{
	struct snapshot *s;

	if (sv->upkeep == NULL)
		return;
	upkeep_check(sv->upkeep, now_us);
	while ((s = upkeep_released(sv->upkeep)) != NULL)
		snapshot_put(s);
}

static void log_change(void *arg, const char *line)
{
	(void)arg;
	log_info("supervisor", "configuration changes", F_STR("change", line));
}

static void reload_result(struct supervisor *sv, bool applied)
{
	metric_add(applied ? sv->reloads_applied : sv->reloads_rejected, 1);
	metric_set(sv->reload_ok, applied);
	if (applied)
		metric_set(sv->reload_time, (double)clock_wall_us() / US_PER_SEC);
}

static void log_faults(const struct buf *faults)
{
	char *copy = strdup(faults->data != NULL ? faults->data : ""), *save = NULL;

	for (char *line = copy != NULL ? strtok_r(copy, "\n", &save) : NULL; line != NULL;
		line = strtok_r(NULL, "\n", &save))
		log_error("supervisor", "configuration refused, nothing changed",
			F_STR("fault", line));
	free(copy);
}

static void reload(struct supervisor *sv)
{
	struct config *conf = NULL;
	struct buf faults = { 0 };
	struct snapshot *next = NULL, *old = sv->wanted;

	(void)notify_reloading();
	if (config_load(&conf, sv->path, &faults) < 0) {
		log_faults(&faults);
		reload_result(sv, false);
	} else if ((next = snapshot_new(conf)) == NULL) {
		config_free(conf);
		log_error("supervisor", "configuration refused, nothing changed",
			F_STR("fault", "out of memory"));
		reload_result(sv, false);
	} else {
		unsigned changes = config_diff(old->conf, conf, log_change, NULL);

		/* Lines in the file may have moved, secrets may have been rotated: workers that go
		 * on keep their own snapshot, and read secrets again at each connect. */
		sv->wanted = next;
		apply_process_wide(sv, old->conf);
		configure_upkeep(sv);
		snapshot_put(old);
		reload_result(sv, true);
		log_info("supervisor", "configuration reloaded", F_STR("file", sv->path),
			F_UINT("changes", changes));
		sv->failed_start_us = 0;
		reconcile(sv);
	}
	buf_fini(&faults);
	(void)notify_ready(sv->status);
}

static void stop(struct supervisor *sv, const char *why)
{
	int64_t now_us = clock_mono_us();

	log_info("supervisor", sv->stopping ? "stopping at once" : "stopping", F_STR("signal", why),
		F_US("timeout", sv->stopping ? 0 : sv->wanted->conf->shutdown_timeout_us));
	if (sv->stopping) {
		sv->stop_us = now_us;
	} else {
		sv->stopping = true;
		sv->stopping_us = now_us;
		sv->stop_us = now_us + sv->wanted->conf->shutdown_timeout_us;
		(void)notify_stopping();
		if (sv->upkeep != NULL)
			upkeep_stop(sv->upkeep);
	}
	list_each (pos, &sv->members)
		worker_stop(container_of(pos, struct member, link)->worker, sv->stop_us);
	reconcile(sv);
}

static void on_signal(struct ev_loop *loop, ev_signal *s, int revents)
{
	struct supervisor *sv = s->data;
	struct err e = { 0 };

	(void)loop, (void)revents;
	switch (s->signum) {
	case SIGTERM:
		stop(sv, "TERM");
		break;
	case SIGINT:
		stop(sv, "INT");
		break;
	case SIGHUP:
		if (!sv->stopping)
			reload(sv);
		break;
	case SIGUSR1:
		if (log_reopen(&e) < 0)
			log_error("supervisor", "log not reopened, goes on in the old file",
				F_ERR(&e));
		else
			log_info("supervisor", "log reopened", F_INT("pid", getpid()));
		break;
	case SIGUSR2:
		on_wakeup(sv, (struct slice){ 0 });
		break;
	}
}

static void on_ended(struct ev_loop *loop, ev_async *a, int revents)
{
	(void)loop, (void)revents;
	reconcile(container_of(a, struct supervisor, ended));
}

/* What `systemctl status` shows. */
static void describe(struct supervisor *sv, char *out, size_t size)
{
	unsigned up = 0, total = 0, leading = 0, blocked = 0, ordered = 0;
	uint64_t published = 0;

	list_each (pos, &sv->members) {
		struct member *m = container_of(pos, struct member, link);
		struct relay_view v;

		worker_view(m->worker, &v);
		total++;
		up += v.database_up && v.broker_up && !v.route_open;
		blocked += v.blocked;
		if (worker_source(m->worker)->ordering == ORDERING_AGGREGATE) {
			ordered++;
			leading += v.leads;
		}
		published += v.published;
	}
	snprintf(out, size,
		"%s%u of %u relays up, %u blocked by their broker, leading %u of %u ordered "
		"sources, %llu events sent",
		sv->stopping ? "stopping: " : "", up, total, blocked, leading, ordered,
		(unsigned long long)published);
}

/* Health is honest: the watchdog is fed while this loop turns and no worker is stuck; an outage is
 * no hang. */
static void see_to_service_manager(struct supervisor *sv, int64_t now_us, int64_t stuck_us)
{
	int64_t interval_us = notify_watchdog_interval_us();
	char status[sizeof(sv->status)];

	if (interval_us > 0 && now_us - sv->fed_us >= interval_us / 4 && stuck_us < STUCK_US &&
		notify_watchdog())
		sv->fed_us = now_us;
	if (now_us - sv->status_us < STATUS_EVERY_US)
		return;
	sv->status_us = now_us;
	describe(sv, status, sizeof(status));
	if (strcmp(status, sv->status) != 0 && notify_status("%s", status))
		memcpy(sv->status, status, sizeof(status));
}

static void snap_pages(struct supervisor *sv)
{
	pages_begin(&sv->pages, sv->wanted->conf);
	list_each (pos, &sv->members) {
		struct member *m = container_of(pos, struct member, link);
		struct relay_view v;

		worker_view(m->worker, &v);
		pages_add(&sv->pages, worker_source(m->worker), worker_owner(m->worker), &v);
	}
	pages_end(&sv->pages, sv->upkeep);
}

/* Only workers are left that nobody needs to wait for. */
static bool all_dispensable(struct supervisor *sv)
{
	list_each (pos, &sv->members) {
		struct worker *w = container_of(pos, struct member, link)->worker;

		if (!worker_ended(w) && !worker_is_dispensable(w))
			return false;
	}
	return true;
}

static void on_tick(struct ev_loop *loop, ev_timer *t, int revents)
{
	struct supervisor *sv = container_of(t, struct supervisor, tick);
	int64_t now_us = clock_mono_us(), stuck_us = 0;

	(void)loop, (void)revents;
	list_each (pos, &sv->members) {
		struct member *m = container_of(pos, struct member, link);
		int64_t worker_us = worker_check(m->worker, now_us);

		if (worker_us > stuck_us)
			stuck_us = worker_us;
		if (sv->stopping && now_us >= sv->stop_us)
			worker_cut(m->worker);
	}
	see_to_service_manager(sv, now_us, stuck_us);
	see_to_upkeep(sv, now_us);
	snap_pages(sv);
	if (!sv->stopping && now_us >= sv->retry_us)
		open_listeners(sv);
	reconcile(sv);
	if (sv->stopping &&
		(now_us >= sv->stop_us + CUT_GRACE_US ||
			(now_us >= sv->stopping_us + LEAVE_AFTER_US && all_dispensable(sv))))
		ev_break(sv->loop, EVBREAK_ALL);
}

static const int watched[] = { SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2 };

void supervisor_note_signals(void)
{
	proc_note_signals(watched, ARRAY_LEN(watched));
}

static void start_watchers(struct supervisor *sv)
{
	for (size_t i = 0; i < ARRAY_LEN(watched); i++) {
		ev_signal_init(&sv->signals[i], on_signal, watched[i]);
		sv->signals[i].data = sv;
		ev_signal_start(sv->loop, &sv->signals[i]);
		if (proc_signal_came(watched[i]))
			ev_feed_signal_event(sv->loop, watched[i]);
	}
	ev_async_init(&sv->ended, on_ended);
	ev_async_start(sv->loop, &sv->ended);
	ev_timer_init(&sv->tick, on_tick, TICK_S, TICK_S);
	ev_timer_start(sv->loop, &sv->tick);
}

static int init(struct supervisor *sv, struct err *e)
{
	struct metric_label applied[] = { { "result", "applied" }, { NULL, NULL } };
	struct metric_label rejected[] = { { "result", "rejected" }, { NULL, NULL } };
	struct metric_label build[] = { { "version", OUTBOXD_VERSION },
		{ "commit", OUTBOXD_COMMIT }, { NULL, NULL } };
	static const char help[] = "Reloads of the configuration by result.";

	list_init(&sv->members);
	proc_identity(sv->identity, sizeof(sv->identity));
	sv->metrics = metrics_new();
	sv->loop = ev_default_loop(EVFLAG_NOENV);
	if (sv->metrics == NULL || sv->loop == NULL)
		return err_set(e, ERR_NOMEM, 0, "cannot make the main loop");
	sv->reloads_applied = metrics_counter(sv->metrics, "config_reloads_total", help, applied);
	sv->reloads_rejected = metrics_counter(sv->metrics, "config_reloads_total", help, rejected);
	sv->reload_ok = metrics_gauge(sv->metrics, "config_last_reload_successful",
		"1 if the last load of the configuration was applied.", NULL);
	sv->reload_time = metrics_gauge(sv->metrics, "config_last_reload_success_timestamp_seconds",
		"When the configuration in force was loaded.", NULL);
	metric_set(metrics_gauge(
			   sv->metrics, "build_info", "Version and commit of this program.", build),
		1);
	metric_set(sv->reload_ok, 1);
	metric_set(sv->reload_time, (double)clock_wall_us() / US_PER_SEC);
	pages_init(&sv->pages, sv->metrics);
	return 0;
}

/* False: its thread hangs in a call that cannot be cut off. */
static bool end_upkeep(struct supervisor *sv)
{
	int64_t until_us = clock_mono_us() + US_PER_SEC;
	struct snapshot *s;

	if (sv->upkeep == NULL)
		return true;
	upkeep_stop(sv->upkeep);
	while (!upkeep_ended(sv->upkeep) && clock_mono_us() < until_us)
		usleep(5000);
	if (!upkeep_ended(sv->upkeep))
		return false;
	upkeep_join(sv->upkeep);
	while ((s = upkeep_released(sv->upkeep)) != NULL)
		snapshot_put(s);
	upkeep_free(sv->upkeep);
	sv->upkeep = NULL;
	return true;
}

static void fini(struct supervisor *sv)
{
	http_stop(sv->http);
	close_wakeup(sv);
	pages_fini(&sv->pages);
	metrics_free(sv->metrics);
	snapshot_put(sv->wanted);
	if (sv->loop != NULL)
		ev_loop_destroy(sv->loop);
}

static int load(struct supervisor *sv, struct err *e)
{
	struct buf faults = { 0 };
	struct config *conf = NULL;
	int rc = 0;

	if (config_load(&conf, sv->path, &faults) < 0) {
		fputs(faults.data != NULL ? faults.data : "", stderr);
		rc = err_set(e, ERR_CONFIG, 0, "%s: not usable", sv->path);
	} else if ((sv->wanted = snapshot_new(conf)) == NULL) {
		config_free(conf);
		rc = err_set(e, ERR_NOMEM, 0, "out of memory");
	}
	buf_fini(&faults);
	if (rc == 0)
		str_copy(sv->instance, sizeof(sv->instance), conf->instance);
	if (rc == 0)
		rc = log_open(conf->log.file, (enum log_level)conf->log.level, conf->log.json, e);
	return rc;
}

int supervisor_run(const char *config_path, struct err *e)
{
	struct supervisor sv = { .path = config_path };
	int rc = -1;

	if (init(&sv, e) < 0)
		goto out;
	/* Signals count from here on: one that comes while the file is read is seen to afterwards.
	 */
	start_watchers(&sv);
	if (load(&sv, e) < 0)
		goto out;
	log_info("supervisor", "starting", F_STR("version", OUTBOXD_VERSION),
		F_STR("commit", OUTBOXD_COMMIT), F_STR("instance", sv.wanted->conf->instance),
		F_STR("identity", sv.identity), F_INT("pid", getpid()),
		F_STR("library", mysql_library_name()));
	apply_process_wide(&sv, NULL);
	configure_upkeep(&sv);
	reconcile(&sv);
	describe(&sv, sv.status, sizeof(sv.status));
	(void)notify_ready(sv.status);
	ev_run(sv.loop, 0);
	rc = 0;
	if (!list_empty(&sv.members) && all_dispensable(&sv)) {
		log_info("supervisor", "stopped, connections still being made are left behind",
			F_STR("instance", sv.wanted->conf->instance));
		http_stop(sv.http);
		close_wakeup(&sv);
		log_close();
		_exit(EXIT_SUCCESS);
	}
	if (!list_empty(&sv.members)) {
		/* A thread that does not come back even from a connection that was shut down under
		 * it. Its rows are safe under their leases; waiting for it would not help anybody.
		 */
		log_error(
			"supervisor", "stopped with calls still hanging", F_STR("signal", "none"));
		log_close();
		_exit(EXIT_FAILURE);
	}
	log_info("supervisor", "stopped", F_STR("instance", sv.wanted->conf->instance));
	if (!end_upkeep(&sv)) {
		/* What it had begun is rolled back by the server; nobody waits for what it would
		 * say. */
		http_stop(sv.http);
		close_wakeup(&sv);
		log_close();
		_exit(EXIT_SUCCESS);
	}
out:
	fini(&sv);
	log_close();
	notify_close();
	return rc;
}

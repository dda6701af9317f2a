#include "supervisor/upkeep_impl.h"

#include "config/diff.h"
#include "mysql/errors.h"
#include "mysql/schema.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Of the time, this share at most is spent on counting. */
#define SHARE 100
/* Longest pause after a failure. */
#define AGAIN_MAX_US (60 * US_PER_SEC)
/* A connection that is not needed for so long is not kept. */
#define KEEP_US (60 * US_PER_SEC)
#define LOG_EVERY_US (300 * US_PER_SEC)
#define STACK_BYTES ((size_t)1 << 20)

static const struct {
	const char *name, *help;
} gauge_names[GAUGES] = {
	[GAUGE_BACKLOG] = { "backlog_events", "Events not sent yet: PENDING and RETRY." },
	[GAUGE_PROCESSING] = { "processing_events", "Events that relays hold." },
	[GAUGE_DEAD] = { "dead_events", "Events given up, without those skipped by an operator." },
	[GAUGE_SKIPPED] = { "skipped_events", "Events skipped by an operator." },
	[GAUGE_HELD] = { "held_events",
		"Events waiting behind an earlier one of their aggregate, part of the backlog." },
	[GAUGE_BLOCKED] = { "blocked_aggregates", "Aggregates that a dead event holds up." },
	[GAUGE_EXPIRED] = { "expired_leases", "Events whose relay has let its lease run out." },
	[GAUGE_OLDEST_UNSENT] = { "oldest_unsent_age_seconds",
		"Since created_at of the oldest event that is neither sent nor dead; 0: none." },
	[GAUGE_OLDEST_CLAIMABLE] = { "oldest_claimable_age_seconds",
		"For how long the event has been waiting that could have been claimed first; 0: "
		"none." },
	[GAUGE_OLDEST_DEAD] = { "oldest_dead_age_seconds",
		"Since created_at of the oldest dead event that was not skipped; 0: none." },
};

/* --- one table ------------------------------------------------------------------------------ */

static void first_fault(void *arg, const struct finding *f)
{
	struct err *e = arg;

	if (f->severity == SEVERITY_FAULT && e->kind == ERR_NONE)
		err_set(e, ERR_CONFIG, 0, "%s: %s", f->where, f->what);
}

static int read_table(struct item *it, struct err *e)
{
	const struct source_conf *conf = it->source;
	struct schema_wish wish = { 0 };
	struct err fault = { 0 };
	const struct finding_sink sink = { first_fault, &fault };
	struct schema schema;

	if (it->inbox != NULL) {
		it->known = inbox_read(it->session, it->inbox, &it->inbox_table, e) == 0;
		return it->known ? 0 : -1;
	}
	wish.ordered = conf->ordering == ORDERING_AGGREGATE;
	session_begin(it->session);
	if (schema_read(it->session, conf->database.name, conf->table, &schema, e) < 0)
		return -1;
	schema_judge(&schema, &wish, &sink, &it->table);
	schema_fini(&schema);
	if (fault.kind != ERR_NONE) {
		*e = fault;
		return -1;
	}
	it->known = true;
	return 0;
}

static int try_once(struct item *it, int (*work)(struct item *it, void *arg, struct err *e),
	void *arg, struct err *e)
{
	const struct session_options options = {
		.wait_timeout_s = 600, .examine = true, .program = "outboxd upkeep"
	};

	if (it->session == NULL && session_new(&it->session, it->database, &options, NULL, e) < 0)
		return -1;
	session_set_guard(it->session, it->guard);
	if (!session_is_open(it->session)) {
		it->known = false;
		if (session_open(it->session, e) < 0)
			return -1;
	}
	if (!it->known && read_table(it, e) < 0)
		return -1;
	it->began_us = clock_mono_us();
	return work(it, arg, e);
}

int item_try(struct upkeep *u, struct item *it,
	int (*work)(struct item *it, void *arg, struct err *e), void *arg, bool again,
	struct err *e)
{
	bool was_open = it->session != NULL && session_is_open(it->session);

	if (try_once(it, work, arg, e) == 0)
		return 0;
	if (e->kind == ERR_CONFIG)
		it->known = false; /* perhaps the table is another one than it was */
	if (again && was_open && e->kind == ERR_LINK && !mysql_error_read_only((unsigned)e->code) &&
		!atomic_load(&u->stop))
		return try_once(it, work, arg, e);
	return -1;
}

void job_worked(struct item *it, enum job_kind kind, const char *again)
{
	struct job *job = &it->job[kind];

	if (job->failing)
		log_info("upkeep", again, F_STR(it->kind, it->name));
	job->failing = false;
	job->again_us = 0;
}

void job_complains(struct upkeep *u, struct item *it, enum job_kind kind, const char *what,
	const struct err *e)
{
	struct job *job = &it->job[kind];
	uint64_t suppressed = 0;

	job->failing = true;
	if (!atomic_load(&u->stop) &&
		log_limit_pass(&job->limit, clock_mono_us(), LOG_EVERY_US, &suppressed))
		log_warn("upkeep", what, F_STR(it->kind, it->name), F_ERR(e),
			F_UINT("suppressed", suppressed));
}

void job_failed(struct upkeep *u, struct item *it, enum job_kind kind, const char *what,
	const struct err *e)
{
	struct job *job = &it->job[kind];

	job->again_us = job->again_us == 0 ? UPKEEP_INTERVAL_US : job->again_us * 2;
	if (job->again_us > AGAIN_MAX_US)
		job->again_us = AGAIN_MAX_US;
	job->due_us = clock_mono_us() + job->again_us;
	job_complains(u, it, kind, what, e);
}

/* --- counting ------------------------------------------------------------------------------- */

static void set_gauge(struct item *it, enum gauge g, int64_t v, bool age)
{
	if (v < 0)
		metric_absent(it->gauges[g]);
	else
		metric_set(it->gauges[g], age ? (double)v / US_PER_SEC : (double)v);
}

static void set_gauges(struct item *it, const struct table_sample *s)
{
	set_gauge(it, GAUGE_BACKLOG, s->pending < 0 || s->retry < 0 ? -1 : s->pending + s->retry,
		false);
	set_gauge(it, GAUGE_PROCESSING, s->processing, false);
	set_gauge(it, GAUGE_DEAD, s->dead, false);
	set_gauge(it, GAUGE_SKIPPED, s->skipped, false);
	set_gauge(it, GAUGE_HELD, s->held, false);
	set_gauge(it, GAUGE_BLOCKED, s->blocked_aggregates, false);
	set_gauge(it, GAUGE_EXPIRED, s->expired_leases, false);
	set_gauge(it, GAUGE_OLDEST_UNSENT, s->oldest_unsent_us, true);
	set_gauge(it, GAUGE_OLDEST_CLAIMABLE, s->oldest_claimable_us, true);
	set_gauge(it, GAUGE_OLDEST_DEAD, s->oldest_dead_us, true);
}

static void set_absent(struct item *it)
{
	for (unsigned g = 0; g < GAUGES; g++)
		metric_absent(it->gauges[g]);
	inbox_set_absent(it);
}

static void counted(struct upkeep *u, struct item *it, int64_t took_us)
{
	int64_t now_us = clock_mono_us(), pause_us = (SHARE - 1) * took_us;
	int64_t least_us = UPKEEP_INTERVAL_US;

	if (it->source != NULL && it->source->poll_interval_us > least_us)
		least_us = it->source->poll_interval_us;
	job_worked(it, JOB_COUNT, "table counted again");
	pthread_mutex_lock(&u->lock);
	it->sampled = true;
	it->sampled_us = now_us;
	pthread_mutex_unlock(&u->lock);
	it->job[JOB_COUNT].due_us = now_us + (pause_us > least_us ? pause_us : least_us);
}

static int count_source(struct item *it, void *arg, struct err *e)
{
	return gauges_read(it->session, &it->table, it->source, arg, e);
}

static void count_pass(struct upkeep *u, struct item *it)
{
	struct table_sample sample;
	struct err e = { 0 };
	int64_t took_us;
	bool inbox = it->inbox != NULL;

	if (item_try(u, it, inbox ? inbox_count_rows : count_source, &sample, true, &e) < 0) {
		set_absent(it);
		pthread_mutex_lock(&u->lock);
		it->sampled = false;
		pthread_mutex_unlock(&u->lock);
		job_failed(u, it, JOB_COUNT, "table not counted, its gauges are absent", &e);
		return;
	}
	took_us = clock_mono_us() - it->began_us; /* connecting is none of it */
	if (inbox) {
		inbox_set_series(u, it);
	} else {
		set_gauges(it, &sample);
		pthread_mutex_lock(&u->lock);
		it->sample = sample;
		pthread_mutex_unlock(&u->lock);
	}
	counted(u, it, took_us);
}

/* --- all tables ----------------------------------------------------------------------------- */

static void pass(struct upkeep *u, struct item *it, enum job_kind kind)
{
	int64_t next_us = TIME_NEVER;

	if (kind == JOB_COUNT)
		count_pass(u, it);
	else
		purge_pass(u, it);
	for (unsigned k = 0; k < JOBS; k++)
		if (it->job[k].due_us < next_us)
			next_us = it->job[k].due_us;
	if (it->session != NULL && next_us - clock_mono_us() > KEEP_US)
		session_close(it->session);
}

static void make_series(struct upkeep *u, struct item *it)
{
	struct metric_label labels[] = { { it->kind, it->name }, { NULL, NULL } };

	for (unsigned g = 0; g < GAUGES && it->source != NULL; g++)
		it->gauges[g] =
			metrics_gauge(u->metrics, gauge_names[g].name, gauge_names[g].help, labels);
	it->age = metrics_gauge(u->metrics, "sample_age_seconds",
		"How old the counts of the table are; grows while they cannot be had.", labels);
}

static void items_free(struct upkeep *u, struct item *items, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		for (unsigned g = 0; g < GAUGES; g++)
			metrics_drop(u->metrics, items[i].gauges[g]);
		metrics_drop(u->metrics, items[i].age);
		inbox_drop(u, &items[i]);
		purge_drop(u, &items[i]);
		session_free(items[i].session);
	}
	free(items);
}

static struct item *find(struct item *items, size_t n, const char *kind, const char *name)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(items[i].kind, kind) == 0 && strcmp(items[i].name, name) == 0)
			return &items[i];
	return NULL;
}

static bool same_table(const struct item *a, const struct item *b)
{
	return a->inbox != NULL ? config_inbox_equal(a->inbox, b->inbox)
				: config_source_equal(a->source, b->source);
}

static bool same_retention(const struct item *a, const struct item *b)
{
	return a->inbox != NULL ||
	       config_retention_equal(&a->source->retention, &b->source->retention);
}

/* What is known of the table goes over. */
static void keep(struct item *it, struct item *was)
{
	it->job[JOB_COUNT] = was->job[JOB_COUNT];
	/* a pass that is under way begins anew */
	if (was->pass_us == 0 && same_retention(was, it))
		it->job[JOB_PURGE] = was->job[JOB_PURGE];
	it->sampled = was->sampled;
	it->sampled_us = was->sampled_us;
	it->sample = was->sample;
	it->counted = was->counted;
	it->series = was->series;
	it->series_count = was->series_count;
	it->series_cap = was->series_cap;
	was->counted = (struct inbox_sample){ 0 };
	was->series = NULL;
	was->series_count = was->series_cap = 0;
}

static void make_item(struct upkeep *u, struct item *it, const struct config *conf, size_t i)
{
	struct item *was;
	struct err e = { 0 };

	if (i < conf->source_count) {
		it->source = &conf->sources[i];
		it->kind = "source";
		it->name = it->source->name;
		it->database = &it->source->database;
	} else {
		it->inbox = &conf->inboxes[i - conf->source_count];
		it->kind = "inbox";
		it->name = it->inbox->name;
		it->database = &it->inbox->database;
	}
	it->sampled_us = clock_mono_us();
	make_series(u, it);
	if (purge_make(u, it, &e) < 0)
		log_error("upkeep", "rows are not removed", F_STR(it->kind, it->name), F_ERR(&e));
	was = find(u->items, u->count, it->kind, it->name);
	if (was != NULL && same_table(was, it))
		keep(it, was);
	else
		set_absent(it);
}

/* Takes the new configuration over. */
static void take_over(struct upkeep *u, struct parcel *p)
{
	size_t n = p->conf->source_count + p->conf->inbox_count, old_count = u->count;
	struct item *items = calloc(n > 0 ? n : 1, sizeof(*items)), *old = u->items;
	struct parcel *former;

	if (items == NULL)
		n = 0; /* no gauges are better than wrong ones */
	for (size_t i = 0; i < n; i++)
		make_item(u, &items[i], p->conf, i);
	pthread_mutex_lock(&u->lock);
	u->items = items;
	u->count = n;
	former = u->current;
	u->current = p;
	pthread_mutex_unlock(&u->lock);
	items_free(u, old, old_count);
	if (former == NULL)
		return;
	pthread_mutex_lock(&u->lock);
	former->next = u->released;
	u->released = former;
	pthread_mutex_unlock(&u->lock);
}

/* The job that is most overdue; else when the first falls due. Under the lock. */
static struct item *pick(struct upkeep *u, int64_t now_us, enum job_kind *kind, int64_t *due_us)
{
	struct item *best = NULL;

	for (size_t i = 0; i < u->count * JOBS; i++) {
		struct item *it = &u->items[i / JOBS];

		if (it->busy || it->job[i % JOBS].due_us >= *due_us)
			continue;
		*due_us = it->job[i % JOBS].due_us;
		best = it;
		*kind = (enum job_kind)(i % JOBS);
	}
	return *due_us <= now_us ? best : NULL;
}

/* Those that wait sleep until they are told, but for one that keeps an eye on the time: the one
 * that knows of the earliest job. */
static void wait_until(struct upkeep *u, int64_t due_us)
{
	const struct timespec until = {
		.tv_sec = (time_t)(due_us / US_PER_SEC),
		.tv_nsec = (long)(due_us % US_PER_SEC) * 1000,
	};

	if (u->watch_us <= due_us) {
		pthread_cond_wait(&u->changed, &u->lock);
		return;
	}
	u->watch_us = due_us;
	pthread_cond_timedwait(&u->changed, &u->lock, &until);
	u->watch_us = TIME_NEVER;
}

/* Waits for work: a configuration to take over (returned), while nobody else does anything, or a
 * job of an item that is due (*out). Neither: the end. */
static struct parcel *next_work(struct upkeep *u, struct item **out, enum job_kind *kind)
{
	struct parcel *p = NULL;

	*out = NULL;
	pthread_mutex_lock(&u->lock);
	while (!atomic_load(&u->stop)) {
		int64_t now_us = clock_mono_us(), due_us = now_us + 3600 * US_PER_SEC;

		if (u->wanted != NULL && u->busy == 0 && !u->taking) {
			p = u->wanted;
			u->wanted = NULL;
			u->taking = true;
			break;
		}
		if (u->wanted == NULL && !u->taking)
			*out = pick(u, now_us, kind, &due_us);
		if (*out != NULL) {
			(*out)->busy = true;
			u->busy++;
			break;
		}
		wait_until(u, due_us);
	}
	if (u->watch_us == TIME_NEVER)
		pthread_cond_signal(&u->changed); /* somebody else's eye, meanwhile */
	pthread_mutex_unlock(&u->lock);
	return p;
}

static void work_done(struct upkeep *u, struct item *it)
{
	pthread_mutex_lock(&u->lock);
	if (it != NULL) {
		it->busy = false;
		u->busy--;
	} else {
		u->taking = false;
	}
	if (it == NULL || u->wanted != NULL)
		pthread_cond_broadcast(&u->changed);
	pthread_mutex_unlock(&u->lock);
}

/* The last thread to end clears up. */
static void leave(struct upkeep *u)
{
	struct item *items;
	bool last;

	pthread_mutex_lock(&u->lock);
	last = --u->working == 0;
	items = u->items;
	if (last)
		u->items = NULL;
	pthread_mutex_unlock(&u->lock);
	if (!last)
		return;
	items_free(u, items, u->count);
	atomic_store(&u->ended, true);
}

static void *run(void *arg)
{
	struct hand *h = arg;
	struct upkeep *u = h->upkeep;
	struct item *it;
	enum job_kind kind = JOB_COUNT;
	struct parcel *p;

	pthread_setname_np(pthread_self(), "upkeep");
	mysql_thread_enter();
	for (;;) {
		p = next_work(u, &it, &kind);
		if (p != NULL) {
			take_over(u, p);
		} else if (it != NULL) {
			it->guard = &h->guard;
			pass(u, it, kind);
		} else {
			break;
		}
		work_done(u, p != NULL ? NULL : it);
	}
	leave(u);
	mysql_thread_leave();
	return NULL;
}

/* --- life ----------------------------------------------------------------------------------- */

static int start_hand(struct upkeep *u, struct err *e)
{
	struct hand *h = &u->hand[u->hands];
	pthread_attr_t attr;
	sigset_t all, old;
	int rc;

	if (guard_init(&h->guard, e) < 0)
		return err_wrap(e, "upkeep");
	h->upkeep = u;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	pthread_mutex_lock(&u->lock);
	rc = pthread_create(&h->thread, &attr, run, h);
	if (rc == 0) {
		u->hands++;
		u->working++;
	}
	pthread_mutex_unlock(&u->lock);
	pthread_attr_destroy(&attr);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc == 0)
		return 0;
	guard_fini(&h->guard);
	return err_set(e, ERR_NOMEM, rc, "upkeep: cannot start a thread: %s", strerror(rc));
}

int upkeep_start(struct upkeep **out, struct metrics *metrics, struct err *e)
{
	struct upkeep *u = calloc(1, sizeof(*u));
	pthread_condattr_t monotonic;

	if (u == NULL)
		return err_set(e, ERR_NOMEM, errno, "upkeep");
	u->metrics = metrics;
	u->watch_us = TIME_NEVER;
	pthread_mutex_init(&u->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&u->changed, &monotonic);
	pthread_condattr_destroy(&monotonic);
	/* fewer will do */
	while (u->hands < UPKEEP_CREW && start_hand(u, e) == 0)
		;
	if (u->hands == 0) {
		u->joined = true;
		upkeep_free(u);
		return -1;
	}
	*out = u;
	return 0;
}

int upkeep_configure(struct upkeep *u, const struct config *conf, void *token, struct err *e)
{
	struct parcel *p = calloc(1, sizeof(*p));

	if (p == NULL)
		return err_set(e, ERR_NOMEM, errno, "upkeep");
	*p = (struct parcel){ .conf = conf, .token = token };
	pthread_mutex_lock(&u->lock);
	if (u->wanted != NULL) { /* it never looked at that one */
		u->wanted->next = u->released;
		u->released = u->wanted;
	}
	u->wanted = p;
	pthread_cond_broadcast(&u->changed);
	pthread_mutex_unlock(&u->lock);
	return 0;
}

void *upkeep_released(struct upkeep *u)
{
	struct parcel *p, **all[] = { &u->released, &u->wanted, &u->current };
	void *token = NULL;

	pthread_mutex_lock(&u->lock);
	p = u->released;
	/* once the threads have gone nothing is used any more */
	for (size_t i = 1; i < ARRAY_LEN(all) && p == NULL && u->joined; i++)
		p = *all[i];
	for (size_t i = 0; i < ARRAY_LEN(all) && p != NULL; i++)
		if (*all[i] == p) {
			*all[i] = p->next;
			break;
		}
	pthread_mutex_unlock(&u->lock);
	if (p != NULL) {
		token = p->token;
		free(p);
	}
	return token;
}

void upkeep_check(struct upkeep *u, int64_t now_us)
{
	for (unsigned i = 0; i < u->hands; i++)
		if (guard_check(&u->hand[i].guard, now_us))
			log_warn("upkeep", "a call is past its deadline: connection cut",
				F_US("overdue", guard_overdue_us(&u->hand[i].guard, now_us)));
	pthread_mutex_lock(&u->lock);
	for (size_t i = 0; u->items != NULL && i < u->count; i++)
		metric_set(u->items[i].age, (double)(now_us - u->items[i].sampled_us) / US_PER_SEC);
	pthread_mutex_unlock(&u->lock);
}

bool upkeep_sample(struct upkeep *u, const char *source, struct table_sample *out, int64_t *age_us)
{
	const struct item *it;
	bool sampled = false;

	*age_us = 0;
	pthread_mutex_lock(&u->lock);
	it = u->items != NULL ? find(u->items, u->count, "source", source) : NULL;
	if (it != NULL) {
		sampled = it->sampled;
		*age_us = clock_mono_us() - it->sampled_us;
		if (sampled)
			*out = it->sample;
	}
	pthread_mutex_unlock(&u->lock);
	return sampled;
}

void upkeep_stop(struct upkeep *u)
{
	pthread_mutex_lock(&u->lock);
	atomic_store(&u->stop, true);
	pthread_cond_broadcast(&u->changed);
	pthread_mutex_unlock(&u->lock);
	for (unsigned i = 0; i < u->hands; i++)
		(void)guard_check(&u->hand[i].guard, TIME_NEVER);
}

bool upkeep_ended(const struct upkeep *u)
{
	return atomic_load(&u->ended);
}

void upkeep_join(struct upkeep *u)
{
	for (unsigned i = 0; i < u->hands && !u->joined; i++)
		pthread_join(u->hand[i].thread, NULL);
	u->joined = true;
}

void upkeep_free(struct upkeep *u)
{
	if (u == NULL)
		return;
	for (unsigned i = 0; i < u->hands; i++)
		guard_fini(&u->hand[i].guard);
	pthread_cond_destroy(&u->changed);
	pthread_mutex_destroy(&u->lock);
	free(u);
}

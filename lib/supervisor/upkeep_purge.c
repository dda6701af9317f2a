/* upkeep_purge.c: retention, a step of one table at a time. */
#include "supervisor/upkeep_impl.h"

/* A window that is closed is looked at again after so long. */
#define WINDOW_US (60 * US_PER_SEC)
/* After a pass that spent t on rounds in vain the next one comes no sooner than this many t. */
#define VAIN_SHARE 20
#define REFUSED_PAUSE_US (100 * US_PER_MS)
#define INBOX_INTERVAL_US (60 * US_PER_SEC)
/* Processes take turns, a round each: within this time a turn goes on at the pace of the last. */
#define GOES_ON_US (60 * US_PER_SEC)
#define DEAD_SHOWN 10

static void on_gone(void *arg, struct slice event_id)
{
	struct item *it = arg;

	if (it->dead_shown++ < DEAD_SHOWN) {
		if (it->dead.len > 0)
			buf_addc(&it->dead, ' ');
		buf_add_slice(&it->dead, event_id);
	}
}

static void make_failing(struct upkeep *u, struct item *it)
{
	struct metric_label labels[] = { { it->kind, it->name }, { NULL, NULL } };

	it->purge_failing = metrics_gauge(u->metrics, "retention_failing",
		"1: the last try to remove rows whose time is over failed.", labels);
}

static int make_inbox(struct upkeep *u, struct item *it, struct err *e)
{
	struct metric_label by_inbox[] = { { it->kind, it->name }, { NULL, NULL } };

	it->purged = metrics_counter(u->metrics, "inbox_purged_total",
		"Processed rows that retention deleted from the inbox.", by_inbox);
	it->job[JOB_PURGE].due_us = TIME_NEVER;
	if (it->inbox->retention.processed_us == AGE_NEVER)
		return 0;
	it->job[JOB_PURGE].due_us = clock_mono_us();
	make_failing(u, it);
	return purger_inbox_new(&it->purger, it->inbox, &it->inbox_table, NULL, false, e);
}

int purge_make(struct upkeep *u, struct item *it, struct err *e)
{
	struct metric_label by_source[] = { { it->kind, it->name }, { NULL, NULL } };
	const struct purge_sink sink = { on_gone, it };

	if (it->inbox != NULL)
		return make_inbox(u, it, e);
	it->purged = metrics_counter(u->metrics, "purged_events_total",
		"Events that retention deleted or moved, those deleted as they were sent included.",
		by_source);
	it->job[JOB_PURGE].due_us = TIME_NEVER;
	if (!purger_wanted(it->source))
		return 0;
	it->job[JOB_PURGE].due_us = clock_mono_us();
	make_failing(u, it);
	return purger_new(&it->purger, it->source, &sink, false, e);
}

void purge_drop(struct upkeep *u, struct item *it)
{
	metrics_drop(u->metrics, it->purged);
	metrics_drop(u->metrics, it->purge_failing);
	purger_free(it->purger);
	buf_fini(&it->dead);
}

static int step(struct item *it, void *arg, struct err *e)
{
	return purger_step(it->purger, it->session, &it->table, 0, arg, e);
}

/* What was never delivered is never deleted in silence. */
static void tell_of_dead(struct item *it, const struct purge_step *done)
{
	const struct retention_conf *r;

	if (it->source == NULL)
		return;
	r = &it->source->retention;
	if (done->dead > 0)
		log_warn("retention",
			r->archive_table != NULL ? "dead events moved to the archive, never sent"
						 : "dead events deleted, never sent",
			F_STR(it->kind, it->name), F_UINT("rows", done->dead),
			F_SLICE("event_ids", buf_slice(&it->dead)),
			F_STR("more", it->dead_shown > DEAD_SHOWN ? "yes" : "no"));
	buf_reset(&it->dead);
	it->dead_shown = 0;
}

static void end_pass(struct item *it, int64_t now_us)
{
	int64_t pause_us =
		it->source != NULL ? it->source->retention.interval_us : INBOX_INTERVAL_US;

	if (it->pass_gone > 0)
		log_info("retention", "rows removed", F_STR(it->kind, it->name),
			F_UINT("rows", it->pass_gone), F_UINT("dead", it->pass_dead),
			F_US("took", now_us - it->pass_us));
	if (pause_us < VAIN_SHARE * it->vain_us)
		pause_us = VAIN_SHARE * it->vain_us;
	it->pass_us = 0;
	it->job[JOB_PURGE].due_us = now_us + pause_us;
}

/* A row that is refused is passed over at once, everything else is tried again later. The failure
 * is over when rows are removed, or none was due; reading proves nothing. */
static void failed(struct upkeep *u, struct item *it, const struct err *e)
{
	buf_reset(&it->dead);
	it->dead_shown = 0;
	it->pass_failed = true;
	metric_set(it->purge_failing, 1);
	if (e->kind == ERR_REFUSED) {
		it->pass_refused = true;
		it->job[JOB_PURGE].due_us = clock_mono_us() + REFUSED_PAUSE_US;
		job_complains(u, it, JOB_PURGE, "a row is not removed, the others are", e);
		return;
	}
	if (e->kind != ERR_RETRY)
		it->pass_us = 0;
	job_failed(u, it, JOB_PURGE, "rows not removed, will try again", e);
}

void purge_pass(struct upkeep *u, struct item *it)
{
	const struct retention_conf *r = it->source != NULL ? &it->source->retention : NULL;
	int64_t start_us = clock_mono_us(), now_us, took_us, pause_us;
	struct purge_step done = { 0 };
	struct err e = { 0 };

	if (r != NULL && !config_window_open(&r->window, clock_wall_us())) {
		purger_stop(it->purger, it->session);
		it->pass_us = 0;
		it->job[JOB_PURGE].due_us =
			start_us + (r->interval_us < WINDOW_US ? r->interval_us : WINDOW_US);
		return;
	}
	if (it->pass_us == 0) {
		it->pass_us = start_us;
		it->pass_gone = it->pass_dead = 0;
		it->vain_us = 0;
		it->pass_failed = it->pass_refused = false;
		if (!it->pass_cut || start_us - it->pace.at_us > GOES_ON_US)
			purge_pace_begin(&it->pace);
	}
	if (item_try(u, it, step, &done, purger_reads(it->purger), &e) < 0) {
		failed(u, it, &e);
		return;
	}
	if (done.gone > 0 ? !it->pass_refused : done.end && !done.elsewhere && !it->pass_failed) {
		metric_set(it->purge_failing, 0);
		job_worked(it, JOB_PURGE, "rows are removed again");
	}
	now_us = clock_mono_us();
	took_us = now_us - start_us;
	metric_add(it->purged, done.gone);
	it->pass_gone += done.gone;
	it->pass_dead += done.dead;
	tell_of_dead(it, &done);
	if (done.end) {
		it->pass_cut = done.elsewhere;
		end_pass(it, now_us);
		return;
	}
	if (done.gone == 0 && done.due == 0)
		it->vain_us += took_us;
	pause_us = purge_pause(&it->pace, r != NULL ? r->max_rate : 0, done.gone, took_us,
		done.waiting_us, now_us);
	it->job[JOB_PURGE].due_us = now_us + pause_us;
}

/* What must hold, whatever happened: DESIGN.md's guarantees, looked at with every write, every send
 * and every arrival. */
#include "sim.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool before(const struct trow *a, const struct trow *b)
{
	return a->created_us != b->created_us ? a->created_us < b->created_us : a->id < b->id;
}

static void open_drop(struct actor *a, struct trow *r)
{
	unsigned slot = r->seen[a->index].slot;

	r->seen[a->index].open = false;
	a->open[slot] = a->open[--a->open_count];
	a->open[slot]->seen[a->index].slot = slot;
}

/* The relay hands a message over. G2, and the lease: as far as the relay can know, the row is its
 * own for long enough. */
void oracle_sent(struct world *w, struct actor *a, struct trow *r, enum channel ch)
{
	bool same = r->seen[a->index].owner == a->owner;

	w->tally->sends++;
	r->sends++;
	a->work++;
	trace(w, 3, "relay %u: sends %s over %d", a->index, r->event_id, ch);
	if (!r->foreign) {
		if (r->status != ST_PROCESSING || r->owner != a->owner)
			wrong(w, "G6: relay %u sends %s, which is not its own", a->index,
				r->event_id);
		else if (r->locked_until_us - db_now(w) < w->p.confirm_us)
			wrong(w, "lease: relay %u sends %s with %" PRId64 " ms of lease left",
				a->index, r->event_id, (r->locked_until_us - db_now(w)) / MS);
		if (same && r->seen[a->index].open)
			wrong(w, "G2: relay %u sends %s while its outcome is open", a->index,
				r->event_id);
		if (same && r->seen[a->index].told && r->seen[a->index].outcome == OUTCOME_ACK)
			wrong(w, "G2: relay %u sends %s again after its confirm", a->index,
				r->event_id);
	}
	if (a->open_count == a->open_cap) {
		a->open_cap = a->open_cap > 0 ? a->open_cap * 2 : 256;
		a->open = realloc((void *)a->open, a->open_cap * sizeof(struct trow *));
		if (a->open == NULL)
			abort();
	}
	if (same && r->seen[a->index].open)
		open_drop(a, r);
	r->seen[a->index].owner = a->owner;
	r->seen[a->index].told = false;
	r->seen[a->index].open = true;
	r->seen[a->index].channel = ch;
	r->seen[a->index].sent_us = w->now_us;
	r->seen[a->index].slot = (unsigned)a->open_count;
	a->open[a->open_count++] = r;
	if (a->open_count > w->p.max_in_flight)
		wrong(w, "window: %zu messages out, %u allowed", a->open_count, w->p.max_in_flight);
	if (r->poison == POISON_KILLER)
		a->doomed = true;
}

/* G3: a later event of the aggregate got there first, though this one was there to be seen when
 * that was claimed. One that came too late for some event is out of order anyway, and those behind
 * that event need not wait for it. */
static void check_order(struct world *w, const struct trow *r)
{
	const struct trow *passed = NULL;

	for (size_t i = 1; i <= w->table.count; i++) {
		const struct trow *f = w->table.rows[i];

		if (f->aggregate != r->aggregate || !before(r, f) ||
			(passed != NULL && before(passed, f)))
			continue;
		/* marked SENT by hand, it stands for all before it */
		if (f->foreign || (f->copies > 0 && r->visible_us > f->first_claimed_us))
			passed = f;
	}
	w->tally->hazards += passed != NULL;
	if (r->foreign)
		return;
	for (size_t i = 1; i <= w->table.count; i++) {
		const struct trow *f = w->table.rows[i];

		if (f->aggregate != r->aggregate || f->copies == 0 || !before(r, f) ||
			f == passed || (passed != NULL && before(passed, f)))
			continue;
		wrong(w,
			"G3: %s arrives after %s, %s/%s (visible %" PRId64
			", the other claimed %" PRId64 ")",
			r->event_id, f->event_id, r->aggregate->type, r->aggregate->id,
			r->visible_us, f->first_claimed_us);
	}
}

void oracle_arrived(struct world *w, struct trow *r, uint32_t owner, int64_t claimed_us)
{
	struct aggregate *a = r->aggregate;

	trace(w, 3, "broker: %s arrives from owner %u", r->event_id, owner);
	w->last_arrival_us = w->now_us;
	if (r->copies++ > 0) {
		w->tally->duplicates++;
		if (r->copies > 1 + r->excuses && !r->foreign)
			wrong(w, "G2: %s arrives %u times, with an excuse for %u", r->event_id,
				r->copies, r->excuses);
		if (w->p.faults == 0 && w->p.poison <= 0.0 && w->p.prepare == NULL)
			wrong(w, "G2: %s arrives twice, and nothing had failed", r->event_id);
		return;
	}
	r->first_claimed_us = claimed_us;
	if (a < world_reserved(w, 0)) {
		w->others_us = w->now_us;
		if (++w->others <= w->p.events / 20 * 19)
			w->most_us = w->now_us;
	}
	if (w->p.ordered && a->last != NULL && before(r, a->last))
		check_order(w, r);
	if (a->last == NULL || before(a->last, r))
		a->last = r;
}

void oracle_told(struct world *w, struct actor *a, struct trow *r, enum outcome how)
{
	if (r->seen[a->index].owner != a->owner)
		return;
	if (r->seen[a->index].open)
		open_drop(a, r);
	r->seen[a->index].told = true;
	r->seen[a->index].outcome = how;
	if (how == OUTCOME_ACK)
		r->seen[a->index].acked = a->owner;
	trace(w, 3, "relay %u: told %d of %s", a->index, how, r->event_id);
}

void oracle_forgotten(struct actor *a, struct trow *r)
{
	open_drop(a, r);
	r->excuses++;
	a->w->tally->excused++;
}

/* Its last owner may have sent it, and learnt even that it arrived, without writing it down. */
void oracle_taken(struct world *w, struct trow *r, uint32_t from)
{
	for (unsigned k = 0; k < RELAYS_MAX; k++)
		if (from != 0 && r->seen[k].owner == from &&
			(r->seen[k].open || (r->seen[k].told && r->seen[k].outcome == OUTCOME_ACK)))
			r->excuses++, w->tally->excused++;
}

static bool starts(const char *s, const char *with)
{
	return strncmp(s, with, strlen(with)) == 0;
}

/* G4: why this row may be charged with an attempt. */
static bool chargeable(
	const struct world *w, const struct actor *a, const struct trow *r, const char *why)
{
	bool told = r->seen[a->index].owner == a->owner && r->seen[a->index].told;

	if (starts(why, "UNROUTABLE: "))
		return told && r->seen[a->index].outcome == OUTCOME_RETURNED;
	if (starts(why, "NACKED: "))
		return told && r->seen[a->index].outcome == OUTCOME_NACK;
	if (starts(why, "CONFIRM_TIMEOUT: "))
		return !told && r->seen[a->index].owner == a->owner &&
		       r->seen[a->index].channel == CHANNEL_QUARANTINE &&
		       w->now_us - r->seen[a->index].sent_us >= w->p.confirm_us;
	if (starts(why, "LEASE_EXPIRED: ")) /* database.c saw to it that it was alone */
		return r->takeovers > 2;
	return false;
}

/* G5: what is wrong with the row itself. */
static bool deserves(const struct trow *r, const char *why)
{
	switch (r->poison) {
	case POISON_GHOST:
	case POISON_SECRET:
	case POISON_CLOSES:
		return starts(why, "REFUSED: ");
	case POISON_LARGE:
	case POISON_BROKER_BIG:
		return starts(why, "TOO_LARGE: ");
	case POISON_HEADERS:
	case POISON_ENCODING:
		return starts(why, "INVALID: ");
	default:
		return false;
	}
}

static void check_charge(struct world *w, struct actor *a, struct trow *r, const struct settle *s)
{
	if (!chargeable(w, a, r, s->error))
		wrong(w, "G4: %s is charged for nothing: %s", r->event_id, s->error);
	if (s->retry_count != r->retry_count + 1)
		wrong(w, "G4: retry_count of %s goes from %u to %u", r->event_id, r->retry_count,
			s->retry_count);
	w->tally->charged++;
	r->seen[a->index].told = false;
	if (starts(s->error, "LEASE_EXPIRED: "))
		r->died_alone = true;
}

void oracle_settles(struct world *w, struct actor *a, struct trow *r, const struct settle *s)
{
	bool told = r->seen[a->index].owner == a->owner && r->seen[a->index].told;
	bool acked = told && r->seen[a->index].outcome == OUTCOME_ACK;

	if (r->foreign && s->kind != SETTLE_SENT)
		return;
	switch (s->kind) {
	case SETTLE_SENT:
		/* Claimed again after another one had put it back, it is in the relay's hands
		 * twice. */
		if (r->seen[a->index].acked != a->owner || r->copies == 0)
			wrong(w, "G1: %s becomes SENT without a confirm", r->event_id);
		return;
	case SETTLE_RETRY:
		check_charge(w, a, r, s);
		if (s->retry_count >= w->p.max_attempts)
			wrong(w, "%s goes on beyond %u attempts", r->event_id, w->p.max_attempts);
		if (s->delay_us <= 0 || s->delay_us > w->p.retry_cap_us)
			wrong(w, "%s waits for %" PRId64 " ms", r->event_id, s->delay_us / MS);
		return;
	case SETTLE_DEAD:
		w->tally->dead++;
		if (deserves(r, s->error)) {
			if (s->retry_count != r->retry_count)
				wrong(w, "G4: %s, given up at once, is charged", r->event_id);
			return;
		}
		check_charge(w, a, r, s);
		if (s->retry_count != w->p.max_attempts)
			wrong(w, "%s is given up after %u attempts: %s", r->event_id,
				s->retry_count, s->error);
		return;
	default: /* SETTLE_HOLD, SETTLE_RELEASE */
		if (acked)
			wrong(w, "G1: %s goes back although it was confirmed", r->event_id);
		if (s->kind == SETTLE_RELEASE)
			return;
		if (!starts(s->error, "WAITING: behind evt-") &&
			!starts(s->error, "UNROUTABLE: ") &&
			!starts(s->error, "CONFIRM_TIMEOUT: not charged"))
			wrong(w, "%s is held: %s", r->event_id, s->error);
		return;
	}
}

/* No turning without need. A relay that asks to be called at once must have done something. */
void oracle_turned(struct world *w, struct actor *a)
{
	struct relay_view v;

	w->tally->turns++;
	a->window_turns++;
	if (a->relay == NULL || a->killed)
		return;
	relay_view(a->relay, &v);
	if (v.in_flight > w->p.max_in_flight)
		wrong(w, "window: %u in flight", v.in_flight);
	if (v.window > w->p.max_in_flight + w->p.batch)
		wrong(w, "window: %u rows", v.window);
	if (a->wake_us <= w->now_us && a->work == a->idle_work) {
		if (++a->idle_turns > 20)
			wrong(w, "relay %u turns and turns, and does nothing", a->index);
	} else {
		a->idle_turns = 0;
	}
	a->idle_work = a->work;
	if (w->now_us - a->window_us < SEC)
		return;
	if (a->window_turns > 400 + 4 * (a->work - a->window_work))
		wrong(w, "relay %u: %" PRIu64 " turns in a second for %" PRIu64 " pieces of work",
			a->index, a->window_turns, a->work - a->window_work);
	if (a->window_statements > 80 + 3 * (a->work - a->window_work))
		wrong(w,
			"relay %u: %" PRIu64 " statements in a second for %" PRIu64
			" pieces of work",
			a->index, a->window_statements, a->work - a->window_work);
	a->window_us = w->now_us;
	a->window_turns = a->window_statements = 0;
	a->window_work = a->work;
}

/* Once a second. */
void oracle_tick(struct world *w)
{
	int64_t calm_us =
		w->now_us - (w->last_death_us > w->quiet_us ? w->last_death_us : w->quiet_us);
	/* A row that is never confirmed may hold up whoever waits for the same channel. */
	int64_t mute_us = (int64_t)(w->mutes * (w->p.max_attempts + 3)) * w->p.confirm_us;
	struct trow *r;

	if (!w->quiet)
		return;
	/* Nothing sleeps that could be done. */
	if (calm_us > w->p.lease_us * 2 + 20 * SEC && w->now_us - w->progress_us > 30 * SEC) {
		r = row_of_index(tree_first(w->table.tree[ST_PENDING]));
		if (r != NULL && (r->next_retry_us == NO_TIME || r->next_retry_us < db_now(w)))
			wrong(w, "work sleeps: %s is claimable, nothing happened for 30 s",
				r->event_id);
		r = row_of_index(tree_first(w->table.tree[ST_RETRY]));
		if (r != NULL && (r->next_retry_us == NO_TIME || r->next_retry_us < db_now(w)))
			wrong(w, "work sleeps: %s is due, nothing happened for 30 s", r->event_id);
	}
	/* Leases end, and are taken over. */
	if (calm_us > w->p.lease_us * 2 + 10 * SEC + mute_us) {
		r = row_of_index(tree_first(w->table.tree[ST_PROCESSING]));
		if (r != NULL &&
			(r->locked_until_us == NO_TIME ||
				db_now(w) - r->locked_until_us >
					mute_us + w->p.lease_us / 4 + 2 * w->p.poll_us + SEC))
			wrong(w, "lease: %s is still PROCESSING, its lease over for %" PRId64 " ms",
				r->event_id,
				r->locked_until_us == NO_TIME
					? 0
					: (db_now(w) - r->locked_until_us) / MS);
	}
}

static void check_final(struct world *w, const struct trow *r)
{
	bool dead_ok = r->poison != POISON_NONE || r->nack_once || r->foreign || r->died_alone;

	if (r->status == ST_SENT) {
		if (r->copies == 0 && !r->foreign)
			wrong(w, "G1: %s is SENT and never arrived", r->event_id);
		return;
	}
	if (r->status != ST_DEAD)
		wrong(w, "G1: %s is left behind: status %d, %s", r->event_id, r->status, r->error);
	else if (!dead_ok)
		wrong(w, "G5: %s is DEAD without being to blame: %s", r->event_id, r->error);
}

void oracle_end(struct world *w)
{
	for (size_t i = 1; i <= w->table.count && w->failure == NULL; i++)
		check_final(w, w->table.rows[i]);
}

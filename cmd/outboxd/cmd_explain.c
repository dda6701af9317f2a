#include "admin.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char help[] =
	"usage: outboxd explain [-c FILE] [--source NAME] [--json] EVENT_ID\n\n"
	"Where an event stands, why it is not sent yet, and what would change that.\n\n"
	"  -c, --config FILE   default: " DEFAULT_CONFIG "\n"
	"      --source NAME   which source; may be left out where there is only one\n"
	"      --json\n"
	"  -h, --help\n";

/* A row that moves while one looks at it is looked at again, so often. */
#define LOOKS 3

struct explain {
	const struct config *conf;
	const struct source_conf *source;
	struct admin admin;
	struct admin_row row, head;
	uint64_t between;
	struct admin_leader leader;
	bool overtaken, locked; /* locked: the row itself, or the one it waits for */
	uint64_t backlog;
	struct buf reason, next;
};

static bool is(const struct admin_row *row, const char *status)
{
	return strcmp(row->state, status) == 0;
}

static bool is_waiting(const struct admin_row *row)
{
	return row->next_retry_at[0] != '\0' && row->last_error != NULL &&
	       strncmp(row->last_error, "WAITING: ", 9) == 0;
}

static const char *words(const char *s)
{
	return s != NULL && s[0] != '\0' ? s : "no reason given";
}

static void why(struct explain *x, const char *fmt, ...) PRINTF(2, 3);
static void why(struct explain *x, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	buf_addvf(&x->reason, fmt, ap);
	va_end(ap);
}

static void next(struct explain *x, const char *fmt, ...) PRINTF(2, 3);
static void next(struct explain *x, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	buf_addvf(&x->next, fmt, ap);
	va_end(ap);
}

static void next_command(struct explain *x, const char *command, const char *event_id)
{
	add_command(&x->next, command, x->conf, x->source, event_id);
}

/* --- the relays ----------------------------------------------------------------------------- */

static void say_who_leads(struct explain *x)
{
	const struct admin_leader *l = &x->leader;

	if (x->source->ordering != ORDERING_AGGREGATE)
		return;
	if (l->connection == 0)
		why(x, "; no relay leads the source");
	else if (l->owner[0] != '\0')
		why(x, "; %s leads the source", l->owner);
	else
		why(x, "; the session %llu%s%s leads the source", (unsigned long long)l->connection,
			l->from[0] != '\0' ? " from " : "", l->from);
}

/* True: whoever it is, no relay gets at it. */
static bool is_locked(struct explain *x, const char *which)
{
	if (!x->locked)
		return false;
	why(x, "; another transaction has %s locked", which);
	next(x, "No relay can claim it before that transaction has ended: it has to commit or be "
		"rolled back. information_schema.INNODB_TRX has those that are open.");
	return true;
}

static void next_claim(struct explain *x)
{
	if (x->source->ordering == ORDERING_AGGREGATE && x->leader.connection == 0)
		next(x, "Start outboxd, or find out why it cannot lead: outboxd status, outboxd "
			"check, its log.");
	else
		next(x,
			"A running relay claims it within %lld ms of its turn; if nothing moves, "
			"see /readyz and the log of outboxd: broker or database may be away.",
			(long long)(x->source->poll_interval_us / US_PER_MS));
}

/* --- dead rows ------------------------------------------------------------------------------ */

static const char *remedy(const char *class)
{
	static const struct {
		const char *class, *what;
	} known[] = {
		{ "UNROUTABLE", "No queue is bound for its exchange and routing key: bind one, or "
				"correct the routing key in the configuration" },
		{ "NACKED", "The broker took no responsibility: look for full queues, policies and "
			    "deduplication at the broker (which may have had it already) and in "
			    "its log" },
		{ "TOO_LARGE", "Its message exceeds a limit: raise max_message_size, here and at "
			       "the broker, or have the producer write less" },
		{ "INVALID", "It cannot be made into a message as it is: correct the configuration "
			     "or the row" },
		{ "REFUSED", "The broker closed the channel over it: see that its exchange exists "
			     "and that the account may write to it" },
		{ "CONFIRM_TIMEOUT", "The broker did not confirm it in time while it confirmed "
				     "others: look at the queues it goes to" },
		{ "LEASE_EXPIRED", "Relays died holding it: look at their logs and for crashes" },
	};

	for (size_t i = 0; i < ARRAY_LEN(known); i++)
		if (strcmp(class, known[i].class) == 0)
			return known[i].what;
	return "Mend the cause";
}

static void next_dead(struct explain *x, const struct admin_row *row, bool overtaken)
{
	char class[CLASS_MAX];

	error_class(row->last_error, class);
	next(x, "%s; then: ", remedy(class));
	next_command(x, overtaken ? "requeue --force" : "requeue", row->event_id);
	next(x, ". Or give it up: ");
	next_command(x, "skip --reason TEXT", row->event_id);
	next(x, ".");
}

static void explain_dead(struct explain *x)
{
	const struct admin_row *row = &x->row;

	if (admin_is_skipped(row)) {
		why(x,
			"An operator let its aggregate move on without it (%s): it will not be "
			"sent "
			"and holds nobody up",
			words(row->last_error));
		next(x, "If it is to be sent after all: ");
		next_command(x, x->overtaken ? "requeue --force" : "requeue", row->event_id);
		next(x, ".");
		return;
	}
	why(x, "It was given up after %u charged attempt%s: %s", row->retry_count,
		row->retry_count == 1 ? "" : "s", words(row->last_error));
	if (x->overtaken)
		why(x, "; later events of its aggregate are sent already");
	else if (x->source->ordering == ORDERING_AGGREGATE && x->source->on_dead == ON_DEAD_BLOCK)
		why(x, "; later events of %s/%s wait for it", row->aggregate_type,
			row->aggregate_id);
	next_dead(x, row, x->overtaken);
}

/* --- no state of ours ----------------------------------------------------------------------- */

static void say_unknown(struct explain *x, const struct admin_row *row)
{
	static const char *const states[] = { "PENDING", "PROCESSING", "SENT", "RETRY", "DEAD" };

	for (size_t i = 0; i < ARRAY_LEN(states); i++)
		if (strcasecmp(row->status, states[i]) == 0) {
			why(x,
				", which is not %s to a column that tells capitals apart: no relay "
				"claims it",
				states[i]);
			return;
		}
	why(x, ", which no relay looks at");
}

/* --- a lease without end -------------------------------------------------------------------- */

/* Where locked_until has no fractions it is rounded up. */
#define ROUNDED_US US_PER_SEC

/* True: no relay writes such a lease, and none takes the row over before it ends. */
static bool is_far_lease(struct explain *x, const struct admin_row *row)
{
	char age[AGE_MAX];

	if (!admin_is_leased(row) || row->lease_left_us <= x->source->lease_us + ROUNDED_US)
		return false;
	age_text(x->source->lease_us, age);
	why(x,
		", until %s UTC: no relay writes such a lease by this configuration, in which it "
		"is %s",
		row->locked_until, age);
	next(x,
		"If no relay of that name runs, this ends the lease: UPDATE %s SET "
		"locked_until=NULL WHERE id=",
		x->admin.table.name);
	sql_add_id(&x->next, &x->admin.table, row->id);
	next(x, " AND status='PROCESSING'; a relay then takes it over and sends it, perhaps "
		"again.");
	return true;
}

/* --- behind another one --------------------------------------------------------------------- */

static void explain_behind(struct explain *x)
{
	const struct admin_row *head = &x->head;
	char age[AGE_MAX];

	why(x, "It waits for an earlier event of its aggregate %s/%s, %s", x->row.aggregate_type,
		x->row.aggregate_id, head->event_id);
	if (x->between > 1)
		why(x, " (%llu unsent ones are before it in all)", (unsigned long long)x->between);
	if (is(head, "DEAD")) {
		why(x, ", which is DEAD: %s", words(head->last_error));
		next_dead(x, head, false);
	} else if (is(head, "RETRY")) {
		age_text(head->due_in_us > 0 ? head->due_in_us : 0, age);
		why(x, ", whose attempt %u of %u comes in %s after: %s", head->retry_count + 1,
			x->source->retry.max_attempts, age, words(head->last_error));
		if (is_locked(x, "that one"))
			return;
		next(x, "It goes once that one is sent. If its cause is mended, at once: ");
		next_command(x, "requeue --status RETRY", head->event_id);
		next(x, ".");
	} else if (is(head, "PROCESSING")) {
		age_text(head->lease_left_us > 0 ? head->lease_left_us : 0, age);
		if (admin_is_leased(head))
			why(x, ", which %s holds, for %s unless it renews the lease", head->owner,
				age);
		else
			why(x, ", whose relay %s lost it: its lease is over",
				head->has_owner ? head->owner : "(none)");
		if (is_far_lease(x, head))
			return;
		next(x, "It goes once that one is sent; nothing needs to be done while a relay "
			"runs.");
	} else if (!is(head, "PENDING")) {
		why(x, ", whose status is %s", head->status);
		say_unknown(x, head);
		next(x, "Set status of that one to PENDING, and next_retry_at, locked_by and "
			"locked_until to NULL.");
	} else {
		why(x, ", which is %s and to be sent first", head->status);
		if (is_locked(x, "that one"))
			return;
		say_who_leads(x);
		next_claim(x);
	}
}

/* --- the other states ----------------------------------------------------------------------- */

static void explain_pending(struct explain *x)
{
	const struct admin_row *row = &x->row;
	char age[AGE_MAX];

	if (x->head.id != 0) {
		explain_behind(x);
		return;
	}
	if (row->next_retry_at[0] != '\0' && row->due_in_us > 0) {
		age_text(row->due_in_us, age);
		if (is_waiting(row)) {
			why(x,
				"It was held behind an earlier event of its aggregate which has "
				"gone "
				"its way (%s), and comes back in %s",
				row->last_error, age);
			next(x,
				"A relay that leads releases it sooner, as soon as it has sent an "
				"event of that aggregate; otherwise it comes back by itself at "
				"%s UTC.",
				row->next_retry_at);
		} else {
			why(x, "It is not to be sent before %s UTC, in %s", row->next_retry_at,
				age);
			next(x, "It goes by itself then.");
		}
		return;
	}
	if (row->next_retry_at[0] != '\0') {
		age_text(-row->due_in_us, age);
		why(x, "It can be claimed since %s", age);
	} else {
		why(x, "It has not been claimed yet; %llu%s event%s %s claimed before it",
			(unsigned long long)x->backlog, x->backlog >= ADMIN_BACKLOG_MAX ? "+" : "",
			x->backlog == 1 ? "" : "s", x->backlog == 1 ? "is" : "are");
	}
	if (is_locked(x, "it"))
		return;
	say_who_leads(x);
	next_claim(x);
}

static void explain_retry(struct explain *x)
{
	const struct admin_row *row = &x->row;
	char age[AGE_MAX];

	if (x->head.id != 0) {
		explain_behind(x);
		return;
	}
	age_text(row->due_in_us < 0 ? -row->due_in_us : row->due_in_us, age);
	why(x, "%u of %u attempts failed, the last one so: %s", row->retry_count,
		x->source->retry.max_attempts, words(row->last_error));
	if (row->next_retry_at[0] != '\0' && row->due_in_us > 0) {
		why(x, "; the next one is due in %s", age);
		next(x,
			"It goes again by itself at %s UTC. If the cause is mended, at once and "
			"with a fresh budget: ",
			row->next_retry_at);
		next_command(x, "requeue --status RETRY", row->event_id);
		next(x, ".");
		return;
	}
	if (row->next_retry_at[0] != '\0')
		why(x, "; the next one is due since %s", age);
	else
		why(x, "; the next one is due");
	if (is_locked(x, "it"))
		return;
	say_who_leads(x);
	next_claim(x);
}

static void explain_processing(struct explain *x)
{
	const struct admin_row *row = &x->row;
	char age[AGE_MAX];

	age_text(row->lease_left_us < 0 ? -row->lease_left_us : row->lease_left_us, age);
	if (admin_is_leased(row)) {
		why(x, "%s has claimed it and holds it for another %s", row->owner, age);
		if (is_far_lease(x, row))
			return;
		why(x, ": it is being sent, or waits for the broker's confirm");
		next(x,
			"Nothing needs to be done: if that relay is gone, another one takes it "
			"over at %s UTC.",
			row->locked_until);
		return;
	}
	if (!row->has_owner || row->locked_until[0] == '\0')
		why(x, "It is PROCESSING without owner or lease, so somebody wrote it half or by "
		       "hand; a relay takes it over");
	else
		why(x,
			"%s had claimed it and vanished: its lease is over since %s, and it may "
			"have "
			"been sent",
			row->owner, age);
	say_who_leads(x);
	if (x->source->ordering == ORDERING_AGGREGATE && x->leader.connection == 0)
		next(x, "Start outboxd: a relay takes it over and sends it again.");
	else
		next(x, "A running relay takes it over within moments and sends it again.");
}

static void explain_unknown(struct explain *x)
{
	why(x, "Its status is %s", x->row.status);
	say_unknown(x, &x->row);
	next(x, "Whoever wrote it has to set status to PENDING, and next_retry_at, locked_by and "
		"locked_until to NULL.");
}

static void explain_row(struct explain *x)
{
	const struct admin_row *row = &x->row;

	if (is(row, "SENT")) {
		why(x, "The broker confirmed it; it is SENT since %s UTC",
			row->sent_at[0] != '\0' ? row->sent_at : "a time that was not kept");
		next(x, "Nothing needs to be done.");
	} else if (is(row, "DEAD")) {
		explain_dead(x);
	} else if (is(row, "PENDING")) {
		explain_pending(x);
	} else if (is(row, "RETRY")) {
		explain_retry(x);
	} else if (is(row, "PROCESSING")) {
		explain_processing(x);
	} else {
		explain_unknown(x);
	}
}

/* Nothing but a lock keeps a relay from it. */
static bool is_claimable(const struct admin_row *row)
{
	return row->id != 0 && (is(row, "PENDING") || is(row, "RETRY")) &&
	       (row->next_retry_at[0] == '\0' || row->due_in_us <= 0);
}

/* --- looking -------------------------------------------------------------------------------- */

static int look(struct explain *x, const char *event_id, struct err *e)
{
	struct admin *a = &x->admin;
	const struct admin_row *row = &x->row;
	const struct admin_row *first; /* to be claimed */
	bool unsent;

	admin_row_fini(&x->row);
	admin_row_fini(&x->head);
	x->backlog = 0;
	x->overtaken = x->locked = false;
	if (admin_find(a, event_id, &x->row, e) < 0)
		return -1;
	unsent = row->id != 0 && (is(row, "PENDING") || is(row, "RETRY"));
	if (unsent && admin_head(a, row, &x->head, &x->between, e) < 0)
		return -1;
	first = x->head.id != 0 ? &x->head : row;
	if (is_claimable(first) && admin_locked(a, first->id, &x->locked, e) < 0)
		return -1;
	if (is(row, "PENDING") && row->next_retry_at[0] == '\0' &&
		admin_backlog(a, row, &x->backlog, e) < 0)
		return -1;
	if (is(row, "DEAD") && admin_overtaken(a, row, &x->overtaken, e) < 0)
		return -1;
	return x->source->ordering == ORDERING_AGGREGATE ? admin_leader(a, &x->leader, e) : 0;
}

/* True: it stands as it did. */
static bool stands(struct explain *x, const char *event_id)
{
	struct admin_row again = { 0 };
	struct err e;
	bool same;

	if (admin_find(&x->admin, event_id, &again, &e) < 0)
		return true; /* what is known is all there is */
	same = again.id == x->row.id && strcmp(again.status, x->row.status) == 0 &&
	       strcmp(again.owner, x->row.owner) == 0 && again.retry_count == x->row.retry_count;
	admin_row_fini(&again);
	return same;
}

static void print(struct explain *x, const char *event_id, bool json, bool moved)
{
	const struct admin_row *row = &x->row;
	struct buf b = { 0 };

	if (moved)
		why(x, " (it moved while it was looked at: this may be over already)");
	buf_addc(&x->reason, '.');
	if (json) {
		buf_addc(&b, '{');
		out_pair(&b, "event_id", event_id);
		out_pair(&b, "source", x->source->name);
		out_pair(&b, "status", row->status);
		out_name(&b, "reason");
		out_text(&b, buf_slice(&x->reason));
		out_name(&b, "next");
		out_text(&b, buf_slice(&x->next));
		out_pair(&b, "aggregate_type", row->aggregate_type);
		out_pair(&b, "aggregate_id", row->aggregate_id);
		out_pair(&b, "behind", x->head.event_id);
		out_pair(&b, "last_error", row->last_error);
		buf_addc(&b, '}');
		(void)out_print(&b);
		return;
	}
	buf_addf(&b, "%s  %s  ", event_id, row->status);
	add_clean(&b, slice_str(row->aggregate_type));
	buf_addc(&b, '/');
	add_clean(&b, slice_str(row->aggregate_id));
	buf_addf(&b, "  created %s UTC\n", row->created_at);
	add_clean(&b, buf_slice(&x->reason));
	buf_adds(&b, "\nNext: ");
	add_clean(&b, buf_slice(&x->next));
	buf_addc(&b, '\n');
	fputs(b.failed ? "out of memory\n" : b.data, stdout);
	buf_fini(&b);
}

static int explain(struct explain *x, const char *event_id, bool json)
{
	bool moved = true;
	struct err e = { 0 };

	if (admin_open(&x->admin, x->source, NULL, 0, "outboxd explain", &e) < 0)
		return admin_failed("explain", &e);
	for (unsigned i = 0; i < LOOKS && moved; i++) {
		if (look(x, event_id, &e) < 0)
			return admin_failed("explain", &e);
		if (x->row.id == 0) {
			fprintf(stderr, "outboxd explain: source %s has no event %s\n",
				x->source->name, event_id);
			return EXIT_FAILED;
		}
		moved = !stands(x, event_id);
	}
	explain_row(x);
	print(x, event_id, json, moved);
	return EXIT_DONE;
}

int cmd_explain(int argc, char **argv)
{
	struct explain x = { 0 };
	const struct option_spec own[] = { { 0 } };
	struct common common = { 0 };
	struct config *conf;
	int rest, rc = parse_options("explain", help, argc, argv, &common, own, &rest);

	if (rc >= 0)
		return rc;
	if (argc - rest != 1)
		return usage_error("explain", "one EVENT_ID is wanted");
	rc = admin_begin("explain", &common, &conf);
	if (rc >= 0)
		return rc;
	x.conf = conf;
	x.source = admin_source("explain", conf, &common);
	rc = x.source != NULL ? explain(&x, argv[rest], common.json) : EXIT_USAGE;
	admin_row_fini(&x.row);
	admin_row_fini(&x.head);
	admin_close(&x.admin);
	buf_fini(&x.reason);
	buf_fini(&x.next);
	admin_end(conf);
	return rc;
}

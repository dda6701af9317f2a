#include "admin.h"

#include "amqp/publisher.h"
#include "base/rng.h"
#include "base/str.h"
#include "mysql/statements.h"
#include "relay/resend.h"
#include "sys/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static const char help[] =
	"usage: outboxd replay [-c FILE] [--source NAME] [--archive] [--force] [--max-age AGE] "
	"[--rate N]\n"
	"                      [--reason TEXT] [--dry-run] [--json]\n"
	"                      EVENT_ID... | [--since TIME] [--until TIME] [--type TYPE]\n"
	"                      [--aggregate TYPE/ID] [--after-id ID]\n\n"
	"Publishes sent events once more, from this command itself, with the header "
	"x-outboxd-replay: true and the same\n"
	"message_id. The table is not changed. In the order (created_at, id); an event of an "
	"aggregate goes when the one\n"
	"before it is confirmed. What fails is named, not tried again; with ordering: aggregate "
	"nothing follows it in its\n"
	"aggregate. Leaves a line in syslog.\n\n"
	"  -c, --config FILE         default: " DEFAULT_CONFIG "\n"
	"      --source NAME         which source; may be left out where there is only one\n"
	"      --since TIME          sent at that time or later: 2026-01-02T03:04:05Z\n"
	"      --until TIME          sent before that time\n"
	"      --type TYPE           of this event type\n"
	"      --aggregate TYPE/ID   of this aggregate\n"
	"      --archive             from the archive table instead\n"
	"      --max-age AGE         what was sent longer ago is refused; default: 7d\n"
	"      --force               whatever its age\n"
	"      --rate N              at most so many a second\n"
	"      --after-id ID         goes on behind the row with this id\n"
	"      --reason TEXT         why; for the line in syslog\n"
	"      --dry-run             sends nothing, says what would be sent\n"
	"      --json\n"
	"  -h, --help\n";

#define PAGE 1000     /* rows looked at by one statement */
#define CHUNK 100     /* rows read by one statement */
#define SAY_MAX 20    /* failures told one by one; --json has them all */
#define IDS_SHOWN 100 /* of the missing events, in --json */

/* Between two lines about progress where standard error is no terminal. */
#define FILE_PROGRESS_US (10 * US_PER_SEC)

/* A row from when it was chosen until it and all before it are done. */
struct chosen {
	uint64_t id;
	enum { CHOSEN_OPEN, CHOSEN_DONE, CHOSEN_FAILED } state;
};

struct replay {
	struct common common;
	const char *since, *until, *aggregate, *max_age, *after_id, *reason;
	bool archive, force, dry_run;
	unsigned rate;
	char **ids;
	uint64_t *rows; /* of ids; 0: there is none */
	unsigned id_count;

	struct sent_filter filter;
	int64_t max_age_us;
	struct sent_walk walk;
	struct sent_key *page; /* PAGE of them; of named events all */
	size_t at, count;
	size_t largest; /* payload of a row so far */

	struct admin admin;
	struct publisher *publisher;
	struct resend *resend;
	/* --dry-run */
	struct route *route;
	struct envelope_arena arena;

	struct chosen *chosen;
	size_t chosen_at, chosen_count, chosen_cap;
	uint64_t after; /* where to go on; 0: at the beginning */

	double tokens;
	int64_t tokens_us, progress_us;
	bool progress_told;

	uint64_t matched, changed, unknown, wrong_state, too_old, no_age, gone, failed, missing;
	struct buf event_ids, failures, missing_ids; /* JSON */
	struct buf some;                             /* the first few, for the audit */
};

static volatile sig_atomic_t interrupted;

static void on_signal(int sig)
{
	(void)sig;
	interrupted++;
}

/* --- what is done --------------------------------------------------------------------------- */

static int add_place(struct replay *r, uint64_t id, int state, struct err *e)
{
	if (r->chosen_at > 0 && r->chosen_at == r->chosen_count)
		r->chosen_at = r->chosen_count = 0;
	if (r->chosen_count == r->chosen_cap && r->chosen_at >= r->chosen_cap / 2 &&
		r->chosen_at > 0) {
		r->chosen_count -= r->chosen_at;
		memmove(r->chosen, r->chosen + r->chosen_at, r->chosen_count * sizeof(*r->chosen));
		r->chosen_at = 0;
	}
	if (r->chosen_count == r->chosen_cap) {
		size_t cap = r->chosen_cap * 2 + 256;
		struct chosen *more = realloc(r->chosen, cap * sizeof(*more));

		if (more == NULL)
			return err_set(e, ERR_NOMEM, errno, "out of memory");
		r->chosen = more;
		r->chosen_cap = cap;
	}
	r->chosen[r->chosen_count].id = id;
	r->chosen[r->chosen_count++].state = state;
	return 0;
}

/* The place to resume from moves on behind what is done; what failed was named, and is passed once
 * something behind it is done. */
static void settle_place(struct replay *r, uint64_t id, int state)
{
	for (size_t i = r->chosen_at; i < r->chosen_count; i++)
		if (r->chosen[i].id == id && r->chosen[i].state == CHOSEN_OPEN) {
			r->chosen[i].state = state;
			break;
		}
	for (; r->chosen_at < r->chosen_count && r->chosen[r->chosen_at].state != CHOSEN_OPEN;
		r->chosen_at++)
		if (r->chosen[r->chosen_at].state == CHOSEN_DONE)
			r->after = r->chosen[r->chosen_at].id;
}

static void count_changed(struct replay *r, struct slice event_id)
{
	r->changed++;
	if (r->common.json) {
		out_next(&r->event_ids);
		out_text(&r->event_ids, event_id);
	}
	if (r->changed <= 10) {
		buf_adds(&r->some, r->changed > 1 ? "," : "");
		buf_add_slice(&r->some, event_id);
	} else if (r->changed == 11) {
		buf_adds(&r->some, ",...");
	}
}

static void count_failed(struct replay *r, struct slice event_id, const char *why)
{
	struct buf line = { 0 };

	r->failed++;
	if (r->common.json) {
		out_next(&r->failures);
		buf_addc(&r->failures, '{');
		out_name(&r->failures, "event_id");
		out_text(&r->failures, event_id);
		out_pair(&r->failures, "reason", why);
		buf_addc(&r->failures, '}');
	}
	if (r->failed > SAY_MAX)
		return;
	add_clean(&line, event_id);
	buf_adds(&line, ": ");
	add_clean(&line, slice_str(why));
	buf_addc(&line, '\0');
	fprintf(stderr, "outboxd replay: %s\n", line.failed ? "out of memory" : line.data);
	if (r->failed == SAY_MAX)
		fputs("outboxd replay: further failures are counted only; --json has them all\n",
			stderr);
	buf_fini(&line);
}

/* Of named events only: there was none, or it went before its turn came. */
static void count_missing(struct replay *r, const char *event_id, const char *why)
{
	if (r->missing++ < IDS_SHOWN) {
		out_next(&r->missing_ids);
		out_text(&r->missing_ids, slice_str(event_id));
	}
	if (r->missing <= SAY_MAX)
		fprintf(stderr, "outboxd replay: %s: %s\n", event_id, why);
	if (r->missing == SAY_MAX)
		fputs("outboxd replay: further missing events are not named; --json has the first "
		      "100\n",
			stderr);
}

static void on_done(void *arg, uint64_t id, struct slice event_id, const char *failure)
{
	struct replay *r = arg;

	if (failure == NULL)
		count_changed(r, event_id);
	else
		count_failed(r, event_id, failure);
	settle_place(r, id, failure == NULL ? CHOSEN_DONE : CHOSEN_FAILED);
}

/* What the command line calls this row; NULL: it names none. */
static const char *name_of(const struct replay *r, uint64_t row)
{
	for (unsigned i = 0; i < r->id_count; i++)
		if (r->rows[i] == row)
			return r->ids[i];
	return NULL;
}

/* Retention may be at work meanwhile. It is no place to go on from: nobody would find it. */
static void count_gone(struct replay *r, uint64_t row)
{
	const char *event_id = name_of(r, row);

	r->gone++;
	if (event_id != NULL)
		count_missing(r, event_id, "it is not there any more");
	settle_place(r, row, CHOSEN_FAILED);
}

/* --- what is chosen ------------------------------------------------------------------------- */

static int by_place(const void *a, const void *b)
{
	const struct sent_key *x = a, *y = b;

	if (x->created_us != y->created_us)
		return x->created_us < y->created_us ? -1 : 1;
	return (x->id > y->id) - (x->id < y->id);
}

static int find_named(struct replay *r, struct err *e)
{
	for (unsigned i = 0; i < r->id_count; i++) {
		struct sent_key *key = &r->page[r->count];

		if (admin_sent_named(&r->admin, r->ids[i], key, e) < 0)
			return -1;
		r->rows[i] = key->id;
		if (key->id == 0) {
			r->unknown++;
			count_missing(r, r->ids[i], "there is no such event");
		} else if (strcasecmp(key->status, "SENT") != 0) {
			r->matched++;
			r->wrong_state++;
			fprintf(stderr, "outboxd replay: %s: it is %s, not sent yet\n", r->ids[i],
				key->status);
		} else {
			r->count++;
		}
	}
	if (r->count > 0)
		qsort(r->page, r->count, sizeof(*r->page), by_place);
	/* one named twice is one */
	for (size_t i = 1; i < r->count;) {
		if (r->page[i].id != r->page[i - 1].id) {
			i++;
			continue;
		}
		memmove(&r->page[i], &r->page[i + 1], (r->count - i - 1) * sizeof(*r->page));
		r->count--;
	}
	r->walk.ended = true;
	return 0;
}

static int begin_walk(struct replay *r, struct err *e)
{
	struct sent_key key;
	uint64_t id;
	bool strays;

	if (r->after_id != NULL) {
		/* was read once already: it is a number */
		(void)str_to_u64(slice_str(r->after_id), &id);
		if (admin_sent_place(&r->admin, id, &key, e) < 0)
			return -1;
		if (key.id == 0)
			return err_set(e, ERR_REFUSED, 0,
				"--after-id %s: there is no such row (any more): say from when on "
				"with --since",
				r->after_id);
		r->walk = (struct sent_walk){ true, false, key.created_us, key.id };
		r->after = id;
	}
	if (r->filter.aggregate_type.ptr != NULL)
		return 0;
	if (admin_sent_strays(&r->admin, &strays, e) < 0)
		return -1;
	if (strays)
		fputs("outboxd replay: some rows are SENT and have a next_retry_at, which no relay "
		      "writes: they are passed by, unless named\n",
			stderr);
	return 0;
}

static bool all_chosen(const struct replay *r)
{
	return r->walk.ended && r->at == r->count;
}

/* --- rows into messages --------------------------------------------------------------------- */

struct chunk {
	struct replay *r;
	const struct sent_key *keys;
	size_t count;
	char *event_id[CHUNK], *failure[CHUNK]; /* --dry-run; owned */
	bool seen[CHUNK];
};

static int try_row(
	struct replay *r, struct chunk *c, size_t i, const struct row *row, struct err *e)
{
	struct envelope env;
	struct err why;

	c->event_id[i] =
		strndup(row->event_id.ptr != NULL ? row->event_id.ptr : "", row->event_id.len);
	if (c->event_id[i] == NULL)
		return err_set(e, ERR_NOMEM, errno, "out of memory");
	if (envelope_build(&env, &r->arena, r->route, row, &why) == 0)
		return 0;
	if (why.kind != ERR_REFUSED) {
		*e = why;
		return -1;
	}
	c->failure[i] = strdup(why.text);
	return c->failure[i] != NULL ? 0 : err_set(e, ERR_NOMEM, errno, "out of memory");
}

static int on_row(void *arg, const struct row *row, struct err *e)
{
	struct chunk *c = arg;
	struct replay *r = c->r;

	for (size_t i = 0; i < c->count; i++) {
		if (c->keys[i].id != row->id || c->seen[i])
			continue;
		c->seen[i] = true;
		if (row->payload.len > r->largest)
			r->largest = row->payload.len;
		return r->dry_run ? try_row(r, c, i, row, e) : resend_add(r->resend, row, e);
	}
	return 0;
}

static void chunk_done(struct replay *r, struct chunk *c)
{
	for (size_t i = 0; i < c->count; i++) {
		if (!c->seen[i]) {
			count_gone(r, c->keys[i].id);
		} else if (r->dry_run) {
			on_done(r, c->keys[i].id, slice_str(c->event_id[i]), c->failure[i]);
		}
		free(c->event_id[i]);
		free(c->failure[i]);
	}
}

static bool is_refused(struct replay *r, const struct sent_key *key)
{
	const char *event_id;
	bool unknown;

	if (r->force || key->age_us <= r->max_age_us)
		return false;
	event_id = name_of(r, key->id);
	unknown = key->age_us == INT64_MAX;
	*(unknown ? &r->no_age : &r->too_old) += 1;
	if (event_id != NULL)
		fprintf(stderr, "outboxd replay: %s: %s\n", event_id,
			unknown ? "it has no sent_at, so that nobody knows how long ago it was "
				  "sent: see --force"
				: "it was sent too long ago: see --max-age and --force");
	return true;
}

/* The next rows of the page into the window, at most `room`. */
static int take_rows(struct replay *r, size_t room, struct err *e)
{
	struct sent_key keys[CHUNK];
	struct chunk c = { .r = r, .keys = keys };
	int rc;

	while (c.count < room && c.count < CHUNK && r->at < r->count) {
		const struct sent_key *key = &r->page[r->at];
		bool refused = is_refused(r, key);

		if (add_place(r, key->id, CHOSEN_OPEN, e) < 0)
			return -1;
		r->at++;
		r->matched++;
		if (refused)
			settle_place(r, key->id, CHOSEN_DONE);
		else
			keys[c.count++] = *key;
	}
	if (c.count == 0)
		return 0;
	rc = admin_sent_rows(&r->admin, keys, c.count, on_row, &c, e);
	if (rc == 0)
		chunk_done(r, &c);
	return rc;
}

static size_t allowed(struct replay *r, int64_t now_us)
{
	size_t room = r->dry_run ? CHUNK : resend_room(r->resend);
	uint64_t bytes = r->admin.conf->max_in_flight_bytes;

	if (r->largest > 0 && room > bytes / r->largest)
		room = bytes / r->largest > 0 ? (size_t)(bytes / r->largest) : room > 0;
	if (r->rate == 0 || r->dry_run)
		return room;
	if (r->tokens_us == 0)
		r->tokens = 1;
	else
		r->tokens += (double)(now_us - r->tokens_us) * r->rate / US_PER_SEC;
	r->tokens_us = now_us;
	/* what was missed while the broker was busy is not made up for at once */
	if (r->tokens > 1 + r->rate / 10.0)
		r->tokens = 1 + r->rate / 10.0;
	return room < (size_t)r->tokens ? room : (size_t)r->tokens;
}

/* Fills the window, a statement or two at a time. */
static int feed(struct replay *r, int64_t now_us, struct err *e)
{
	size_t room = allowed(r, now_us);
	uint64_t before = r->matched - r->too_old - r->no_age;

	if (room == 0 || all_chosen(r))
		return 0;
	if (r->at == r->count) {
		r->at = r->count = 0;
		return admin_sent_page(
			&r->admin, &r->filter, &r->walk, r->page, PAGE, &r->count, e);
	}
	if (take_rows(r, room, e) < 0)
		return -1;
	r->tokens -= (double)(r->matched - r->too_old - r->no_age - before);
	return 0;
}

/* --- the loop ------------------------------------------------------------------------------- */

/* A file gets a line now and then too: of a replay that is killed it is all there is to go on by.
 */
static bool progress_is_due(const struct replay *r, int64_t now_us)
{
	if (isatty(STDERR_FILENO))
		return now_us - r->progress_us >= US_PER_SEC;
	return !r->dry_run && r->changed > 0 &&
	       now_us - r->progress_us >= (r->progress_told ? FILE_PROGRESS_US : US_PER_SEC);
}

static void show_progress(struct replay *r, int64_t now_us)
{
	const char *blocked = r->resend != NULL ? resend_blocked(r->resend) : NULL;

	if (r->progress_us == 0)
		r->progress_us = now_us;
	if (!progress_is_due(r, now_us))
		return;
	r->progress_us = now_us;
	r->progress_told = true;
	fprintf(stderr, "outboxd replay: %" PRIu64 " of %" PRIu64 " confirmed", r->changed,
		r->matched);
	if (r->after != 0)
		fprintf(stderr, ", up to row %" PRIu64, r->after);
	if (r->failed > 0)
		fprintf(stderr, ", %" PRIu64 " failed", r->failed);
	fprintf(stderr, "%s%s\n", blocked != NULL ? "; the broker is blocked: " : "",
		blocked != NULL ? blocked : "");
}

static void wait_for(struct replay *r, int64_t now_us, int64_t next_us)
{
	struct pollfd p = { .fd = r->publisher->ops->fd(r->publisher), .events = POLLIN };
	int64_t wait_us = next_us - now_us;

	if (r->publisher->ops->wants_write(r->publisher))
		p.events |= POLLOUT;
	if (!all_chosen(r) && !interrupted && resend_room(r->resend) > 0) {
		/* for the next row; or, with the page at hand, not at all */
		int64_t row_us =
			r->rate > 0 ? (int64_t)((1 - r->tokens) * US_PER_SEC / r->rate) : 0;

		if (row_us < wait_us)
			wait_us = row_us;
	}
	if (wait_us > US_PER_SEC)
		wait_us = US_PER_SEC; /* progress */
	if (wait_us > 0 || p.fd < 0)
		(void)poll(&p, 1, wait_us > 0 ? (int)((wait_us + US_PER_MS - 1) / US_PER_MS) : 0);
}

/* Until all is confirmed, or something ends it: -1 with the reason. */
static int send_all(struct replay *r, struct err *e)
{
	struct err db = { 0 };

	for (;;) {
		int64_t now_us = clock_mono_us(), next_us;

		if (interrupted > 1)
			return err_set(e, ERR_REFUSED, 0, "interrupted twice");
		if (interrupted || db.kind != ERR_NONE)
			resend_drop(r->resend);
		else if (feed(r, now_us, &db) < 0)
			continue;
		if (resend_turn(r->resend, clock_mono_us(), &next_us, e) < 0)
			return -1;
		show_progress(r, now_us);
		if (resend_left(r->resend) == 0 &&
			(interrupted || db.kind != ERR_NONE || all_chosen(r)))
			break;
		wait_for(r, clock_mono_us(), next_us);
	}
	if (db.kind != ERR_NONE) {
		*e = db;
		return -1;
	}
	return interrupted ? err_set(e, ERR_REFUSED, 0, "interrupted") : 0;
}

static int try_all(struct replay *r, struct err *e)
{
	while (!all_chosen(r)) {
		if (interrupted)
			return err_set(e, ERR_REFUSED, 0, "interrupted");
		if (feed(r, 0, e) < 0)
			return -1;
		show_progress(r, clock_mono_us());
	}
	return 0;
}

/* --- beginning and end ---------------------------------------------------------------------- */

static int connect_broker(
	struct replay *r, const struct source_conf *source, char *name, size_t size, struct err *e)
{
	const struct resend_conf conf = {
		.source = source,
		.marker = "x-outboxd-replay",
		.seed = rng_os_seed(),
		.done = on_done,
		.arg = r,
	};

	snprintf(name, size, "outboxd replay source %s", source->name);
	if (amqp_global_init(e) < 0 ||
		amqp_publisher_new(&r->publisher, source->broker, name, NULL, e) < 0)
		return -1;
	if (r->publisher->ops->connect(r->publisher, e) < 0)
		return err_wrap(e, "broker %s", source->broker->name);
	return resend_new(&r->resend, &conf, r->publisher, e);
}

static int open_table(struct replay *r, const struct source_conf *source, struct err *e)
{
	const char *table = r->archive ? source->retention.archive_table : source->table;
	const char *const *extra;
	size_t extra_count;

	if (table == NULL)
		return err_set(e, ERR_CONFIG, 0,
			"source %s has no archive: retention.archive_table names it", source->name);
	if (source_make_route(&r->route, source, SIZE_MAX, "x-outboxd-replay", e) < 0)
		return -1;
	extra_count = route_extra_columns(r->route, &extra);
	r->page = calloc(r->id_count > PAGE ? r->id_count : PAGE, sizeof(*r->page));
	r->rows = calloc(r->id_count + 1, sizeof(*r->rows));
	if (r->page == NULL || r->rows == NULL)
		return err_set(e, ERR_NOMEM, errno, "out of memory");
	if (admin_open_table(&r->admin, source, table, extra, extra_count, "outboxd replay", e) < 0)
		return -1;
	return r->id_count > 0 ? find_named(r, e) : begin_walk(r, e);
}

static void add_filter(const struct replay *r, struct buf *b)
{
	const char *const parts[][2] = { { "since", r->since }, { "until", r->until },
		{ "type", r->filter.event_type }, { "aggregate", r->aggregate },
		{ "after_id", r->after_id } };

	for (size_t i = 0; i < ARRAY_LEN(parts); i++)
		if (parts[i][1] != NULL)
			buf_addf(b, " %s=%s", parts[i][0], parts[i][1]);
}

static void audit(const struct replay *r, const struct source_conf *source, uint64_t unconfirmed,
	const char *trouble)
{
	struct buf detail = { 0 };

	buf_addf(&detail,
		"matched=%" PRIu64 " failed=%" PRIu64 " gone=%" PRIu64 " unconfirmed=%" PRIu64
		" archive=%s force=%s",
		r->matched, r->failed, r->gone, unconfirmed, r->archive ? "yes" : "no",
		r->force ? "yes" : "no");
	add_filter(r, &detail);
	buf_addf(&detail, " event_ids=%s", r->some.data != NULL ? r->some.data : "");
	if (trouble != NULL)
		buf_addf(&detail, " trouble=\"%s\"", trouble);
	admin_audit("replay", source->name, r->changed, r->reason, detail.data);
	buf_fini(&detail);
}

static void report_json(const struct replay *r, const struct source_conf *source,
	uint64_t unconfirmed, const struct err *trouble)
{
	struct buf b = { 0 };

	buf_addc(&b, '{');
	out_pair(&b, "source", source->name);
	out_count(&b, "matched", r->matched);
	out_count(&b, "changed", r->dry_run ? 0 : r->changed);
	out_name(&b, "dry_run");
	buf_adds(&b, r->dry_run ? "true" : "false");
	out_name(&b, "event_ids");
	buf_addc(&b, '[');
	buf_add_slice(&b, buf_slice(&r->event_ids));
	buf_addc(&b, ']');
	out_count(&b, "refused", r->too_old + r->no_age + r->wrong_state);
	out_name(&b, "failed");
	buf_addc(&b, '[');
	buf_add_slice(&b, buf_slice(&r->failures));
	buf_addc(&b, ']');
	out_count(&b, "gone", r->gone);
	out_name(&b, "missing");
	buf_addc(&b, '[');
	buf_add_slice(&b, buf_slice(&r->missing_ids));
	buf_addc(&b, ']');
	out_count(&b, "unconfirmed", unconfirmed);
	out_name(&b, "after_id");
	if (r->after != 0)
		buf_addf(&b, "%" PRIu64, r->after);
	else
		buf_adds(&b, "null");
	out_pair(&b, "error", trouble->kind != ERR_NONE ? trouble->text : NULL);
	buf_addc(&b, '}');
	b.failed |= r->event_ids.failed || r->failures.failed || r->missing_ids.failed;
	(void)out_print(&b);
}

static void report_text(const struct replay *r)
{
	printf("%" PRIu64 " of %" PRIu64 " events %s", r->changed, r->matched,
		r->dry_run ? "would be replayed" : "replayed");
	if (r->failed > 0)
		printf(", %" PRIu64 " failed", r->failed);
	if (r->too_old > 0)
		printf(", %" PRIu64 " refused: sent longer ago than --max-age, see --force",
			r->too_old);
	if (r->no_age > 0)
		printf(", %" PRIu64 " refused: without sent_at nobody knows how long ago they were "
		       "sent, see --force",
			r->no_age);
	if (r->gone > 0)
		printf(", %" PRIu64 " not there any more", r->gone);
	putchar('\n');
}

static void say_where_to_go_on(const struct replay *r, uint64_t unconfirmed)
{
	if (unconfirmed > 0)
		fprintf(stderr,
			"outboxd replay: %" PRIu64 " more were sent and not confirmed: nobody "
			"knows whether they arrived\n",
			unconfirmed);
	if (r->id_count > 0)
		return;
	if (r->after != 0)
		fprintf(stderr, "outboxd replay: to go on, repeat it with --after-id %" PRIu64 "\n",
			r->after);
	else
		fputs("outboxd replay: to go on, repeat it from the beginning\n", stderr);
}

static int replay(struct replay *r, const struct source_conf *source)
{
	struct err e = { 0 };
	uint64_t unconfirmed = 0;
	char name[160];
	int rc = open_table(r, source, &e);
	bool begun = rc == 0;

	if (rc == 0 && !r->dry_run && !all_chosen(r))
		rc = connect_broker(r, source, name, sizeof(name), &e);
	if (rc == 0 && r->dry_run)
		rc = try_all(r, &e);
	else if (rc == 0 && r->resend != NULL)
		rc = send_all(r, &e);
	if (r->resend != NULL)
		unconfirmed = resend_unconfirmed(r->resend);
	if (!r->dry_run && (r->changed > 0 || r->failed > 0 || unconfirmed > 0))
		audit(r, source, unconfirmed, rc < 0 ? e.text : NULL);
	if (r->common.json)
		report_json(r, source, unconfirmed, &e);
	else if (begun)
		report_text(r);
	if (!begun)
		return admin_failed("replay", &e);
	if (rc < 0) {
		(void)admin_failed("replay", &e);
		say_where_to_go_on(r, unconfirmed);
		return EXIT_FAILED;
	}
	return r->failed + r->too_old + r->no_age + r->wrong_state + r->unknown + r->gone > 0
		       ? EXIT_FAILED
		       : EXIT_DONE;
}

static void finish(struct replay *r)
{
	resend_free(r->resend);
	if (r->publisher != NULL) {
		r->publisher->ops->close(r->publisher);
		r->publisher->ops->free(r->publisher);
	}
	admin_close(&r->admin);
	route_free(r->route);
	envelope_arena_fini(&r->arena);
	free(r->page);
	free(r->rows);
	free(r->chosen);
	buf_fini(&r->event_ids);
	buf_fini(&r->failures);
	buf_fini(&r->missing_ids);
	buf_fini(&r->some);
}

/* --- options -------------------------------------------------------------------------------- */

static int read_time(const char *option, const char *text, int64_t *out)
{
	if (text != NULL && !str_to_time_us(slice_str(text), out))
		return usage_error("replay",
			"--%s wants a time such as 2026-01-02T03:04:05Z, not '%s'", option, text);
	return -1;
}

static int check_filter(struct replay *r)
{
	const char *slash;
	int rc = read_time("since", r->since, &r->filter.since_us);

	if (rc < 0)
		rc = read_time("until", r->until, &r->filter.until_us);
	if (rc >= 0)
		return rc;
	if (r->filter.since_us != INT64_MIN && r->filter.since_us >= r->filter.until_us)
		return usage_error("replay", "--since must be before --until");
	if (r->aggregate != NULL) {
		slash = strchr(r->aggregate, '/');
		if (slash == NULL)
			return usage_error(
				"replay", "--aggregate is TYPE/ID, not '%s'", r->aggregate);
		r->filter.aggregate_type =
			(struct slice){ r->aggregate, (size_t)(slash - r->aggregate) };
		r->filter.aggregate_id = slice_str(slash + 1);
	}
	return -1;
}

static int check_options(struct replay *r, int argc, char **argv, int rest)
{
	bool filtered = r->since != NULL || r->until != NULL || r->filter.event_type != NULL ||
			r->aggregate != NULL;
	uint64_t id;

	r->ids = argv + rest;
	r->id_count = (unsigned)(argc - rest);
	if (r->id_count > 0 && (filtered || r->after_id != NULL))
		return usage_error("replay",
			"EVENT_ID... goes without --since, --until, --type, --aggregate and "
			"--after-id");
	if (r->id_count == 0 && !filtered)
		return usage_error("replay",
			"which events? EVENT_ID..., or one of --since, --until, --type and "
			"--aggregate");
	if (r->after_id != NULL && !str_to_u64(slice_str(r->after_id), &id))
		return usage_error(
			"replay", "--after-id wants the id of a row, not '%s'", r->after_id);
	if (!str_to_duration_us(slice_str(r->max_age), &r->max_age_us))
		return usage_error(
			"replay", "--max-age wants a duration such as 7d, not '%s'", r->max_age);
	return check_filter(r);
}

int cmd_replay(int argc, char **argv)
{
	struct replay r = { .max_age = "7d",
		.filter = { .since_us = INT64_MIN, .until_us = INT64_MAX } };
	const struct option_spec own[] = {
		{ "since", OPTION_TEXT, (void *)&r.since },
		{ "until", OPTION_TEXT, (void *)&r.until },
		{ "type", OPTION_TEXT, (void *)&r.filter.event_type },
		{ "aggregate", OPTION_TEXT, (void *)&r.aggregate },
		{ "max-age", OPTION_TEXT, (void *)&r.max_age },
		{ "after-id", OPTION_TEXT, (void *)&r.after_id },
		{ "reason", OPTION_TEXT, (void *)&r.reason },
		{ "rate", OPTION_NUMBER, &r.rate },
		{ "archive", OPTION_FLAG, &r.archive },
		{ "force", OPTION_FLAG, &r.force },
		{ "dry-run", OPTION_FLAG, &r.dry_run },
		{ 0 },
	};
	const struct source_conf *source;
	struct config *conf;
	int rest, rc = parse_options("replay", help, argc, argv, &r.common, own, &rest);

	if (rc < 0)
		rc = check_options(&r, argc, argv, rest);
	if (rc < 0)
		rc = admin_begin("replay", &r.common, &conf);
	if (rc >= 0)
		return rc;
	sigaction(SIGINT, &(struct sigaction){ .sa_handler = on_signal }, NULL);
	sigaction(SIGTERM, &(struct sigaction){ .sa_handler = on_signal }, NULL);
	source = admin_source("replay", conf, &r.common);
	rc = source != NULL ? replay(&r, source) : EXIT_USAGE;
	finish(&r);
	admin_end(conf);
	return rc;
}

/* impl.h: the inside of a relay, shared by the files that make it up:
 *
 *	relay.c    life and turn: connections, circuits, deadlines, when to come back
 *	claim.c    poll, claim, admission; what an ordered source asks before a row goes
 *	publish.c  from ready to in flight; what the broker answers
 *	settle.c   verdicts, writing them back, renewing leases, releasing what waited
 *	beside.c   SENT, written on a second session
 */
#ifndef OUTBOXD_RELAY_IMPL_H
#define OUTBOXD_RELAY_IMPL_H

#include "log/log.h"
#include "relay/circuit.h"
#include "relay/event.h"
#include "relay/failure.h"
#include "relay/order.h"
#include "relay/pacer.h"
#include "relay/relay.h"
#include "relay/scan.h"

/* At most so many ids in one statement: beyond, MySQL's optimizer leaves the primary key. */
#define STATEMENT_IDS 500
/* Once a confirm is overdue, those sent after it have at least so long before their channel starts
 * anew. */
#define OVERDUE_GRACE_US (1 * US_PER_SEC)
/* A verdict waits at most so long for company while other work goes on. */
#define SETTLE_AGE_US (50 * US_PER_MS)
/* So long SENT does, while both sessions are busy. */
#define SETTLE_LATE_US (250 * US_PER_MS)
/* So many messages returned in a row, of at least so many rows, with nothing confirmed between, are
 * an outage of the route. */
#define ROUTE_RETURNS 50
#define ROUTE_ROWS 25
/* Then a few rows at a time probe it, so many times more each time they all come back: it may be
 * only these many that nobody wants, and others wait behind them. */
#define ROUTE_PROBE_GROWTH 4
/* How long a row that probed a broken route, or a broker that confirms nothing, in vain stands
 * back, so that the next probe takes another. */
#define ROUTE_HOLD_US (10 * US_PER_SEC)
/* Verdicts that could not be written are tried again so much later. */
#define LEFT_US (1 * US_PER_SEC)
/* After a second session that did not do what it was for, the first one does everything for so
 * long. */
#define BESIDE_REST_US (30 * US_PER_SEC)
/* After a row was found locked, claims skip such rows for so long. */
#define NOWAIT_REST_US (1 * US_PER_SEC)
/* Bounds of how far ahead rows behind a head are moved out of the scan's way. */
#define HOLD_MIN_US (100 * US_PER_MS)
#define HOLD_MAX_US (300 * US_PER_SEC)
/* Rows behind one that goes again soon stay away for at least so long: they are released when it
 * has gone, and coming back each time it fails costs two writes a row. */
#define HOLD_RETRY_US (10 * US_PER_SEC)

#define WAITING_SIZE 320

/* An aggregate's share of the window is never less than so many rows, or an eighth. */
#define LANE_LEAST 32
/* So many aggregates in the window keep a broker busy. */
#define LANES_ENOUGH 32
/* So many aggregates whose rows are being released are looked at in a turn. */
#define DRAIN_LOOKS 64

/* What there is to gain by not scanning from the start; of ordered sources, what asking about a
 * batch costs is to be gained as well. */
#define SCAN_GAIN_US (3 * US_PER_MS)
#define SCAN_GAIN_ORDERED_US (25 * US_PER_MS)
/* Looks that are slow have this share of the time, and no more; they come at least so often. */
#define LOOK_SHARE 50
#define LOOK_REST_US (10 * US_PER_SEC)

/* Taken over so often in a row, a row is claimed alone. */
#define SUSPECT_TAKEOVERS 2
/* One is taken of so many that are read and locked: there may be others among them. */
#define SUSPECT_CLAIM 8
/* After so long of that the others have their turn, for as long. */
#define SUSPECT_SPELL_US (1 * US_PER_SEC)

/* What repeats is logged once in so long. */
#define LOG_EVERY_US (30 * US_PER_SEC)

#define PROVEN_MAX 256

/* Errors that are told apart in the log. */
#define RELAY_LOGS 4
struct relay_log {
	enum err_kind kind;
	long code;
	struct log_limit limit;
};

struct relay {
	struct relay_conf conf;
	const struct source_conf *source;
	struct store *store;
	struct publisher *publisher;
	struct relay_metrics *metrics;
	struct rng rng;
	int64_t now_us;       /* monotonic, as of the last look at the clock */
	int64_t db_offset_us; /* database clock - monotonic clock */

	struct event_pool pool;
	struct list ready;      /* CLAIMED or UNKNOWN: to be sent */
	struct list quarantine; /* CLAIMED or UNKNOWN: to be sent alone over CHANNEL_QUARANTINE */
	struct list in_flight[CHANNELS]; /* PUBLISHED, in the order sent */
	struct list settling; /* CONFIRMED, FAILED or RELEASED, in the order of verdicts */
	unsigned ready_count; /* in both of `ready` and `quarantine` */
	struct list beside;   /* CONFIRMED: being written on the second session */
	struct list left;     /* as `settling`; could not be written for now, the others were */
	unsigned quarantine_count, out_count[CHANNELS], settling_count, beside_count;
	unsigned first_only_count; /* of those in settling: not for the second session */
	unsigned
		first_count; /* in `settling` or `left`, to be written before anything is claimed */
	unsigned left_count;
	int64_t left_until_us; /* then they are tried again */
	struct log_limit left_log;
	int64_t beside_until_us, beside_rest_us;
	double row_bytes; /* running mean of what a row takes in memory */

	struct order order;
	bool ordered, leads;
	uint64_t skipped[16]; /* hashes of aggregates a row of which somebody else had locked during
				 the claim */
	unsigned skipped_count;
	uint64_t claims; /* made so far */
	bool loading;    /* newly leading: reading what is barred, claims wait */
	bool odd_turn;   /* of the database: what comes first in it */
	/* The latest row, in the order of all, that may have been sent: what is claimed from before
	 * that place may have been overtaken. */
	struct place high;
	/* Rows whose relays died twice in a row are claimed alone, each with an empty window. */
	bool suspects; /* such a row was seen in that class: it is claimed next */
	enum row_class suspect_class;
	int64_t nowait_rest_us; /* until then claims skip rows that others have locked */
	bool solo; /* the window holds one, and takes no other row before it is empty again */
	int64_t suspects_since_us, suspects_rest_us; /* everybody else has their turn until then */
	struct barred_cursor cursor;

	/* database */
	bool db_up;
	struct circuit db;
	struct err db_err;
	struct relay_log db_log[RELAY_LOGS];
	struct pacer pacer;
	struct scan scan;
	unsigned sent_max; /* rows sent, and not yet settled */
	/* whether there may be such rows: RETRY and DUE are asked for only then */
	bool may_exist[ROW_CLASSES];
	int64_t next_due_us; /* when one of those that are delayed falls due, as far as we know */
	unsigned claimed[ROW_CLASSES]; /* by the last claim */
	int64_t first_fresh_us;        /* when it brought the first FRESH one */
	/* Where writes take longer than query_timeout they are halved, so many times. */
	unsigned halvings;
	int64_t look_us;         /* what the last look took */
	int64_t next_expired_us; /* when to look for expired leases again */
	int64_t next_renew_us;   /* when to look for leases to renew again */

	/* broker */
	bool mq_up, blocked;
	bool channel_open[CHANNELS];
	struct circuit mq;
	struct err mq_err;
	struct relay_log mq_log[RELAY_LOGS];
	struct log_limit channel_log;
	int64_t answered_us; /* when the latest message was sent that has an outcome */

	/* route */
	struct route *route;
	struct envelope_arena arena;
	bool exchange_fixed;
	uint64_t proven[PROVEN_MAX]; /* hashes of exchanges a confirm came back from, on this
					connection */
	unsigned proven_count, proven_next;
	struct circuit broken; /* the route */
	bool broken_returns;   /* why: everything comes back; else: the exchange is missing or
				  forbidden */
	unsigned returned_streak, returned_rows;
	uint64_t returned_ids[ROUTE_ROWS];
	unsigned probe_rows; /* while everything comes back: how many the next probe takes */
	struct err route_err;

	bool stopping;
	int64_t stop_us;

	uint64_t published_total, failed_total;

	/* scratch */
	struct list staged; /* rows of a claim whose COMMIT is still to come */
	unsigned staged_count;
	struct settle *settles; /* STATEMENT_IDS of each */
	uint64_t *ids;
	enum lease_fate *leases;
	struct event **events;
	struct order_probe *probes;
	struct buf text;
};

/* Sent, and their outcome still open, on both channels. */
static inline unsigned relay_in_flight(const struct relay *r)
{
	return r->out_count[CHANNEL_FAST] + r->out_count[CHANNEL_QUARANTINE];
}

int64_t relay_clock(struct relay *r); /* reads the clock into r->now_us */

/* So many of `rows` make a write that ends in time. */
static inline unsigned relay_rows(const struct relay *r, unsigned rows)
{
	return rows >> r->halvings > 0 ? rows >> r->halvings : 1;
}

/* relay.c */
/* A write that began at `start_us` has ended, or failed with that error (NULL: it has not). */
void relay_db_took(struct relay *r, int64_t start_us, const struct err *e);
/* While a claim is under way: what the broker and the second session have said, what can be sent,
 * and the next batch of SENT. */
void relay_meanwhile(void *relay);
void relay_db_failed(struct relay *r, const char *what, struct err *e);
void relay_db_worked(struct relay *r);
void relay_mq_down(struct relay *r, const char *what, struct err *e);
void relay_route_failed(struct relay *r, bool returns, const char *text);

/* claim.c */
bool claim_allowed(const struct relay *r);
bool claim_at_once(const struct relay *r);
/* A row is claimable as RETRY, or DUE, once the delay is over. */
void claim_due_after(struct relay *r, int64_t delay_us);
/* Polls if it is time to; false: nothing was done. */
bool claim_turn(struct relay *r);
void claim_admit(struct relay *r, struct event *ev);

/* publish.c */
/* true: call again at once, a verdict may have made way for others. */
bool publish_some(struct relay *r);
void publish_deadlines(struct relay *r);
int64_t publish_next_deadline(const struct relay *r);
void publish_forget(struct relay *r, enum channel ch, bool alone);
/* Moves the event into or out of the count of those that wait to be alone. */
void publish_queued_alone(struct relay *r, struct event *ev, bool queued);
void publish_events(struct relay *r, struct publisher_events *ev);

/* settle.c: verdicts. Each takes an event out of whatever list it is in. */
void verdict_confirmed(struct relay *r, struct event *ev);
void verdict_charged(struct relay *r, struct event *ev, enum failure f, const char *text);
void verdict_dead(struct relay *r, struct event *ev, enum failure f, const char *text);
void verdict_released(struct relay *r, struct event *ev);
void verdict_held(struct relay *r, struct event *ev, int64_t delay_us, const char *text);
void verdict_lost(struct relay *r, struct event *ev);
/* Behind an event of its aggregate that waits already, and is written as waiting soon. */
void verdict_held_too(struct relay *r, struct event *ev);
int64_t hold_behind_retry(const struct relay *r, int64_t delay_us);
unsigned lane_share(const struct relay *r);
/* Hands back every event that was claimed and never sent. */
void release_unsent(struct relay *r);

/* Each does at most one transaction; false: there was nothing to do. */
bool renew_turn(struct relay *r);
bool settle_turn(struct relay *r);
bool drain_turn(struct relay *r);
/* The row is written, or `lost`: found to be another relay's. The event is in no list, and gone. */
void settle_written(struct relay *r, struct event *ev, bool lost);
/* How the row stands is unknown: to be written, if it is not. */
void settle_again(struct relay *r, struct event *ev);
/* So many verdicts are worth a transaction at once. */
unsigned settle_full(const struct relay *r);
/* When settle_turn() would do something by the mere passing of time. */
int64_t settle_next(const struct relay *r);

/* beside.c: under load, batches of SENT are written on a second session while the first one claims.
 * Whatever goes wrong there, settle_turn() does it again. */
/* false: nothing was sent off. */
bool beside_begin(struct relay *r);
void beside_end(struct relay *r);
/* Nothing is known of what is under way. */
void beside_give_up(struct relay *r);

/* A log line about one row, with source, event_id, aggregate and trace_id; `text` may be NULL. */
void log_event(struct relay *r, enum log_level level, const char *message, const struct event *ev,
	const char *class, const char *text);

#endif

/* sim.h: the relay's core in a world of its own: one virtual clock, a table, a broker, up to four
 * relays, and a pair of dice. Nothing here sleeps, forks or opens a socket, and all chance comes
 * from one seed, so that any run can be had again.
 *
 *	producers --> table (database.c) <--> relays (relay_turn) <--> broker (broker.c)
 *	                     \__________ oracle.c watches every write and arrival ________/
 *
 * Each relay runs on a stack of its own: a call into the database or the broker gives way to the
 * rest of the world for as long as it takes, so that statements, confirms, faults and other relays
 * fall in between as they do in life. */
#ifndef OUTBOXD_SIM_H
#define OUTBOXD_SIM_H

#include "base/base.h"
#include "base/rng.h"
#include "config/config.h"
#include "relay/relay.h"

#include <stdbool.h>
#include <stdint.h>

#define RELAYS_MAX 4
#define NO_TIME INT64_MIN /* SQL NULL in a column of type DATETIME */
#define MS US_PER_MS
#define SEC US_PER_SEC

/* What is wrong with a row, if anything, and what should become of it. */
enum poison {
	POISON_NONE,
	POISON_GHOST,      /* its exchange does not exist: REFUSED */
	POISON_SECRET,     /* its exchange may not be written to: REFUSED */
	POISON_LARGE,      /* beyond max_message_size: TOO_LARGE, never sent */
	POISON_BROKER_BIG, /* beyond the broker's own limit: closes the channel, TOO_LARGE */
	POISON_HEADERS,    /* headers that are no JSON: INVALID, never sent */
	POISON_ENCODING,   /* the publisher cannot encode it: INVALID, never sent */
	POISON_UNBOUND,    /* no queue wants it: UNROUTABLE */
	POISON_NACKED,     /* its queue is full for ever: NACKED */
	POISON_CLOSES,     /* closes the channel with 406: REFUSED */
	POISON_MUTE,       /* arrives, and is never confirmed: CONFIRM_TIMEOUT */
	POISON_KILLER,     /* whoever sends it dies: LEASE_EXPIRED */
	POISONS,
};

/* ---- the table ---- */

struct tnode { /* of a treap */
	int64_t k1, k2;
	uint64_t id;
	struct tnode *kid[2];
	uint32_t prio;
};

enum status { ST_PENDING, ST_RETRY, ST_PROCESSING, ST_SENT, ST_DEAD, STATUSES };

struct aggregate {
	char type[24], id[24];
	struct tnode *unsent; /* visible rows that are not SENT, by (created_at, id) */
	struct tnode *sent;   /* and those that are */
	struct trow *last;    /* the one highest in order that has reached the broker */
};

/* One row; what the oracle knows of it stands below what a database would know. */
struct trow {
	struct tnode index; /* in the tree of its status */
	struct tnode order; /* in its aggregate's */
	uint64_t id;
	int64_t created_us, next_retry_us, locked_until_us, sent_us;
	uint32_t retry_count;
	enum status status;
	uint32_t owner; /* 0: NULL */
	struct aggregate *aggregate;
	char event_id[20];
	char error[72];
	unsigned takeovers;  /* what last_error says about them */
	uint32_t written_by; /* who settled it last, since it was claimed */

	enum poison poison;
	bool visible;
	bool foreign; /* somebody wrote to it by hand: much is forgiven */
	bool skipped;
	bool late;          /* committed after later ones, or sent back to before them */
	bool died_alone;    /* a relay held it alone when it was killed */
	bool nack_once;     /* the broker had its whims with it: an attempt may be charged */
	int64_t visible_us; /* committed, or claimable anew by an operator's hand */
	int64_t locked_us;  /* another session holds its row lock until then */
	unsigned copies;    /* that reached the broker */
	unsigned excuses;   /* sends whose outcome its sender never learnt, or could not write */
	unsigned sends;
	int64_t first_claimed_us;       /* the claim behind its first copy */
	int64_t claimed_us[RELAYS_MAX]; /* latest claim by that relay */
	struct {
		uint32_t owner;       /* to whom it was told */
		enum outcome outcome; /* what */
		bool told, open;      /* something was; sent, and nothing yet */
		uint32_t acked;       /* the owner that was ever told of an ack */
		enum channel channel; /* it was sent over */
		unsigned slot;        /* while open: in the actor's list */
		int64_t sent_us;
	} seen[RELAYS_MAX];
};

struct table {
	struct trow **rows; /* by id; [0] unused */
	size_t count, cap;
	struct tnode *tree[STATUSES]; /* PENDING, RETRY: by next_retry_at, created_at, id;
					 PROCESSING: by locked_until; DEAD */
	struct aggregate *aggregates;
	size_t aggregate_count;
	size_t in_status[STATUSES];
	size_t open; /* visible, neither SENT nor DEAD */
};

void tree_insert(struct tnode **root, struct tnode *n);
void tree_remove(struct tnode **root, struct tnode *n);
struct tnode *tree_last(struct tnode *root);
struct tnode *tree_first(struct tnode *root);
struct tnode *tree_after(struct tnode *root, const struct tnode *key);
struct tnode *tree_before(struct tnode *root, const struct tnode *key);

void table_init(struct table *t, size_t aggregates);
void table_fini(struct table *t);
/* Not visible yet. */
struct trow *table_insert(struct table *t, struct aggregate *a, int64_t created_us);
void table_commit(struct table *t, struct trow *r, int64_t now_us);
/* Every change of a visible row goes between these two. */
void table_unlink(struct table *t, struct trow *r);
void table_link(struct table *t, struct trow *r);

static inline struct trow *row_of_index(struct tnode *n)
{
	return n != NULL ? container_of(n, struct trow, index) : NULL;
}

static inline struct trow *row_of_order(struct tnode *n)
{
	return n != NULL ? container_of(n, struct trow, order) : NULL;
}

/* ---- the world ---- */

struct world;
struct conn;
struct fake_store;
struct fake_publisher;

/* One run's dice, thrown before it starts. */
struct params {
	uint64_t seed;
	size_t events;
	unsigned relays, faults; /* faults: 0 none, 1 few, 2 many, 3 a bad day */
	bool ordered, pass_dead, fixed_exchange;
	size_t aggregates, reserved;
	double poison;         /* share of rows */
	double late;           /* share of commits that come late */
	double rate;           /* events a second */
	int64_t resolution_us; /* of created_at */
	unsigned batch, max_in_flight;
	uint64_t max_bytes;
	int64_t lease_us, poll_us, confirm_us, query_us;
	int64_t statement_us; /* what every statement takes; 0: the dice tell */
	unsigned max_attempts;
	int64_t retry_base_us, retry_cap_us;
	size_t socket_bytes;
	bool killers, foreign, mutes;
	/* of a scenario: sets the stage, and looks at what came of it */
	void (*prepare)(struct world *w);
	void (*judge)(struct world *w);
};

struct tally {
	uint64_t events, turns, sends, arrivals, duplicates, excused, returned, nacked, unknown,
		charged, dead, takeovers, hazards, held, faults, kills, stops, connects, runs,
		statements, lost_writes, again;
	int64_t virtual_us;
};

enum actor_state { ACTOR_DOWN, ACTOR_UP };

struct actor {
	struct world *w;
	unsigned index;
	uint32_t owner; /* this life's; 0: none */
	enum actor_state state;
	struct relay *relay;
	struct fake_store *store;
	struct fake_publisher *publisher;
	int64_t wake_us;       /* what relay_turn() said */
	int64_t not_before_us; /* the turn itself took a moment */
	int64_t resume_us;     /* in a call: when it comes back */
	int64_t frozen_us;     /* SIGSTOP until then */
	int64_t restart_us;    /* DOWN: when it starts again */
	int64_t stop_us;       /* stopping: its deadline; 0 */
	bool in_turn, killed;
	bool doomed; /* it touched the row that kills */
	/* a window of one second, for the bound on idle turning */
	int64_t window_us;
	uint64_t window_turns, window_work, window_statements;
	unsigned idle_turns; /* in a row, that asked to be called at once and did nothing */
	uint64_t idle_work;
	uint64_t work;      /* whatever it got done */
	struct trow **open; /* sent on its present connection, nothing told yet */
	size_t open_count, open_cap;
	struct fiber *fiber;
};

/* What ails the database and the broker at the moment: each until that instant. */
struct spells {
	int64_t db_refuse, db_config, db_readonly, db_slow, db_flaky;
	int64_t db_late;            /* second sessions do what they are told, and answer too late */
	int64_t db_cut[RELAYS_MAX]; /* packets vanish */
	int64_t mq_refuse, mq_auth, mq_blocked, mq_hold, mq_swallow, mq_nack, mq_unbound,
		mq_missing, mq_slow, mq_disorder, mq_merge, mq_mute;
	int64_t mq_cut[RELAYS_MAX];
};

struct happening {
	int64_t at_us;
	uint64_t seq;
	void (*run)(struct world *w, uint64_t arg);
	uint64_t arg;
};

struct world {
	struct params p;
	struct rng rng;
	int64_t now_us;
	int64_t db_offset_us; /* database clock - our clock */
	struct table table;
	struct spells spell;
	struct actor actor[RELAYS_MAX];
	uint32_t next_owner;
	struct session *sessions; /* of the database */
	struct session *lock_holder;
	struct beside *besides; /* statements on second sessions, past and present */
	struct conn *conns;     /* of the broker */
	struct happening *heap;
	size_t heap_count, heap_cap;
	uint64_t seq;
	bool faulty; /* faults still come */
	bool quiet;  /* all is well again: what is left has to be done now */
	int64_t quiet_us, last_death_us;
	size_t produced, mutes;
	int64_t calm_after_us; /* not before */
	int64_t produce_us;    /* when the producers begin */
	int64_t end_us;        /* TIME_NEVER: when everything is done */
	int64_t others_us;     /* last first arrival outside the reserved aggregates */
	size_t others;         /* so many of them */
	int64_t most_us;       /* 19 of 20 had arrived */
	int64_t last_arrival_us;
	int64_t progress_us; /* a row was claimed, or written, or arrived */
	int64_t done_us;     /* one of the producers' became SENT or DEAD */
	struct source_conf source;
	struct broker_conf broker;
	struct tally *tally;
	char *failure; /* what the oracle found; the run is over */
	int verbose;
};

extern int64_t sim_now(void *arg); /* arg: struct actor */
extern int64_t sim_wall(void *arg);

void world_run(const struct params *p, struct tally *tally, int verbose, char **failure);
/* Aggregates that the producers do not use: `reserved` of them, at least one. */
struct aggregate *world_reserved(struct world *w, size_t i);
void world_at(struct world *w, int64_t at_us, void (*run)(struct world *, uint64_t), uint64_t arg);
/* The calling relay is away for so long; false: it was killed meanwhile. */
bool actor_wait(struct actor *a, int64_t us);
void actor_kill(struct actor *a, bool linger);

bool chance(struct world *w, double p);
int64_t between(struct world *w, int64_t lo, int64_t hi);

void trace(const struct world *w, int level, const char *fmt, ...) PRINTF(3, 4);
/* The first thing that is wrong ends the run. */
void wrong(struct world *w, const char *fmt, ...) PRINTF(2, 3);

static inline int64_t db_now(const struct world *w)
{
	return w->now_us + w->db_offset_us;
}

/* ---- database.c ---- */

struct store *fake_store_new(struct actor *a);
/* The process died: its session goes now, or, when no packet says so, after its timeout. */
void database_client_died(struct actor *a, bool linger);
void database_kill_sessions(struct world *w, unsigned which);
/* By an operator, in a transaction of his own. */
bool database_requeue(struct world *w, struct trow *r);
bool database_skip(struct world *w, struct trow *r);
/* When its second session has something for the relay. */
int64_t database_ready_us(const struct actor *a);
void database_fini(struct world *w);

/* ---- broker.c ---- */

struct publisher *fake_publisher_new(struct actor *a);
/* When the relay's socket has something for it. */
int64_t broker_ready_us(const struct actor *a);
/* The broker's own next step. */
int64_t broker_next_us(const struct world *w);
void broker_step(struct world *w);
void broker_drop(
	struct world *w, unsigned which); /* connections of relay `which`; RELAYS_MAX: all */
void broker_client_died(struct actor *a, bool linger);
void broker_changed(struct world *w); /* a spell began or ended */
void broker_fini(struct world *w);

/* ---- scenario.c ---- */

/* The set pieces; `name` NULL: all. Returns how many failed, -1: there is none of that name. */
int scenario_run(const char *name, struct tally *tally, int verbose);

/* ---- oracle.c ---- */

void oracle_sent(struct world *w, struct actor *a, struct trow *r, enum channel ch);
void oracle_arrived(struct world *w, struct trow *r, uint32_t owner, int64_t claimed_us);
void oracle_told(struct world *w, struct actor *a, struct trow *r, enum outcome how);
/* Its sender gave up on the outcome, or died. */
void oracle_forgotten(struct actor *a, struct trow *r);
/* The row was taken over from that owner. */
void oracle_taken(struct world *w, struct trow *r, uint32_t from);
void oracle_settles(struct world *w, struct actor *a, struct trow *r, const struct settle *s);
void oracle_turned(struct world *w, struct actor *a);
void oracle_tick(struct world *w);
void oracle_end(struct world *w);

#endif

/* bench.h: what the parts of the benchmark share. One program measures everything in one run, on
 * the same servers and the same kind of rows, since only figures of one run can be compared.
 * Whatever fails ends the program: die(). Times are microseconds unless a name says otherwise. */
#ifndef OUTBOXD_BENCH_H
#define OUTBOXD_BENCH_H

#include "base/base.h"
#include "base/slice.h"
#include "config/config.h"
#include "message/envelope.h"
#include "relay/publisher.h"

#include <mysql.h>

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

#define AGGREGATES 500
#define BATCH 500     /* rows a claim: the default */
#define SCHEMAS 8     /* outboxd_bench0 to 7 */
#define CLIENT_US 3.0 /* what the limit grants the client per event */
#define EXCHANGE "outboxd-bench"

struct bench {
	const char *mysql_host, *mysql_password, *amqp_host, *api;
	unsigned mysql_port, amqp_port;
	pid_t mysqld, broker;

	const char *bin, *json, *picture;
	uint64_t events; /* of a throughput pass */
	unsigned rounds;
	uint64_t memory;  /* events a source, eight sources */
	uint64_t rows;    /* of the large tables */
	uint64_t most;    /* of one larger still; 0: none */
	unsigned claims;  /* of each table, each time */
	uint64_t held;    /* sent while a snapshot is held */
	unsigned seconds; /* of each latency and each idle measurement */

	char dir[40]; /* of the daemons' configuration, log and socket */
	char config[80], log[80], wakeup[80];
};

/* ---- results */

struct pass {
	const char *name;
	uint64_t events;
	double seconds, mysqld_us, broker_us, client_us; /* CPU an event */
	double statements, commits, binlog_bytes;        /* an event */
	double db_sent, db_received, mq_sent;            /* bytes an event; 0: not measured */
};

enum { ONE_BY_ONE, DATABASE_ALONE, BROKER_ALONE, DAEMON_NONE, DAEMON_AGGREGATE, PASSES };

struct spread {
	double p50_ms, p99_ms;
};

/* Of a claim of 500 rows through the relay's store. */
struct claim_cost {
	char name[40];
	uint64_t rows;
	bool pending; /* the rows are the backlog itself */
	struct {
		struct spread took;
		double examined, locks; /* per claimed row; all statements of the transaction */
	} stale, fresh;                 /* statistics of 1,000 rows; right after ANALYZE TABLE */
};

#define CLAIM_STATES 8

struct held_cost {
	uint64_t events;
	double first_ms, last_ms;     /* mean claim of the first and the last 20,000 */
	double first_rows, last_rows; /* mean rows of those claims */
};

struct latency {
	char name[40];
	double rate; /* events a second that were committed */
	uint64_t events;
	struct spread lag; /* from commit to confirm */
};

#define LATENCIES 4

struct idle {
	unsigned sources;
	double statements;                               /* a second */
	double daemon_share, mysqld_share, broker_share; /* of one core */
	double resident_mb;
};

struct report {
	double load; /* average of the minute before */
	struct pass pass[PASSES];
	unsigned passes; /* 0: not measured */
	double limit;
	struct claim_cost claim[CLAIM_STATES];
	unsigned claims;
	struct held_cost held;
	struct spread claim_alone, confirm_alone, floor; /* one row's claim, one confirm, both */
	struct latency latency[LATENCIES];
	unsigned latencies;
	struct idle idle[2];
	unsigned idles;
	double peak_mb; /* of eight sources with backlogs */
};

void measure_throughput(const struct bench *b, struct report *r);
void measure_claims(const struct bench *b, struct report *r);
void measure_held(const struct bench *b, struct report *r);
void measure_latency(const struct bench *b, struct report *r);
void measure_idle(const struct bench *b, struct report *r);
void measure_memory(const struct bench *b, struct report *r);

void report_text(const struct bench *b, const struct report *r, FILE *f);
void report_json(const struct bench *b, const struct report *r, FILE *f);
/* A PNG by gnuplot, where there is one. */
void report_picture(const struct report *r, const char *path);

/* ---- servers.c: the two servers */

_Noreturn void die(const char *what, const char *why);
void servers_open(struct bench *b); /* by the environment; makes schemas, exchange, queue */
void servers_close(const struct bench *b);

/* As root, on the program's own connection. */
void sql(const char *fmt, ...) PRINTF(1, 2);
double number(const char *fmt, ...) PRINTF(1, 2); /* first column of the first row; none: 0 */
/* Another connection, of another thread or another transaction. */
MYSQL *db_another(const struct bench *b);
/* For the calling thread's connection. */
void sql_on(MYSQL *db, const char *text);
double number_on(MYSQL *db, const char *text);

/* A table with nothing but N pending rows of 170 bytes of JSON over 500 aggregates, as if committed
 * at 5,000 a second. */
void fill(const char *schema, uint64_t events);
void purge_queue(const struct bench *b);

/* User and system time of a process so far. */
double cpu_us(pid_t pid);
/* What the server has counted so far; statements without those this program asks for it. */
struct counts {
	double statements, commits, binlog_bytes, received, sent;
};
struct counts counts_now(void);

/* Sorts. */
struct spread spread_of(double *us, size_t count);

/* ---- daemon.c: outboxd itself */

struct daemon_conf {
	const char *ordering; /* NULL: the default */
	unsigned sources;
	const char
		*tables; /* NULL: outbox_event of outboxd_bench<i>; else this schema's outbox<i> */
	unsigned http_port; /* 0: none */
	bool wakeup, log_events;
};

/* Writes it, and loads it: for stores and publishers of the program's own. */
struct config *configure(const struct bench *b, const struct daemon_conf *c);
pid_t daemon_start(const struct bench *b);
void daemon_stop(pid_t pid);
unsigned free_port(void);
/* The sum of a metric over its series; -1 while there is none. */
double scrape(unsigned port, const char *name);
void wait_published(unsigned port, uint64_t events);
void wait_metric(unsigned port, const char *name, double at_least);
/* Until so many series of a metric have a value. */
void wait_series(unsigned port, const char *name, unsigned count);
double memory_mb(pid_t pid, const char *field); /* VmRSS, VmHWM */

/* ---- client.c: a publisher by hand */

struct client {
	struct publisher *publisher;
	unsigned open; /* sent, not confirmed */
	bool proven;
};

void client_open(struct client *c, const struct config *conf);
void client_close(struct client *c);
/* Waits until fewer than `window` are open, then sends a message like the daemon's. */
void client_send(struct client *c, struct slice id, struct slice body, unsigned window);
void client_pump(struct client *c);
void client_settle(struct client *c); /* until nothing is open */
double client_bytes(const struct client *c);

#endif

/* daemon.h: an `outboxd run` of a test: its configuration, its process, and what can be seen of it
 * from outside. It dies with the test. */
#ifndef OUTBOXD_TESTS_DAEMON_H
#define OUTBOXD_TESTS_DAEMON_H

#include "support/db.h"

#include <signal.h>
#include <sys/types.h>

#define CONF_SOURCES 8
#define CONF_BROKERS 4

struct conf_source {
	char name[40];
	const struct schema *schema;
	const char *db_host;  /* NULL: the server's own */
	unsigned db_port;     /* 0: the server's own */
	const char *password; /* NULL: the schema's; by a file all the same */
	const char *broker;   /* NULL: "main" */
	const char *exchange;
	const char *routing_key; /* NULL: {aggregate_type}.{event_type} */
	const char *more;        /* lines in the source, indented by four */
	const char *publish;     /* lines in its publish, indented by six */
};

struct conf_broker {
	const char *name;
	const char *host;     /* NULL: the server's own */
	unsigned port;        /* 0: the server's own */
	const char *password; /* NULL: the right one */
	const char *more;     /* lines, indented by four */
};

/* Spans in milliseconds. conf_init() fills in what suits a run without faults. */
struct conf {
	struct conf_source source[CONF_SOURCES];
	unsigned sources;
	struct conf_broker broker[CONF_BROKERS];
	unsigned brokers;
	const char *ordering, *on_dead, *log_level, *log_events;
	unsigned batch, window;
	int64_t poll_ms, lease_ms, query_ms, confirm_ms, shutdown_ms, connect_ms;
	unsigned heartbeat_s;
	unsigned max_attempts;
	int64_t retry_base_ms, retry_cap_ms;
	const char *jitter;
	const char *log_file; /* NULL: the daemon's own; "": none, it writes to stderr */
	const char *top;      /* lines at the top level */
};

void conf_init(struct conf *c);
/* Short enough for takeovers within a test: a lease of 3 s. */
void conf_short_lease(struct conf *c);
struct conf_source *conf_add(
	struct conf *c, const char *name, const struct schema *s, const char *exchange);

struct daemon {
	char dir[80], config[120], log[120], stderr_path[120], wakeup[108];
	char instance[40];
	unsigned http_port;
	pid_t pid; /* 0: does not run */
	int notify_fd;
	char notify_path[108];
	char notified[65536];   /* every datagram, lines kept, in order */
	unsigned watchdogs;     /* how many */
	int64_t watchdog_us;    /* when the last came */
	unsigned watchdog_usec; /* WATCHDOG_USEC it gets; 0: none */
	int status;             /* wait status of the last run */
	/* What the next start has to live with; zeroed: nothing. */
	const char *environment[4]; /* "NAME=value" */
	bool shim;                  /* tests/shim is loaded: see its variables */
	bool first;                 /* pid 1 of a namespace of its own: needs root */
	uint64_t max_memory, max_fds;
	const char *output; /* what its stdout and stderr are, instead of a file */
};

/* A folder of its own; nothing runs yet. */
struct daemon *daemon_new(const char *instance);
void daemon_free(struct daemon *d); /* kills it if it runs; removes the folder */

/* Writes the configuration and its secrets; also while it runs, for HUP. */
void daemon_configure(struct daemon *d, const struct conf *c);
/* Where the secret of a source or broker lies. */
void daemon_secret(const struct daemon *d, const char *name, char *out, size_t size);

void daemon_start(struct daemon *d);
/* What `output` may be besides a file's name: both closed; a pipe whose reader has gone. */
#define OUTPUT_CLOSED "closed"
#define OUTPUT_BROKEN "broken"
/* READY=1 came, and /readyz says so if `connected`. */
void daemon_wait_ready(struct daemon *d, bool connected);
void daemon_signal(struct daemon *d, int sig);
/* Waits for its end, at most `ms`: its exit status, or 128 + signal. */
int daemon_wait(struct daemon *d, int64_t ms);
/* TERM, and waits: 0 or the test fails. */
void daemon_stop(struct daemon *d);
void daemon_kill(struct daemon *d); /* -9, and gone */
bool daemon_runs(struct daemon *d);

/* Reads what has come on NOTIFY_SOCKET. */
void daemon_notifications(struct daemon *d);
unsigned daemon_notified(struct daemon *d, const char *text);

/* HTTP GET: the status, 0 if there was no answer within 3 s; the body in `out`. */
int daemon_get(const struct daemon *d, const char *path, char *out, size_t size);
/* The value of a series as /metrics writes it, labels included; -1: not there. */
double daemon_metric(const struct daemon *d, const char *series);
int64_t daemon_rss_kb(const struct daemon *d);
unsigned daemon_fds(const struct daemon *d);
/* CPU it has used, microseconds. */
int64_t daemon_cpu_us(const struct daemon *d);

/* Lines of the log that contain all texts (NULL ends the list). */
unsigned daemon_log(const struct daemon *d, const char *text, ...) __attribute__((sentinel));
/* Fails if the text is anywhere in what it wrote. */
void daemon_never_said(const struct daemon *d, const char *secret);
void daemon_poke(const struct daemon *d, const char *source);

#endif

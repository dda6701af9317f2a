/* session.h: one session with a database server as the relay needs it; <mysql.h> stays in
 * session.c. The same behaviour with MariaDB Connector/C and with Oracle's library.
 *
 * A session is set up in full and verified after each connect, and never re-established behind the
 * caller's back: what is lost is reported as ERR_LINK, then session_open() starts afresh with
 * the next host of the list if this one cannot be used.
 *
 * Every call blocks, bounded twice: by the library's own time limits for each read and write, and,
 * where there is a guard, by the deadline of the whole operation, kept by another thread. */
#ifndef OUTBOXD_MYSQL_SESSION_H
#define OUTBOXD_MYSQL_SESSION_H

#include "base/buf.h"
#include "base/err.h"
#include "config/config.h"
#include "sys/guard.h"

#include <stdbool.h>

/* Once in the process, before and after all threads that use the library. */
int mysql_global_init(struct err *e) MUST_CHECK;
void mysql_global_fini(void);

/* In each thread that uses it, first and last. */
void mysql_thread_enter(void);
void mysql_thread_leave(void);

/* "MariaDB Connector/C 3.3.20" */
const char *mysql_library_name(void);

struct session_options {
	/* After so long without a statement the server ends the session, and with it the locks of a
	 * process that vanished. */
	unsigned wait_timeout_s;
	/* Accepts a server that cannot be written to, or replicates by statement: it is being
	 * examined, not used. */
	bool examine;
	const char *program; /* shown by the server's performance_schema; borrowed */
	const char *owner;   /* likewise, as SESSION_OWNER_ATTR; NULL: none */
};

/* Names the relay that a session belongs to, for those who ask who leads. */
#define SESSION_OWNER_ATTR "outboxd_owner"

struct server {
	bool mariadb;
	unsigned version;      /* 80036, 101106 */
	char name[80];         /* "8.0.36", "MariaDB 10.11.6" */
	const char *isolation; /* the variable with the session's isolation level */
	uint64_t session;      /* CONNECTION_ID() */
	bool log_bin;
	char binlog_format[16];
	bool read_only;
	unsigned name_case; /* lower_case_table_names */
	bool encrypted;
};

struct session;

/* Borrows `conf` and `guard` (NULL: none). Does not connect. */
int session_new(struct session **out, const struct database_conf *conf,
	const struct session_options *options, struct guard *guard, struct err *e) MUST_CHECK;
/* From the next call on that of another thread, which it is used by now. */
void session_set_guard(struct session *c, struct guard *guard);
void session_free(struct session *c);

/* Tries the hosts in turn, each at most once, beginning with the one that worked last, or with the
 * next after one that failed; no new one once connect_timeout has passed. Takes as much as
 * connect_timeout and query_timeout together, a slow name server aside. */
int session_open(struct session *c, struct err *e);

/* Quickly: what does not fit into the socket's buffer is not waited for. */
void session_close(struct session *c);
bool session_is_open(const struct session *c);

/* Valid while open. */
const struct server *session_server(const struct session *c);
/* "db1:3306", "/run/mysqld/mysqld.sock"; of the last attempt. */
const char *session_address(const struct session *c);

/* Starts the time of an operation of one or several calls: query_timeout from now. */
void session_begin(struct session *c);

/* What the statements of a text gave. */
struct reply {
	/* NULL, or called for each row of each result set. `statement` counts the text's statements
	 * from 0. A value's memory is the library's until the call returns. -1 with *e filled: no
	 * more calls, and session_run() fails with that error. */
	int (*row)(void *arg, unsigned statement, const struct slice *values, unsigned count,
		struct err *e);
	void *arg;
	uint64_t matched;    /* out: rows that the statements without a result set found */
	unsigned statements; /* out: how many were carried out */
};

/* Sends one or several statements, separated by semicolons, and reads every answer; rows are
 * streamed, memory is that of one row. The first statement that fails ends it: those before it have
 * been carried out. After ERR_LINK the connection is closed. */
int session_run(struct session *c, struct slice text, struct reply *r, struct err *e);
int session_run_text(struct session *c, const char *text, struct err *e);

/* From now on session_run(), and what is made of it, calls this every few milliseconds until the
 * server begins to answer, of several statements the first; it may do anything but use this
 * session, or block. NULL: no more. */
void session_meanwhile(struct session *c, void (*meanwhile)(void *arg), void *arg);

/* The same in two halves, for one statement: what it takes the server meanwhile is the caller's
 * time. Nothing else may be done with the session in between but closing it. */
int session_send(struct session *c, struct slice text, struct err *e);
/* 1: not answered yet. 0: as session_run(). -1: likewise, also when query_timeout has passed since
 * session_begin(). Waits for the rest of an answer that has begun to come. */
int session_answer(struct session *c, struct reply *r, struct err *e);
/* Readable when there is something to answer; -1: not connected. */
int session_fd(const struct session *c);

/* On -1 *unknown tells whether the transaction may have been committed; if not, it was rolled back.
 * Every other failure inside a transaction is followed by session_rollback(). */
int session_commit(struct session *c, bool *unknown, struct err *e);
/* Leaves *e as it is, except that it becomes ERR_LINK if the rollback fails. Returns -1. */
int session_rollback(struct session *c, struct err *e);

/* The host does not do (read-only): the next open begins with another. Closes. */
void session_avoid(struct session *c);

#endif

/* db.h: the database as a test uses it: statements as root, schemas of its own with an account that
 * has the least privileges, producers. Failures fail the test unless a function says otherwise. */
#ifndef OUTBOXD_TESTS_DB_H
#define OUTBOXD_TESTS_DB_H

#include "support/env.h"

struct db;

struct db *db_open(void);
/* A client to which rows count as affected that were found, changed or not: as of JDBC. */
struct db *db_open_found_rows(void);
void db_close(struct db *db);
/* After the server was away: connects anew, for up to `ms`. */
void db_reopen(struct db *db, int64_t ms);

void db_exec(struct db *db, const char *fmt, ...) PRINTF(2, 3);
/* 0, or the server's error number. */
unsigned db_try(struct db *db, const char *fmt, ...) PRINTF(2, 3);
/* The first column of the first row; NULL or no row: -1. */
int64_t db_int(struct db *db, const char *fmt, ...) PRINTF(2, 3);
/* Likewise as text, to be freed; NULL: none. */
char *db_text(struct db *db, const char *fmt, ...) PRINTF(2, 3);

/* A session of this account, to be killed; 0: there is none. */
int64_t db_session(struct db *db, const char *user);

struct db_row {
	const char *const *value; /* NULL: NULL */
	const unsigned long *len;
	unsigned columns;
};
void db_rows(struct db *db, void (*row)(void *arg, const struct db_row *row), void *arg,
	const char *fmt, ...) PRINTF(4, 5);

/* A database with an outbox table, and the relay's account. */
struct schema {
	char name[40];
	char user[40];
	char password[40];
	bool full; /* the table with the optional columns */
};

/* `ddl`: a file of sql/. */
void schema_make(struct db *db, struct schema *s, const char *ddl);
void schema_drop(struct db *db, struct schema *s);

/* What a producer writes: events "<schema>-<n>" for n from `first`, aggregates "a<n % aggregates>"
 * of type "order", types "created" and "changed", routing by aggregate type and event type. */
struct production {
	uint64_t first, count;
	unsigned aggregates;
	unsigned transaction;   /* rows of each; 0: 500 */
	unsigned padding;       /* bytes more in each payload */
	unsigned per_second;    /* 0: as fast as it goes */
	const char *event_type; /* NULL: created or changed */
};

void db_produce(struct db *db, const struct schema *s, const struct production *p);

/* The same from a thread with a connection of its own, which also survives the server: a
 * transaction whose end is unknown is repeated. */
struct producer;
struct producer *producer_start(const struct schema *s, const struct production *p);
/* Tells it to end early; waits; returns how many events it committed. */
uint64_t producer_stop(struct producer *p);
/* Waits until it has written all. */
uint64_t producer_wait(struct producer *p);
uint64_t producer_written(const struct producer *p);

#endif

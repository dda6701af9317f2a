/* errors.h: what an error of server or client library means to the relay. Pure. */
#ifndef OUTBOXD_MYSQL_ERRORS_H
#define OUTBOXD_MYSQL_ERRORS_H

#include "base/err.h"

#include <stdbool.h>

/* `state` is the five letter SQLSTATE. */
enum err_kind mysql_error_kind(unsigned code, const char *state);

/* The server has become read-only, which is how a failover looks to a connection that survived it:
 * another host may be the primary now. */
bool mysql_error_read_only(unsigned code);

/* A value, a constraint or a trigger says no to a row: without that row the statement would do. */
bool mysql_error_row(unsigned code);

/* Of a statement with NOWAIT: somebody has a row, or the table, locked. MariaDB has no number of
 * its own for it. */
bool mysql_error_locked(unsigned code);

/* An answer to COMMIT that leaves no doubt: the transaction was rolled back. */
bool mysql_error_rolled_back(unsigned code);

#endif

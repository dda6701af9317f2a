/* err.h: errors are values; the caller decides what they mean.
 *
 * A function that can fail returns 0 or -1 and takes `struct err *` last. Whoever handles an error
 * logs it, once; whoever passes it on adds context with err_wrap(). */
#ifndef OUTBOXD_ERR_H
#define OUTBOXD_ERR_H

#include "base/base.h"

enum err_kind {
	ERR_NONE,
	ERR_CONFIG,  /* the operator's file, schema, privilege or account: time alone will not mend
			it */
	ERR_RETRY,   /* passing: deadlock, lock wait, read-only; the connection is still good */
	ERR_REFUSED, /* the peer or a local check refused this very request; the connection is still
			good */
	ERR_LINK,    /* the connection is gone, or must not be used any more */
	ERR_NOMEM,
	ERR_AGAIN, /* no room at the moment: nothing happened, ask again later */
};

struct err {
	enum err_kind kind;
	long code;      /* the library's or the protocol's number, 0 where there is none */
	char text[480]; /* outermost context first: "source orders: claim: lock wait timeout" */
};

/* Fills *e (NULL is allowed) and returns -1, so that a failure reads
 *	return err_set(e, ERR_LINK, mysql_errno(db), "connect: %s", mysql_error(db));
 * A text too long is cut at a character. */
int err_set(struct err *e, enum err_kind kind, long code, const char *fmt, ...) PRINTF(4, 5);

/* Prepends "<context>: " to the text; returns -1. */
int err_wrap(struct err *e, const char *fmt, ...) PRINTF(2, 3);

/* "config", "retry", ...: a stable word, used as metric label and in logs. */
const char *err_kind_name(enum err_kind kind);

#endif

/* failure.h: the classes an event's failure falls into; the first word of last_error, a field of
 * the log line, a label of the metric. */
#ifndef OUTBOXD_FAILURE_H
#define OUTBOXD_FAILURE_H

#include "base/slice.h"

enum failure {
	FAIL_UNROUTABLE,      /* returned: no queue is bound for it */
	FAIL_NACKED,          /* the broker took no responsibility */
	FAIL_TOO_LARGE,       /* body above a limit */
	FAIL_INVALID,         /* cannot be encoded */
	FAIL_REFUSED,         /* the broker closed the channel over it */
	FAIL_CONFIRM_TIMEOUT, /* it alone was not confirmed in time */
	FAIL_LEASE_EXPIRED,   /* relays died holding it alone */
	FAIL_SKIPPED,         /* an operator let its aggregate move on without it */
	FAILURES,
};

const char *failure_name(enum failure f);

/* last_error starts with that class. */
bool failure_is(enum failure f, struct slice last_error);
/* How many times in a row the row's lease has expired under its owners, as last_error tells
 * ("LEASE_EXPIRED: taken over N times ..."); else 0. */
unsigned failure_takeovers(struct slice last_error);

#endif

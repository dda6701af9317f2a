/* guard.h: a deadline for a client library's blocking call, kept by another thread.
 *
 *	relay thread                                main thread, from its loop
 *	guard_enter(g, fd, now + 10 s)
 *	mysql_real_query(...)  <- hangs             guard_check(g, now): past it, so shutdown(2):
 *	    returns: connection lost  <------------ the blocked read or write fails at once
 *	cut = guard_leave(g)
 *
 * shutdown(2) must never hit somebody else's socket. The library may close its descriptor inside
 * the very call, and another thread get the same number a moment later; so the guard owns a number
 * of its own, which guard_enter() makes a second name of the connection (dup3 onto a descriptor
 * opened at guard_init(), so it cannot fail for lack of descriptors) and guard_leave() takes off
 * again. A mutex orders enter, leave and check; it is held for a system call, never for the guarded
 * one. A socket that the library closes inside the call is closed for the peer with guard_leave().
 *
 * Enter and leave cost a system call each: guard a burst of publishes, not each of them. */
#ifndef OUTBOXD_GUARD_H
#define OUTBOXD_GUARD_H

#include "base/err.h"

#include <pthread.h>
#include <stdbool.h>

struct guard {
	pthread_mutex_t lock;
	int fd;      /* ours: on /dev/null, or a second name of the connection */
	bool armed;  /* it is the connection's */
	bool inside; /* between enter and leave */
	bool cut;    /* this call was past its deadline, and shut down */
	int64_t deadline_us;
};

/* Needs one descriptor, until guard_fini(). */
int guard_init(struct guard *g, struct err *e) MUST_CHECK;
void guard_fini(struct guard *g);

/* The owner, around one blocking call. fd -1: a call whose socket is not known yet (connecting has
 * a time limit of its own): only guard_overdue_us() tells. Not nested. */
void guard_enter(struct guard *g, int fd, int64_t deadline_us);
/* True: the call was found past its deadline. Even if it came back with success, its connection is
 * shut down and must not be used any more. */
bool guard_leave(struct guard *g);

/* Another thread. Shuts the connection down if the call is past its deadline: true once for each
 * such call (also without a known socket), for a line in the log. */
bool guard_check(struct guard *g, int64_t now_us);

/* True inside a call whose socket is not known: nobody can cut it off. */
bool guard_is_blind(struct guard *g);

/* For how long the call has been past its deadline, 0 if it is not: what stays overdue although it
 * was cut off is stuck, and a reason to let the watchdog bite. */
int64_t guard_overdue_us(struct guard *g, int64_t now_us);

#endif

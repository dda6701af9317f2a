/* wakeup.h: the datagram socket through which producers and administrative commands say "there is
 * work": one datagram is the name of a source, an empty one means all. A hint and no more: losing
 * one costs a poll interval. */
#ifndef OUTBOXD_WAKEUP_H
#define OUTBOXD_WAKEUP_H

#include "base/err.h"
#include "base/slice.h"

#define WAKEUP_NAME_MAX 64

struct wakeup;

/* Binds a datagram socket at `path` with these permission bits and, unless `group` is NULL or
 * empty, this group (name or number). The socket file of a process that is gone is replaced;
 * anything else at that path, a socket somebody still listens on included, is left alone and an
 * error. Takes its time from the folder's lock only: at most some 200 ms, when several processes
 * start at once. */
int wakeup_open(struct wakeup **out, const char *path, unsigned mode, const char *group,
	struct err *e) MUST_CHECK;

/* Removes the file if it is still the one this process made. Takes NULL. */
void wakeup_close(struct wakeup *w);

/* Readable: call wakeup_read(). */
int wakeup_fd(const struct wakeup *w);

/* `source` is valid during the call; empty means all. Whether a source of that name exists is the
 * callee's to find out. */
typedef void wakeup_cb(void *arg, struct slice source);

/* Reads what is pending without waiting, at most 1,024 datagrams a call so that a flood does not
 * hold up the loop; what is left keeps the descriptor readable. A newline at the end is cut off
 * (echo orders | socat ...). What cannot be a name (longer than WAKEUP_NAME_MAX, not UTF-8, with
 * control characters) is counted and ignored. */
void wakeup_read(struct wakeup *w, wakeup_cb *cb, void *arg);

uint64_t wakeup_junk(const struct wakeup *w);

/* The other end: tells the daemon at `path`. Never blocks. -1: nobody there, or its queue is full
 * (ERR_AGAIN: it will look anyway). */
int wakeup_send(const char *path, struct slice source, struct err *e) MUST_CHECK;

#endif

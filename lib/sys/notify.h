/* notify.h: the service manager's notification protocol (sd_notify(3)), without its library. The
 * main thread only. Never blocks and never fails the caller: where there is no manager
 * ($NOTIFY_SOCKET unset) everything returns true and does nothing; where the message could not be
 * handed over now it returns false, and the caller may say it again later. */
#ifndef OUTBOXD_NOTIFY_H
#define OUTBOXD_NOTIFY_H

#include "base/base.h"

#include <stdbool.h>

/* One datagram of "KEY=value" lines. The socket is opened with the first one and kept, so that the
 * watchdog is still fed when descriptors have run out. */
bool notify_send(const char *fmt, ...) PRINTF(1, 2);

/* Start-up is over, or a reload is, whether it was applied or refused. `status` as below. */
bool notify_ready(const char *status);
bool notify_reloading(void);
bool notify_stopping(void);
bool notify_watchdog(void);
/* One line for people in `systemctl status`; control characters become blanks. */
bool notify_status(const char *fmt, ...) PRINTF(1, 2);

/* The manager kills us if it hears no notify_watchdog() for that long: call it at least twice as
 * often. 0: no watchdog is wanted of this process. */
int64_t notify_watchdog_interval_us(void);

/* Forgets the socket; the next call reads the environment again. */
void notify_close(void);

#endif

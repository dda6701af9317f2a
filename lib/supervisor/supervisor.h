/* supervisor.h: the daemon's main thread: builds, drains and replaces workers, sees to signals,
 * reload, the wake-up socket, monitoring, the service manager and the deadlines of the workers'
 * calls. The only code that sees everything. */
#ifndef OUTBOXD_SUPERVISOR_H
#define OUTBOXD_SUPERVISOR_H

#include "base/err.h"

/* Runs until a signal ends it. Before the first thread: logging is set up, libraries are
 * initialised. Returns 0 after an orderly end, -1 if the configuration or the start failed (*e,
 * ERR_CONFIG for the file, whose faults went to stderr). */
int supervisor_run(const char *config_path, struct err *e) MUST_CHECK;

/* From here on the daemon's signals wait for supervisor_run(). Call it first, before threads. */
void supervisor_note_signals(void);

#endif

/* proc.h: what a process settles once, before its first thread. */
#ifndef OUTBOXD_PROC_H
#define OUTBOXD_PROC_H

#include "base/err.h"

#include <stdbool.h>

/* Descriptors 0, 1 and 2 exist (on /dev/null if need be), so that no socket is ever mistaken for
 * stderr. First thing in main(). */
void proc_std_fds(void);

/* Writing to a peer that is gone is an error to handle, not a signal. */
void proc_ignore_sigpipe(void);

/* Signals that come before their watchers are there are noted, instead of ending the process, or of
 * being lost on process 1. Call it before threads; a watcher takes a signal's place by installing
 * its own handler, then asks whether it has come. */
void proc_note_signals(const int *numbers, size_t count);
bool proc_signal_came(int number);

/* Secrets are in memory: no core dump, no ptrace by the same user, and none of it by accident. */
int proc_undumpable(struct err *e) MUST_CHECK;

/* Raises the soft limit of descriptors to the hard one, up to `want`; returns the limit in force.
 */
uint64_t proc_raise_fd_limit(uint64_t want);

/* 16 random hex digits: what tells this start of the process from every other. */
#define PROC_IDENTITY_MAX 17
void proc_identity(char out[], size_t size);

#endif

/* file.h: a small file read whole, without ever waiting for what may not come. */
#ifndef OUTBOXD_CONFIG_FILE_H
#define OUTBOXD_CONFIG_FILE_H

#include "base/buf.h"

#include <sys/stat.h>

enum file_problem {
	FILE_OK,
	FILE_CANNOT_OPEN, /* errno says why */
	FILE_CANNOT_READ, /* errno says why */
	FILE_IS_DIRECTORY,
	FILE_IS_SPECIAL, /* neither a regular file nor, where allowed, a pipe */
	FILE_TOO_LARGE,
	FILE_STALLED, /* a pipe whose writer sends nothing more and does not close it */
	FILE_NO_MEMORY,
};

#define FILE_ALLOW_PIPE 1u

/* Appends at most `max` bytes of the file to `out`; on any problem `out` may hold a part of it.
 * `st` may be NULL. The caller wipes `out` where it may hold a secret. */
enum file_problem file_read(
	const char *path, size_t max, unsigned flags, struct buf *out, struct stat *st) MUST_CHECK;

/* Makes room without leaving a copy behind: the caller's bytes are zeroed before they are freed. */
void file_wipe(struct buf *b);

#endif

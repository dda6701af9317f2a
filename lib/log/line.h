/* line.h: how a line looks; pure. */
#ifndef OUTBOXD_LINE_H
#define OUTBOXD_LINE_H

#include "base/buf.h"
#include "log/log.h"

/* Adds one whole line with its newline to an empty *b, never more than LOG_LINE_MAX bytes. Out of
 * memory: b->failed. */
void log_line_format(struct buf *b, bool json, int64_t wall_us, enum log_level level,
	const char *module, const char *message, const struct log_field *fields);

#endif

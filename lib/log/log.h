/* log.h: one line an event, logfmt or JSON, to a file or stderr. Safe from any thread, never fails
 * the caller, and once opened never waits for a disk, a pipe or a terminal: lines go through a
 * bounded queue to one writer thread. A line that cannot be queued or written is counted, and the
 * count is reported ("lines dropped") as soon as writing works again.
 *
 *	log_warn("mysql", "claim failed", F_STR("source", name), F_INT("code", e.code), F_ERR(&e));
 *	2026-01-02T03:04:05.678901Z warn mysql: claim failed source=orders code=1205 err="lock wait"
 *	{"time":"2026-01-02T03:04:05.678901Z","level":"warn","module":"mysql","msg":"claim failed",
 *	 "source":"orders","code":1205,"err":"lock wait"}		(one line)
 *
 * The module is a token to filter on, the message stable words, everything variable a field. Never
 * a payload, never a secret. Control characters in values are escaped, so nothing that comes from a
 * row can forge a line; a value of more than some 2 KiB is cut and ends in "...(+N bytes)", and a
 * line is never longer than LOG_LINE_MAX (fields that find no room are replaced by
 * "truncated=true"). */
#ifndef OUTBOXD_LOG_H
#define OUTBOXD_LOG_H

#include "base/err.h"
#include "base/slice.h"

#include <stdbool.h>

enum log_level { LOG_LEVEL_DEBUG, LOG_LEVEL_INFO, LOG_LEVEL_WARN, LOG_LEVEL_ERROR };

struct log_field {
	const char *key; /* NULL ends the list */
	enum { LOG_F_STR, LOG_F_INT, LOG_F_UINT, LOG_F_REAL, LOG_F_BOOL, LOG_F_DURATION } type;
	union {
		struct slice str;
		int64_t i;
		uint64_t u;
		double real;
		bool b;
	};
};

/* clang-format off */
#define F_STR(k, v)   ((struct log_field){ .key = (k), .type = LOG_F_STR, .str = slice_str(v) })
#define F_SLICE(k, v) ((struct log_field){ .key = (k), .type = LOG_F_STR, .str = (v) })
#define F_INT(k, v)   ((struct log_field){ .key = (k), .type = LOG_F_INT, .i = (v) })
#define F_UINT(k, v)  ((struct log_field){ .key = (k), .type = LOG_F_UINT, .u = (v) })
#define F_REAL(k, v)  ((struct log_field){ .key = (k), .type = LOG_F_REAL, .real = (v) })
#define F_BOOL(k, v)  ((struct log_field){ .key = (k), .type = LOG_F_BOOL, .b = (v) })
#define F_US(k, v)    ((struct log_field){ .key = (k), .type = LOG_F_DURATION, .i = (v) }) /* written as seconds: 1.250 */
#define F_ERR(e)      F_STR("err", (e)->text)
#define F_END         ((struct log_field){ .key = NULL })
/* clang-format on */

/* An absent slice (ptr NULL) is left out of the line. */
void log_write(enum log_level level, const char *module, const char *message,
	const struct log_field *fields);

bool log_enabled(enum log_level level);

#define log_fields(level, module, message, ...)                                                    \
	do {                                                                                       \
		if (log_enabled(level))                                                            \
			log_write(level, module, message,                                          \
				(const struct log_field[]){ __VA_ARGS__, F_END });                 \
	} while (0)

/* Each takes at least one field. */
#define log_debug(...) log_fields(LOG_LEVEL_DEBUG, __VA_ARGS__)
#define log_info(...) log_fields(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_warn(...) log_fields(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_error(...) log_fields(LOG_LEVEL_ERROR, __VA_ARGS__)

/* The longest line, newline included. */
#define LOG_LINE_MAX 8192

/* Opens `path` (NULL: stderr) for appending, mode 0640, and starts the writer thread with the first
 * call. On -1, an open that takes longer than three seconds included, the log goes on where and how
 * it went before. Before the first call, and after log_close(), lines go straight to stderr: at
 * first logfmt, info. One thread at a time. */
int log_open(const char *path, enum log_level level, bool json, struct err *e) MUST_CHECK;

/* USR1: opens the same path anew; the old descriptor is kept until the new one is open. After a
 * failure it is tried again by itself every few seconds. */
int log_reopen(struct err *e) MUST_CHECK;

/* Writes what is queued, for two seconds at most, and stops the writer. Runs at exit(3) by itself.
 * Does nothing when the log is not open. */
void log_close(void);

/* Lines lost since the process started, whether already reported or not. */
uint64_t log_lines_dropped(void);

/* "debug", "info", "warn", "error". */
const char *log_level_name(enum log_level level);
bool log_level_parse(const char *name, enum log_level *out);

/* For things that repeat: at most one line each `interval_us`, with the number of those left out in
 * field "suppressed". Embedded by the caller, zero-initialised; one thread. */
struct log_limit {
	int64_t next_us;
	uint64_t suppressed;
};
/* True: log now, and add F_UINT("suppressed", *suppressed) if it is not 0. */
bool log_limit_pass(struct log_limit *l, int64_t now_us, int64_t interval_us, uint64_t *suppressed);

#endif

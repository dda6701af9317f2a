/* admin.h: what the administrative commands share: their options, a connection to one source, JSON,
 * aligned tables, and the audit line. */
#ifndef OUTBOXD_ADMIN_H
#define OUTBOXD_ADMIN_H

#include "cmd.h"

#include "base/buf.h"
#include "base/err.h"
#include "mysql/admin.h"

#include <stdbool.h>

/* --- options -------------------------------------------------------------------------------- */

struct option_spec {
	const char *name; /* without dashes; NULL ends the list */
	enum { OPTION_FLAG, OPTION_TEXT, OPTION_NUMBER } kind;
	void *into; /* bool, const char *, unsigned (1 to 1,000,000) */
};

/* What each of them takes. */
struct common {
	const char *path, *source;
	bool json;
};

/* Reads -c, --source, --json, -h and the command's own. -1: go on, *rest is the index of the first
 * operand (rest NULL: there may be none); else the exit status. */
int parse_options(const char *command, const char *help, int argc, char **argv,
	struct common *common, const struct option_spec *own, int *rest);

/* --- life ----------------------------------------------------------------------------------- */

/* Loads the configuration and starts the client library. -1: go on; else the exit status, and
 * nothing is left to end. */
int admin_begin(const char *command, const struct common *common, struct config **conf);
void admin_end(struct config *conf);

/* The source named, or the only one; NULL: has complained, exit status 2. */
const struct source_conf *admin_source(
	const char *command, const struct config *conf, const struct common *common);

/* "outboxd status: TEXT" on stderr; returns EXIT_FAILED. */
int admin_failed(const char *command, const struct err *e);

/* Tells the daemon that there is work; that there may be none is no fault. */
void admin_wake(const struct config *conf, const struct source_conf *source);

/* A line to syslog, facility daemon: who, what, how many, why. `detail` may be NULL. */
void admin_audit(const char *command, const char *source, uint64_t changed, const char *reason,
	const char *detail);

/* --- JSON ----------------------------------------------------------------------------------- */

/* A name within an object, with the comma it needs. */
void out_name(struct buf *b, const char *name);
/* The comma before an element of a list, where it needs one. */
void out_next(struct buf *b);
void out_text(struct buf *b, struct slice s);                      /* ptr NULL: null */
void out_pair(struct buf *b, const char *name, const char *value); /* NULL: null */
void out_count(struct buf *b, const char *name, uint64_t value);
/* "2026-01-02 03:04:05.6" as RFC 3339; empty: null. */
void out_time(struct buf *b, struct slice s);

/* Writes it to stdout with a newline, and empties it; false if there was no memory. */
bool out_print(struct buf *b);

/* --- tables --------------------------------------------------------------------------------- */

#define TABLE_COLUMNS_MAX 24
struct table {
	unsigned columns;
	char **cells; /* row after row, the heading first */
	size_t count, cap;
	bool right[TABLE_COLUMNS_MAX];
	bool failed;
};

/* Headings: names ended by NULL; one that starts with '>' is aligned to the right. */
void table_init(struct table *t, const char *const *headings);
void table_cell(struct table *t, const char *fmt, ...) PRINTF(2, 3);
/* Control characters and what is not UTF-8 become '?'; longer ones are cut at `max` characters, 0:
 * never. NULL: "-". */
void table_text(struct table *t, struct slice s, size_t max);
size_t table_rows(const struct table *t);
/* Prints it, each line after `indent`, and frees it. */
void table_print(struct table *t, const char *indent);
void table_fini(struct table *t);

/* --- words ---------------------------------------------------------------------------------- */

/* "12s", "5m12s", "3h05m", "2d4h"; negative: "-". */
#define AGE_MAX 32
void age_text(int64_t us, char out[AGE_MAX]);

/* Adds a word as a shell takes it literally. */
void add_shell_word(struct buf *b, const char *word);
/* Adds "outboxd COMMAND [-c FILE] --source S [-- ]EVENT_ID". */
void add_command(struct buf *b, const char *command, const struct config *conf,
	const struct source_conf *source, const char *event_id);

/* The class that a last_error starts with; empty if there is none. */
#define CLASS_MAX 40
void error_class(const char *last_error, char out[CLASS_MAX]);

/* Adds text for people: control characters and what is not UTF-8 become '?'. */
void add_clean(struct buf *b, struct slice s);

#endif

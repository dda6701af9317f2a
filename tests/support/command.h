/* command.h: an `outboxd COMMAND` of a test, run to its end, and what it printed. */
#ifndef OUTBOXD_TESTS_COMMAND_H
#define OUTBOXD_TESTS_COMMAND_H

#include "support/daemon.h"

#include <json-c/json.h>

struct command {
	char out[60000], err[16000];
	int status; /* exit status, or 128 + signal */
};
/* Of the last command_run() or command_end(). */
extern struct command command_last;

/* `outboxd COMMAND -c CONFIG ARGS...`, NULL ends them; returns the exit status. */
int command_run(const struct daemon *d, const char *command, ...) __attribute__((sentinel));
/* The same in two steps, to be interrupted between them; one at a time. */
pid_t command_begin(const struct daemon *d, const char *command, ...) __attribute__((sentinel));
int command_end(void);

void require_status(int status);
/* "no ... in ..." with all that was printed. */
void require_text(const char *where, const char *text);

/* Standard output as JSON, to be given back; fails if it is none. */
struct json_object *command_json(void);
struct json_object *json_member(struct json_object *o, const char *name); /* fails if not there */
int64_t json_number(struct json_object *o, const char *name);
const char *json_text(struct json_object *o, const char *name);

#endif

/* cmd.h: the subcommands. Each gets argv with argv[0] being its own name, and returns the exit
 * status. */
#ifndef OUTBOXD_CMD_H
#define OUTBOXD_CMD_H

#include "config/config.h"

enum {
	EXIT_DONE = 0,
	EXIT_FAILED = 1, /* at run time, or a check found a fault */
	EXIT_USAGE = 2,  /* bad usage or bad configuration */
};

#define DEFAULT_CONFIG OUTBOXD_SYSCONFDIR "/outboxd/outboxd.yaml"

int cmd_run(int argc, char **argv);
int cmd_check(int argc, char **argv);
int cmd_schema(int argc, char **argv);
int cmd_status(int argc, char **argv);
int cmd_events(int argc, char **argv);
int cmd_explain(int argc, char **argv);
int cmd_preview(int argc, char **argv);
int cmd_requeue(int argc, char **argv);
int cmd_skip(int argc, char **argv);
int cmd_replay(int argc, char **argv);
int cmd_purge(int argc, char **argv);

/* For the subcommands. */

/* "outboxd check: TEXT" and where help is to be had, on stderr; returns EXIT_USAGE. */
int usage_error(const char *command, const char *fmt, ...) PRINTF(2, 3);
/* Loads the file, or prints its faults to stderr and returns NULL. */
struct config *load_or_complain(const char *path);

#endif

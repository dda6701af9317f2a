/* main.c: argv -> table of subcommands. */
#include "cmd.h"

#include "sys/proc.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct command {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *does;
} commands[] = {
	{ "run", cmd_run, "the daemon, in the foreground" },
	{ "check", cmd_check,
		"validate the configuration; connect and verify every source and broker" },
	{ "status", cmd_status,
		"how the sources stand: rows, leaders, leases, blocked aggregates" },
	{ "events", cmd_events, "list rows by state, class, aggregate or trace" },
	{ "explain", cmd_explain, "why an event is not sent yet, and what would change that" },
	{ "preview", cmd_preview, "the messages that the next rows would become" },
	{ "requeue", cmd_requeue, "dead rows go again, with a fresh attempt budget" },
	{ "skip", cmd_skip, "give an event up: its aggregate moves on without it" },
	{ "replay", cmd_replay, "publish sent events once more" },
	{ "purge", cmd_purge, "delete now what retention allows to delete" },
	{ "schema", cmd_schema,
		"print the DDL of the outbox, archive or inbox table, or the least privileges" },
};

static void usage(FILE *out)
{
	fprintf(out, "usage: outboxd COMMAND [-c FILE] [options]\n\n"
		     "Relays committed outbox rows from MySQL to RabbitMQ.\n\n");
	for (size_t i = 0; i < ARRAY_LEN(commands); i++)
		fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].does);
	fprintf(out,
		"\n  -c, --config FILE   default: %s\n"
		"  -h, --help          of outboxd, or of a command\n"
		"  -V, --version\n\n"
		"See outboxd(8) and outboxd.yaml(5).\n",
		DEFAULT_CONFIG);
}

int usage_error(const char *command, const char *fmt, ...)
{
	va_list ap;

	fprintf(stderr, "outboxd %s: ", command);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fprintf(stderr, "\nTry 'outboxd %s --help'.\n", command);
	return EXIT_USAGE;
}

struct config *load_or_complain(const char *path)
{
	struct config *conf = NULL;
	struct buf faults = { 0 };

	if (config_load(&conf, path, &faults) < 0)
		fputs(faults.data != NULL ? faults.data : "", stderr);
	buf_fini(&faults);
	return conf;
}

int main(int argc, char **argv)
{
	proc_std_fds();
	proc_ignore_sigpipe();
	if (argc < 2) {
		usage(stderr);
		return EXIT_USAGE;
	}
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
		strcmp(argv[1], "help") == 0) {
		usage(stdout);
		return EXIT_DONE;
	}
	if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
		printf("outboxd %s (%s)\n", OUTBOXD_VERSION, OUTBOXD_COMMIT);
		return EXIT_DONE;
	}
	for (size_t i = 0; i < ARRAY_LEN(commands); i++)
		if (strcmp(argv[1], commands[i].name) == 0)
			return commands[i].run(argc - 1, argv + 1);
	fprintf(stderr, "outboxd: there is no command '%s'\n\n", argv[1]);
	usage(stderr);
	return EXIT_USAGE;
}

#include "cmd.h"

#include "amqp/publisher.h"
#include "log/log.h"
#include "mysql/session.h"
#include "supervisor/supervisor.h"
#include "sys/proc.h"

#include <getopt.h>
#include <malloc.h>
#include <stdio.h>

static const char help[] =
	"usage: outboxd run [-c FILE]\n\n"
	"The daemon, in the foreground; never forks. Signals: TERM, INT stop in order (again: at "
	"once), HUP reloads\n"
	"the configuration, USR1 reopens the log file, USR2 polls every source now.\n\n"
	"  -c, --config FILE   default: " DEFAULT_CONFIG "\n"
	"  -h, --help\n";

static int options(int argc, char **argv, const char **path)
{
	static const struct option known[] = {
		{ "config", required_argument, NULL, 'c' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	int c;

	opterr = 0;
	while ((c = getopt_long(argc, argv, "c:h", known, NULL)) != -1) {
		if (c == 'c') {
			*path = optarg;
		} else if (c == 'h') {
			fputs(help, stdout);
			return EXIT_DONE;
		} else {
			return usage_error("run", "unknown option, or one without its value: %s",
				argv[optind - 1]);
		}
	}
	if (optind < argc)
		return usage_error("run", "unexpected argument: %s", argv[optind]);
	return -1;
}

int cmd_run(int argc, char **argv)
{
	const char *path = DEFAULT_CONFIG;
	int done = options(argc, argv, &path);
	struct err e = { 0 };
	int rc;

	if (done >= 0)
		return done;
	supervisor_note_signals();
	/* Few arenas: relays allocate little once they run, and memory stays bounded with many of
	 * them. */
	mallopt(M_ARENA_MAX, 2);
	mallopt(M_MMAP_THRESHOLD, 256 * 1024);
	if (proc_undumpable(&e) < 0)
		log_warn("run", "core dumps stay possible", F_ERR(&e));
	(void)proc_raise_fd_limit(65536);
	if (mysql_global_init(&e) < 0 || amqp_global_init(&e) < 0) {
		fprintf(stderr, "outboxd run: %s\n", e.text);
		return EXIT_FAILED;
	}
	rc = supervisor_run(path, &e);
	mysql_global_fini();
	if (rc == 0)
		return EXIT_DONE;
	fprintf(stderr, "outboxd run: %s\n", e.text);
	return e.kind == ERR_CONFIG ? EXIT_USAGE : EXIT_FAILED;
}

#include "cmd.h"

#include "mysql/ddl.h"

#include <getopt.h>
#include <stdio.h>

static const char help[] = "usage: outboxd schema [--outbox] [--archive] [--inbox] [--grants]\n\n"
			   "Prints SQL: the tables' definitions, or the least privileges of each "
			   "account. Reads no configuration and connects to\n"
			   "nothing. Without an option: the outbox table.\n\n"
			   "      --outbox   the table the application writes events into\n"
			   "      --archive  the table retention moves old events into\n"
			   "      --inbox    the table a consumer recognises repeated messages by\n"
			   "      --grants   accounts and their privileges\n"
			   "  -h, --help\n";

int cmd_schema(int argc, char **argv)
{
	enum { OUTBOX = 256, ARCHIVE, INBOX, GRANTS };
	static const struct option known[] = {
		{ "outbox", no_argument, NULL, OUTBOX },
		{ "archive", no_argument, NULL, ARCHIVE },
		{ "inbox", no_argument, NULL, INBOX },
		{ "grants", no_argument, NULL, GRANTS },
		{ "config", required_argument, NULL, 'c' }, /* like every command; not needed */
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	bool outbox = false, archive = false, inbox = false, grants = false;
	int c;

	opterr = 0;
	while ((c = getopt_long(argc, argv, "c:h", known, NULL)) != -1) {
		switch (c) {
		case OUTBOX:
			outbox = true;
			break;
		case ARCHIVE:
			archive = true;
			break;
		case INBOX:
			inbox = true;
			break;
		case GRANTS:
			grants = true;
			break;
		case 'c':
			break;
		case 'h':
			fputs(help, stdout);
			return EXIT_DONE;
		default:
			return usage_error("schema", "unknown option, or one without its value: %s",
				argv[optind - 1]);
		}
	}
	if (optind < argc)
		return usage_error("schema", "unexpected argument: %s", argv[optind]);
	if (outbox || (!archive && !inbox && !grants))
		fputs(ddl_outbox, stdout);
	if (archive)
		fputs(ddl_archive, stdout);
	if (inbox)
		fputs(ddl_inbox, stdout);
	if (grants)
		fputs(ddl_grants, stdout);
	return EXIT_DONE;
}

/* main.c: `make bench`, and by hand, with the variables of `tests/servers env`:
 *
 *	bench [--parts LIST] [--events N] [--rounds N] ...	(bench --help) */
#include "bench.h"

#include "amqp/publisher.h"
#include "mysql/session.h"

#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct part {
	const char *name;
	void (*measure)(const struct bench *b, struct report *r);
} parts[] = {
	{ "throughput", measure_throughput },
	{ "claims", measure_claims },
	{ "held", measure_held },
	{ "latency", measure_latency },
	{ "idle", measure_idle },
	{ "memory", measure_memory },
};

static const char usage[] =
	"usage: bench [options], with the variables of tests/servers env\n"
	"  --parts LIST   throughput, claims, held, latency, idle, memory, with commas; or all\n"
	"                 (throughput,memory)\n"
	"  --events N     of a throughput pass (20000)\n"
	"  --rounds N     of throughput; their mean counts (5)\n"
	"  --rows N       of the large tables that are claimed from (1000000)\n"
	"  --most N       pending rows of one larger still (none)\n"
	"  --claims N     of each table (100)\n"
	"  --held N       events sent while a snapshot is held (150000)\n"
	"  --seconds N    of each latency and idle measurement (10)\n"
	"  --memory N     events a source, eight sources (20000)\n"
	"  --bin FILE     the daemon (build/outboxd)\n"
	"  --json FILE, --picture FILE   where results go beside stdout\n";

static uint64_t count_of(const char *text)
{
	char *end;
	unsigned long long n = strtoull(text, &end, 10);

	if (*text == '\0' || *end != '\0')
		die(text, "is no number");
	return n;
}

static bool wants(const char *list, const char *name)
{
	size_t len = strlen(name);

	if (strcmp(list, "all") == 0)
		return true;
	for (const char *p = list; p != NULL; p = strchr(p, ',')) {
		p += *p == ',';
		if (strncmp(p, name, len) == 0 && (p[len] == ',' || p[len] == '\0'))
			return true;
	}
	return false;
}

/* Returns the list of parts. */
static const char *options(struct bench *b, int argc, char **argv)
{
	static const struct option known[] = {
		{ "parts", required_argument, NULL, 'p' },
		{ "events", required_argument, NULL, 'e' },
		{ "rounds", required_argument, NULL, 'r' },
		{ "rows", required_argument, NULL, 'n' },
		{ "most", required_argument, NULL, 'N' },
		{ "claims", required_argument, NULL, 'c' },
		{ "held", required_argument, NULL, 'h' },
		{ "seconds", required_argument, NULL, 's' },
		{ "memory", required_argument, NULL, 'm' },
		{ "bin", required_argument, NULL, 'b' },
		{ "json", required_argument, NULL, 'j' },
		{ "picture", required_argument, NULL, 'P' },
		{ "help", no_argument, NULL, '?' },
		{ 0 },
	};
	const char *list = "throughput,memory";
	int c;

	while ((c = getopt_long(argc, argv, "", known, NULL)) != -1) {
		switch (c) {
		case 'p':
			list = optarg;
			break;
		case 'e':
			b->events = count_of(optarg);
			break;
		case 'r':
			b->rounds = (unsigned)count_of(optarg);
			break;
		case 'n':
			b->rows = count_of(optarg);
			break;
		case 'N':
			b->most = count_of(optarg);
			break;
		case 'c':
			b->claims = (unsigned)count_of(optarg);
			break;
		case 'h':
			b->held = count_of(optarg);
			break;
		case 's':
			b->seconds = (unsigned)count_of(optarg);
			break;
		case 'm':
			b->memory = count_of(optarg);
			break;
		case 'b':
			b->bin = optarg;
			break;
		case 'j':
			b->json = optarg;
			break;
		case 'P':
			b->picture = optarg;
			break;
		default:
			fputs(usage, stderr);
			exit(2);
		}
	}
	if (b->events < 1000 || b->rounds == 0 || b->rows < 10000 || b->claims == 0 ||
		b->held < 10000 || b->seconds == 0 || b->memory == 0)
		die("usage", "numbers too small to tell anything");
	return list;
}

int main(int argc, char **argv)
{
	static struct report r;
	struct bench b = {
		.bin = "build/outboxd",
		.events = 20000,
		.rounds = 5,
		.memory = 20000,
		.rows = 1000000,
		.claims = 100,
		.held = 150000,
		.seconds = 10,
		.dir = "/tmp/outboxd-bench-XXXXXX",
	};
	const char *list = options(&b, argc, argv);
	struct err e = { 0 };

	if (mysql_global_init(&e) < 0 || amqp_global_init(&e) < 0)
		die("libraries", e.text);
	signal(SIGPIPE, SIG_IGN);
	if (mkdtemp(b.dir) == NULL)
		die(b.dir, strerror(errno));
	snprintf(b.config, sizeof(b.config), "%s/outboxd.yaml", b.dir);
	snprintf(b.log, sizeof(b.log), "%s/log", b.dir);
	snprintf(b.wakeup, sizeof(b.wakeup), "%s/wakeup.sock", b.dir);
	(void)getloadavg(&r.load, 1);
	servers_open(&b);
	for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
		if (!wants(list, parts[i].name))
			continue;
		fprintf(stderr, "bench: %s\n", parts[i].name);
		parts[i].measure(&b, &r);
	}
	report_text(&b, &r, stdout);
	if (b.json != NULL) {
		FILE *f = fopen(b.json, "w");

		if (f == NULL)
			die(b.json, strerror(errno));
		report_json(&b, &r, f);
		if (fclose(f) != 0)
			die(b.json, strerror(errno));
	}
	if (b.picture != NULL)
		report_picture(&r, b.picture);
	servers_close(&b);
	unlink(b.config);
	unlink(b.log);
	unlink(b.wakeup);
	rmdir(b.dir);
	mysql_global_fini();
	return 0;
}

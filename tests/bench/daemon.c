#include "bench.h"

#include "base/buf.h"
#include "sys/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define WAIT_US (600 * US_PER_SEC)

static void add_source(FILE *f, const struct bench *b, const struct daemon_conf *c, unsigned i)
{
	char schema[40];

	if (c->tables != NULL)
		snprintf(schema, sizeof(schema), "%s", c->tables);
	else
		snprintf(schema, sizeof(schema), "outboxd_bench%u", i);
	fprintf(f,
		"  - name: bench%u\n"
		"    database: { host: %s, port: %u, name: %s, username: root%s%s }\n"
		"    broker: b\n"
		"    publish: { exchange: " EXCHANGE
		", routing_key: \"{aggregate_type}.{event_type}\" }\n",
		i, b->mysql_host, b->mysql_port, schema,
		b->mysql_password != NULL ? ", password: " : "",
		b->mysql_password != NULL ? b->mysql_password : "");
	if (c->tables != NULL)
		fprintf(f, "    table: outbox%u\n", i);
	if (c->ordering != NULL)
		fprintf(f, "    ordering: %s\n", c->ordering);
}

struct config *configure(const struct bench *b, const struct daemon_conf *c)
{
	struct config *conf = NULL;
	struct buf faults = { 0 };
	FILE *f = fopen(b->config, "w");

	if (f == NULL)
		die(b->config, strerror(errno));
	unlink(b->log);
	if (c->log_events)
		fprintf(f, "log: { file: \"%s\", level: info, events: all }\n", b->log);
	else
		fprintf(f, "log: { level: warn }\n");
	if (c->http_port != 0)
		fprintf(f, "http: { listen: \"127.0.0.1:%u\" }\n", c->http_port);
	if (c->wakeup)
		fprintf(f, "wakeup: { socket: \"%s\" }\n", b->wakeup);
	fprintf(f,
		"brokers:\n  - { name: b, hosts: [\"%s:%u\"], username: guest, password: guest }\n"
		"sources:\n",
		b->amqp_host, b->amqp_port);
	for (unsigned i = 0; i < c->sources; i++)
		add_source(f, b, c, i);
	fclose(f);
	if (config_load(&conf, b->config, &faults) < 0)
		die(b->config, faults.data);
	buf_fini(&faults);
	return conf;
}

pid_t daemon_start(const struct bench *b)
{
	pid_t pid = fork();

	if (pid == 0) {
		execl(b->bin, b->bin, "run", "-c", b->config, (char *)NULL);
		_exit(127);
	}
	if (pid < 0)
		die("fork", strerror(errno));
	return pid;
}

void daemon_stop(pid_t pid)
{
	int status;

	kill(pid, SIGTERM);
	if (waitpid(pid, &status, 0) < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
		die("outboxd", "did not end well");
}

unsigned free_port(void)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(a);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 ||
		getsockname(fd, (struct sockaddr *)&a, &len) < 0)
		die("port", strerror(errno));
	close(fd);
	return ntohs(a.sin_port);
}

static void get(unsigned port, char *text, size_t size)
{
	static const char request[] = "GET /metrics HTTP/1.0\r\n\r\n";
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
	size_t len = 0;
	ssize_t n;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
	if (fd < 0)
		die("socket", strerror(errno));
	if (connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0 &&
		write(fd, request, sizeof(request) - 1) > 0)
		while ((n = read(fd, text + len, size - 1 - len)) > 0)
			len += (size_t)n;
	close(fd);
	text[len] = '\0';
}

/* Returns how many series there are. */
static unsigned read_metric(unsigned port, const char *name, double *sum)
{
	static char text[4 << 20];
	size_t len = strlen(name);
	unsigned series = 0;

	*sum = 0;
	get(port, text, sizeof(text));
	for (char *line = text; line != NULL; line = strchr(line, '\n')) {
		char *blank;

		line += *line == '\n';
		if (strncmp(line, name, len) != 0 || line[len] != '{')
			continue;
		blank = strchr(line, ' ');
		*sum += blank != NULL ? strtod(blank, NULL) : 0;
		series++;
	}
	return series;
}

double scrape(unsigned port, const char *name)
{
	double sum;

	return read_metric(port, name, &sum) > 0 ? sum : -1;
}

void wait_series(unsigned port, const char *name, unsigned count)
{
	int64_t limit_us = clock_mono_us() + WAIT_US;
	double sum;

	while (read_metric(port, name, &sum) < count) {
		if (clock_mono_us() > limit_us)
			die(name, "is missing of some");
		usleep(100000);
	}
}

/* Asks the more rarely the farther away it is, since answering costs the daemon time. */
void wait_metric(unsigned port, const char *name, double at_least)
{
	int64_t start_us = clock_mono_us(), now_us = start_us;
	double first = scrape(port, name), seen = first;

	while (seen < at_least) {
		int64_t pause_us = 10 * US_PER_MS;

		if (seen > first) {
			double left = (at_least - seen) / (seen - first);

			pause_us = (int64_t)(left * (double)(now_us - start_us) / 2);
		}
		if (pause_us < 5 * US_PER_MS)
			pause_us = 5 * US_PER_MS;
		if (pause_us > 500 * US_PER_MS)
			pause_us = 500 * US_PER_MS;
		usleep((useconds_t)pause_us);
		seen = scrape(port, name);
		now_us = clock_mono_us();
		if (now_us - start_us > WAIT_US)
			die(name, "does not get there");
	}
}

void wait_published(unsigned port, uint64_t events)
{
	wait_metric(port, "outboxd_events_published_total", (double)events);
}

double memory_mb(pid_t pid, const char *field)
{
	char path[64], line[256];
	size_t len = strlen(field);
	double kb = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	f = fopen(path, "r");
	if (f == NULL)
		die(path, strerror(errno));
	while (fgets(line, sizeof(line), f) != NULL)
		if (strncmp(line, field, len) == 0 && line[len] == ':')
			kb = strtod(line + len + 1, NULL);
	fclose(f);
	return kb / 1024;
}

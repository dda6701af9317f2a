#include "support/env.h"

#include "base/rng.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

void (*env_on_failure)(const char *text);

static struct {
	void (*show)(void *arg);
	void *arg;
} witnesses[32];
static bool failing;

void env_add_witness(void (*show)(void *arg), void *arg)
{
	for (size_t i = 0; i < ARRAY_LEN(witnesses); i++) {
		if (witnesses[i].show != NULL)
			continue;
		witnesses[i].show = show;
		witnesses[i].arg = arg;
		return;
	}
}

void env_drop_witness(void *arg)
{
	for (size_t i = 0; i < ARRAY_LEN(witnesses); i++)
		if (witnesses[i].arg == arg)
			witnesses[i].show = NULL;
}

void env_fail(const char *file, int line, const char *fmt, ...)
{
	char text[2000];
	int n = snprintf(text, sizeof(text), "%s:%d: ", file, line);
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text + n, sizeof(text) - (size_t)n, fmt, ap);
	va_end(ap);
	fflush(stdout);
	if (!failing) {
		failing = true;
		for (size_t i = 0; i < ARRAY_LEN(witnesses); i++)
			if (witnesses[i].show != NULL)
				witnesses[i].show(witnesses[i].arg);
	}
	fprintf(stderr, "FAILED %s\n", text);
	if (env_on_failure != NULL)
		env_on_failure(text);
	exit(EXIT_FAILURE);
}

static const char *variable(bool mariadb, const char *name)
{
	char full[80];

	snprintf(full, sizeof(full), "OUTBOXD_TEST_%s_%s", mariadb ? "MARIADB" : "MYSQL", name);
	return getenv(full);
}

static bool on_mariadb(void)
{
	const char *on = getenv("OUTBOXD_TEST_ON");

	return on != NULL && strcmp(on, "mariadb") == 0;
}

const char *env_missing(void)
{
	if (variable(on_mariadb(), "PORT") == NULL)
		return on_mariadb() ? "no MariaDB (OUTBOXD_TEST_MARIADB_PORT is not set)"
				    : "no MySQL (OUTBOXD_TEST_MYSQL_PORT is not set)";
	if (getenv("OUTBOXD_TEST_AMQP_PORT") == NULL)
		return "no RabbitMQ (OUTBOXD_TEST_AMQP_PORT is not set)";
	return NULL;
}

static const char *or_else(const char *value, const char *otherwise)
{
	return value != NULL ? value : otherwise;
}

/* The first folder above this program's own that has the name in it. */
static bool find_above(char *out, size_t size, const char *name, bool folder)
{
	char dir[400];
	ssize_t n = readlink("/proc/self/exe", dir, sizeof(dir) - 1);

	dir[n > 0 ? n : 0] = '\0';
	for (char *slash; (slash = strrchr(dir, '/')) != NULL;) {
		*slash = '\0';
		snprintf(out, size, "%s/%s", dir, name);
		if (access(out, X_OK) == 0) {
			if (folder)
				snprintf(out, size, "%s", dir);
			return true;
		}
	}
	return false;
}

const struct env *env_get(void)
{
	static struct env env;
	const char *missing = env_missing(), *bin = getenv("OUTBOXD_BIN"),
		   *thorough = getenv("OUTBOXD_TEST_LONG");

	if (env.db_port != 0)
		return &env;
	if (missing != NULL)
		FAIL("%s: eval \"$(tests/servers env)\"", missing);
	env.mariadb = on_mariadb();
	env.db_host = or_else(variable(env.mariadb, "HOST"), "127.0.0.1");
	env.db_user = or_else(variable(env.mariadb, "USER"), "root");
	env.db_password = or_else(variable(env.mariadb, "ROOT_PASSWORD"), "");
	env.db_version = or_else(variable(env.mariadb, "VERSION"), "?");
	env.db_port = (unsigned)atoi(variable(env.mariadb, "PORT"));
	env.mq_host = or_else(getenv("OUTBOXD_TEST_AMQP_HOST"), "127.0.0.1");
	env.mq_port = (unsigned)atoi(getenv("OUTBOXD_TEST_AMQP_PORT"));
	env.mq_user = or_else(getenv("OUTBOXD_TEST_AMQP_USER"), "guest");
	env.mq_password = or_else(getenv("OUTBOXD_TEST_AMQP_PASSWORD"), "guest");
	env.rabbitmqctl = getenv("OUTBOXD_TEST_RABBITMQCTL");
	env.servers = getenv("OUTBOXD_TEST_SERVERS");
	env.thorough = thorough != NULL && strcmp(thorough, "1") == 0;
	if (bin != NULL)
		snprintf(env.binary, sizeof(env.binary), "%s", bin);
	else if (!find_above(env.binary, sizeof(env.binary), "outboxd", false))
		FAIL("no program to test: make, or OUTBOXD_BIN");
	(void)find_above(env.shim, sizeof(env.shim), "shim.so", false);
	if (!find_above(env.repository, sizeof(env.repository), "sql", true) &&
		access("sql", X_OK) == 0)
		snprintf(env.repository, sizeof(env.repository), ".");
	return &env;
}

static const char *server_name(enum which_server which)
{
	if (which == SERVER_BROKER)
		return "rabbitmq";
	return env_get()->mariadb ? "mariadb" : "mysql";
}

static void broken_path(char *out, size_t size, const char *server)
{
	const char *dir = getenv("OUTBOXD_SERVERS_DIR");

	snprintf(out, size, "%s/broken-by-test-%s", dir != NULL ? dir : "/tmp", server);
}

static void run_servers(const char *verb, const char *server)
{
	const char *argv[] = { env_get()->servers, verb, server, NULL };
	char out[4000];

	if (env_get()->servers == NULL)
		FAIL("OUTBOXD_TEST_SERVERS is not set: %s %s is not possible", verb, server);
	if (env_run(out, sizeof(out), argv) != 0)
		FAIL("tests/servers %s %s: %s", verb, server, out);
}

void env_server(enum which_server which, const char *verb)
{
	bool breaks = strcmp(verb, "freeze") == 0 || strcmp(verb, "kill9") == 0 ||
		      strcmp(verb, "stop") == 0;
	char path[600];

	broken_path(path, sizeof(path), server_name(which));
	if (breaks)
		env_write_file(path, verb);
	run_servers(verb, server_name(which));
	if (!breaks)
		unlink(path);
}

void env_mark(const char *what, bool broken)
{
	char path[600];

	broken_path(path, sizeof(path), what);
	if (broken)
		env_write_file(path, what);
	else
		unlink(path);
}

bool env_marked(const char *what)
{
	char path[600];

	broken_path(path, sizeof(path), what);
	return access(path, F_OK) == 0;
}

void env_mend(void)
{
	for (int s = SERVER_DATABASE; s <= SERVER_BROKER; s++) {
		char path[600], *how;

		broken_path(path, sizeof(path), server_name(s));
		how = env_read_file(path);
		if (how == NULL)
			continue;
		env_server(s, strcmp(how, "freeze") == 0 ? "thaw" : "restart");
		free(how);
	}
}

int64_t env_now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * US_PER_SEC + t.tv_nsec / 1000;
}

void env_sleep_ms(int64_t ms)
{
	struct timespec t = { ms / 1000, (ms % 1000) * 1000000 };

	while (nanosleep(&t, &t) < 0 && errno == EINTR)
		;
}

uint64_t env_random(void)
{
	static struct rng rng;
	static pid_t of;

	if (of != getpid()) {
		of = getpid();
		rng.state = rng_os_seed();
	}
	return rng_next(&rng);
}

void env_name(char *out, size_t size, const char *prefix)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789";
	uint64_t r = env_random();
	char tail[11] = { 0 };

	for (int i = 0; i < 10; i++, r /= 36)
		tail[i] = letters[r % 36];
	snprintf(out, size, "%s%s", prefix, tail);
}

int env_run(char *out, size_t size, const char *const *argv)
{
	char discard[4096];
	size_t have = 0;
	int pipes[2], status = 0;
	pid_t pid;

	if (pipe2(pipes, O_CLOEXEC) < 0)
		FAIL("pipe: %s", strerror(errno));
	pid = fork();
	if (pid < 0)
		FAIL("fork: %s", strerror(errno));
	if (pid == 0) {
		int null = open("/dev/null", O_RDONLY);

		dup2(null, 0);
		dup2(pipes[1], 1);
		dup2(pipes[1], 2);
		execv(argv[0], (char *const *)(uintptr_t)argv);
		_exit(127);
	}
	close(pipes[1]);
	/* A server that it started may keep the pipe open: its own end counts. */
	fcntl(pipes[0], F_SETFL, O_NONBLOCK);
	for (bool ended = false;;) {
		ssize_t n = out != NULL && have + 1 < size
				    ? read(pipes[0], out + have, size - 1 - have)
				    : read(pipes[0], discard, sizeof(discard));

		if (n > 0) {
			have += out != NULL && have + 1 < size ? (size_t)n : 0;
			continue;
		}
		if (n == 0 || ended)
			break;
		ended = waitpid(pid, &status, WNOHANG) == pid;
		if (ended)
			pid = 0;
		else
			env_sleep_ms(5);
	}
	close(pipes[0]);
	if (pid != 0)
		waitpid(pid, &status, 0);
	if (out != NULL && size > 0)
		out[have] = '\0';
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

char *env_read_file(const char *path)
{
	FILE *f = fopen(path, "re");
	size_t have = 0, cap = 65536;
	char *text = NULL;

	if (f == NULL)
		return NULL;
	for (size_t n = 1; n > 0; have += n) {
		cap = have + 1 < cap / 2 ? cap : cap * 2;
		text = realloc(text, cap);
		if (text == NULL)
			FAIL("out of memory");
		n = fread(text + have, 1, cap - have - 1, f);
	}
	text[have] = '\0';
	fclose(f);
	return text;
}

void env_write_file(const char *path, const char *text)
{
	FILE *f = fopen(path, "we");

	if (f == NULL || fputs(text, f) < 0 || fclose(f) != 0)
		FAIL("%s: %s", path, strerror(errno));
}

unsigned env_free_port(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(at);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof(at)) < 0 ||
		getsockname(fd, (struct sockaddr *)&at, &len) < 0)
		FAIL("no free port: %s", strerror(errno));
	close(fd);
	return ntohs(at.sin_port);
}

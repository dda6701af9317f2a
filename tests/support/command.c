#include "support/command.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct command command_last;

static struct {
	pid_t pid;
	char out[200], err[200];
} running;

static void read_all(const char *path, char *to, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t len = 0;

	REQUIRE(fd >= 0);
	for (ssize_t n; len + 1 < size && (n = read(fd, to + len, size - 1 - len)) > 0;)
		len += (size_t)n;
	to[len] = '\0';
	close(fd);
}

static pid_t begin(const struct daemon *d, const char *command, va_list ap)
{
	const char *args[40] = { "outboxd", command, "-c", d->config };
	int n = 4;

	while (n < 39 && (args[n] = va_arg(ap, const char *)) != NULL)
		n++;
	snprintf(running.out, sizeof(running.out), "%s/command.out", d->dir);
	snprintf(running.err, sizeof(running.err), "%s/command.err", d->dir);
	running.pid = fork();
	REQUIRE(running.pid >= 0);
	if (running.pid == 0) {
		int out = open(running.out, O_WRONLY | O_CREAT | O_TRUNC, 0600);
		int err = open(running.err, O_WRONLY | O_CREAT | O_TRUNC, 0600);

		dup2(out, 1);
		dup2(err, 2);
		execv(env_get()->binary, (char *const *)(uintptr_t)args);
		_exit(127);
	}
	return running.pid;
}

pid_t command_begin(const struct daemon *d, const char *command, ...)
{
	va_list ap;
	pid_t pid;

	va_start(ap, command);
	pid = begin(d, command, ap);
	va_end(ap);
	return pid;
}

int command_end(void)
{
	int status;

	REQUIRE(waitpid(running.pid, &status, 0) == running.pid);
	command_last.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
	read_all(running.out, command_last.out, sizeof(command_last.out));
	read_all(running.err, command_last.err, sizeof(command_last.err));
	return command_last.status;
}

int command_run(const struct daemon *d, const char *command, ...)
{
	va_list ap;

	va_start(ap, command);
	(void)begin(d, command, ap);
	va_end(ap);
	return command_end();
}

void require_status(int status)
{
	if (command_last.status != status)
		FAIL("exit status %d, should be %d\n%s%s", command_last.status, status,
			command_last.out, command_last.err);
}

void require_text(const char *where, const char *text)
{
	if (strstr(where, text) == NULL)
		FAIL("no \"%s\" in: %s\nstderr: %s", text, where, command_last.err);
}

struct json_object *command_json(void)
{
	struct json_object *o = json_tokener_parse(command_last.out);

	if (o == NULL)
		FAIL("not JSON: %s%s", command_last.out, command_last.err);
	return o;
}

struct json_object *json_member(struct json_object *o, const char *name)
{
	struct json_object *m = NULL;

	if (!json_object_object_get_ex(o, name, &m))
		FAIL("no member %s in: %s", name, json_object_to_json_string(o));
	return m;
}

int64_t json_number(struct json_object *o, const char *name)
{
	return json_object_get_int64(json_member(o, name));
}

const char *json_text(struct json_object *o, const char *name)
{
	return json_object_get_string(json_member(o, name));
}

#include "support/daemon.h"

#include "base/buf.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

void conf_init(struct conf *c)
{
	*c = (struct conf){
		.ordering = "none",
		.on_dead = "block",
		.log_level = "info",
		.log_events = "failures",
		.batch = 500,
		.window = 2000,
		.poll_ms = 200,
		.lease_ms = 60000,
		.query_ms = 15000,
		.confirm_ms = 15000,
		.connect_ms = 5000,
		.shutdown_ms = 15000,
		.heartbeat_s = 20,
		.max_attempts = 10,
		.retry_base_ms = 2000,
		.retry_cap_ms = 300000,
		.jitter = "0.2",
	};
	c->broker[c->brokers++] = (struct conf_broker){ .name = "main" };
}

void conf_short_lease(struct conf *c)
{
	c->lease_ms = 3000;
	c->query_ms = 1000;
	c->confirm_ms = 1500;
	c->connect_ms = 2000;
	c->heartbeat_s = 2;
}

struct conf_source *conf_add(
	struct conf *c, const char *name, const struct schema *s, const char *exchange)
{
	struct conf_source *source = &c->source[c->sources++];

	*source = (struct conf_source){ .schema = s, .exchange = exchange };
	snprintf(source->name, sizeof(source->name), "%s", name);
	return source;
}

static void show(void *arg)
{
	const struct daemon *d = arg;
	char status[4000];
	const char *paths[] = { d->log, d->stderr_path };

	for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
		char *text = env_read_file(paths[i]);
		size_t len = text != NULL ? strlen(text) : 0;

		if (len > 0)
			fprintf(stderr, "---- %s %s (%zu bytes):\n%s", d->instance, paths[i], len,
				len > 6000 ? text + len - 6000 : text);
		free(text);
	}
	if (d->pid != 0 && daemon_get(d, "/status", status, sizeof(status)) == 200)
		fprintf(stderr, "---- %s /status: %s", d->instance, status);
}

static void open_notify(struct daemon *d)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	int size = 1 << 20;

	snprintf(d->notify_path, sizeof(d->notify_path), "%s/notify", d->dir);
	snprintf(at.sun_path, sizeof(at.sun_path), "%s", d->notify_path);
	d->notify_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (d->notify_fd < 0 || bind(d->notify_fd, (struct sockaddr *)&at, sizeof(at)) < 0)
		FAIL("%s: %s", at.sun_path, strerror(errno));
	setsockopt(d->notify_fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
}

struct daemon *daemon_new(const char *instance)
{
	struct daemon *d = calloc(1, sizeof(*d));
	const char *tmp = getenv("TMPDIR");

	if (d == NULL)
		FAIL("out of memory");
	if (tmp == NULL || strlen(tmp) > 40)
		tmp = "/tmp";
	snprintf(d->dir, sizeof(d->dir), "%s/outboxd-it-XXXXXX", tmp);
	if (mkdtemp(d->dir) == NULL)
		FAIL("%s: %s", d->dir, strerror(errno));
	snprintf(d->instance, sizeof(d->instance), "%s", instance);
	snprintf(d->config, sizeof(d->config), "%s/outboxd.yaml", d->dir);
	snprintf(d->log, sizeof(d->log), "%s/outboxd.log", d->dir);
	snprintf(d->stderr_path, sizeof(d->stderr_path), "%s/stderr", d->dir);
	snprintf(d->wakeup, sizeof(d->wakeup), "%s/wakeup.sock", d->dir);
	d->http_port = env_free_port();
	open_notify(d);
	env_add_witness(show, d);
	return d;
}

void daemon_free(struct daemon *d)
{
	DIR *dir;
	struct dirent *entry;
	char path[400];

	if (d == NULL)
		return;
	daemon_kill(d);
	close(d->notify_fd);
	dir = opendir(d->dir);
	while (dir != NULL && (entry = readdir(dir)) != NULL) {
		snprintf(path, sizeof(path), "%s/%s", d->dir, entry->d_name);
		unlink(path);
	}
	if (dir != NULL)
		closedir(dir);
	rmdir(d->dir);
	env_drop_witness(d);
	free(d);
}

void daemon_secret(const struct daemon *d, const char *name, char *out, size_t size)
{
	snprintf(out, size, "%s/%s.pass", d->dir, name);
}

static void write_secret(const struct daemon *d, const char *name, const char *secret)
{
	char path[200];

	daemon_secret(d, name, path, sizeof(path));
	env_write_file(path, secret);
	chmod(path, 0600);
}

static void add_ms(struct buf *b, const char *indent, const char *key, int64_t ms)
{
	buf_addf(b, "%s%s: %" PRId64 "ms\n", indent, key, ms);
}

static void add_brokers(struct buf *b, const struct daemon *d, const struct conf *c)
{
	const struct env *env = env_get();

	buf_adds(b, "brokers:\n");
	for (unsigned i = 0; i < c->brokers; i++) {
		const struct conf_broker *m = &c->broker[i];

		buf_addf(b, "  - name: %s\n    hosts: [\"%s:%u\"]\n    username: %s\n", m->name,
			m->host != NULL ? m->host : env->mq_host,
			m->port != 0 ? m->port : env->mq_port, env->mq_user);
		buf_addf(b, "    password_file: %s/broker-%s.pass\n    heartbeat: %us\n", d->dir,
			m->name, c->heartbeat_s);
		add_ms(b, "    ", "connect_timeout", c->connect_ms);
		add_ms(b, "    ", "confirm_timeout", c->confirm_ms);
		if (m->more != NULL)
			buf_adds(b, m->more);
	}
}

static void add_defaults(struct buf *b, const struct conf *c)
{
	buf_adds(b, "defaults:\n");
	buf_addf(b, "  ordering: %s\n", c->ordering);
	if (strcmp(c->ordering, "aggregate") == 0)
		buf_addf(b, "  on_dead: %s\n", c->on_dead);
	buf_addf(b, "  batch: %u\n  max_in_flight: %u\n", c->batch, c->window);
	add_ms(b, "  ", "poll_interval", c->poll_ms);
	add_ms(b, "  ", "lease", c->lease_ms);
	buf_addf(b, "  retry:\n    max_attempts: %u\n    jitter: %s\n", c->max_attempts, c->jitter);
	add_ms(b, "    ", "base", c->retry_base_ms);
	add_ms(b, "    ", "cap", c->retry_cap_ms);
	buf_addf(b, "  database:\n    host: %s\n", env_get()->db_host);
	add_ms(b, "    ", "connect_timeout", c->connect_ms);
	add_ms(b, "    ", "query_timeout", c->query_ms);
}

static void add_source(struct buf *b, const struct daemon *d, const struct conf_source *s)
{
	buf_addf(b, "  - name: %s\n    broker: %s\n", s->name,
		s->broker != NULL ? s->broker : "main");
	buf_addf(b,
		"    database:\n      host: %s\n      port: %u\n      name: %s\n      username: "
		"%s\n",
		s->db_host != NULL ? s->db_host : env_get()->db_host,
		s->db_port != 0 ? s->db_port : env_get()->db_port, s->schema->name,
		s->schema->user);
	buf_addf(b, "      password_file: %s/source-%s.pass\n", d->dir, s->name);
	buf_addf(b, "    publish:\n      exchange: \"%s\"\n      routing_key: \"%s\"\n",
		s->exchange,
		s->routing_key != NULL ? s->routing_key : "{aggregate_type}.{event_type}");
	if (s->publish != NULL)
		buf_adds(b, s->publish);
	if (s->more != NULL)
		buf_adds(b, s->more);
}

void daemon_configure(struct daemon *d, const struct conf *c)
{
	struct buf b = { 0 };
	char name[80];

	for (unsigned i = 0; i < c->brokers; i++) {
		snprintf(name, sizeof(name), "broker-%s", c->broker[i].name);
		write_secret(d, name,
			c->broker[i].password != NULL ? c->broker[i].password
						      : env_get()->mq_password);
	}
	for (unsigned i = 0; i < c->sources; i++) {
		snprintf(name, sizeof(name), "source-%s", c->source[i].name);
		write_secret(d, name,
			c->source[i].password != NULL ? c->source[i].password
						      : c->source[i].schema->password);
	}
	buf_addf(&b, "instance: %s\n", d->instance);
	add_ms(&b, "", "shutdown_timeout", c->shutdown_ms);
	buf_addf(&b, "log:\n  level: %s\n  events: %s\n", c->log_level, c->log_events);
	if (c->log_file == NULL || c->log_file[0] != '\0')
		buf_addf(&b, "  file: %s\n", c->log_file != NULL ? c->log_file : d->log);
	buf_addf(&b, "http:\n  listen: \"127.0.0.1:%u\"\nwakeup:\n  socket: %s\n", d->http_port,
		d->wakeup);
	if (c->top != NULL)
		buf_adds(&b, c->top);
	add_brokers(&b, d, c);
	add_defaults(&b, c);
	buf_adds(&b, "sources:\n");
	for (unsigned i = 0; i < c->sources; i++)
		add_source(&b, d, &c->source[i]);
	env_write_file(d->config, b.data);
	buf_fini(&b);
}

static void limit(int what, uint64_t most)
{
	struct rlimit to = { most, most };

	if (most != 0 && setrlimit((__rlimit_resource_t)what, &to) < 0)
		_exit(125);
}

/* In the child. */
static void set_the_scene(const struct daemon *d)
{
	const struct env *env = env_get();
	char usec[32];

	setenv("NOTIFY_SOCKET", d->notify_path, 1);
	snprintf(usec, sizeof(usec), "%u", d->watchdog_usec);
	if (d->watchdog_usec != 0)
		setenv("WATCHDOG_USEC", usec, 1);
	for (size_t i = 0; i < ARRAY_LEN(d->environment) && d->environment[i] != NULL; i++)
		putenv(strdup(d->environment[i]));
	if (d->shim)
		setenv("LD_PRELOAD", env->shim, 1);
	limit(RLIMIT_AS, d->max_memory);
	limit(RLIMIT_NOFILE, d->max_fds);
}

/* In the child. */
static void set_output(const struct daemon *d)
{
	const char *to = d->output != NULL ? d->output : d->stderr_path;
	int ends[2], fd;

	if (strcmp(to, OUTPUT_CLOSED) == 0) {
		close(1);
		close(2);
		return;
	}
	if (strcmp(to, OUTPUT_BROKEN) == 0) {
		if (pipe2(ends, O_CLOEXEC) < 0)
			_exit(125);
		close(ends[0]);
		fd = ends[1];
	} else {
		fd = open(to, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	}
	dup2(fd, 1);
	dup2(fd, 2);
}

void daemon_start(struct daemon *d)
{
	const struct env *env = env_get();
	int gate[2];
	pid_t parent = getpid();
	char byte;

	if (d->pid != 0)
		FAIL("%s runs already", d->instance);
	daemon_notifications(d);
	d->notified[0] = '\0';
	d->watchdogs = 0;
	if (pipe2(gate, O_CLOEXEC) < 0)
		FAIL("pipe: %s", strerror(errno));
	d->pid = d->first ? (pid_t)syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0) : fork();
	if (d->pid < 0)
		FAIL("fork: %s", strerror(errno));
	if (d->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (!d->first && getppid() != parent)
			_exit(126);
		signal(SIGPIPE, SIG_DFL);
		set_the_scene(d);
		set_output(d);
		execl(env->binary, "outboxd", "run", "-c", d->config, (char *)NULL);
		_exit(127);
	}
	/* Until it is the program, a signal to it would be one to a copy of the test. */
	close(gate[1]);
	(void)!read(gate[0], &byte, 1);
	close(gate[0]);
}

void daemon_notifications(struct daemon *d)
{
	char text[4096];

	for (ssize_t n; (n = recv(d->notify_fd, text, sizeof(text) - 1, 0)) >= 0;) {
		size_t have = strlen(d->notified);

		text[n] = '\0';
		if (strstr(text, "WATCHDOG=1") != NULL) {
			d->watchdogs++;
			d->watchdog_us = env_now_us();
			continue;
		}
		snprintf(d->notified + have, sizeof(d->notified) - have, "%s\n", text);
	}
}

unsigned daemon_notified(struct daemon *d, const char *text)
{
	unsigned n = 0;

	daemon_notifications(d);
	for (const char *at = d->notified; (at = strstr(at, text)) != NULL; at += strlen(text))
		n++;
	return n;
}

bool daemon_runs(struct daemon *d)
{
	int status;

	if (d->pid == 0)
		return false;
	if (waitpid(d->pid, &status, WNOHANG) != d->pid)
		return true;
	d->status = status;
	d->pid = 0;
	return false;
}

void daemon_wait_ready(struct daemon *d, bool connected)
{
	char text[2000];
	int64_t until = env_now_us() + 20 * US_PER_SEC;

	while (daemon_notified(d, "READY=1") == 0) {
		if (!daemon_runs(d))
			FAIL("%s ended at the start, wait status %d", d->instance, d->status);
		if (env_now_us() > until)
			FAIL("%s: no READY=1", d->instance);
		env_sleep_ms(10);
	}
	while (connected && daemon_get(d, "/readyz", text, sizeof(text)) != 200) {
		if (!daemon_runs(d))
			FAIL("%s ended, wait status %d", d->instance, d->status);
		if (env_now_us() > until)
			FAIL("%s is not ready: %s", d->instance, text);
		env_sleep_ms(20);
	}
}

void daemon_signal(struct daemon *d, int sig)
{
	if (d->pid == 0 || kill(d->pid, sig) < 0)
		FAIL("%s does not run", d->instance);
}

int daemon_wait(struct daemon *d, int64_t ms)
{
	int64_t until = env_now_us() + ms * US_PER_MS;

	while (daemon_runs(d)) {
		if (env_now_us() > until)
			FAIL("%s still runs after %" PRId64 " ms", d->instance, ms);
		daemon_notifications(d);
		env_sleep_ms(5);
	}
	daemon_notifications(d);
	return WIFEXITED(d->status) ? WEXITSTATUS(d->status) : 128 + WTERMSIG(d->status);
}

void daemon_stop(struct daemon *d)
{
	int code;

	daemon_signal(d, SIGTERM);
	code = daemon_wait(d, 30000);
	if (code != 0)
		FAIL("%s: exit status %d after TERM", d->instance, code);
}

void daemon_kill(struct daemon *d)
{
	int status;

	if (d->pid == 0)
		return;
	kill(d->pid, SIGKILL);
	waitpid(d->pid, &status, 0);
	d->status = status;
	d->pid = 0;
}

static int connect_http(const struct daemon *d)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
		.sin_port = htons((uint16_t)d->http_port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct timeval limit = { 3, 0 };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	if (fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof(at)) == 0)
		return fd;
	close(fd);
	return -1;
}

int daemon_get(const struct daemon *d, const char *path, char *out, size_t size)
{
	struct buf b = { 0 };
	char chunk[8192], *body;
	int fd = connect_http(d), code = 0;

	out[0] = '\0';
	if (fd < 0)
		return 0;
	dprintf(fd, "GET %s HTTP/1.0\r\nHost: localhost\r\nConnection: close\r\n\r\n", path);
	for (ssize_t n; (n = recv(fd, chunk, sizeof(chunk), 0)) > 0;)
		buf_add(&b, chunk, (size_t)n);
	close(fd);
	body = b.data != NULL ? strstr(b.data, "\r\n\r\n") : NULL;
	if (body != NULL) {
		code = atoi(b.data + strlen("HTTP/1.1 "));
		snprintf(out, size, "%s", body + 4);
	}
	buf_fini(&b);
	return code;
}

double daemon_metric(const struct daemon *d, const char *series)
{
	size_t size = 1 << 20, len = strlen(series);
	char *text = malloc(size), *save = NULL;
	double value = -1;

	if (text == NULL)
		FAIL("out of memory");
	if (daemon_get(d, "/metrics", text, size) == 200)
		for (char *line = strtok_r(text, "\n", &save); line != NULL;
			line = strtok_r(NULL, "\n", &save))
			if (strncmp(line, series, len) == 0 && line[len] == ' ')
				value = strtod(line + len, NULL);
	free(text);
	return value;
}

static int64_t status_field(const struct daemon *d, const char *field)
{
	char path[60], *text, *at;
	int64_t value = -1;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)d->pid);
	text = env_read_file(path);
	at = text != NULL ? strstr(text, field) : NULL;
	if (at != NULL)
		value = strtoll(at + strlen(field), NULL, 10);
	free(text);
	return value;
}

int64_t daemon_rss_kb(const struct daemon *d)
{
	return status_field(d, "VmRSS:");
}

unsigned daemon_fds(const struct daemon *d)
{
	char path[60];
	unsigned n = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)d->pid);
	dir = opendir(path);
	while (dir != NULL && readdir(dir) != NULL)
		n++;
	if (dir != NULL)
		closedir(dir);
	return n > 2 ? n - 2 : 0;
}

int64_t daemon_cpu_us(const struct daemon *d)
{
	char path[60], *text, *at;
	long long user = 0, kernel = 0;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)d->pid);
	text = env_read_file(path);
	at = text != NULL ? strrchr(text, ')') : NULL;
	if (at != NULL)
		(void)sscanf(at, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lld %lld", &user,
			&kernel);
	free(text);
	return (user + kernel) * US_PER_SEC / sysconf(_SC_CLK_TCK);
}

unsigned daemon_log(const struct daemon *d, const char *text, ...)
{
	char *log = env_read_file(d->log), *save = NULL;
	unsigned lines = 0;

	if (log == NULL)
		return 0;
	for (char *line = strtok_r(log, "\n", &save); line != NULL;
		line = strtok_r(NULL, "\n", &save)) {
		bool all = true;
		va_list ap;

		va_start(ap, text);
		for (const char *t = text; t != NULL; t = va_arg(ap, const char *))
			all &= strstr(line, t) != NULL;
		va_end(ap);
		lines += all;
	}
	free(log);
	return lines;
}

void daemon_never_said(const struct daemon *d, const char *secret)
{
	const char *paths[] = { d->log, d->stderr_path };

	for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
		char *text = env_read_file(paths[i]);

		if (text != NULL && strstr(text, secret) != NULL)
			FAIL("%s: there is a secret in %s", d->instance, paths[i]);
		free(text);
	}
}

void daemon_poke(const struct daemon *d, const char *source)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	snprintf(at.sun_path, sizeof(at.sun_path), "%s", d->wakeup);
	if (sendto(fd, source, strlen(source), 0, (struct sockaddr *)&at, sizeof(at)) < 0)
		FAIL("%s: %s", d->wakeup, strerror(errno));
	close(fd);
}

#include "sys/guard.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

/* What every idle guard's descriptor is a copy of; opened by the first guard, never closed. */
static pthread_mutex_t null_lock = PTHREAD_MUTEX_INITIALIZER;
static int null_fd = -1;

static int copy_null(void)
{
	int fd = -1;

	pthread_mutex_lock(&null_lock);
	if (null_fd < 0)
		null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (null_fd >= 0)
		fd = fcntl(null_fd, F_DUPFD_CLOEXEC, 0);
	pthread_mutex_unlock(&null_lock);
	return fd;
}

int guard_init(struct guard *g, struct err *e)
{
	*g = (struct guard){ .fd = -1, .deadline_us = TIME_NEVER };
	pthread_mutex_init(&g->lock, NULL);
	g->fd = copy_null();
	if (g->fd < 0)
		return err_set(e, ERR_RETRY, errno, "guard: %m");
	return 0;
}

void guard_fini(struct guard *g)
{
	if (g->fd >= 0)
		close(g->fd);
	g->fd = -1;
	pthread_mutex_destroy(&g->lock);
}

static bool point_at(struct guard *g, int fd)
{
	int rc;

	do
		rc = dup3(fd, g->fd, O_CLOEXEC);
	while (rc < 0 && (errno == EINTR || errno == EBUSY));
	return rc >= 0;
}

void guard_enter(struct guard *g, int fd, int64_t deadline_us)
{
	pthread_mutex_lock(&g->lock);
	assert(!g->inside);
	g->inside = true;
	g->cut = false;
	g->deadline_us = deadline_us;
	g->armed = fd >= 0 && point_at(g, fd);
	pthread_mutex_unlock(&g->lock);
}

bool guard_leave(struct guard *g)
{
	bool cut;

	pthread_mutex_lock(&g->lock);
	assert(g->inside);
	g->inside = false;
	if (g->armed)
		point_at(g, null_fd);
	g->armed = false;
	g->deadline_us = TIME_NEVER;
	cut = g->cut;
	pthread_mutex_unlock(&g->lock);
	return cut;
}

bool guard_check(struct guard *g, int64_t now_us)
{
	bool due;

	pthread_mutex_lock(&g->lock);
	due = g->inside && !g->cut && now_us >= g->deadline_us;
	if (due) {
		g->cut = true;
		if (g->armed)
			shutdown(g->fd, SHUT_RDWR);
	}
	pthread_mutex_unlock(&g->lock);
	return due;
}

bool guard_is_blind(struct guard *g)
{
	bool blind;

	pthread_mutex_lock(&g->lock);
	blind = g->inside && !g->armed;
	pthread_mutex_unlock(&g->lock);
	return blind;
}

int64_t guard_overdue_us(struct guard *g, int64_t now_us)
{
	int64_t over = 0;

	pthread_mutex_lock(&g->lock);
	if (g->inside && now_us > g->deadline_us)
		over = now_us - g->deadline_us;
	pthread_mutex_unlock(&g->lock);
	return over;
}

#include "config/file.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PIPE_PATIENCE_MS 5000

static int64_t monotonic_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* 0: readable or at its end. */
static int await(int fd, int64_t deadline_ms)
{
	for (;;) {
		int64_t left = deadline_ms - monotonic_ms();
		struct pollfd p = { .fd = fd, .events = POLLIN };
		int n = poll(&p, 1, left > 0 ? (int)left : 0);

		if (n > 0)
			return 0;
		if (n == 0 || errno != EINTR)
			return -1;
	}
}

static enum file_problem read_all(int fd, size_t max, struct buf *out)
{
	int64_t deadline_ms = monotonic_ms() + PIPE_PATIENCE_MS;

	/* One byte more than allowed tells a file of just the largest size from a larger one; all
	 * the room at once, so that no copy of a secret is left behind by a move. */
	if (buf_reserve(out, max + 1) < 0)
		return FILE_NO_MEMORY;
	out->data[out->len] = '\0';
	for (;;) {
		ssize_t n = read(fd, out->data + out->len, max + 1 - out->len);

		if (n > 0) {
			out->len += (size_t)n;
			out->data[out->len] = '\0';
			if (out->len > max)
				return FILE_TOO_LARGE;
			continue;
		}
		if (n == 0)
			return FILE_OK;
		if (errno == EINTR)
			continue;
		if (errno != EAGAIN)
			return FILE_CANNOT_READ;
		if (await(fd, deadline_ms) < 0)
			return FILE_STALLED;
	}
}

enum file_problem file_read(
	const char *path, size_t max, unsigned flags, struct buf *out, struct stat *st)
{
	/* Without O_NONBLOCK the open of a FIFO that nobody writes would never return. */
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY), saved;
	enum file_problem problem;
	struct stat own;

	if (fd < 0)
		return FILE_CANNOT_OPEN;
	if (st == NULL)
		st = &own;
	if (fstat(fd, st) < 0)
		problem = FILE_CANNOT_READ;
	else if (S_ISDIR(st->st_mode))
		problem = FILE_IS_DIRECTORY;
	else if (!S_ISREG(st->st_mode) && !(S_ISFIFO(st->st_mode) && flags & FILE_ALLOW_PIPE))
		problem = FILE_IS_SPECIAL;
	else if (S_ISREG(st->st_mode) && (uint64_t)st->st_size > max)
		problem = FILE_TOO_LARGE;
	else
		problem = read_all(fd, max, out);
	saved = errno;
	close(fd);
	errno = saved;
	return problem;
}

void file_wipe(struct buf *b)
{
	if (b->data != NULL)
		explicit_bzero(b->data, b->cap);
	buf_fini(b);
}

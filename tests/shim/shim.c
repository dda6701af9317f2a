/* shim.c: loaded into a daemon under test (LD_PRELOAD), it bends what the daemon sees of the world:
 *
 *	OUTBOXD_SHIM_CLOCK=FILE   a 64-bit number of seconds in that file is added to the wall
 *clock, each time it is read; the monotonic clock stays as it is OUTBOXD_SHIM_RESOLVER=S   names
 *that begin with "hang." take so many seconds to be resolved
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *offset_s;

__attribute__((constructor)) static void begin(void)
{
	const char *path = getenv("OUTBOXD_SHIM_CLOCK");
	int fd = path != NULL ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	void *at =
		fd >= 0 ? mmap(NULL, sizeof(*offset_s), PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;

	if (at != MAP_FAILED)
		offset_s = at;
	if (fd >= 0)
		close(fd);
}

int clock_gettime(clockid_t id, struct timespec *ts)
{
	int rc = (int)syscall(SYS_clock_gettime, id, ts);

	if (rc == 0 && id == CLOCK_REALTIME && offset_s != NULL)
		ts->tv_sec += *offset_s;
	return rc;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone)
{
	struct timespec ts;

	(void)zone;
	if (clock_gettime(CLOCK_REALTIME, &ts) < 0)
		return -1;
	*tv = (struct timeval){ ts.tv_sec, ts.tv_nsec / 1000 };
	return 0;
}

time_t time(time_t *out)
{
	struct timespec ts = { 0 };

	clock_gettime(CLOCK_REALTIME, &ts);
	if (out != NULL)
		*out = ts.tv_sec;
	return ts.tv_sec;
}

int getaddrinfo(const char *restrict node, const char *restrict service,
	const struct addrinfo *restrict hints, struct addrinfo **restrict out)
{
	const char *seconds = getenv("OUTBOXD_SHIM_RESOLVER");
	int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);

	*(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
	if (node != NULL && seconds != NULL && strncmp(node, "hang.", 5) == 0)
		sleep((unsigned)atoi(seconds));
	return real(node, service, hints, out);
}

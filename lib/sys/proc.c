#include "sys/proc.h"

#include "base/rng.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

void proc_std_fds(void)
{
	int fd;

	do
		fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd > STDERR_FILENO)
		close(fd);
}

void proc_ignore_sigpipe(void)
{
	struct sigaction sa = { .sa_handler = SIG_IGN };

	sigaction(SIGPIPE, &sa, NULL);
}

int proc_undumpable(struct err *e)
{
	struct rlimit none = { 0, 0 };

	if (setrlimit(RLIMIT_CORE, &none) < 0)
		return err_set(e, ERR_CONFIG, errno, "setrlimit RLIMIT_CORE: %m");
	if (prctl(PR_SET_DUMPABLE, 0L, 0L, 0L, 0L) < 0)
		return err_set(e, ERR_CONFIG, errno, "prctl PR_SET_DUMPABLE: %m");
	return 0;
}

uint64_t proc_raise_fd_limit(uint64_t want)
{
	struct rlimit r;

	if (getrlimit(RLIMIT_NOFILE, &r) < 0)
		return 0;
	if (r.rlim_cur < want && r.rlim_cur < r.rlim_max) {
		rlim_t before = r.rlim_cur;

		r.rlim_cur = r.rlim_max < want ? r.rlim_max : want;
		if (setrlimit(RLIMIT_NOFILE, &r) < 0)
			r.rlim_cur = before;
	}
	return r.rlim_cur;
}

void proc_identity(char out[], size_t size)
{
	snprintf(out, size, "%016" PRIx64, rng_os_seed());
}

static volatile sig_atomic_t came[NSIG];

static void note(int number)
{
	came[number] = 1;
}

void proc_note_signals(const int *numbers, size_t count)
{
	struct sigaction action = { .sa_handler = note, .sa_flags = SA_RESTART };

	sigemptyset(&action.sa_mask);
	for (size_t i = 0; i < count; i++)
		(void)sigaction(numbers[i], &action, NULL);
}

bool proc_signal_came(int number)
{
	return number > 0 && number < NSIG && came[number] != 0;
}

#include "sys/clock.h"
#include "sys/guard.h"
#include "sys/proc.h"

#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

START_TEST(the_clocks_are_in_microseconds_and_the_monotonic_one_never_goes_back)
{
	int64_t mono = clock_mono_us(), wall = clock_wall_us();

	usleep(20000);
	ck_assert_int_ge(clock_mono_us() - mono, 20000);
	ck_assert_int_lt(clock_mono_us() - mono, 5 * US_PER_SEC);
	ck_assert_int_gt(wall, INT64_C(1600000000) * US_PER_SEC);
	for (int i = 0; i < 1000; i++) {
		int64_t now = clock_mono_us();

		ck_assert_int_ge(now, mono);
		mono = now;
	}
}
END_TEST

START_TEST(missing_standard_descriptors_are_filled_with_dev_null)
{
	struct stat null, st;
	int saved = dup(STDERR_FILENO), next;

	close(STDIN_FILENO);
	close(STDERR_FILENO);
	proc_std_fds();
	ck_assert_int_eq(stat("/dev/null", &null), 0);
	ck_assert_int_eq(fstat(STDIN_FILENO, &st), 0);
	ck_assert(st.st_rdev == null.st_rdev);
	ck_assert_int_eq(fstat(STDERR_FILENO, &st), 0);
	ck_assert(st.st_rdev == null.st_rdev);
	next = dup(saved);
	ck_assert_int_gt(next, STDERR_FILENO);
	dup2(saved, STDERR_FILENO);
}
END_TEST

START_TEST(a_process_with_secrets_leaves_no_core)
{
	struct rlimit r;
	struct err e;

	ck_assert_int_eq(proc_undumpable(&e), 0);
	ck_assert_int_eq(prctl(PR_GET_DUMPABLE), 0);
	ck_assert_int_eq(getrlimit(RLIMIT_CORE, &r), 0);
	ck_assert_uint_eq(r.rlim_cur, 0);
}
END_TEST

START_TEST(a_signal_before_its_watcher_is_noted_and_ends_nothing)
{
	static const int numbers[] = { SIGTERM, SIGHUP };

	proc_note_signals(numbers, 2);
	ck_assert(!proc_signal_came(SIGTERM));
	raise(SIGTERM);
	raise(SIGTERM);
	ck_assert(proc_signal_came(SIGTERM));
	ck_assert(!proc_signal_came(SIGHUP));
	ck_assert(!proc_signal_came(0));
	ck_assert(!proc_signal_came(100000));
}
END_TEST

START_TEST(writing_to_a_closed_socket_is_an_error_not_a_signal)
{
	int sv[2];

	proc_ignore_sigpipe();
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, sv), 0);
	close(sv[1]);
	ck_assert_int_eq(write(sv[0], "x", 1), -1);
	ck_assert_int_eq(errno, EPIPE);
}
END_TEST

START_TEST(the_descriptor_limit_is_raised_as_far_as_it_goes_and_never_lowered)
{
	struct rlimit r = { 0 };
	uint64_t high;

	getrlimit(RLIMIT_NOFILE, &r);
	r.rlim_cur = 64;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &r), 0);
	ck_assert_uint_eq(proc_raise_fd_limit(128), 128);
	ck_assert_uint_eq(proc_raise_fd_limit(100), 128);
	high = proc_raise_fd_limit(UINT64_MAX - 1);
	ck_assert_uint_ge(high, r.rlim_max);
	ck_assert_uint_eq(proc_raise_fd_limit(1), high);
}
END_TEST

START_TEST(two_starts_never_share_an_identity)
{
	char a[PROC_IDENTITY_MAX], b[PROC_IDENTITY_MAX];

	proc_identity(a, sizeof(a));
	proc_identity(b, sizeof(b));
	ck_assert_uint_eq(strlen(a), 16);
	ck_assert_uint_eq(strspn(a, "0123456789abcdef"), 16);
	ck_assert_str_ne(a, b);
}
END_TEST

struct reader {
	struct guard guard;
	int fd;
	int64_t deadline_us;
	ssize_t result;
	bool cut;
};

static void *read_guarded(void *arg)
{
	struct reader *r = arg;
	char c;

	guard_enter(&r->guard, r->fd, r->deadline_us);
	r->result = read(r->fd, &c, 1);
	r->cut = guard_leave(&r->guard);
	return NULL;
}

START_TEST(a_call_past_its_deadline_is_cut_off_once)
{
	struct reader r = { .deadline_us = clock_mono_us() + 50000 };
	pthread_t thread;
	int sv[2], cuts = 0, early = 0;
	struct err e;

	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, sv), 0);
	ck_assert_int_eq(guard_init(&r.guard, &e), 0);
	r.fd = sv[0];
	pthread_create(&thread, NULL, read_guarded, &r);
	for (int i = 0; i < 200; i++) {
		int64_t now = clock_mono_us();
		bool cut = guard_check(&r.guard, now);

		early += cut && now < r.deadline_us;
		cuts += cut;
		usleep(1000);
	}
	pthread_join(thread, NULL);
	ck_assert_int_eq(cuts, 1);
	ck_assert_int_eq(early, 0);
	ck_assert_int_eq(r.result, 0); /* end of stream: shut down */
	ck_assert(r.cut);
	guard_fini(&r.guard);
}
END_TEST

START_TEST(a_call_in_time_is_left_alone)
{
	struct reader r = { .deadline_us = clock_mono_us() + 60 * US_PER_SEC };
	pthread_t thread;
	int sv[2];
	struct err e;

	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, sv), 0);
	ck_assert_int_eq(guard_init(&r.guard, &e), 0);
	r.fd = sv[0];
	pthread_create(&thread, NULL, read_guarded, &r);
	usleep(20000);
	ck_assert(!guard_check(&r.guard, clock_mono_us()));
	ck_assert_int_eq(guard_overdue_us(&r.guard, clock_mono_us()), 0);
	ck_assert_int_eq(write(sv[1], "x", 1), 1);
	pthread_join(thread, NULL);
	ck_assert_int_eq(r.result, 1);
	ck_assert(!r.cut);
	ck_assert(!guard_check(&r.guard, TIME_NEVER - 1)); /* outside of a call: nothing to cut */
	ck_assert_int_eq(write(sv[1], "y", 1), 1);         /* and nothing was */
	guard_fini(&r.guard);
}
END_TEST

START_TEST(a_number_reused_inside_the_call_is_not_the_guards)
{
	int old[2], other[2];
	struct guard g;
	struct err e;

	ck_assert_int_eq(guard_init(&g, &e), 0);
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, old), 0);
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, other), 0);
	guard_enter(&g, old[0], 100);
	ck_assert_int_eq(dup2(other[0], old[0]), old[0]); /* closed, and reused */
	ck_assert(guard_check(&g, 100));
	ck_assert(guard_leave(&g));
	ck_assert_int_eq(write(old[0], "x", 1), 1);
	guard_fini(&g);
}
END_TEST

START_TEST(leaving_closes_what_the_library_closed)
{
	int sv[2];
	struct guard g;
	struct err e;
	char c;

	ck_assert_int_eq(guard_init(&g, &e), 0);
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, sv), 0);
	guard_enter(&g, sv[0], 100);
	close(sv[0]);
	ck_assert(!guard_leave(&g));
	ck_assert_int_eq(read(sv[1], &c, 1), 0);
	guard_fini(&g);
}
END_TEST

START_TEST(a_guard_works_when_descriptors_have_run_out)
{
	int sv[2];
	struct rlimit r;
	rlim_t before;
	struct guard g;
	struct err e;
	char c;

	ck_assert_int_eq(guard_init(&g, &e), 0);
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, sv), 0);
	getrlimit(RLIMIT_NOFILE, &r);
	before = r.rlim_cur;
	r.rlim_cur = 64;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &r), 0);
	while (dup(sv[1]) >= 0)
		;
	ck_assert_int_eq(errno, EMFILE);
	guard_enter(&g, sv[0], 100);
	ck_assert(guard_check(&g, 101));
	ck_assert_int_eq(read(sv[0], &c, 1), 0);
	ck_assert(guard_leave(&g));
	guard_fini(&g);
	r.rlim_cur = before;
	setrlimit(RLIMIT_NOFILE, &r);
}
END_TEST

START_TEST(what_stays_past_its_deadline_is_told_by_how_much)
{
	struct guard g;
	struct err e;

	ck_assert_int_eq(guard_init(&g, &e), 0);
	guard_enter(&g, -1, 1000);
	ck_assert_int_eq(guard_overdue_us(&g, 1000), 0);
	ck_assert_int_eq(guard_overdue_us(&g, 1700), 700);
	ck_assert(guard_check(&g, 1700));
	ck_assert(!guard_check(&g, 1800));
	ck_assert_int_eq(guard_overdue_us(&g, 1800), 800);
	ck_assert(guard_leave(&g));
	ck_assert_int_eq(guard_overdue_us(&g, 1900), 0);
	guard_fini(&g);
}
END_TEST

struct churn {
	struct guard guard;
	atomic_bool stop;
};

/* Opens, guards, closes inside the call, as fast as it goes. */
static void *churn_owner(void *arg)
{
	struct churn *c = arg;

	while (!atomic_load(&c->stop)) {
		int sv[2];

		if (socketpair(AF_UNIX, SOCK_STREAM, 0, sv) < 0)
			break;
		guard_enter(&c->guard, sv[0], 0);
		close(sv[0]);
		guard_leave(&c->guard);
		close(sv[1]);
	}
	return NULL;
}

/* Takes the numbers the owner lets go, and finds its own sockets whole. */
static void *churn_other(void *arg)
{
	struct churn *c = arg;
	intptr_t broken = 0;

	while (!atomic_load(&c->stop)) {
		int sv[2];
		char x;

		if (socketpair(AF_UNIX, SOCK_STREAM, 0, sv) < 0)
			break;
		for (int i = 0; i < 5; i++)
			if (send(sv[0], "x", 1, MSG_NOSIGNAL) != 1 || read(sv[1], &x, 1) != 1)
				broken++;
		close(sv[0]);
		close(sv[1]);
	}
	return (void *)broken;
}

START_TEST(under_a_race_for_numbers_no_other_socket_is_ever_shut_down)
{
	struct churn c = { .stop = false };
	pthread_t owner, other;
	struct err e;
	void *broken;
	int64_t until = clock_mono_us() + US_PER_SEC;

	ck_assert_int_eq(guard_init(&c.guard, &e), 0);
	pthread_create(&owner, NULL, churn_owner, &c);
	pthread_create(&other, NULL, churn_other, &c);
	while (clock_mono_us() < until)
		guard_check(&c.guard, clock_mono_us());
	atomic_store(&c.stop, true);
	pthread_join(owner, NULL);
	pthread_join(other, &broken);
	ck_assert_int_eq((intptr_t)broken, 0);
	guard_fini(&c.guard);
}
END_TEST

UNIT_MAIN("sys", the_clocks_are_in_microseconds_and_the_monotonic_one_never_goes_back,
	missing_standard_descriptors_are_filled_with_dev_null,
	a_process_with_secrets_leaves_no_core,
	a_signal_before_its_watcher_is_noted_and_ends_nothing,
	writing_to_a_closed_socket_is_an_error_not_a_signal,
	the_descriptor_limit_is_raised_as_far_as_it_goes_and_never_lowered,
	two_starts_never_share_an_identity, a_call_past_its_deadline_is_cut_off_once,
	a_call_in_time_is_left_alone, a_number_reused_inside_the_call_is_not_the_guards,
	leaving_closes_what_the_library_closed, a_guard_works_when_descriptors_have_run_out,
	what_stays_past_its_deadline_is_told_by_how_much,
	under_a_race_for_numbers_no_other_socket_is_ever_shut_down)

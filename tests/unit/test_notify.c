#include "base/str.h"
#include "sys/notify.h"

#include "unit.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static char path[64];
static char got[8192];

/* Plays the service manager. `name` as in $NOTIFY_SOCKET. */
static int manager(const char *name)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	socklen_t len;
	int fd = socket(AF_UNIX, SOCK_DGRAM, 0);

	strcpy(sa.sun_path, name);
	len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name));
	if (name[0] == '@')
		sa.sun_path[0] = '\0';
	else
		len++;
	ck_assert_int_eq(bind(fd, (struct sockaddr *)&sa, len), 0);
	setenv("NOTIFY_SOCKET", name, 1);
	return fd;
}

static const char *received(int fd)
{
	ssize_t n = recv(fd, got, sizeof(got) - 1, MSG_DONTWAIT);

	got[n > 0 ? n : 0] = '\0';
	return n < 0 ? "(nothing)" : got;
}

static void make_path(void)
{
	snprintf(path, sizeof(path), "/tmp/outboxd-notify.%ld", (long)getpid());
	unlink(path);
}

START_TEST(without_a_manager_everything_succeeds_and_nothing_happens)
{
	unsetenv("NOTIFY_SOCKET");
	ck_assert(notify_ready("x"));
	ck_assert(notify_watchdog());
	setenv("NOTIFY_SOCKET", "", 1);
	ck_assert(notify_stopping());
	setenv("NOTIFY_SOCKET", "vsock:2:1234", 1);
	ck_assert(notify_stopping());
}
END_TEST

START_TEST(each_message_is_one_datagram_in_the_managers_words)
{
	struct timespec ts;
	long long us, now;
	int fd;

	make_path();
	fd = manager(path);
	ck_assert(notify_ready("8 sources up"));
	ck_assert_str_eq(received(fd), "READY=1\nSTATUS=8 sources up");
	ck_assert(notify_stopping());
	ck_assert_str_eq(received(fd), "STOPPING=1");
	ck_assert(notify_watchdog());
	ck_assert_str_eq(received(fd), "WATCHDOG=1");
	ck_assert(notify_status("source %s down", "orders"));
	ck_assert_str_eq(received(fd), "STATUS=source orders down");
	ck_assert(notify_send("A=%d\nB=2", 1));
	ck_assert_str_eq(received(fd), "A=1\nB=2");
	ck_assert(notify_reloading());
	clock_gettime(CLOCK_MONOTONIC, &ts);
	now = (long long)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
	ck_assert_int_eq(sscanf(received(fd), "RELOADING=1\nMONOTONIC_USEC=%lld", &us), 1);
	ck_assert(us <= now && us > now - 5000000);
	unlink(path);
}
END_TEST

START_TEST(an_abstract_socket_is_reached_by_its_exact_name)
{
	char name[64];
	int fd;

	snprintf(name, sizeof(name), "@outboxd/notify/%ld", (long)getpid());
	fd = manager(name);
	ck_assert(notify_ready("ok"));
	ck_assert_str_eq(received(fd), "READY=1\nSTATUS=ok");
}
END_TEST

START_TEST(a_status_is_one_line_and_cut_at_a_character)
{
	static char text[5000];
	int fd;

	make_path();
	fd = manager(path);
	ck_assert(notify_status("a\nREADY=1\tb"));
	ck_assert_str_eq(received(fd), "STATUS=a READY=1 b");
	ck_assert(notify_ready("a\nSTOPPING=1"));
	ck_assert_str_eq(received(fd), "READY=1\nSTATUS=a STOPPING=1");
	for (size_t i = 0; i + 2 < sizeof(text); i += 2)
		memcpy(text + i, "\xC3\xA9", 2);
	for (int shift = 0; shift < 2; shift++) {
		ck_assert(notify_status("%s", text + 2 - shift * 2));
		received(fd);
		ck_assert_uint_gt(strlen(got), 900);
		ck_assert_uint_lt(strlen(got), 1024);
		ck_assert(utf8_valid(slice_str(got)));
		ck_assert(notify_status("x%s", text));
		ck_assert(utf8_valid(slice_str(received(fd))));
	}
	unlink(path);
}
END_TEST

START_TEST(a_manager_that_is_gone_or_does_not_read_never_blocks)
{
	int fd, sent = 0;

	make_path();
	setenv("NOTIFY_SOCKET", path, 1);
	ck_assert(!notify_watchdog()); /* no such file */
	fd = manager(path);
	alarm(10);
	while (sent < 100000 && notify_watchdog())
		sent++;
	ck_assert_int_lt(sent, 100000); /* its queue is full */
	received(fd);
	ck_assert(notify_watchdog());
	close(fd);
	ck_assert(!notify_watchdog()); /* refused */
	unlink(path);
}
END_TEST

START_TEST(the_watchdog_is_fed_when_descriptors_have_run_out)
{
	struct rlimit r;
	rlim_t before;
	int fd;

	make_path();
	fd = manager(path);
	ck_assert(notify_ready("ok"));
	received(fd);
	getrlimit(RLIMIT_NOFILE, &r);
	before = r.rlim_cur;
	r.rlim_cur = 0;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &r), 0);
	ck_assert_int_eq(dup(fd), -1);
	ck_assert(notify_watchdog());
	ck_assert_str_eq(received(fd), "WATCHDOG=1");
	r.rlim_cur = before;
	setrlimit(RLIMIT_NOFILE, &r);
	unlink(path);
}
END_TEST

START_TEST(the_watchdog_interval_is_meant_for_this_process_or_not_at_all)
{
	char pid[32];

	unsetenv("WATCHDOG_USEC");
	unsetenv("WATCHDOG_PID");
	ck_assert_int_eq(notify_watchdog_interval_us(), 0);
	setenv("WATCHDOG_USEC", "20000000", 1);
	ck_assert_int_eq(notify_watchdog_interval_us(), 20000000);
	setenv("WATCHDOG_PID", "1", 1);
	ck_assert_int_eq(notify_watchdog_interval_us(), 0);
	snprintf(pid, sizeof(pid), "%ld", (long)getpid());
	setenv("WATCHDOG_PID", pid, 1);
	ck_assert_int_eq(notify_watchdog_interval_us(), 20000000);
	setenv("WATCHDOG_USEC", "20s", 1);
	ck_assert_int_eq(notify_watchdog_interval_us(), 0);
	setenv("WATCHDOG_USEC", "18446744073709551615", 1);
	ck_assert_int_eq(notify_watchdog_interval_us(), 0);
}
END_TEST

UNIT_MAIN("notify", without_a_manager_everything_succeeds_and_nothing_happens,
	each_message_is_one_datagram_in_the_managers_words,
	an_abstract_socket_is_reached_by_its_exact_name,
	a_status_is_one_line_and_cut_at_a_character,
	a_manager_that_is_gone_or_does_not_read_never_blocks,
	the_watchdog_is_fed_when_descriptors_have_run_out,
	the_watchdog_interval_is_meant_for_this_process_or_not_at_all)

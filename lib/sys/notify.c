#include "sys/notify.h"

#include "base/str.h"
#include "sys/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define MESSAGE_MAX 1024

static int sock = -1;

/* False: no manager, or an address that is none of ours (vsock:). */
static bool manager_address(struct sockaddr_un *sa, socklen_t *len)
{
	const char *name = getenv("NOTIFY_SOCKET");
	size_t n = name != NULL ? strlen(name) : 0;

	if (n < 2 || n >= sizeof(sa->sun_path) || (name[0] != '/' && name[0] != '@'))
		return false;
	*sa = (struct sockaddr_un){ .sun_family = AF_UNIX };
	memcpy(sa->sun_path, name, n);
	*len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
	if (name[0] == '@')
		sa->sun_path[0] = '\0'; /* abstract: its length is part of the name */
	else
		*len += 1;
	return true;
}

static bool send_text(const char *text, size_t len)
{
	struct sockaddr_un sa;
	socklen_t sa_len;
	ssize_t n;

	if (!manager_address(&sa, &sa_len))
		return true;
	if (sock < 0)
		sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (sock < 0)
		return false;
	do
		n = sendto(sock, text, len, MSG_DONTWAIT | MSG_NOSIGNAL, (struct sockaddr *)&sa,
			sa_len);
	while (n < 0 && errno == EINTR);
	return n == (ssize_t)len;
}

/* Cut at a character: the manager drops a status that is not UTF-8. */
static size_t PRINTF(2, 0) format(char text[MESSAGE_MAX], const char *fmt, va_list ap)
{
	int n = vsnprintf(text, MESSAGE_MAX, fmt, ap);
	size_t len = n < 0 ? 0 : (size_t)n;

	if (len >= MESSAGE_MAX)
		len = utf8_prefix((struct slice){ text, MESSAGE_MAX - 1 }, MESSAGE_MAX - 2);
	text[len] = '\0';
	return len;
}

bool notify_send(const char *fmt, ...)
{
	char text[MESSAGE_MAX];
	va_list ap;
	size_t len;

	va_start(ap, fmt);
	len = format(text, fmt, ap);
	va_end(ap);
	return send_text(text, len);
}

static void one_line(char *text)
{
	for (; *text != '\0'; text++)
		if ((unsigned char)*text < 0x20 || *text == 0x7F)
			*text = ' ';
}

bool notify_status(const char *fmt, ...)
{
	char text[MESSAGE_MAX];
	va_list ap;

	va_start(ap, fmt);
	format(text, fmt, ap);
	va_end(ap);
	one_line(text);
	return notify_send("STATUS=%s", text);
}

bool notify_ready(const char *status)
{
	char text[MESSAGE_MAX];

	str_copy(text, sizeof(text), status);
	one_line(text);
	return notify_send("READY=1\nSTATUS=%s", text);
}

/* Type=notify-reload wants the time too, in the same message. */
bool notify_reloading(void)
{
	return notify_send("RELOADING=1\nMONOTONIC_USEC=%" PRId64, clock_mono_us());
}

bool notify_stopping(void)
{
	return notify_send("STOPPING=1");
}

bool notify_watchdog(void)
{
	return notify_send("WATCHDOG=1");
}

int64_t notify_watchdog_interval_us(void)
{
	const char *usec = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
	uint64_t us, for_pid;

	if (usec == NULL || !str_to_u64(slice_str(usec), &us) || us > INT64_MAX)
		return 0;
	if (pid != NULL && (!str_to_u64(slice_str(pid), &for_pid) || for_pid != (uint64_t)getpid()))
		return 0;
	return (int64_t)us;
}

void notify_close(void)
{
	if (sock >= 0)
		close(sock);
	sock = -1;
}

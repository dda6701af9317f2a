#include "amqp/stream.h"

#include "sys/clock.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

static int link_error(struct err *e, const char *doing, int code)
{
	return err_set(e, ERR_LINK, code, "%s: %s", doing, strerror(code));
}

/* 1: ready, 0: deadline, -1. */
static int wait_for(int fd, short events, int64_t deadline_us, struct err *e)
{
	struct pollfd p = { .fd = fd, .events = events };

	for (;;) {
		int64_t left = deadline_us - clock_mono_us();
		int n;

		if (left < 0)
			left = 0;
		if (left > INT64_C(3600) * US_PER_SEC)
			left = INT64_C(3600) * US_PER_SEC;
		n = poll(&p, 1, (int)((left + US_PER_MS - 1) / US_PER_MS));
		if (n > 0)
			return 1;
		if (n < 0 && errno != EINTR)
			return link_error(e, "poll", errno);
		if (n == 0 && left == 0)
			return 0;
	}
}

static int connected(int fd, int64_t deadline_us, struct err *e)
{
	int error = 0;
	socklen_t len = sizeof(error);
	int ready = wait_for(fd, POLLOUT, deadline_us, e);

	if (ready < 0)
		return -1;
	if (ready == 0)
		return link_error(e, "connect", ETIMEDOUT);
	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) < 0)
		error = errno;
	return error != 0 ? link_error(e, "connect", error) : 0;
}

int stream_connect(struct stream *s, const struct sockaddr *addr, socklen_t len,
	int64_t deadline_us, struct err *e)
{
	int one = 1;

	*s = STREAM_CLOSED;
	s->fd = socket(addr->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (s->fd < 0)
		return link_error(e, "socket", errno);
	/* Output is collected into large writes already. */
	(void)setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	(void)setsockopt(s->fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
	if (connect(s->fd, addr, len) < 0) {
		if (errno != EINPROGRESS)
			link_error(e, "connect", errno);
		if (errno != EINPROGRESS || connected(s->fd, deadline_us, e) < 0) {
			stream_close(s);
			return -1;
		}
	}
	return 0;
}

int stream_start_tls(struct stream *s, const struct tls_conf *conf, const char *host,
	int64_t deadline_us, struct err *e)
{
	if (tls_new(&s->tls, s->fd, conf, host, e) < 0)
		return -1;
	for (;;) {
		enum tls_step step = tls_handshake(s->tls, e);
		int ready;

		if (step == TLS_DONE || step == TLS_FAILED)
			return step == TLS_DONE ? 0 : -1;
		ready = wait_for(s->fd, step == TLS_WANTS_READ ? POLLIN : POLLOUT, deadline_us, e);
		if (ready < 0)
			return -1;
		if (ready == 0)
			return err_set(e, ERR_LINK, ETIMEDOUT, "no TLS handshake in time");
	}
}

void stream_close(struct stream *s)
{
	tls_free(s->tls);
	if (s->fd >= 0)
		close(s->fd);
	*s = STREAM_CLOSED;
}

ssize_t stream_read(struct stream *s, void *to, size_t room, struct err *e)
{
	ssize_t n;

	if (s->tls != NULL)
		return tls_read(s->tls, to, room, e);
	do
		n = recv(s->fd, to, room, MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	if (n > 0)
		return n;
	if (n == 0)
		return err_set(e, ERR_LINK, ECONNRESET, "the broker closed the connection");
	if (errno == EAGAIN || errno == EWOULDBLOCK)
		return 0;
	return link_error(e, "read", errno);
}

ssize_t stream_write(struct stream *s, const void *from, size_t len, struct err *e)
{
	ssize_t n;

	if (s->tls != NULL)
		return tls_write(s->tls, from, len, e);
	do
		n = send(s->fd, from, len, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	if (n >= 0)
		return n;
	if (errno == EAGAIN || errno == EWOULDBLOCK)
		return 0;
	return link_error(e, "write", errno);
}

int stream_wait(struct stream *s, bool write, int64_t deadline_us, struct err *e)
{
	return wait_for(s->fd, (short)(POLLIN | (write ? POLLOUT : 0)), deadline_us, e);
}

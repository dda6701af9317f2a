/* stream.h: a non-blocking stream of bytes to one address of a broker, plain or TLS. Never raises
 * SIGPIPE; every wait has a deadline (monotonic). */
#ifndef OUTBOXD_AMQP_STREAM_H
#define OUTBOXD_AMQP_STREAM_H

#include "amqp/tls.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/types.h>

struct stream {
	int fd;          /* -1: closed */
	struct tls *tls; /* NULL: plain */
};

#define STREAM_CLOSED ((struct stream){ .fd = -1 })

/* ERR_LINK with errno as code: refused, unreachable, timed out. *s is closed then. */
int stream_connect(struct stream *s, const struct sockaddr *addr, socklen_t len,
	int64_t deadline_us, struct err *e) MUST_CHECK;
/* TLS from here on; `host` as in tls_new(). On -1 the stream is to be closed. */
int stream_start_tls(struct stream *s, const struct tls_conf *conf, const char *host,
	int64_t deadline_us, struct err *e) MUST_CHECK;
void stream_close(struct stream *s);

/* Bytes moved; 0: not now; -1: ERR_LINK, the end of the stream included. */
ssize_t stream_read(struct stream *s, void *to, size_t room, struct err *e);
ssize_t stream_write(struct stream *s, const void *from, size_t len, struct err *e);

/* Until the socket is readable (or `write`: readable or writable), or the deadline. */
int stream_wait(struct stream *s, bool write, int64_t deadline_us, struct err *e);

#endif

/* tls.h: TLS over a connected, non-blocking socket, by OpenSSL; the one place that includes it.
 * TLS 1.2 or newer. The files of the configuration are read each time, so certificates rotate
 * without a restart. */
#ifndef OUTBOXD_AMQP_TLS_H
#define OUTBOXD_AMQP_TLS_H

#include "base/err.h"
#include "config/config.h"

#include <sys/types.h>

struct tls;

/* Once, before the first thread. */
int tls_global_init(struct err *e) MUST_CHECK;

/* `host`: as the operator wrote it, a name (then it is sent as server name too) or an address; what
 * verify_identity holds the certificate against. fd stays the caller's. ERR_CONFIG: a file of the
 * configuration cannot be used. */
int tls_new(struct tls **out, int fd, const struct tls_conf *conf, const char *host,
	struct err *e) MUST_CHECK;
void tls_free(struct tls *t);

enum tls_step { TLS_FAILED = -1, TLS_DONE, TLS_WANTS_READ, TLS_WANTS_WRITE };

/* ERR_CONFIG, code is the X.509 error: the certificate was not accepted; ERR_CONFIG without: the
 * peer speaks no TLS, or none that we accept, or does not accept us; else ERR_LINK. */
enum tls_step tls_handshake(struct tls *t, struct err *e);

/* As stream_read() and stream_write(). */
ssize_t tls_read(struct tls *t, void *to, size_t room, struct err *e);
ssize_t tls_write(struct tls *t, const void *from, size_t len, struct err *e);

#endif

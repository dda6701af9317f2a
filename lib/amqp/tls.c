#include "amqp/tls.h"

#include <arpa/inet.h>
#include <errno.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

struct tls {
	SSL_CTX *ctx;
	SSL *ssl;
	const struct tls_conf *conf;
	char host[256];
	bool ready; /* handshake done, no failure since */
};

/* ---- a BIO over a socket that does not raise SIGPIPE: OpenSSL's own does ---- */

static BIO_METHOD *socket_method;

static int socket_fd(BIO *b)
{
	return (int)(intptr_t)BIO_get_data(b);
}

static int socket_write(BIO *b, const char *from, int len)
{
	ssize_t n;

	BIO_clear_retry_flags(b);
	do
		n = send(socket_fd(b), from, (size_t)len, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		BIO_set_retry_write(b);
	return (int)n;
}

static int socket_read(BIO *b, char *to, int room)
{
	ssize_t n;

	BIO_clear_retry_flags(b);
	do
		n = recv(socket_fd(b), to, (size_t)room, MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		BIO_set_retry_read(b);
	return (int)n;
}

static long socket_ctrl(BIO *b, int cmd, long num, void *ptr)
{
	(void)b, (void)num, (void)ptr;
	return cmd == BIO_CTRL_FLUSH || cmd == BIO_CTRL_DUP;
}

int tls_global_init(struct err *e)
{
	if (socket_method != NULL)
		return 0;
	if (OPENSSL_init_ssl(0, NULL) != 1)
		return err_set(e, ERR_NOMEM, 0, "OpenSSL cannot be initialised");
	socket_method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "outboxd socket");
	if (socket_method == NULL || BIO_meth_set_write(socket_method, socket_write) != 1 ||
		BIO_meth_set_read(socket_method, socket_read) != 1 ||
		BIO_meth_set_ctrl(socket_method, socket_ctrl) != 1)
		return err_set(e, ERR_NOMEM, 0, "OpenSSL: out of memory");
	return 0;
}

/* ---- errors ---- */

static const char *reason(void)
{
	const char *text = ERR_reason_error_string(ERR_peek_last_error());

	return text != NULL ? text : "unknown error";
}

static int file_error(struct err *e, const char *key, const char *path)
{
	return err_set(e, ERR_CONFIG, 0, "tls.%s %s: %s", key, path, reason());
}

/* The peer answered our hello with something else, or with an alert. */
static int protocol_error(struct tls *t, struct err *e)
{
	unsigned long code = ERR_peek_error();
	int why = ERR_GET_REASON(code);

	switch (why) {
	case SSL_R_WRONG_VERSION_NUMBER:
	case SSL_R_PACKET_LENGTH_TOO_LONG:
	case SSL_R_RECORD_LENGTH_MISMATCH:
	case SSL_R_HTTP_REQUEST:
		if (t->ready)
			break;
		return err_set(e, ERR_CONFIG, EPROTO, "TLS: the port does not speak TLS");
	case SSL_R_UNSUPPORTED_PROTOCOL:
	case SSL_R_TLSV1_ALERT_PROTOCOL_VERSION:
		return err_set(e, ERR_CONFIG, EPROTO,
			"TLS: the broker offers no version we accept (1.2 or newer): %s", reason());
	case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
	case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
	case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
	case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
	case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
	case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
	case SSL_R_TLSV1_ALERT_ACCESS_DENIED:
	case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
		return err_set(e, ERR_CONFIG, why,
			"TLS: the broker does not accept our certificate (%s): %s",
			t->conf->cert_file != NULL ? t->conf->cert_file : "none is configured",
			reason());
	default:
		break;
	}
	return err_set(e, ERR_LINK, why, "TLS: %s", reason());
}

static int failed(struct tls *t, int ssl_error, int saved_errno, struct err *e)
{
	bool ready = t->ready;

	if (ssl_error == SSL_ERROR_ZERO_RETURN)
		err_set(e, ERR_LINK, ECONNRESET, "the broker closed the connection");
	else if (ssl_error == SSL_ERROR_SYSCALL && saved_errno != 0)
		err_set(e, ERR_LINK, saved_errno, "TLS: %s", strerror(saved_errno));
	else if (ssl_error == SSL_ERROR_SYSCALL || ERR_peek_error() == 0)
		err_set(e, ERR_LINK, ECONNRESET, "the broker closed the connection%s",
			ready ? "" : " in the TLS handshake");
#ifdef SSL_R_UNEXPECTED_EOF_WHILE_READING
	else if (ERR_GET_REASON(ERR_peek_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING)
		err_set(e, ERR_LINK, ECONNRESET, "the broker closed the connection%s",
			ready ? "" : " in the TLS handshake");
#endif
	else
		protocol_error(t, e);
	ERR_clear_error();
	t->ready = false;
	return -1;
}

/* ---- life ---- */

/* A key with a passphrase is an error, never a question on the terminal. */
static int no_passphrase(char *to, int size, int writing, void *arg)
{
	(void)to, (void)size, (void)writing, (void)arg;
	return -1;
}

static int load_files(struct tls *t, struct err *e)
{
	const struct tls_conf *conf = t->conf;

	SSL_CTX_set_default_passwd_cb(t->ctx, no_passphrase);
	if (conf->ca_file != NULL) {
		if (SSL_CTX_load_verify_locations(t->ctx, conf->ca_file, NULL) != 1)
			return file_error(e, "ca_file", conf->ca_file);
	} else if (SSL_CTX_set_default_verify_paths(t->ctx) != 1) {
		return err_set(e, ERR_CONFIG, 0, "the system's CA certificates: %s", reason());
	}
	if (conf->cert_file == NULL)
		return 0;
	if (SSL_CTX_use_certificate_chain_file(t->ctx, conf->cert_file) != 1)
		return file_error(e, "cert_file", conf->cert_file);
	if (SSL_CTX_use_PrivateKey_file(t->ctx,
		    conf->key_file != NULL ? conf->key_file : conf->cert_file,
		    SSL_FILETYPE_PEM) != 1 ||
		SSL_CTX_check_private_key(t->ctx) != 1)
		return file_error(
			e, "key_file", conf->key_file != NULL ? conf->key_file : conf->cert_file);
	return 0;
}

static bool is_address(const char *host)
{
	unsigned char any[sizeof(struct in6_addr)];

	return inet_pton(AF_INET, host, any) == 1 || inet_pton(AF_INET6, host, any) == 1;
}

static int expect_host(struct tls *t)
{
	X509_VERIFY_PARAM *param = SSL_get0_param(t->ssl);

	/* Names are those of the certificate's subjectAltName; its common name is none. */
	X509_VERIFY_PARAM_set_hostflags(
		param, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
	if (is_address(t->host))
		return X509_VERIFY_PARAM_set1_ip_asc(param, t->host);
	return X509_VERIFY_PARAM_set1_host(param, t->host, 0);
}

int tls_new(struct tls **out, int fd, const struct tls_conf *conf, const char *host, struct err *e)
{
	struct tls *t = calloc(1, sizeof(*t));
	BIO *bio = NULL;

	if (t == NULL)
		return err_set(e, ERR_NOMEM, ENOMEM, "out of memory");
	ERR_clear_error();
	t->conf = conf;
	if (strlen(host) >= sizeof(t->host)) {
		err_set(e, ERR_CONFIG, 0, "host name too long");
		goto fail;
	}
	strcpy(t->host, host);
	t->ctx = SSL_CTX_new(TLS_client_method());
	if (t->ctx == NULL || SSL_CTX_set_min_proto_version(t->ctx, TLS1_2_VERSION) != 1) {
		err_set(e, ERR_NOMEM, 0, "TLS: %s", reason());
		goto fail;
	}
	SSL_CTX_set_mode(t->ctx, SSL_MODE_ENABLE_PARTIAL_WRITE |
					 SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
					 SSL_MODE_RELEASE_BUFFERS);
	if (load_files(t, e) < 0)
		goto fail;
	t->ssl = SSL_new(t->ctx);
	bio = BIO_new(socket_method);
	if (t->ssl == NULL || bio == NULL) {
		BIO_free(bio);
		err_set(e, ERR_NOMEM, 0, "TLS: %s", reason());
		goto fail;
	}
	BIO_set_data(bio, (void *)(intptr_t)fd);
	BIO_set_init(bio, 1);
	SSL_set_bio(t->ssl, bio, bio);
	SSL_set_connect_state(t->ssl);
	if (conf->mode == TLS_VERIFY_CA || conf->mode == TLS_VERIFY_IDENTITY)
		SSL_set_verify(t->ssl, SSL_VERIFY_PEER, NULL);
	if ((conf->mode == TLS_VERIFY_IDENTITY && expect_host(t) != 1) ||
		(!is_address(host) && SSL_set_tlsext_host_name(t->ssl, t->host) != 1)) {
		err_set(e, ERR_CONFIG, 0, "TLS: host %s: %s", host, reason());
		goto fail;
	}
	*out = t;
	return 0;
fail:
	ERR_clear_error();
	tls_free(t);
	return -1;
}

void tls_free(struct tls *t)
{
	if (t == NULL)
		return;
	if (t->ready)
		(void)SSL_shutdown(t->ssl); /* says goodbye; does not wait */
	ERR_clear_error();
	SSL_free(t->ssl);
	SSL_CTX_free(t->ctx);
	free(t);
}

enum tls_step tls_handshake(struct tls *t, struct err *e)
{
	long verdict;
	int rc, why, saved;

	ERR_clear_error();
	errno = 0;
	rc = SSL_do_handshake(t->ssl);
	saved = errno;
	if (rc == 1) {
		t->ready = true;
		return TLS_DONE;
	}
	why = SSL_get_error(t->ssl, rc);
	if (why == SSL_ERROR_WANT_READ)
		return TLS_WANTS_READ;
	if (why == SSL_ERROR_WANT_WRITE)
		return TLS_WANTS_WRITE;
	verdict = SSL_get_verify_result(t->ssl);
	if (verdict != X509_V_OK && SSL_get_verify_mode(t->ssl) != SSL_VERIFY_NONE) {
		err_set(e, ERR_CONFIG, verdict, "TLS: the certificate of %s is not accepted: %s",
			t->host, X509_verify_cert_error_string(verdict));
		ERR_clear_error();
		return TLS_FAILED;
	}
	failed(t, why, saved, e);
	return TLS_FAILED;
}

/* How SSL_read_ex() or SSL_write_ex() ended, right after it: bytes moved, 0 "not now", or -1. */
static ssize_t moved(struct tls *t, int rc, const size_t *n, struct err *e)
{
	int saved = errno, why;

	if (rc == 1)
		return (ssize_t)*n;
	why = SSL_get_error(t->ssl, rc);
	if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE)
		return 0;
	return failed(t, why, saved, e);
}

ssize_t tls_read(struct tls *t, void *to, size_t room, struct err *e)
{
	size_t n = 0;

	ERR_clear_error();
	errno = 0;
	return moved(t, SSL_read_ex(t->ssl, to, room, &n), &n, e);
}

ssize_t tls_write(struct tls *t, const void *from, size_t len, struct err *e)
{
	size_t n = 0;

	ERR_clear_error();
	errno = 0;
	return moved(t, SSL_write_ex(t->ssl, from, len, &n), &n, e);
}

#include "http/http.h"

#include "base/list.h"
#include "log/log.h"
#include "metrics/metrics.h"
#include "sys/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CONNECTIONS_MAX 64
/* What the library may hold beyond: clients on their way out. */
#define CONNECTIONS_SLACK 32
#define CONNECTION_MEMORY (16u << 10)
#define CONNECTION_TIMEOUT_S 10u
#define CLIENT_WAIT_US (100 * US_PER_MS)
#define BACKLOG 128
#define LOG_INTERVAL_US (10 * US_PER_SEC)

struct client {
	struct list node;
	int fd;
	bool evicted;
};

struct http {
	struct http_pages pages;
	void *arg;
	struct MHD_Daemon *daemon;
	int listen_fd;
	int reserve_fd; /* let go of to accept, and close, a client when there is no other */
	uint16_t port;
	pthread_t acceptor;
	bool accepting;
	atomic_bool stopping;

	pthread_mutex_t lock;
	struct list clients; /* the one longest without a whole request first */
	pthread_cond_t changed;
	unsigned count;
	uint64_t added, started; /* given to the library, and seen there */
	struct log_limit accept_limit, library_limit;
};

/* ---- pages ---- */

#define TEXT "text/plain; charset=utf-8"

static enum MHD_Result reply(struct MHD_Connection *c, unsigned code, const char *type,
	struct buf *body, const char *header, const char *value)
{
	struct MHD_Response *r =
		MHD_create_response_from_buffer(body->len, body->data, MHD_RESPMEM_MUST_FREE);
	enum MHD_Result rc = MHD_NO;

	if (r == NULL) {
		buf_fini(body);
		return MHD_NO;
	}
	if (MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type) == MHD_YES &&
		MHD_add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store") == MHD_YES &&
		(header == NULL || MHD_add_response_header(r, header, value) == MHD_YES))
		rc = MHD_queue_response(c, code, r);
	MHD_destroy_response(r);
	return rc;
}

static enum MHD_Result reply_text(struct MHD_Connection *c, unsigned code, const char *text,
	const char *header, const char *value)
{
	struct buf body = { 0 };

	if (buf_adds(&body, text) < 0)
		return MHD_NO; /* closes the connection */
	return reply(c, code, TEXT, &body, header, value);
}

static enum MHD_Result reply_page(
	struct http *h, struct MHD_Connection *c, http_page_cb *page, const char *type)
{
	struct buf body = { 0 };
	unsigned code;

	if (buf_adds(&body, "") < 0)
		return MHD_NO;
	code = page(h->arg, &body);
	if (body.failed) {
		buf_fini(&body);
		return reply_text(c, MHD_HTTP_INTERNAL_SERVER_ERROR, "out of memory\n", NULL, NULL);
	}
	return reply(c, code, type, &body, NULL, NULL);
}

/* The one with a whole request is the last to be evicted. */
static void mark_useful(struct http *h, struct MHD_Connection *c)
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
	struct client *client = info != NULL ? info->socket_context : NULL;

	if (client == NULL)
		return;
	pthread_mutex_lock(&h->lock);
	list_del(&client->node);
	list_push_back(&h->clients, &client->node);
	pthread_mutex_unlock(&h->lock);
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *c, const char *url,
	const char *method, const char *version, const char *upload, size_t *upload_size,
	void **state)
{
	struct http *h = cls;
	const struct {
		const char *path, *type;
		http_page_cb *cb;
	} pages[] = {
		{ "/metrics", METRICS_CONTENT_TYPE, h->pages.metrics },
		{ "/livez", TEXT, h->pages.livez },
		{ "/readyz", TEXT, h->pages.readyz },
		{ "/status", "application/json", h->pages.status },
	};

	(void)version, (void)upload;
	if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
		return reply_text(c, MHD_HTTP_METHOD_NOT_ALLOWED, "GET only\n",
			MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
	/* Called once for the head, then for any body, then for the answer; an answer before that
	 * would end the connection. */
	if (*state == NULL) {
		*state = h;
		return MHD_YES;
	}
	if (*upload_size != 0) {
		*upload_size = 0;
		return MHD_YES;
	}
	mark_useful(h, c);
	for (size_t i = 0; i < ARRAY_LEN(pages); i++)
		if (strcmp(url, pages[i].path) == 0)
			return reply_page(h, c, pages[i].cb, pages[i].type);
	return reply_text(
		c, MHD_HTTP_NOT_FOUND, "here are /metrics /livez /readyz /status\n", NULL, NULL);
}

/* ---- connections ---- */

/* Under the lock. The library sees the end of the stream and closes it. */
static void evict_oldest(struct http *h)
{
	list_each (at, &h->clients) {
		struct client *client = container_of(at, struct client, node);

		if (client->evicted)
			continue;
		client->evicted = true;
		shutdown(client->fd, SHUT_RDWR);
		return;
	}
}

static void client_started(struct http *h, struct MHD_Connection *c, void **context)
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
	struct client *client = calloc(1, sizeof(*client));

	*context = client;
	if (client == NULL)
		return; /* neither counted nor evicted, but it times out */
	client->fd = info != NULL ? info->connect_fd : -1;
	pthread_mutex_lock(&h->lock);
	h->count++;
	h->started++;
	list_push_back(&h->clients, &client->node);
	pthread_cond_signal(&h->changed);
	pthread_mutex_unlock(&h->lock);
}

/* The library closes the socket only after this. */
static void client_closed(struct http *h, void **context)
{
	struct client *client = *context;

	if (client == NULL)
		return;
	pthread_mutex_lock(&h->lock);
	list_del(&client->node);
	h->count--;
	pthread_cond_signal(&h->changed);
	pthread_mutex_unlock(&h->lock);
	free(client);
	*context = NULL;
}

static void on_connection(void *cls, struct MHD_Connection *c, void **context,
	enum MHD_ConnectionNotificationCode what)
{
	if (what == MHD_CONNECTION_NOTIFY_STARTED)
		client_started(cls, c, context);
	else
		client_closed(cls, context);
}

/* ---- accepting ---- */

static void log_limited(struct http *h, struct log_limit *limit, const char *msg, const char *text)
{
	uint64_t suppressed;
	bool pass;

	pthread_mutex_lock(&h->lock);
	pass = log_limit_pass(limit, clock_mono_us(), LOG_INTERVAL_US, &suppressed);
	pthread_mutex_unlock(&h->lock);
	if (pass)
		log_info("http", msg, F_STR("reason", text), F_UINT("suppressed", suppressed));
}

static int open_reserve(void)
{
	return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

/* A client that cannot be served keeps the listening socket readable for ever; it is accepted with
 * the descriptor put by for that, and closed. */
static void turn_away(struct http *h)
{
	int fd;

	if (h->reserve_fd >= 0)
		close(h->reserve_fd);
	fd = accept4(h->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd >= 0)
		close(fd);
	h->reserve_fd = open_reserve();
	if (fd < 0 || h->reserve_fd < 0)
		poll(NULL, 0, 100); /* somebody else was faster: at least do not spin */
}

/* Waits for `what` to become true of the clients, on the library's thread, but not for ever. */
static bool wait_clients(struct http *h, bool (*what)(const struct http *h))
{
	int64_t until = clock_mono_us() + CLIENT_WAIT_US;
	struct timespec ts = { .tv_sec = (time_t)(until / US_PER_SEC),
		.tv_nsec = (long)(until % US_PER_SEC) * 1000 };

	while (!what(h))
		if (pthread_cond_timedwait(&h->changed, &h->lock, &ts) == ETIMEDOUT)
			return what(h);
	return true;
}

static bool has_room(const struct http *h)
{
	return h->count < CONNECTIONS_MAX;
}

static bool all_started(const struct http *h)
{
	return h->started == h->added;
}

/* Hands the client over, and waits until the library's thread has it, so that the count is right
 * when the next one comes. */
static void serve(struct http *h, int fd, const struct sockaddr *sa, socklen_t len)
{
	bool ok;

	pthread_mutex_lock(&h->lock);
	if (h->count >= CONNECTIONS_MAX) {
		evict_oldest(h);
		wait_clients(h, has_room);
	}
	h->added++;
	pthread_mutex_unlock(&h->lock);
	ok = MHD_add_connection(h->daemon, fd, sa, len) == MHD_YES; /* closes fd if it fails */
	pthread_mutex_lock(&h->lock);
	if (!ok || !wait_clients(h, all_started))
		h->added = h->started; /* refused, or lost inside the library */
	pthread_mutex_unlock(&h->lock);
	if (!ok)
		log_limited(h, &h->accept_limit, "client refused", "too many clients");
}

static void *accept_main(void *arg)
{
	struct http *h = arg;

	while (!atomic_load(&h->stopping)) {
		struct pollfd p = { .fd = h->listen_fd, .events = POLLIN };
		struct sockaddr_storage sa;
		socklen_t len = sizeof(sa);
		int fd;

		/* accept(2) fails for lack of descriptors even when nobody wants to come in. */
		if (poll(&p, 1, -1) <= 0 || atomic_load(&h->stopping))
			continue;
		fd = accept4(
			h->listen_fd, (struct sockaddr *)&sa, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd >= 0) {
			serve(h, fd, (struct sockaddr *)&sa, len);
			continue;
		}
		if (errno == EINTR || errno == ECONNABORTED || errno == EAGAIN)
			continue;
		log_limited(h, &h->accept_limit, "client refused", strerrordesc_np(errno));
		if (errno == EMFILE || errno == ENFILE)
			turn_away(h);
		else
			poll(NULL, 0, 100);
	}
	return NULL;
}

static int listen_on(const char *host, uint16_t port, struct err *e)
{
	struct addrinfo hints = { .ai_family = AF_UNSPEC,
		.ai_socktype = SOCK_STREAM,
		.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE };
	struct addrinfo *ai = NULL;
	char service[8], bare[64];
	size_t len = strlen(host);
	int fd, rc, one = 1;

	if (len > 2 && host[0] == '[' && host[len - 1] == ']' && len - 2 < sizeof(bare))
		snprintf(bare, sizeof(bare), "%.*s", (int)(len - 2), host + 1);
	else
		snprintf(bare, sizeof(bare), "%s",
			strcmp(host, "localhost") == 0 ? "127.0.0.1" : host);
	snprintf(service, sizeof(service), "%u", port);
	rc = getaddrinfo(strcmp(bare, "*") == 0 ? NULL : bare, service, &hints, &ai);
	if (rc != 0)
		return err_set(e, ERR_CONFIG, rc, "http: listen on %s: not an IP address", host);
	fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0) {
		err_set(e, ERR_RETRY, errno, "http: socket: %m");
	} else if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) < 0 ||
		   bind(fd, ai->ai_addr, ai->ai_addrlen) < 0 || listen(fd, BACKLOG) < 0) {
		err_set(e, errno == EACCES ? ERR_CONFIG : ERR_RETRY, errno,
			"http: listen on %s port %u: %m", host, port);
		close(fd);
		fd = -1;
	}
	freeaddrinfo(ai);
	return fd;
}

static uint16_t bound_port(int fd)
{
	union {
		struct sockaddr any;
		struct sockaddr_in v4;
		struct sockaddr_in6 v6;
	} sa = { .v6 = { .sin6_family = AF_UNSPEC } };
	socklen_t len = sizeof(sa);

	if (getsockname(fd, &sa.any, &len) < 0)
		return 0;
	return ntohs(sa.any.sa_family == AF_INET6 ? sa.v6.sin6_port : sa.v4.sin_port);
}

/* ---- start and stop ---- */

static void PRINTF(2, 0) on_library_log(void *cls, const char *fmt, va_list ap)
{
	char text[300];
	size_t len;

	vsnprintf(text, sizeof(text), fmt, ap);
	len = strlen(text);
	while (len > 0 && (text[len - 1] == '\n' || text[len - 1] == '\r'))
		text[--len] = '\0';
	log_limited(cls, &((struct http *)cls)->library_limit, "libmicrohttpd", text);
}

static int start_threads(struct http *h, struct err *e)
{
	sigset_t all, before;
	int rc = 0;

	sigfillset(&all); /* signals are the main thread's */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	h->daemon = MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_EPOLL |
					     MHD_USE_NO_LISTEN_SOCKET | MHD_USE_ITC |
					     MHD_USE_ERROR_LOG,
		0, NULL, NULL, on_request, h, MHD_OPTION_EXTERNAL_LOGGER, on_library_log, h,
		MHD_OPTION_NOTIFY_CONNECTION, on_connection, h, MHD_OPTION_CONNECTION_LIMIT,
		(unsigned)(CONNECTIONS_MAX + CONNECTIONS_SLACK), MHD_OPTION_CONNECTION_TIMEOUT,
		CONNECTION_TIMEOUT_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY,
		MHD_OPTION_END);
	if (h->daemon == NULL) {
		rc = err_set(e, ERR_RETRY, errno, "http: libmicrohttpd does not start: %m");
	} else {
		int why = pthread_create(&h->acceptor, NULL, accept_main, h);

		h->accepting = why == 0;
		if (why != 0)
			rc = err_set(e, ERR_RETRY, why, "http: thread: %s", strerrordesc_np(why));
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return rc;
}

int http_start(struct http **out, const char *host, uint16_t port, const struct http_pages *pages,
	void *arg, struct err *e)
{
	struct http *h = calloc(1, sizeof(*h));
	pthread_condattr_t attr;

	if (h == NULL)
		return err_set(e, ERR_NOMEM, ENOMEM, "http");
	h->pages = *pages;
	h->arg = arg;
	h->reserve_fd = -1;
	pthread_mutex_init(&h->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&h->changed, &attr);
	pthread_condattr_destroy(&attr);
	list_init(&h->clients);
	h->listen_fd = listen_on(host, port, e);
	if (h->listen_fd < 0)
		goto fail;
	h->port = bound_port(h->listen_fd);
	h->reserve_fd = open_reserve();
	if (start_threads(h, e) < 0)
		goto fail;
	*out = h;
	return 0;
fail:
	http_stop(h);
	return -1;
}

void http_stop(struct http *h)
{
	if (h == NULL)
		return;
	atomic_store(&h->stopping, true);
	if (h->accepting) {
		shutdown(h->listen_fd, SHUT_RDWR); /* its poll(2) returns */
		pthread_join(h->acceptor, NULL);
	}
	if (h->daemon != NULL)
		MHD_stop_daemon(h->daemon);
	if (h->listen_fd >= 0)
		close(h->listen_fd);
	if (h->reserve_fd >= 0)
		close(h->reserve_fd);
	pthread_cond_destroy(&h->changed);
	pthread_mutex_destroy(&h->lock);
	free(h);
}

uint16_t http_port(const struct http *h)
{
	return h->port;
}

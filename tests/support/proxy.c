#include "support/proxy.h"

#include "base/buf.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define PAIRS 256
#define HIGH_WATER (256 * 1024)

/* One piece on its way. */
struct piece {
	struct piece *next;
	int64_t due_us;
	size_t len, at;
	char data[];
};

struct way {
	int from, to;
	bool eof, eof_sent;
	struct piece *head, **tail;
	size_t queued;
};

struct pair {
	struct way up, down; /* client to server, server to client */
	bool connecting;
	struct buf partial; /* of a client's MySQL packet */
	char last[400];     /* the statement before */
	bool cut_on_answer;
	bool injected;      /* the next answer is to a statement of ours */
	struct buf waiting; /* and this goes after it */
};

struct proxy {
	int listener, wake;
	unsigned port, server_port;
	char host[64];
	pthread_t thread;
	pthread_mutex_t lock; /* all below */
	bool stop, black_hole, refuse, pause, cut, has_rule;
	int64_t latency_us;
	unsigned split;     /* 0: not */
	uint64_t cut_after; /* 0: not */
	struct proxy_rule rule;
	unsigned matches, hits, accepted;
	struct pair *pairs[PAIRS];
};

static void reset(int fd)
{
	struct linger hard = { 1, 0 };

	setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
	close(fd);
}

static void clear_way(struct way *w)
{
	while (w->head != NULL) {
		struct piece *next = w->head->next;

		free(w->head);
		w->head = next;
	}
}

static void drop(struct proxy *p, unsigned i)
{
	struct pair *c = p->pairs[i];

	reset(c->up.from);
	reset(c->up.to);
	clear_way(&c->up);
	clear_way(&c->down);
	buf_fini(&c->partial);
	buf_fini(&c->waiting);
	free(c);
	p->pairs[i] = NULL;
}

static void push(struct proxy *p, struct way *w, const char *data, size_t len)
{
	struct piece *piece = malloc(sizeof(*piece) + len);

	if (piece == NULL)
		abort();
	*piece = (struct piece){ .len = len, .due_us = env_now_us() + p->latency_us };
	memcpy(piece->data, data, len);
	*w->tail = piece;
	w->tail = &piece->next;
	w->queued += len;
}

static void init_way(struct way *w, int from, int to)
{
	*w = (struct way){ .from = from, .to = to };
	w->tail = &w->head;
}

static void accept_one(struct proxy *p)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
		.sin_port = htons((uint16_t)p->server_port) };
	int client = accept4(p->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC), one = 1;
	unsigned i = 0;
	struct pair *c;
	int server;

	if (client < 0)
		return;
	p->accepted++;
	while (i < PAIRS && p->pairs[i] != NULL)
		i++;
	server = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	inet_pton(AF_INET, p->host, &at.sin_addr);
	if (p->refuse || i == PAIRS || server < 0 ||
		(connect(server, (struct sockaddr *)&at, sizeof(at)) < 0 && errno != EINPROGRESS)) {
		reset(client);
		if (server >= 0)
			close(server);
		return;
	}
	setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	c = calloc(1, sizeof(*c));
	if (c == NULL)
		abort();
	init_way(&c->up, client, server);
	init_way(&c->down, server, client);
	c->connecting = true;
	p->pairs[i] = c;
}

static bool contains(const char *data, size_t len, const char *text)
{
	return memmem(data, len, text, strlen(text)) != NULL;
}

static const char *state_of(unsigned code)
{
	switch (code) {
	case 1213:
		return "40001";
	case 1053:
		return "08S01";
	case 1040:
		return "08004";
	case 1064:
		return "42000";
	case 1146:
		return "42S02";
	default:
		return "HY000";
	}
}

static void answer_error(struct proxy *p, struct pair *c, unsigned code)
{
	char packet[200];
	int n = snprintf(packet + 7, sizeof(packet) - 7, "#%s%s", state_of(code),
		code == 1213 ? "Deadlock found when trying to get lock; try restarting transaction"
			     : "made up by a test");
	size_t len = (size_t)n + 3;

	packet[0] = (char)(len & 0xFF);
	packet[1] = (char)(len >> 8);
	packet[2] = 0;
	packet[3] = 1;
	packet[4] = (char)0xFF;
	packet[5] = (char)(code & 0xFF);
	packet[6] = (char)(code >> 8);
	push(p, &c->down, packet, len + 4);
}

static void inject(struct proxy *p, struct pair *c, const char *text)
{
	size_t len = strlen(text) + 1;
	char packet[300] = { (char)(len & 0xFF), (char)(len >> 8), 0, 0, 3 };

	memcpy(packet + 5, text, len - 1);
	push(p, &c->up, packet, len + 4);
	c->injected = true;
}

/* One whole packet of a client. false: the connection is to be reset. */
static bool judge_packet(struct proxy *p, struct pair *c, const char *packet, size_t len)
{
	bool query = len > 5 && packet[3] == 0 && packet[4] == 3;
	const struct proxy_rule *r = &p->rule;
	bool match = query && p->has_rule && contains(packet + 5, len - 5, r->text) &&
		     (r->after == NULL || contains(c->last, strlen(c->last), r->after));

	if (query) {
		size_t keep = len - 5 < sizeof(c->last) - 1 ? len - 5 : sizeof(c->last) - 1;

		for (size_t i = 0; i < keep; i++)
			c->last[i] = packet[5 + i] != '\0' ? packet[5 + i] : ' ';
		c->last[keep] = '\0';
	}
	if (match && p->matches++ >= r->skip && (r->times == 0 || p->hits < r->times)) {
		p->hits++;
		switch (r->action) {
		case PROXY_ERROR:
			answer_error(p, c, r->error);
			return true;
		case PROXY_DROP_BEFORE:
			return false;
		case PROXY_DROP_AFTER:
			c->cut_on_answer = true;
			break;
		case PROXY_SWALLOW:
			return true;
		case PROXY_INJECT:
			inject(p, c, r->inject);
			buf_add(&c->waiting, packet, len);
			return true;
		}
	}
	push(p, &c->up, packet, len);
	return true;
}

/* Only whole packets pass while there is a rule; what came before one was set passes as it is. */
static bool from_client(struct proxy *p, struct pair *c, const char *data, size_t len)
{
	if (p->cut_after > 0) {
		if (len >= p->cut_after) {
			push(p, &c->up, data, p->cut_after);
			p->cut_after = 0;
			return false;
		}
		p->cut_after -= len;
	}
	buf_add(&c->partial, data, len);
	if (!p->has_rule) {
		push(p, &c->up, c->partial.data, c->partial.len);
		buf_reset(&c->partial);
		return true;
	}
	for (;;) {
		const unsigned char *h = (const unsigned char *)c->partial.data;
		size_t whole;

		if (c->partial.len < 4)
			return true;
		whole = 4 + (h[0] | (size_t)h[1] << 8 | (size_t)h[2] << 16);
		if (c->partial.len < whole)
			return true;
		if (!judge_packet(p, c, c->partial.data, whole))
			return false;
		memmove(c->partial.data, c->partial.data + whole, c->partial.len - whole);
		c->partial.len -= whole;
	}
}

/* false: the connection is finished. */
static bool read_way(struct proxy *p, struct pair *c, struct way *w)
{
	char data[65536];
	ssize_t n = recv(w->from, data, sizeof(data), 0);

	if (n < 0)
		return errno == EAGAIN || errno == EINTR;
	if (n == 0) {
		w->eof = true;
		return true;
	}
	if (w == &c->up)
		return from_client(p, c, data, (size_t)n);
	if (c->cut_on_answer)
		return false;
	if (c->injected) {
		c->injected = false;
		push(p, &c->up, c->waiting.data, c->waiting.len);
		buf_reset(&c->waiting);
		return true;
	}
	push(p, w, data, (size_t)n);
	return true;
}

static bool write_way(struct proxy *p, struct way *w)
{
	while (w->head != NULL && w->head->due_us <= env_now_us() && !p->black_hole) {
		struct piece *piece = w->head;
		size_t len = piece->len - piece->at;
		ssize_t n = send(w->to, piece->data + piece->at,
			p->split > 0 && p->split < len ? p->split : len, MSG_NOSIGNAL);

		if (n < 0)
			return errno == EAGAIN || errno == EINTR;
		piece->at += (size_t)n;
		w->queued -= (size_t)n;
		if (piece->at < piece->len && p->split > 0)
			continue;
		if (piece->at < piece->len)
			return true;
		w->head = piece->next;
		if (w->head == NULL)
			w->tail = &w->head;
		free(piece);
	}
	if (w->eof && w->head == NULL && !w->eof_sent && !p->black_hole) {
		shutdown(w->to, SHUT_WR);
		w->eof_sent = true;
	}
	return true;
}

static bool wants_read(const struct proxy *p, const struct pair *c, const struct way *w)
{
	return !w->eof && !p->black_hole && w->queued < HIGH_WATER && !(p->pause && w == &c->up);
}

static bool serve_pair(
	struct proxy *p, struct pair *c, const struct pollfd *client, const struct pollfd *server)
{
	if (server->revents & (POLLOUT | POLLERR | POLLHUP))
		c->connecting = false;
	if ((server->revents & POLLERR) || (client->revents & POLLERR))
		return false;
	if ((client->revents & (POLLIN | POLLHUP)) && wants_read(p, c, &c->up) &&
		!read_way(p, c, &c->up))
		return false;
	if ((server->revents & (POLLIN | POLLHUP)) && wants_read(p, c, &c->down) &&
		!read_way(p, c, &c->down))
		return false;
	if (!c->connecting && (!write_way(p, &c->up) || !write_way(p, &c->down)))
		return false;
	return !(c->up.eof_sent && c->down.eof_sent);
}

static int wait_ms(const struct proxy *p, const struct pair *c, int ms)
{
	const struct way *ways[] = { &c->up, &c->down };

	for (int i = 0; i < 2; i++) {
		int64_t left_us;

		if (ways[i]->head == NULL || p->black_hole)
			continue;
		left_us = ways[i]->head->due_us - env_now_us();
		if (left_us > 0 && (ms < 0 || left_us / 1000 + 1 < ms))
			ms = (int)(left_us / 1000 + 1);
	}
	return ms;
}

static short events_of(
	const struct proxy *p, const struct pair *c, const struct way *in, const struct way *out)
{
	bool due = out->head != NULL && out->head->due_us <= env_now_us() && !p->black_hole;

	return (short)((wants_read(p, c, in) ? POLLIN : 0) | (due ? POLLOUT : 0));
}

static void turn(struct proxy *p)
{
	struct pollfd fds[2 + 2 * PAIRS];
	unsigned index[PAIRS], pairs = 0;
	int ms = -1;
	uint64_t drained;

	fds[0] = (struct pollfd){ p->listener, POLLIN, 0 };
	fds[1] = (struct pollfd){ p->wake, POLLIN, 0 };
	for (unsigned i = 0; i < PAIRS; i++) {
		struct pair *c = p->pairs[i];

		if (c == NULL)
			continue;
		index[pairs] = i;
		fds[2 + 2 * pairs] =
			(struct pollfd){ c->up.from, events_of(p, c, &c->up, &c->down), 0 };
		fds[3 + 2 * pairs] =
			(struct pollfd){ c->up.to, events_of(p, c, &c->down, &c->up), 0 };
		if (c->connecting)
			fds[3 + 2 * pairs].events |= POLLOUT;
		pairs++;
		/* nothing is wanted of a socket that hangs up meanwhile: poll() must not spin */
		if (fds[2 * pairs].events == 0)
			fds[2 * pairs].fd = -1;
		if (fds[2 * pairs + 1].events == 0)
			fds[2 * pairs + 1].fd = -1;
		ms = wait_ms(p, c, ms);
	}
	pthread_mutex_unlock(&p->lock);
	poll(fds, 2 + 2 * pairs, ms);
	pthread_mutex_lock(&p->lock);
	if (fds[1].revents & POLLIN)
		(void)!read(p->wake, &drained, sizeof(drained));
	for (unsigned n = 0; n < pairs; n++)
		if (p->cut || !serve_pair(p, p->pairs[index[n]], &fds[2 + 2 * n], &fds[3 + 2 * n]))
			drop(p, index[n]);
	p->cut = false;
	if (fds[0].revents & POLLIN)
		accept_one(p);
}

static void *serve(void *arg)
{
	struct proxy *p = arg;

	pthread_mutex_lock(&p->lock);
	while (!p->stop)
		turn(p);
	for (unsigned i = 0; i < PAIRS; i++)
		if (p->pairs[i] != NULL)
			drop(p, i);
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

struct proxy *proxy_start(const char *host, unsigned port)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(at);
	struct proxy *p = calloc(1, sizeof(*p));

	if (p == NULL)
		FAIL("out of memory");
	snprintf(p->host, sizeof(p->host), "%s", host);
	p->server_port = port;
	p->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	p->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (p->wake < 0 || p->listener < 0 ||
		bind(p->listener, (struct sockaddr *)&at, sizeof(at)) < 0 ||
		listen(p->listener, 64) < 0 ||
		getsockname(p->listener, (struct sockaddr *)&at, &len) < 0)
		FAIL("proxy: %s", strerror(errno));
	p->port = ntohs(at.sin_port);
	pthread_mutex_init(&p->lock, NULL);
	if (pthread_create(&p->thread, NULL, serve, p) != 0)
		FAIL("no thread");
	return p;
}

unsigned proxy_port(const struct proxy *p)
{
	return p->port;
}

static void leave(struct proxy *p)
{
	uint64_t one = 1;

	pthread_mutex_unlock(&p->lock);
	(void)!write(p->wake, &one, sizeof(one));
}

static void set(struct proxy *p, bool *what, bool on)
{
	pthread_mutex_lock(&p->lock);
	*what = on;
	leave(p);
}

void proxy_stop(struct proxy *p)
{
	if (p == NULL)
		return;
	set(p, &p->stop, true);
	pthread_join(p->thread, NULL);
	close(p->listener);
	close(p->wake);
	pthread_mutex_destroy(&p->lock);
	free(p);
}

void proxy_latency(struct proxy *p, int64_t ms)
{
	pthread_mutex_lock(&p->lock);
	p->latency_us = ms * US_PER_MS;
	leave(p);
}

void proxy_split(struct proxy *p, unsigned bytes)
{
	pthread_mutex_lock(&p->lock);
	p->split = bytes;
	leave(p);
}

void proxy_black_hole(struct proxy *p, bool on)
{
	set(p, &p->black_hole, on);
}

void proxy_refuse(struct proxy *p, bool on)
{
	set(p, &p->refuse, on);
}

void proxy_pause(struct proxy *p, bool on)
{
	set(p, &p->pause, on);
}

void proxy_cut(struct proxy *p)
{
	set(p, &p->cut, true);
}

void proxy_cut_after(struct proxy *p, uint64_t bytes)
{
	pthread_mutex_lock(&p->lock);
	p->cut_after = bytes;
	leave(p);
}

void proxy_rule(struct proxy *p, const struct proxy_rule *rule)
{
	pthread_mutex_lock(&p->lock);
	p->has_rule = rule != NULL;
	if (rule != NULL)
		p->rule = *rule;
	p->matches = p->hits = 0;
	leave(p);
}

static unsigned look(struct proxy *p, const unsigned *what)
{
	unsigned n;

	pthread_mutex_lock(&p->lock);
	n = *what;
	pthread_mutex_unlock(&p->lock);
	return n;
}

unsigned proxy_hits(struct proxy *p)
{
	return look(p, &p->hits);
}

unsigned proxy_connections(struct proxy *p)
{
	return look(p, &p->accepted);
}

unsigned proxy_open_connections(struct proxy *p)
{
	unsigned n = 0;

	pthread_mutex_lock(&p->lock);
	for (unsigned i = 0; i < PAIRS; i++)
		n += p->pairs[i] != NULL;
	pthread_mutex_unlock(&p->lock);
	return n;
}

#include "bench.h"

#include "amqp/publisher.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/select.h>
#include <sys/socket.h>

static void on_outcome(void *arg, void *cookie, enum outcome how, unsigned code, const char *text)
{
	struct client *c = arg;

	(void)cookie, (void)code;
	if (how != OUTCOME_ACK)
		die("publish", text != NULL ? text : "not confirmed");
	c->open--;
}

static void on_closed(void *arg, enum channel ch, unsigned code, const char *text)
{
	(void)arg, (void)ch, (void)code;
	die("channel closed", text);
}

static void on_blocked(void *arg, bool on, const char *reason)
{
	(void)arg, (void)on;
	fprintf(stderr, "bench: broker blocked: %s\n", reason);
}

void client_open(struct client *c, const struct config *conf)
{
	struct err e = { 0 };

	*c = (struct client){ 0 };
	if (amqp_publisher_new(&c->publisher, &conf->brokers[0], "outboxd bench", NULL, &e) < 0)
		die("publisher", e.text);
	c->publisher->events = (struct publisher_events){ on_outcome, on_closed, on_blocked, c };
	if (c->publisher->ops->connect(c->publisher, &e) < 0)
		die("publisher", e.text);
}

void client_close(struct client *c)
{
	c->publisher->ops->close(c->publisher);
	c->publisher->ops->free(c->publisher);
}

static void pump(struct client *c, int timeout_ms)
{
	struct publisher *p = c->publisher;
	struct timeval tv = { 0, timeout_ms * 1000 };
	struct err e = { 0 };
	int fd = p->ops->fd(p);
	fd_set rd, wr;

	FD_ZERO(&rd);
	FD_ZERO(&wr);
	FD_SET(fd, &rd);
	if (p->ops->wants_write(p))
		FD_SET(fd, &wr);
	if (timeout_ms > 0)
		select(fd + 1, &rd, &wr, NULL, &tv);
	if (p->ops->pump(p, &e) < 0)
		die("broker", e.text);
}

void client_pump(struct client *c)
{
	pump(c, 0);
}

void client_settle(struct client *c)
{
	pump(c, 0); /* out, before waiting */
	while (c->open > 0)
		pump(c, 10);
}

/* An exchange is proven by a confirm, as the daemon does it. */
void client_send(struct client *c, struct slice id, struct slice body, unsigned window)
{
	static struct field headers[] = {
		{ .name = { "aggregate_type", 14 },
			.type = FIELD_STRING,
			.string = { "order", 5 } },
		{ .name = { "aggregate_id", 12 },
			.type = FIELD_STRING,
			.string = { "order-123", 9 } },
		{ .name = { "source", 6 }, .type = FIELD_STRING, .string = { "bench0", 6 } },
	};
	const struct envelope env = {
		.exchange = SLICE_LIT(EXCHANGE),
		.routing_key = SLICE_LIT("order.OrderCreated"),
		.message_id = id,
		.type = SLICE_LIT("OrderCreated"),
		.content_type = SLICE_LIT("application/json"),
		.app_id = SLICE_LIT("outboxd"),
		.timestamp = 1700000000,
		.delivery_mode = 2,
		.mandatory = true,
		.headers = headers,
		.header_count = ARRAY_LEN(headers),
		.body = body,
	};
	struct publisher *p = c->publisher;
	enum channel ch = c->proven ? CHANNEL_FAST : CHANNEL_QUARANTINE;
	struct err e = { 0 };

	while (c->open >= window)
		pump(c, 10);
	while (p->ops->send(p, ch, &env, c, &e) < 0) {
		if (e.kind != ERR_AGAIN)
			die("send", e.text);
		pump(c, 10);
	}
	c->open++;
	if (!c->proven)
		client_settle(c);
	c->proven = true;
}

double client_bytes(const struct client *c)
{
	struct tcp_info info = { 0 };
	socklen_t len = sizeof(info);

	if (getsockopt(c->publisher->ops->fd(c->publisher), IPPROTO_TCP, TCP_INFO, &info, &len) <
			0 ||
		len < offsetof(struct tcp_info, tcpi_bytes_acked) + sizeof(info.tcpi_bytes_acked))
		return 0;
	return (double)info.tcpi_bytes_acked;
}

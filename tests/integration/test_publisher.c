/* The publisher against a fake broker, always, and against RabbitMQ where tests/servers runs one.
 * In front of RabbitMQ rabbitmq-c's own client declares, consumes and counts: another
 * implementation than ours. */
#include "amqp/publisher.h"

#include "../support/fake_broker.h"
#include "../unit/unit.h"
#include "amqp/rabbitmq.h"
#include "sys/clock.h"

#if __has_include(<rabbitmq-c/tcp_socket.h>)
#include <rabbitmq-c/tcp_socket.h>
#else
#include <amqp_tcp_socket.h>
#endif

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the publisher under test and what it reports ---- */

struct bench {
	struct broker_conf conf;
	struct endpoint hosts[4];
	struct publisher *p;
	struct err e;
	size_t sent, acked, nacked, returned, open;
	size_t closed[CHANNELS];
	unsigned closed_code, returned_code;
	char closed_text[256], returned_text[256];
	bool blocked;
	size_t blocked_events;
	char blocked_reason[256];
	unsigned char seen[65536]; /* by cookie: outcomes */
	enum outcome how[65536];
};

static void on_outcome(void *arg, void *cookie, enum outcome how, unsigned code, const char *text)
{
	struct bench *b = arg;
	size_t i = (size_t)(uintptr_t)cookie % ARRAY_LEN(b->seen);

	if (b->seen[i] < 255)
		b->seen[i]++;
	b->how[i] = how;
	b->open--;
	if (how == OUTCOME_ACK) {
		b->acked++;
	} else if (how == OUTCOME_NACK) {
		b->nacked++;
	} else {
		b->returned++;
		b->returned_code = code;
		snprintf(b->returned_text, sizeof(b->returned_text), "%s", text);
	}
}

static void on_closed(void *arg, enum channel ch, unsigned code, const char *text)
{
	struct bench *b = arg;

	b->closed[ch]++;
	b->closed_code = code;
	snprintf(b->closed_text, sizeof(b->closed_text), "%s", text);
}

static void on_blocked(void *arg, bool on, const char *reason)
{
	struct bench *b = arg;

	b->blocked = on;
	b->blocked_events++;
	if (on)
		snprintf(b->blocked_reason, sizeof(b->blocked_reason), "%s", reason);
}

static struct bench *bench_at(const char *host, uint16_t port)
{
	static char user[] = "guest", password[] = "guest", vhost[] = "/", name[] = "main";
	struct bench *b = calloc(1, sizeof(*b));

	b->hosts[0] = (struct endpoint){ .host = strdup(host), .port = port };
	b->conf = (struct broker_conf){
		.name = name,
		.hosts = b->hosts,
		.host_count = 1,
		.vhost = vhost,
		.username = user,
		.password = { .kind = SECRET_LITERAL, .value = password },
		.heartbeat_us = 30 * US_PER_SEC,
		.connect_timeout_us = 5 * US_PER_SEC,
		.max_message_size = 16 << 20,
	};
	ck_assert_int_eq(amqp_global_init(&b->e), 0);
	ck_assert_int_eq(
		amqp_publisher_new(&b->p, &b->conf, "outboxd test source orders", NULL, &b->e), 0);
	b->p->events = (struct publisher_events){
		.outcome = on_outcome,
		.channel_closed = on_closed,
		.blocked = on_blocked,
		.arg = b,
	};
	return b;
}

static void bench_end(struct bench *b)
{
	b->p->ops->free(b->p);
	for (size_t i = 0; i < ARRAY_LEN(b->hosts); i++)
		free(b->hosts[i].host);
	free(b);
}

static void connected(struct bench *b)
{
	if (b->p->ops->connect(b->p, &b->e) < 0)
		ck_abort_msg("connect: %s", b->e.text);
}

static int send_body(
	struct bench *b, enum channel ch, const char *exchange, const char *key, struct slice body)
{
	char id[40];
	struct field headers[] = {
		{ .name = SLICE_LIT("aggregate_type"),
			.type = FIELD_STRING,
			.string = SLICE_LIT("order") },
		{ .name = SLICE_LIT("aggregate_id"),
			.type = FIELD_STRING,
			.string = SLICE_LIT("4711") },
		{ .name = SLICE_LIT("source"),
			.type = FIELD_STRING,
			.string = SLICE_LIT("orders") },
	};
	struct envelope env = {
		.exchange = slice_str(exchange),
		.routing_key = slice_str(key),
		.type = SLICE_LIT("order.created"),
		.content_type = SLICE_LIT("application/json"),
		.app_id = SLICE_LIT("outboxd"),
		.timestamp = 1700000000,
		.delivery_mode = 2,
		.mandatory = true,
		.headers = headers,
		.header_count = ARRAY_LEN(headers),
		.body = body,
	};

	snprintf(id, sizeof(id), "01234567-89ab-cdef-0123-%012zu", b->sent);
	env.message_id = slice_str(id);
	if (b->p->ops->send(b->p, ch, &env, (void *)(uintptr_t)b->sent, &b->e) < 0)
		return -1;
	b->sent++;
	b->open++;
	return 0;
}

static int send_one(struct bench *b, enum channel ch, const char *exchange, const char *key)
{
	static const char body[] =
		"{\"orderId\":4711,\"customer\":\"c-0815\",\"total\":\"129.90\",\"currency\":"
		"\"EUR\",\"items\":[{\"sku\":\"A-1\",\"qty\":2},{\"sku\":\"B-7\",\"qty\":1}],"
		"\"shipTo\":\"Berlin\",\"ok\":true}";

	return send_body(b, ch, exchange, key, (struct slice){ body, sizeof(body) - 1 });
}

/* One turn of a loop: waits up to `ms` for the socket, then pumps. */
static int turn(struct bench *b, int ms)
{
	struct pollfd f = {
		.fd = b->p->ops->fd(b->p),
		.events = (short)(POLLIN | (b->p->ops->wants_write(b->p) ? POLLOUT : 0)),
	};
	int64_t next = b->p->ops->next_pump_us(b->p);
	int64_t left = next == TIME_NEVER ? ms : (next - clock_mono_us()) / US_PER_MS + 1;

	poll(&f, 1, left < 0 ? 0 : left < ms ? (int)left : ms);
	return b->p->ops->pump(b->p, &b->e);
}

/* Pumps until the condition holds; fails the test after 20 s, or when the connection ends. */
#define UNTIL(b, condition)                                                                        \
	do {                                                                                       \
		int64_t end_ = clock_mono_us() + 20 * US_PER_SEC;                                  \
		while (!(condition)) {                                                             \
			if (turn(b, 50) < 0)                                                       \
				ck_abort_msg("pump: %s", (b)->e.text);                             \
			ck_assert_msg(clock_mono_us() < end_, "timed out: %s", #condition);        \
		}                                                                                  \
	} while (0)

/* Pumps until the connection is reported as finished. */
static void until_down(struct bench *b)
{
	int64_t end = clock_mono_us() + 20 * US_PER_SEC;

	while (turn(b, 50) == 0)
		ck_assert_msg(clock_mono_us() < end, "never reported down");
	ck_assert_int_eq(b->e.kind, ERR_LINK);
}

/* Publishes until `n` are settled, with at most `window` open. */
static void publish_window(
	struct bench *b, const char *exchange, const char *key, size_t n, size_t window)
{
	size_t last = b->sent + n;
	int64_t end = clock_mono_us() + 50 * US_PER_SEC;

	while (b->sent < last || b->open > 0) {
		while (b->sent < last && b->open < window) {
			if (send_one(b, CHANNEL_FAST, exchange, key) < 0) {
				if (b->e.kind != ERR_AGAIN)
					ck_abort_msg("send: %s", b->e.text);
				break;
			}
		}
		if (turn(b, 100) < 0)
			ck_abort_msg("pump: %s", b->e.text);
		ck_assert_msg(clock_mono_us() < end, "timed out with %zu open", b->open);
	}
}

static long resident_kib(void)
{
	FILE *f = fopen("/proc/self/statm", "r");
	long size, resident;

	ck_assert_int_eq(fscanf(f, "%ld %ld", &size, &resident), 2);
	fclose(f);
	return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

/* Since `before` at most so many KiB more. A sanitizer keeps what was freed for a while. */
static void still_flat(long before, long most_kib)
{
#if !defined(__SANITIZE_ADDRESS__)
	long more = resident_kib() - before;

	ck_assert_msg(more < most_kib, "%ld KiB more", more);
#else
	(void)before, (void)most_kib;
#endif
}

static int descriptors(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	while (readdir(d) != NULL)
		n++;
	closedir(d);
	return n;
}

static struct bench *bench_fake(struct fake_broker *f)
{
	return bench_at("127.0.0.1", fake_broker_port(f));
}

/* ---- against the fake broker ---- */

static void all_acked_once(const struct fake_rules *rules)
{
	struct fake_broker *f = fake_broker_start(rules);
	struct bench *b = bench_fake(f);
	struct fake_stats s;

	connected(b);
	publish_window(b, "events", "order", 20000, 1000);
	ck_assert_uint_eq(b->acked, 20000);
	for (size_t i = 0; i < 20000; i++)
		ck_assert_uint_eq(b->seen[i], 1);
	fake_broker_stats(f, &s);
	ck_assert_uint_eq(s.messages, 20000);
	ck_assert_msg(s.violations == 0, "%s", s.violation);
	bench_end(b);
	fake_broker_stop(f);
}

START_TEST(twenty_thousand_messages_are_acked_once_each)
{
	all_acked_once(&(struct fake_rules){ 0 });
}
END_TEST

START_TEST(merged_reversed_shuffled_and_repeated_acks_change_nothing)
{
	all_acked_once(&(struct fake_rules){ .ack_order = FAKE_MULTIPLE, .ack_batch = 37 });
	all_acked_once(&(struct fake_rules){ .ack_order = FAKE_REVERSE, .ack_batch = 200 });
	all_acked_once(
		&(struct fake_rules){ .ack_order = FAKE_SHUFFLE, .ack_batch = 333, .seed = 7 });
	all_acked_once(&(struct fake_rules){
		.ack_order = FAKE_SHUFFLE, .ack_batch = 10, .seed = 8, .repeat_acks = true });
}
END_TEST

START_TEST(wrong_tags_are_counted_and_settle_nothing)
{
	struct fake_broker *f = fake_broker_start(NULL);
	struct bench *b = bench_fake(f);
	struct amqp_oddities odd;

	connected(b);
	for (int i = 0; i < 10; i++)
		ck_assert_int_eq(send_one(b, CHANNEL_FAST, "events", "hold"), 0);
	UNTIL(b, fake_broker_count(f, "01234567-89ab-cdef-0123-000000000009") == 1);
	fake_broker_confirm(f, 1, 11, false, true);
	fake_broker_confirm(f, 1, 999, true, true);
	fake_broker_confirm(f, 2, 1, false, true);
	fake_broker_confirm(f, 1, 3, true, true);
	fake_broker_confirm(f, 1, 1, false, true);
	fake_broker_confirm(f, 1, 5, false, false);
	UNTIL(b, b->acked == 3 && b->nacked == 1);
	fake_broker_confirm(f, 1, 0, true, true);
	UNTIL(b, b->open == 0);
	ck_assert_uint_eq(b->acked, 9);
	amqp_publisher_oddities(b->p, &odd);
	ck_assert_uint_eq(odd.unknown_acks, 3);
	ck_assert_uint_eq(odd.duplicate_acks, 1);
	bench_end(b);
	fake_broker_stop(f);
}
END_TEST

START_TEST(nacks_and_returns_reach_exactly_their_messages)
{
	struct fake_broker *f = fake_broker_start(
		&(struct fake_rules){ .ack_batch = 50, .ack_order = FAKE_SHUFFLE });
	struct bench *b = bench_fake(f);

	connected(b);
	for (size_t i = 0; i < 3000; i++) {
		const char *key = i % 10 == 3 ? "nack" : i % 10 == 7 ? "return" : "order";

		while (send_one(b, CHANNEL_FAST, "events", key) < 0)
			ck_assert_int_eq(turn(b, 50), 0);
	}
	UNTIL(b, b->open == 0);
	for (size_t i = 0; i < 3000; i++) {
		ck_assert_uint_eq(b->seen[i], 1);
		ck_assert_int_eq(b->how[i], i % 10 == 3   ? OUTCOME_NACK
					    : i % 10 == 7 ? OUTCOME_RETURNED
							  : OUTCOME_ACK);
	}
	ck_assert_uint_eq(b->returned_code, 312);
	ck_assert_str_eq(b->returned_text, "NO_ROUTE");
	bench_end(b);
	fake_broker_stop(f);
}
END_TEST

static enum fake_verdict return_then_nack(void *arg, const struct fake_message *m)
{
	(void)arg, (void)m;
	return FAKE_RETURN_THEN_NACK;
}

START_TEST(a_return_followed_by_a_nack_is_a_return)
{
	struct fake_broker *f =
		fake_broker_start(&(struct fake_rules){ .judge = return_then_nack });
	struct bench *b = bench_fake(f);

	connected(b);
	ck_assert_int_eq(send_one(b, CHANNEL_FAST, "events", "order"), 0);
	UNTIL(b, b->open == 0);
	ck_assert_uint_eq(b->returned, 1);
	bench_end(b);
	fake_broker_stop(f);
}
END_TEST

START_TEST(the_body_of_a_large_return_is_stepped_over)
{
	struct fake_broker *f = fake_broker_start(NULL);
	struct bench *b = bench_fake(f);
	size_t n = 4 << 20;
	char *body = malloc(n);
	struct amqp_oddities odd;

	memset(body, 'x', n);
	connected(b);
	for (int i = 0; i < 12; i++) {
		ck_assert_int_eq(
			send_body(b, CHANNEL_FAST, "events", "return", (struct slice){ body, n }),
			0);
		UNTIL(b, b->open == 0);
	}
	ck_assert_uint_eq(b->returned, 12);
	ck_assert_int_eq(send_one(b, CHANNEL_FAST, "events", "order"), 0);
	UNTIL(b, b->acked == 1);
	amqp_publisher_oddities(b->p, &odd);
	ck_assert_uint_eq(odd.strange_frames, 0);
	free(body);
	bench_end(b);
	fake_broker_stop(f);
}
END_TEST

START_TEST(a_missing_exchange_closes_the_quarantine_channel_alone)
{
	struct fake_broker *f = fake_broker_start(&(struct fake_rules){ .ack_batch = 10 });
	struct bench *b = bench_fake(f);
	struct fake_stats s;

	connected(b);
	for (int round = 1; round <= 3; round++) {
		for (int i = 0; i < 500; i++)
			ck_assert_int_eq(send_one(b, CHANNEL_FAST, "events", "order"), 0);
		ck_assert_int_eq(send_one(b, CHANNEL_QUARANTINE, "missing", "order"), 0);
		for (int i = 0; i < 500; i++)
			ck_assert_int_eq(send_one(b, CHANNEL_FAST, "events", "order"), 0);
		UNTIL(b, b->closed[CHANNEL_QUARANTINE] == (size_t)round && b->open == 1);
		ck_assert_uint_eq(b->closed_code, 404);
		ck_assert_ptr_nonnull(strstr(b->closed_text, "NOT_FOUND"));
		b->open = 0;
		ck_assert_int_eq(send_one(b, CHANNEL_QUARANTINE, "events", "order"), -1);
		ck_assert_int_eq(b->e.kind, ERR_AGAIN);
		/* Acks for the other channel arrive while this one is opened again. */
		for (int i = 0; i < 500; i++)
			ck_assert_int_eq(send_one(b, CHANNEL_FAST, "events", "order"), 0);
		ck_assert_int_eq(b->p->ops->reopen(b->p, CHANNEL_QUARANTINE, &b->e), 0);
		ck_assert_int_eq(send_one(b, CHANNEL_QUARANTINE, "events", "order"), 0);
		UNTIL(b, b->open == 0);
	}
	ck_assert_uint_eq(b->closed[CHANNEL_FAST], 0);
	ck_assert_uint_eq(b->acked, 3 * 1501);
	fake_broker_stats(f, &s);
	ck_assert_uint_eq(s.channel_close_oks, 3);
	ck_assert_uint_eq(s.accepted, 1);
	ck_assert_msg(s.violations == 0, "%s", s.violation);
	bench_end(b);
	fake_broker_stop(f);
}
END_TEST

START_TEST(everything_open_on_a_closed_channel_is_forgotten_and_later_acks_ignored)
{
	struct fake_broker *f = fake_broker_start(NULL);
	struct bench *b = bench_fake(f);

	connected(b);
	for (int i = 0; i < 100; i++)
		ck_assert_int_eq(send_one(b, CHANNEL_FAST, "events", "hold"), 0);
	UNTIL(b, fake_broker_count(f, "01234567-89ab-cdef-0123-000000000099") == 1);
	fake_broker_close_channel(f, 1, 406, "PRECONDITION_FAILED - whatever");
	UNTIL(b, b->closed[CHANNEL_FAST] == 1);
	ck_assert_int_eq(b->p->ops->reopen(b->p, CHANNEL_FAST, &b->e), 0);
	b->open = 0;
	ck_assert_int_eq(send_one(b, CHANNEL_FAST, "events", "hold"), 0);
	fake_broker_confirm(f, 1, 50, true, true); /* of the past channel */
	ck_assert_int_eq(send_one(b, CHANNEL_FAST, "events", "order"), 0);
	UNTIL(b, b->acked == 1);
	ck_assert_uint_eq(b->seen[101], 1);
	ck_assert_uint_eq(b->seen[100], 0);
	bench_end(b);
	fake_broker_stop(f);
}
END_TEST

START_TEST(reopening_an_open_channel_closes_it_first_and_reports_nothing)
{
	struct fake_broker *f = fake_broker_start(NULL);
	struct bench *b = bench_fake(f);
	struct fake_stats s;

	connected(b);
	for (int i = 0; i < 1000; i++) {
		ck_assert_int_eq(send_one(b, CHANNEL_FAST, "events", "drop"), 0);
		ck_assert_int_eq(b->p->ops->reopen(b->p, CHANNEL_FAST, &b->e), 0);
	}
	b->open = 0;
	ck_assert_int_eq(send_one(b, CHANNEL_FAST, "events", "order"), 0);
	UNTIL(b, b->acked == 1);
	ck_assert_uint_eq(b->closed[CHANNEL_FAST], 0);
	fake_broker_stats(f, &s);
	ck_assert_uint_eq(s.channels_closed_by_client, 1000);
	ck_assert_msg(s.violations == 0, "%s", s.violation);
	bench_end(b);
	fake_broker_stop(f);
}
END_TEST

START_TEST(acks_that_arrive_while_their_channel_is_reopened_are_not_reported)
{
	struct fake_broker *f = fake_broker_start(&(struct fake_rules){ .ack_batch = 1000 });
	struct bench *b = bench_fake(f);

	connected(b);
	for (int i = 0; i < 20; i++) {
		/* The fake answers what it has collected before it closes the channel. */
		for (int k = 0; k < 10; k++)
			ck_assert_int_eq(send_one(b, CHANNEL_FAST, "events", "order"), 0);
		ck_assert_int_eq(b->p->ops->reopen(b->p, CHANNEL_FAST, &b->e), 0);
	}
	ck_assert_uint_eq(b->acked, 0);
	bench_end(b);
	fake_broker_stop(f);
}
END_TEST

START_TEST(nothing_is_heard_of_an_abandoned_channel_while_the_other_one_is_reopened)
{
	struct fake_broker *f = fake_broker_start(NULL);
	struct bench *b = bench_fake(f);
	struct fake_stats s;

	connected(b);
	for (int i = 0; i < 50; i++) {
		ck_assert_int_eq(send_one(b, CHANNEL_QUARANTINE, "events", "hold"), 0);
		b->p->ops->abandon(b->p, CHANNEL_QUARANTINE);
		ck_assert_int_eq(send_one(b, CHANNEL_QUARANTINE, "events", "order"), -1);
		ck_assert_int_eq(b->e.kind, ERR_AGAIN);
		if (i % 2 == 0)
			fake_broker_close_channel(f, 2, 404, "NOT_FOUND - whatever");
		else
			fake_broker_confirm(f, 2, 1, false, true);
		ck_assert_int_eq(b->p->ops->reopen(b->p, CHANNEL_FAST, &b->e), 0);
		ck_assert_uint_eq(b->acked, 0);
		ck_assert_int_eq(b->p->ops->reopen(b->p, CHANNEL_QUARANTINE, &b->e), 0);
	}
	ck_assert_uint_eq(b->acked, 0);
	ck_assert_uint_eq(b->closed[CHANNEL_QUARANTINE], 0);
	b->open = 0;
	ck_assert_int_eq(send_one(b, CHANNEL_QUARANTINE, "events", "order"), 0);
	UNTIL(b, b->acked == 1);
	fake_broker_stats(f, &s);
	ck_assert_msg(s.violations == 0, "%s", s.violation);
	bench_end(b);
	fake_broker_stop(f);
}
END_TEST

START_TEST(our_close_and_the_brokers_may_cross)
{
	struct fake_broker *f = fake_broker_start(NULL);
	struct bench *b = bench_fake(f);
	struct fake_stats s;

	connected(b);
	for (int i = 0; i < 50; i++) {
		/* The broker closes over this message while reopen() sends its own close. */
		ck_assert_int_eq(send_one(b, CHANNEL_FAST, "missing", "order"), 0);
		ck_assert_int_eq(b->p->ops->reopen(b->p, CHANNEL_FAST, &b->e), 0);
	}
	b->open = 0;
	ck_assert_int_eq(send_one(b, CHANNEL_FAST, "events", "order"), 0);
	UNTIL(b, b->acked == 1);
	fake_broker_stats(f, &s);
	ck_assert_msg(s.violations == 0, "%s", s.violation);
	ck_assert_uint_eq(s.channel_close_oks, 50);
	ck_assert_uint_eq(b->closed[CHANNEL_FAST], 0);
	bench_end(b);
	fake_broker_stop(f);
}
END_TEST

START_TEST(blocked_and_unblocked_are_reported)
{
	struct fake_broker *f = fake_broker_start(NULL);
	struct bench *b = bench_fake(f);

	connected(b);
	fake_broker_block(f, true, "low on memory");
	UNTIL(b, b->blocked);
	ck_assert_str_eq(b->blocked_reason, "low on memory");
	fake_broker_block(f, false, NULL);
	UNTIL(b, !b->blocked);
	bench_end(b);
	fake_broker_stop(f);
}
END_TEST

START_TEST(a_broker_that_stops_reading_never_blocks_send)
{
	struct fake_rules rules = { .stall_after = 100000 };
	struct fake_broker *f = fake_broker_start(&rules);
	struct bench *b = bench_fake(f);
	size_t refused = 0;
	int64_t slowest = 0;

	connected(b);
	while (refused < 100) {
		int64_t t = clock_mono_us();
		int rc = send_one(b, CHANNEL_FAST, "events", "order");

		t = clock_mono_us() - t;
		slowest = t > slowest ? t : slowest;
		if (rc < 0) {
			ck_assert_int_eq(b->e.kind, ERR_AGAIN);
			refused++;
			t = clock_mono_us();
			ck_assert_int_eq(b->p->ops->pump(b->p, &b->e), 0);
			t = clock_mono_us() - t;
			slowest = t > slowest ? t : slowest;
		}
		ck_assert_uint_lt(b->sent, 65000); /* bounded: socket buffers and ours */
	}
	ck_assert_int_lt(slowest, 500 * US_PER_MS);
	ck_assert(b->p->ops->wants_write(b->p));
	rules.stall_after = 0;
	fake_broker_rules(f, &rules);
	UNTIL(b, b->open == 0);
	ck_assert_uint_eq(b->acked, b->sent);
	bench_end(b);
	fake_broker_stop(f);
}
END_TEST

START_TEST(a_message_larger_than_every_buffer_goes_when_nothing_else_waits)
{
	struct fake_rules rules = { .stall_after = 100000 };
	struct fake_broker *f = fake_broker_start(&rules);
	struct bench *b = bench_fake(f);
	size_t n = 16 << 20;
	char *body = calloc(1, n + 1);
	struct fake_stats s;

	connected(b);
	ck_assert_int_eq(
		send_body(b, CHANNEL_FAST, "events", "order", (struct slice){ body, n }), 0);
	ck_assert_int_eq(send_one(b, CHANNEL_FAST, "events", "order"), -1);
	ck_assert_int_eq(b->e.kind, ERR_AGAIN);
	ck_assert_int_eq(
		send_body(b, CHANNEL_FAST, "events", "order", (struct slice){ body, n + 1 }), -1);
	ck_assert_int_eq(b->e.kind, ERR_REFUSED);
	ck_assert_int_eq(strncmp(b->e.text, "TOO_LARGE: ", 11), 0);
	rules.stall_after = 0;
	fake_broker_rules(f, &rules);
	UNTIL(b, b->acked == 1);
	fake_broker_stats(f, &s);
	ck_assert_uint_eq(s.bytes, n);
	ck_assert_msg(s.violations == 0, "%s", s.violation);
	free(body);
	bench_end(b);
	fake_broker_stop(f);
}
END_TEST

START_TEST(acks_that_arrived_before_the_end_count)
{
	struct fake_broker *f = fake_broker_start(NULL);
	struct bench *b = bench_fake(f);

	connected(b);
	for (int i = 0; i < 1000; i++)
		ck_assert_int_eq(send_one(b, CHANNEL_FAST, "events", "order"), 0);
	ck_assert_int_eq(b->p->ops->pump(b->p, &b->e), 0);
	while (fake_broker_count(f, "01234567-89ab-cdef-0123-000000000999") == 0)
		usleep(1000);
	usleep(50000);
	fake_broker_close_connection(f, 320, "CONNECTION_FORCED - shutdown");
	usleep(50000);
	until_down(b);
	ck_assert_uint_eq(b->acked, 1000);
	ck_assert_int_eq(b->e.code, 320);
	ck_assert_ptr_nonnull(strstr(b->e.text, "shutting down"));
	bench_end(b);
	fake_broker_stop(f);
}
END_TEST

START_TEST(a_connection_closed_by_the_broker_is_answered_and_reported_with_its_code)
{
	struct fake_broker *f = fake_broker_start(NULL);
	struct bench *b = bench_fake(f);
	struct fake_stats s;

	connected(b);
	fake_broker_close_connection(f, 541, "INTERNAL_ERROR");
	until_down(b);
	ck_assert_int_eq(b->e.code, 541);
	ck_assert_int_eq(b->p->ops->pump(b->p, &b->e), -1);
	ck_assert_int_eq(send_one(b, CHANNEL_FAST, "events", "order"), -1);
	ck_assert_int_eq(b->e.kind, ERR_LINK);
	for (int i = 0; i < 100; i++) {
		fake_broker_stats(f, &s);
		if (s.connection_close_oks == 1)
			break;
		usleep(10000);
	}
	ck_assert_uint_eq(s.connection_close_oks, 1);
	connected(b);
	ck_assert_int_eq(send_one(b, CHANNEL_FAST, "events", "order"), 0);
	UNTIL(b, b->open == 0);
	bench_end(b);
	fake_broker_stop(f);
}
END_TEST

START_TEST(a_connection_cut_off_is_reported)
{
	struct fake_broker *f = fake_broker_start(NULL);
	struct bench *b = bench_fake(f);

	connected(b);
	ck_assert_int_eq(send_one(b, CHANNEL_FAST, "events", "die"), 0);
	until_down(b);
	ck_assert_uint_eq(b->acked, 0);
	bench_end(b);
	fake_broker_stop(f);
}
END_TEST

START_TEST(heartbeats_keep_an_idle_connection_and_silence_ends_it)
{
	struct fake_rules rules = { .heartbeat = 1 };
	struct fake_broker *f = fake_broker_start(&rules);
	struct bench *b = bench_fake(f);
	int64_t t = clock_mono_us();
	struct fake_stats s;

	connected(b);
	while (clock_mono_us() - t < 3500 * US_PER_MS)
		ck_assert_int_eq(turn(b, 10000), 0); /* sleeps as long as next_pump_us() lets it */
	fake_broker_stats(f, &s);
	ck_assert_uint_eq(s.client_heartbeat, 1);
	ck_assert_uint_ge(s.heartbeats, 5);
	ck_assert_uint_le(s.heartbeats, 9);
	ck_assert_uint_eq(s.accepted, 1);
	rules.mute = true;
	fake_broker_rules(f, &rules);
	t = clock_mono_us();
	until_down(b);
	t = clock_mono_us() - t;
	ck_assert_int_ge(t, 1400 * US_PER_MS);
	ck_assert_int_le(t, 2600 * US_PER_MS);
	bench_end(b);
	fake_broker_stop(f);
}
END_TEST

START_TEST(closing_is_polite_but_never_waits_long)
{
	struct fake_broker *f = fake_broker_start(&(struct fake_rules){ .ignore_close = true });
	struct bench *b = bench_fake(f);
	int64_t t;

	connected(b);
	t = clock_mono_us();
	b->p->ops->close(b->p);
	t = clock_mono_us() - t;
	ck_assert_int_ge(t, 900 * US_PER_MS);
	ck_assert_int_le(t, 1300 * US_PER_MS);
	ck_assert_int_eq(b->p->ops->fd(b->p), -1);
	fake_broker_rules(f, &(struct fake_rules){ 0 });
	connected(b);
	t = clock_mono_us();
	b->p->ops->close(b->p);
	ck_assert_int_le(clock_mono_us() - t, 200 * US_PER_MS);
	bench_end(b);
	fake_broker_stop(f);
}
END_TEST

START_TEST(the_servers_frame_max_is_respected)
{
	static const unsigned offers[] = { 1024, 4096, 8192, 131072, 1000000, 0 };
	char *text = calloc(1, 200000);

	memset(text, 'h', 199999);
	for (size_t i = 0; i < ARRAY_LEN(offers); i++) {
		struct fake_broker *f = fake_broker_start(&(struct fake_rules){
			.frame_max = offers[i], .frame_max_none = offers[i] == 0 });
		struct bench *b = bench_fake(f);
		unsigned want = offers[i] == 0 || offers[i] > 131072 ? 131072 : offers[i];
		struct field h = { .name = SLICE_LIT("h"), .type = FIELD_STRING };
		struct envelope env = { .exchange = SLICE_LIT("e"),
			.routing_key = SLICE_LIT("k"),
			.message_id = SLICE_LIT("id"),
			.headers = &h,
			.header_count = 1,
			.body = { text, 150000 } };
		struct fake_stats s;
		size_t most;

		connected(b);
		most = b->p->ops->max_header_bytes(b->p);
		ck_assert_uint_le(most, want);
		if (most > 11) {
			h.string = (struct slice){ text, most - 4 - 2 - 1 - 4 };
			ck_assert_int_eq(b->p->ops->send(b->p, CHANNEL_FAST, &env, NULL, &b->e), 0);
			b->open++;
		}
		h.string = (struct slice){ text, want };
		ck_assert_int_eq(b->p->ops->send(b->p, CHANNEL_FAST, &env, NULL, &b->e), -1);
		ck_assert_int_eq(b->e.kind, ERR_REFUSED);
		ck_assert_int_eq(strncmp(b->e.text, "TOO_LARGE: ", 11), 0);
		env.header_count = 0;
		ck_assert_int_eq(b->p->ops->send(b->p, CHANNEL_FAST, &env, NULL, &b->e), 0);
		b->open++;
		UNTIL(b, b->open == 0);
		fake_broker_stats(f, &s);
		ck_assert_uint_eq(s.client_frame_max, want);
		ck_assert_msg(s.violations == 0, "%s", s.violation);
		bench_end(b);
		fake_broker_stop(f);
	}
	free(text);
}
END_TEST

START_TEST(the_broker_learns_who_we_are)
{
	struct fake_broker *f = fake_broker_start(NULL);
	struct bench *b = bench_fake(f);
	struct fake_stats s;

	connected(b);
	fake_broker_stats(f, &s);
	ck_assert_str_eq(s.client_name, "outboxd test source orders");
	ck_assert_str_eq(s.client_product, "outboxd");
	ck_assert_ptr_nonnull(strstr(b->p->peer, "(Fake 1.0)"));
	bench_end(b);
	fake_broker_stop(f);
}
END_TEST

/* Fails to connect; the error must be of this kind and hold this text. */
static void fails(const struct fake_rules *rules, enum err_kind kind, long code, const char *text)
{
	struct fake_broker *f = fake_broker_start(rules);
	struct bench *b = bench_fake(f);
	int64_t t = clock_mono_us();

	b->conf.connect_timeout_us = 500 * US_PER_MS;
	ck_assert_int_eq(b->p->ops->connect(b->p, &b->e), -1);
	ck_assert_int_le(clock_mono_us() - t, 1500 * US_PER_MS);
	ck_assert_msg(strstr(b->e.text, text) != NULL, "\"%s\" not in \"%s\"", text, b->e.text);
	ck_assert_msg(b->e.kind == kind, "%s: %s", err_kind_name(b->e.kind), b->e.text);
	if (code != 0)
		ck_assert_int_eq(b->e.code, code);
	ck_assert_int_eq(b->p->ops->fd(b->p), -1);
	bench_end(b);
	fake_broker_stop(f);
}

#define BANNER(s) .banner = "" s, .banner_len = sizeof(s) - 1

START_TEST(strangers_on_the_port_are_told_apart)
{
	fails(&(struct fake_rules){ BANNER("HTTP/1.1 400 Bad Request\r\n\r\n") }, ERR_CONFIG,
		EPROTO, "HTTP");
	fails(&(struct fake_rules){ BANNER("AMQP\1\1\0\0"), .hang_up = true }, ERR_CONFIG, EPROTO,
		"AMQP 1.0.0");
	fails(&(struct fake_rules){ BANNER("\x15\3\3\0\2\2\x28"), .hang_up = true }, ERR_CONFIG,
		EPROTO, "TLS");
	fails(&(struct fake_rules){ BANNER("J\0\0\0\n8.0.36\0") }, ERR_CONFIG, EPROTO,
		"does not speak AMQP");
	fails(&(struct fake_rules){ BANNER("\1\0\0\x7f\xff\xff\xff....") }, ERR_CONFIG, EPROTO,
		"does not speak AMQP");
	fails(&(struct fake_rules){ BANNER("\1\0\0\0\0\0\4\0\x0a\0\x0a\xCE") }, ERR_CONFIG, EPROTO,
		"does not speak AMQP");
	fails(&(struct fake_rules){ .hang_up = true }, ERR_LINK, 0, "before the AMQP handshake");
	fails(&(struct fake_rules){ .silent = true }, ERR_LINK, ETIMEDOUT,
		"no AMQP greeting in time (a TLS port, or no AMQP at all?)");
	fails(&(struct fake_rules){ BANNER("\1") }, ERR_LINK, ETIMEDOUT,
		"no AMQP greeting in time (a TLS port, or no AMQP at all?)");
	fails(&(struct fake_rules){ .frame_max = 1 }, ERR_CONFIG, 0, "frames of 1 bytes");
	fails(&(struct fake_rules){ .no_plain = true }, ERR_CONFIG, 0, "PLAIN");
}
END_TEST

START_TEST(login_vhost_and_passing_refusals_are_told_apart)
{
	fails(&(struct fake_rules){ .password = "other" }, ERR_CONFIG, 403, "login");
	fails(&(struct fake_rules){ .vhost = "other" }, ERR_CONFIG, 530, "vhost /");
	fails(&(struct fake_rules){ .login_close_code = 320 }, ERR_LINK, 320, "shutting down");
	fails(&(struct fake_rules){ .channel_max = 1 }, ERR_CONFIG, 0, "channels");
}
END_TEST

START_TEST(an_unreadable_password_is_a_fault_of_the_configuration)
{
	static char none[] = "/nonexistent/password";
	struct fake_broker *f = fake_broker_start(NULL);
	struct bench *b = bench_fake(f);

	b->conf.password = (struct secret_conf){ SECRET_FILE, none };
	ck_assert_int_eq(b->p->ops->connect(b->p, &b->e), -1);
	ck_assert_int_eq(b->e.kind, ERR_CONFIG);
	bench_end(b);
	fake_broker_stop(f);
}
END_TEST

START_TEST(refused_resolver_and_timeout_are_link_errors)
{
	struct bench *b = bench_at("127.0.0.1", 1);

	ck_assert_int_eq(b->p->ops->connect(b->p, &b->e), -1);
	ck_assert_int_eq(b->e.kind, ERR_LINK);
	ck_assert_int_eq(b->e.code, ECONNREFUSED);
	ck_assert_ptr_nonnull(strstr(b->e.text, "127.0.0.1:1: "));
	free(b->hosts[0].host);
	b->hosts[0].host = strdup("no-such-host.invalid");
	ck_assert_int_eq(b->p->ops->connect(b->p, &b->e), -1);
	ck_assert_int_eq(b->e.kind, ERR_LINK);
	bench_end(b);
}
END_TEST

/* A listener whose queue is full: the kernel drops further SYNs, as a black hole does. */
struct hole {
	int listener, fill[8];
	uint16_t port;
};

static void hole_open(struct hole *h)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(a);

	h->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(bind(h->listener, (struct sockaddr *)&a, sizeof(a)), 0);
	ck_assert_int_eq(listen(h->listener, 0), 0);
	getsockname(h->listener, (struct sockaddr *)&a, &len);
	h->port = ntohs(a.sin_port);
	for (size_t i = 0; i < ARRAY_LEN(h->fill); i++) {
		h->fill[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		(void)connect(h->fill[i], (struct sockaddr *)&a, sizeof(a));
	}
	usleep(50000);
}

static void hole_close(struct hole *h)
{
	close(h->listener);
	for (size_t i = 0; i < ARRAY_LEN(h->fill); i++)
		close(h->fill[i]);
}

START_TEST(a_black_hole_first_in_the_list_does_not_hide_the_others)
{
	struct fake_broker *f = fake_broker_start(NULL);
	struct hole h;
	struct bench *b;
	int64_t t;

	hole_open(&h);
	b = bench_at("127.0.0.1", h.port);
	b->hosts[1] = (struct endpoint){ .host = strdup("127.0.0.1"), .port = 1 };
	b->hosts[2] = (struct endpoint){ .host = strdup("localhost"), .port = fake_broker_port(f) };
	b->conf.host_count = 3;
	b->conf.connect_timeout_us = US_PER_SEC;
	t = clock_mono_us();
	connected(b);
	t = clock_mono_us() - t;
	ck_assert_int_ge(t, 400 * US_PER_MS);
	ck_assert_int_le(t, US_PER_SEC);
	/* Again: begins with the one that worked. */
	t = clock_mono_us();
	connected(b);
	ck_assert_int_le(clock_mono_us() - t, 300 * US_PER_MS);
	bench_end(b);

	/* Only black holes but the last: the whole call keeps its time, the next goes on behind. */
	b = bench_at("127.0.0.1", h.port);
	for (int i = 1; i < 3; i++)
		b->hosts[i] = (struct endpoint){ .host = strdup("127.0.0.1"), .port = h.port };
	b->hosts[3] = (struct endpoint){ .host = strdup("127.0.0.1"), .port = fake_broker_port(f) };
	b->conf.host_count = 4;
	b->conf.connect_timeout_us = 400 * US_PER_MS;
	for (int call = 0; call < 3; call++) {
		t = clock_mono_us();
		if (b->p->ops->connect(b->p, &b->e) == 0)
			break;
		ck_assert_int_le(clock_mono_us() - t, 600 * US_PER_MS);
		ck_assert_int_lt(call, 2);
	}
	bench_end(b);
	hole_close(&h);
	fake_broker_stop(f);
}
END_TEST

START_TEST(two_thousand_failed_connects_leave_no_descriptor)
{
	struct fake_broker *f = fake_broker_start(NULL);
	struct bench *b = bench_fake(f);
	static const struct fake_rules kinds[] = {
		{ .hang_up = true },
		{ BANNER("HTTP/1.1 400\r\n\r\n"), .hang_up = true },
		{ .password = "other" },
		{ .vhost = "other" },
	};
	int before = 0;

	for (int i = 0; i < 2000; i++) {
		fake_broker_rules(f, &kinds[i % 4]);
		b->hosts[0].port = i % 5 == 4 ? 1 : fake_broker_port(f);
		ck_assert_int_eq(b->p->ops->connect(b->p, &b->e), -1);
		if (i == 10)
			before = descriptors();
	}
	usleep(100000);
	ck_assert_int_le(descriptors(), before + 1); /* one may be the fake's, not closed yet */
	bench_end(b);
	fake_broker_stop(f);
}
END_TEST

START_TEST(an_exchange_is_looked_up_without_disturbing_what_is_in_flight)
{
	struct fake_broker *f = fake_broker_start(NULL);
	struct bench *b = bench_fake(f);
	struct fake_stats s;

	connected(b);
	for (int i = 0; i < 100; i++) {
		ck_assert_int_eq(send_one(b, CHANNEL_FAST, "events", "order"), 0);
		ck_assert_int_eq(amqp_check_exchange(b->p, "events", &b->e), 0);
		ck_assert_int_eq(amqp_check_exchange(b->p, "missing", &b->e), -1);
		ck_assert_int_eq(b->e.kind, ERR_REFUSED);
		ck_assert_int_eq(b->e.code, 404);
		ck_assert_int_eq(amqp_check_exchange(b->p, "", &b->e), 0);
	}
	UNTIL(b, b->open == 0);
	ck_assert_uint_eq(b->acked, 100);
	ck_assert_uint_eq(b->closed[0] + b->closed[1], 0);
	fake_broker_stats(f, &s);
	ck_assert_msg(s.violations == 0, "%s", s.violation);
	bench_end(b);
	fake_broker_stop(f);
}
END_TEST

START_TEST(junk_in_the_middle_ends_the_connection_cleanly)
{
	static const char *const junk[] = {
		"HTTP/1.1 200 OK\r\n", "\x01\x00\x01\x7f\xff\xff\xff",
		"\x01\x00\x01\x00\x00\x00\x04\x00\x3c\x00\x50\xCE", /* an ack without its tag */
	};

	static const size_t sizes[] = { 17, 7, 12 };

	for (size_t i = 0; i < ARRAY_LEN(junk); i++) {
		struct fake_broker *f = fake_broker_start(NULL);
		struct bench *b = bench_fake(f);

		connected(b);
		fake_broker_raw(f, junk[i], sizes[i]);
		until_down(b);
		ck_assert_ptr_nonnull(strstr(b->e.text, "malformed"));
		bench_end(b);
		fake_broker_stop(f);
	}
}
END_TEST

START_TEST(unexpected_frames_are_counted_and_tolerated)
{
	struct fake_broker *f = fake_broker_start(NULL);
	struct bench *b = bench_fake(f);
	struct amqp_oddities odd;

	connected(b);
	fake_broker_raw(f, "\3\0\1\0\0\0\1x\xCE", 9);                                 /* a body */
	fake_broker_raw(f, "\1\0\1\0\0\0\4\0\x14\0\x29\xCE", 12);                     /* close-ok */
	fake_broker_raw(f, "\1\0\1\0\0\0\x0d\0\x3c\0\x50\0\0\0\0\0\0\0\1\0\xCE", 21); /* ack 1 */
	fake_broker_raw(f, "\1\0\7\0\0\0\x0d\0\x3c\0\x50\0\0\0\0\0\0\0\1\0\xCE", 21); /* ch 7 */
	ck_assert_int_eq(send_one(b, CHANNEL_FAST, "events", "order"), 0);
	UNTIL(b, b->open == 0);
	amqp_publisher_oddities(b->p, &odd);
	ck_assert_uint_eq(odd.strange_frames, 3);
	bench_end(b);
	fake_broker_stop(f);
}
END_TEST

/* ---- against RabbitMQ ---- */

static const char *env(const char *name)
{
	const char *v = getenv(name);

	return v != NULL && *v != '\0' ? v : NULL;
}

static bool have(const char *name, const char *test)
{
	if (env(name) != NULL)
		return true;
	printf("SKIPPED %s: no %s in the environment (tests/servers start; tests/servers env)\n",
		test, name);
	return false;
}

#define NEED(name)                                                                                 \
	do {                                                                                       \
		if (!have(name, __func__))                                                         \
			return;                                                                    \
	} while (0)
#define NEED_RABBITMQ() NEED("OUTBOXD_TEST_AMQP_HOST")

static char *copy_env(const char *name)
{
	return strdup(env(name) != NULL ? env(name) : "guest");
}

static struct bench *bench_real(void)
{
	struct bench *b = bench_at(
		env("OUTBOXD_TEST_AMQP_HOST"), (uint16_t)atoi(env("OUTBOXD_TEST_AMQP_PORT")));

	b->conf.username = copy_env("OUTBOXD_TEST_AMQP_USER");
	b->conf.password.value = copy_env("OUTBOXD_TEST_AMQP_PASSWORD");
	return b;
}

static void bench_real_end(struct bench *b)
{
	free(b->conf.username);
	free(b->conf.password.value);
	bench_end(b);
}

/* rabbitmq-c's own client. */
struct consumer {
	amqp_connection_state_t s;
	char queue[64];
};

static void must_reply(amqp_rpc_reply_t r, const char *what)
{
	ck_assert_msg(r.reply_type == AMQP_RESPONSE_NORMAL, "consumer: %s", what);
}

/* A queue of its own, bound to a topic exchange of its own: q.<name> and x.<name>. */
static struct consumer consume(const char *name)
{
	struct consumer c;
	char exchange[64];
	amqp_socket_t *socket;
	char *user = copy_env("OUTBOXD_TEST_AMQP_USER");
	char *password = copy_env("OUTBOXD_TEST_AMQP_PASSWORD");

	snprintf(c.queue, sizeof(c.queue), "q.%s.%d", name, (int)getpid());
	snprintf(exchange, sizeof(exchange), "x.%s", name);
	c.s = amqp_new_connection();
	socket = amqp_tcp_socket_new(c.s);
	ck_assert_int_eq(amqp_socket_open(socket, env("OUTBOXD_TEST_AMQP_HOST"),
				 atoi(env("OUTBOXD_TEST_AMQP_PORT"))),
		AMQP_STATUS_OK);
	must_reply(amqp_login(c.s, "/", 0, 131072, 0, AMQP_SASL_METHOD_PLAIN, user, password),
		"login");
	amqp_channel_open(c.s, 1);
	must_reply(amqp_get_rpc_reply(c.s), "channel");
	amqp_exchange_declare(c.s, 1, amqp_cstring_bytes(exchange), amqp_cstring_bytes("topic"), 0,
		1, 0, 0, amqp_empty_table);
	must_reply(amqp_get_rpc_reply(c.s), "exchange");
	amqp_queue_declare(c.s, 1, amqp_cstring_bytes(c.queue), 0, 1, 0, 0, amqp_empty_table);
	must_reply(amqp_get_rpc_reply(c.s), "queue");
	amqp_queue_bind(c.s, 1, amqp_cstring_bytes(c.queue), amqp_cstring_bytes(exchange),
		amqp_cstring_bytes("order"), amqp_empty_table);
	must_reply(amqp_get_rpc_reply(c.s), "bind");
	free(user);
	free(password);
	return c;
}

static size_t waiting(struct consumer *c)
{
	amqp_queue_declare_ok_t *ok = amqp_queue_declare(
		c->s, 1, amqp_cstring_bytes(c->queue), 1, 1, 0, 0, amqp_empty_table);

	must_reply(amqp_get_rpc_reply(c->s), "count");
	return ok->message_count;
}

static void consumer_end(struct consumer *c)
{
	amqp_queue_delete(c->s, 1, amqp_cstring_bytes(c->queue), 0, 0);
	amqp_connection_close(c->s, AMQP_REPLY_SUCCESS);
	amqp_destroy_connection(c->s);
}

/* Takes the next message; the caller destroys it. */
static amqp_message_t take(struct consumer *c)
{
	amqp_message_t m;

	must_reply(amqp_basic_get(c->s, 1, amqp_cstring_bytes(c->queue), 1), "get");
	must_reply(amqp_read_message(c->s, 1, &m, 0), "read");
	return m;
}

static int control(const char *what)
{
	char command[512];

	snprintf(command, sizeof(command), "%s %s >/dev/null 2>&1", env("OUTBOXD_TEST_RABBITMQCTL"),
		what);
	return system(command);
}

/* The same while the publisher is pumped: the command can take longer than a heartbeat. */
static int control_while_pumping(struct bench *b, const char *what)
{
	pid_t child = fork();
	int status = 0;

	if (child == 0)
		_exit(control(what) == 0 ? 0 : 1);
	ck_assert_int_gt(child, 0);
	while (waitpid(child, &status, WNOHANG) == 0)
		(void)turn(b, 50);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int servers(const char *what)
{
	char command[512];

	snprintf(command, sizeof(command), "%s %s >/dev/null 2>&1", env("OUTBOXD_TEST_SERVERS"),
		what);
	return system(command);
}

START_TEST(rabbitmq_confirms_twenty_thousand_messages_once_each)
{
	struct consumer c;
	struct bench *b;
	struct rusage before, after;
	double us;

	NEED_RABBITMQ();
	c = consume("many");
	b = bench_real();
	connected(b);
	ck_assert_ptr_nonnull(strstr(b->p->peer, "RabbitMQ"));
	getrusage(RUSAGE_SELF, &before);
	publish_window(b, "x.many", "order", 20000, 1000);
	getrusage(RUSAGE_SELF, &after);
	us = (double)(after.ru_utime.tv_sec - before.ru_utime.tv_sec + after.ru_stime.tv_sec -
		      before.ru_stime.tv_sec) *
		     1e6 +
	     (double)(after.ru_utime.tv_usec - before.ru_utime.tv_usec + after.ru_stime.tv_usec -
		      before.ru_stime.tv_usec);
	printf("client CPU: %.2f us a message (send and pump, 170-byte bodies)\n", us / 20000);
	for (size_t i = 0; i < 20000; i++)
		ck_assert_uint_eq(b->seen[i], 1);
	ck_assert_uint_eq(b->acked, 20000);
	ck_assert_uint_eq(waiting(&c), 20000);
	bench_real_end(b);
	consumer_end(&c);
}
END_TEST

START_TEST(rabbitmq_returns_what_it_cannot_route)
{
	struct consumer c;
	struct bench *b;

	NEED_RABBITMQ();
	c = consume("routes");
	b = bench_real();
	connected(b);
	for (size_t i = 0; i < 3000; i++) {
		while (send_one(b, CHANNEL_FAST, "x.routes", i % 3 == 1 ? "nowhere" : "order") < 0)
			ck_assert_int_eq(turn(b, 50), 0);
	}
	UNTIL(b, b->open == 0);
	for (size_t i = 0; i < 3000; i++) {
		ck_assert_uint_eq(b->seen[i], 1);
		ck_assert_int_eq(b->how[i], i % 3 == 1 ? OUTCOME_RETURNED : OUTCOME_ACK);
	}
	ck_assert_uint_eq(b->returned_code, 312);
	ck_assert_str_eq(b->returned_text, "NO_ROUTE");
	ck_assert_uint_eq(waiting(&c), 2000);
	bench_real_end(b);
	consumer_end(&c);
}
END_TEST

START_TEST(rabbitmq_closes_one_channel_a_thousand_times_and_memory_stays_flat)
{
	struct consumer c;
	struct bench *b;
	long before = 0;
	size_t times = getenv("OUTBOXD_TEST_LONG") != NULL ? 5000 : 1000;

	NEED_RABBITMQ();
	c = consume("closed");
	b = bench_real();
	connected(b);
	for (size_t i = 0; i < times; i++) {
		if (i == 100)
			before = resident_kib();
		ck_assert_int_eq(send_one(b, CHANNEL_FAST, "x.closed", "order"), 0);
		ck_assert_int_eq(send_one(b, CHANNEL_QUARANTINE, "no.such.exchange", "order"), 0);
		UNTIL(b, b->closed[CHANNEL_QUARANTINE] == i + 1);
		ck_assert_uint_eq(b->closed_code, 404);
		ck_assert_int_eq(b->p->ops->reopen(b->p, CHANNEL_QUARANTINE, &b->e), 0);
	}
	UNTIL(b, b->acked == times);
	ck_assert_uint_eq(b->closed[CHANNEL_FAST], 0);
	still_flat(before, 512);
	ck_assert_int_eq(send_one(b, CHANNEL_QUARANTINE, "x.closed", "order"), 0);
	UNTIL(b, b->acked == times + 1);
	bench_real_end(b);
	consumer_end(&c);
}
END_TEST

START_TEST(rabbitmq_lets_our_close_and_its_own_cross)
{
	struct consumer c;
	struct bench *b;

	NEED_RABBITMQ();
	c = consume("crossing");
	b = bench_real();
	connected(b);
	for (int i = 0; i < 200; i++) {
		ck_assert_int_eq(send_one(b, CHANNEL_QUARANTINE, "no.such.exchange", "order"), 0);
		ck_assert_int_eq(send_one(b, CHANNEL_FAST, "x.crossing", "order"), 0);
		ck_assert_int_eq(b->p->ops->reopen(b->p, CHANNEL_QUARANTINE, &b->e), 0);
	}
	UNTIL(b, b->acked == 200);
	ck_assert_uint_eq(b->closed[CHANNEL_QUARANTINE], 0);
	bench_real_end(b);
	consumer_end(&c);
}
END_TEST

START_TEST(rabbitmq_returns_large_bodies_and_memory_stays_flat)
{
	struct bench *b;
	struct consumer c;
	size_t n = 50000;
	char *body;
	long before = 0;

	NEED_RABBITMQ();
	body = calloc(1, n);
	c = consume("returns");
	b = bench_real();
	connected(b);
	for (size_t i = 0; i < 4000; i++) {
		if (i == 500)
			before = resident_kib();
		while (b->open > 50 || send_body(b, CHANNEL_FAST, "x.returns", "nowhere",
					       (struct slice){ body, n }) < 0)
			ck_assert_int_eq(turn(b, 50), 0);
	}
	UNTIL(b, b->open == 0);
	ck_assert_uint_eq(b->returned, 4000);
	still_flat(before, 1024);
	free(body);
	bench_real_end(b);
	consumer_end(&c);
}
END_TEST

START_TEST(rabbitmq_takes_sixteen_mebibytes_byte_for_byte)
{
	struct consumer c;
	struct bench *b;
	size_t n = 16 << 20;
	unsigned char *body;
	amqp_message_t m;
	int again;

	NEED_RABBITMQ();
	body = malloc(n);
	for (size_t i = 0; i < n; i++)
		body[i] = (unsigned char)(i * 2654435761u >> 13);
	c = consume("large");
	b = bench_real();
	connected(b);
	ck_assert_int_eq(send_body(b, CHANNEL_FAST, "x.large", "order",
				 (struct slice){ (const char *)body, n }),
		0);
	/* behind it there is no room, unless the broker has read it all by now */
	again = send_body(
		b, CHANNEL_FAST, "x.large", "order", (struct slice){ (const char *)body, 0 });
	ck_assert(again == 0 || b->e.kind == ERR_AGAIN);
	UNTIL(b, b->acked == (again == 0 ? 2 : 1));
	m = take(&c);
	ck_assert_uint_eq(m.body.len, n);
	ck_assert(memcmp(m.body.bytes, body, n) == 0);
	amqp_destroy_message(&m);
	free(body);
	bench_real_end(b);
	consumer_end(&c);
}
END_TEST

START_TEST(rabbitmq_hands_on_every_property_and_nested_header)
{
	struct field inner[] = {
		{ .name = SLICE_LIT("yes"), .type = FIELD_BOOL, .boolean = true },
		{ .name = SLICE_LIT("half"), .type = FIELD_DOUBLE, .real = -0.5 },
		{ .name = SLICE_LIT("deep"), .type = FIELD_TABLE, .many = { NULL, 0 } },
	};
	struct field items[] = {
		{ .type = FIELD_INT, .integer = INT64_MAX },
		{ .type = FIELD_STRING, .string = SLICE_LIT("\xC3\xA4\xF0\x9F\x98\x80") },
		{ .type = FIELD_TABLE, .many = { inner, ARRAY_LEN(inner) } },
	};
	struct field headers[] = {
		{ .name = SLICE_LIT("list"),
			.type = FIELD_ARRAY,
			.many = { items, ARRAY_LEN(items) } },
		{ .name = SLICE_LIT("text"), .type = FIELD_STRING, .string = SLICE_LIT("") },
		{ .name = SLICE_LIT("min"), .type = FIELD_INT, .integer = INT64_MIN },
	};
	struct envelope env_ = {
		.exchange = SLICE_LIT("x.headers"),
		.routing_key = SLICE_LIT("order"),
		.message_id = SLICE_LIT("id-1"),
		.type = SLICE_LIT("order.created"),
		.content_type = SLICE_LIT("application/json"),
		.app_id = SLICE_LIT("outboxd"),
		.timestamp = 1700000000,
		.delivery_mode = 2,
		.mandatory = true,
		.headers = headers,
		.header_count = ARRAY_LEN(headers),
		.body = SLICE_LIT("{\"a\": 1}"),
	};
	struct consumer c;
	struct bench *b;
	amqp_message_t m;
	const amqp_basic_properties_t *p;
	const amqp_table_t *t;
	const amqp_array_t *a;
	int found = 0;

	NEED_RABBITMQ();
	c = consume("headers");
	b = bench_real();
	connected(b);
	ck_assert_int_eq(b->p->ops->send(b->p, CHANNEL_QUARANTINE, &env_, NULL, &b->e), 0);
	b->open++;
	UNTIL(b, b->acked == 1);
	m = take(&c);
	p = &m.properties;
#define SAME(bytes_, text)                                                                         \
	ck_assert(slice_eq((struct slice){ (bytes_).bytes, (bytes_).len }, SLICE_LIT(text)))
	SAME(p->message_id, "id-1");
	SAME(p->type, "order.created");
	SAME(p->content_type, "application/json");
	SAME(p->app_id, "outboxd");
	SAME(m.body, "{\"a\": 1}");
	ck_assert_uint_eq(p->timestamp, 1700000000);
	ck_assert_uint_eq(p->delivery_mode, 2);
	ck_assert_int_eq(p->headers.num_entries, 3);
	for (int i = 0; i < 3; i++) {
		const amqp_table_entry_t *h = &p->headers.entries[i];

		if (h->key.len == 4 && memcmp(h->key.bytes, "list", 4) == 0) {
			a = &h->value.value.array;
			ck_assert_int_eq(h->value.kind, 'A');
			ck_assert_int_eq(a->num_entries, 3);
			ck_assert_int_eq(a->entries[0].kind, 'l');
			ck_assert_int_eq(a->entries[0].value.i64, INT64_MAX);
			ck_assert_int_eq(a->entries[1].kind, 'S');
			SAME(a->entries[1].value.bytes, "\xC3\xA4\xF0\x9F\x98\x80");
			ck_assert_int_eq(a->entries[2].kind, 'F');
			t = &a->entries[2].value.table;
			ck_assert_int_eq(t->num_entries, 3);
			for (int k = 0; k < 3; k++) {
				if (t->entries[k].value.kind == 't')
					found += t->entries[k].value.value.boolean == 1;
				else if (t->entries[k].value.kind == 'd')
					found += t->entries[k].value.value.f64 == -0.5;
				else
					found += t->entries[k].value.kind == 'F';
			}
		} else if (h->key.len == 4) {
			ck_assert_int_eq(h->value.kind, 'S');
			ck_assert_uint_eq(h->value.value.bytes.len, 0);
		} else {
			ck_assert_int_eq(h->value.kind, 'l');
			ck_assert_int_eq(h->value.value.i64, INT64_MIN);
		}
	}
	ck_assert_int_eq(found, 3);
	amqp_destroy_message(&m);
	bench_real_end(b);
	consumer_end(&c);
}
END_TEST

START_TEST(rabbitmq_tells_wrong_password_missing_vhost_and_exchange_apart)
{
	static char wrong[] = "wrong", nowhere[] = "/no/such/vhost";
	struct consumer c;
	struct bench *b;
	char *password, *vhost;

	NEED_RABBITMQ();
	c = consume("login");
	b = bench_real();
	password = b->conf.password.value;
	vhost = b->conf.vhost;
	b->conf.password.value = wrong;
	ck_assert_int_eq(b->p->ops->connect(b->p, &b->e), -1);
	ck_assert_int_eq(b->e.kind, ERR_CONFIG);
	ck_assert_int_eq(b->e.code, 403);
	ck_assert_ptr_nonnull(strstr(b->e.text, "login"));
	ck_assert_ptr_null(strstr(b->e.text, wrong));
	b->conf.password.value = password;
	b->conf.vhost = nowhere;
	ck_assert_int_eq(b->p->ops->connect(b->p, &b->e), -1);
	ck_assert_int_eq(b->e.kind, ERR_CONFIG);
	ck_assert_int_eq(b->e.code, 530);
	ck_assert_ptr_nonnull(strstr(b->e.text, "vhost /no/such/vhost"));
	b->conf.vhost = vhost;
	connected(b);
	ck_assert_int_eq(amqp_check_exchange(b->p, "x.login", &b->e), 0);
	ck_assert_int_eq(amqp_check_exchange(b->p, "no.such.exchange", &b->e), -1);
	ck_assert_int_eq(b->e.code, 404);
	ck_assert_int_eq(amqp_check_exchange(b->p, "x.login", &b->e), 0);
	bench_real_end(b);
	consumer_end(&c);
}
END_TEST

START_TEST(rabbitmq_keeps_an_idle_connection_with_a_heartbeat_of_one_second)
{
	struct consumer c;
	struct bench *b;
	int64_t t;

	NEED_RABBITMQ();
	c = consume("idle");
	b = bench_real();
	b->conf.heartbeat_us = US_PER_SEC;
	connected(b);
	t = clock_mono_us();
	while (clock_mono_us() - t < 6 * US_PER_SEC)
		ck_assert_msg(turn(b, 10000) == 0, "%s", b->e.text);
	ck_assert_int_eq(send_one(b, CHANNEL_FAST, "x.idle", "order"), 0);
	UNTIL(b, b->acked == 1);
	bench_real_end(b);
	consumer_end(&c);
}
END_TEST

START_TEST(rabbitmq_blocks_us_with_a_memory_alarm_and_lets_go_again)
{
	struct consumer c;
	struct bench *b;
	int64_t end, slowest = 0;
	size_t again = 0;
	bool down = false;
	static char body[100000];

	NEED_RABBITMQ();
	NEED("OUTBOXD_TEST_RABBITMQCTL");
	c = consume("alarm");
	b = bench_real();
	b->conf.heartbeat_us = 2 * US_PER_SEC;
	connected(b);
	ck_assert_int_eq(control_while_pumping(b, "set_vm_memory_high_watermark 0.00001"), 0);
	end = clock_mono_us() + 10 * US_PER_SEC;
	/* The alarm must be off again whatever happens: nothing is asserted until then. */
	while (again < 20 && !down && clock_mono_us() < end) {
		int64_t t = clock_mono_us();

		if (send_body(b, CHANNEL_FAST, "x.alarm", "order",
			    (struct slice){ body, sizeof(body) }) < 0) {
			down = b->e.kind != ERR_AGAIN;
			again++;
		}
		t = clock_mono_us() - t;
		slowest = t > slowest ? t : slowest;
		down = down || turn(b, again > 0 ? 50 : 0) < 0;
	}
	/* Longer than two heartbeats: the connection lives. */
	end = clock_mono_us() + 5 * US_PER_SEC;
	while (clock_mono_us() < end && !down)
		down = turn(b, 1000) < 0;
	ck_assert_int_eq(control_while_pumping(b, "set_vm_memory_high_watermark 0.4"), 0);
	ck_assert_msg(!down, "%s", b->e.text);
	ck_assert_uint_eq(again, 20);
	ck_assert_ptr_nonnull(strstr(b->blocked_reason, "memory"));
	ck_assert_int_lt(slowest, 500 * US_PER_MS);
	UNTIL(b, b->open == 0 && !b->blocked);
	ck_assert_uint_eq(b->acked, b->sent);
	bench_real_end(b);
	consumer_end(&c);
}
END_TEST

START_TEST(rabbitmq_frozen_is_noticed_by_its_silence)
{
	struct consumer c;
	struct bench *b;
	int64_t t;
	int rc, sent = 0;

	NEED_RABBITMQ();
	NEED("OUTBOXD_TEST_SERVERS");
	c = consume("frozen");
	b = bench_real();
	b->conf.heartbeat_us = US_PER_SEC;
	b->conf.connect_timeout_us = US_PER_SEC;
	connected(b);
	ck_assert_int_eq(servers("freeze rabbitmq"), 0);
	for (int i = 0; i < 1000; i++)
		sent += send_one(b, CHANNEL_FAST, "x.frozen", "order") == 0;
	t = clock_mono_us();
	while (turn(b, 10000) == 0)
		;
	t = clock_mono_us() - t;
	rc = b->p->ops->connect(b->p, &b->e);
	ck_assert_int_eq(servers("thaw rabbitmq"), 0); /* whatever happened */
	ck_assert_int_eq(sent, 1000);
	ck_assert_int_eq(rc, -1);
	ck_assert_int_eq(b->e.kind, ERR_LINK);
	ck_assert_int_eq(b->e.code, ETIMEDOUT);
	ck_assert_int_le(t, 4 * US_PER_SEC);
	b->conf.connect_timeout_us = 5 * US_PER_SEC;
	connected(b);
	b->open = 0;
	ck_assert_int_eq(send_one(b, CHANNEL_FAST, "x.frozen", "order"), 0);
	UNTIL(b, b->open == 0);
	bench_real_end(b);
	consumer_end(&c);
}
END_TEST

/* ---- TLS ---- */

static struct bench *bench_tls(enum tls_mode mode, const char *ca)
{
	struct bench *b = bench_real();

	b->hosts[0].port = (uint16_t)atoi(env("OUTBOXD_TEST_AMQPS_PORT"));
	b->conf.tls.mode = mode;
	b->conf.tls.ca_file = ca != NULL ? copy_env(ca) : NULL;
	return b;
}

static void bench_tls_end(struct bench *b)
{
	free(b->conf.tls.ca_file);
	bench_real_end(b);
}

START_TEST(rabbitmq_confirms_over_tls_too)
{
	struct consumer c;
	struct bench *b;
	static char large[3 << 20];

	NEED("OUTBOXD_TEST_AMQPS_PORT");
	c = consume("tls");
	b = bench_tls(TLS_VERIFY_IDENTITY, "OUTBOXD_TEST_CA_FILE");
	connected(b);
	publish_window(b, "x.tls", "order", 20000, 1000);
	for (size_t i = 0; i < 20000; i++)
		ck_assert_uint_eq(b->seen[i], 1);
	ck_assert_uint_eq(waiting(&c), 20000);
	for (int i = 0; i < 3; i++) {
		while (send_body(b, CHANNEL_FAST, "x.tls", i == 1 ? "nowhere" : "order",
			       (struct slice){ large, sizeof(large) }) < 0)
			ck_assert_int_eq(turn(b, 50), 0);
	}
	UNTIL(b, b->open == 0);
	ck_assert_uint_eq(b->returned, 1);
	ck_assert_int_eq(b->p->ops->reopen(b->p, CHANNEL_FAST, &b->e), 0);
	ck_assert_int_eq(send_one(b, CHANNEL_FAST, "x.tls", "order"), 0);
	UNTIL(b, b->open == 0);
	bench_tls_end(b);
	consumer_end(&c);
}
END_TEST

static void tls_fails(
	enum tls_mode mode, const char *ca, const char *host, uint16_t port, const char *text)
{
	struct bench *b = bench_tls(mode, ca);

	if (host != NULL) {
		free(b->hosts[0].host);
		b->hosts[0].host = strdup(host);
	}
	if (port != 0)
		b->hosts[0].port = port;
	ck_assert_int_eq(b->p->ops->connect(b->p, &b->e), -1);
	ck_assert_msg(b->e.kind == ERR_CONFIG && strstr(b->e.text, text) != NULL,
		"\"%s\" not in \"%s\"", text, b->e.text);
	bench_tls_end(b);
}

START_TEST(tls_trusts_only_what_it_was_told_to)
{
	uint16_t plain;
	struct bench *b;

	NEED("OUTBOXD_TEST_AMQPS_PORT");
	plain = (uint16_t)atoi(env("OUTBOXD_TEST_AMQP_PORT"));
	/* 127.1 is 127.0.0.1, but no name in the certificate. */
	tls_fails(TLS_VERIFY_IDENTITY, "OUTBOXD_TEST_CA_FILE", "127.1", 0, "mismatch");
	tls_fails(TLS_VERIFY_IDENTITY, "OUTBOXD_TEST_OTHER_CA_FILE", NULL, 0, "not accepted");
	tls_fails(TLS_VERIFY_CA, "OUTBOXD_TEST_OTHER_CA_FILE", NULL, 0, "not accepted");
	tls_fails(TLS_VERIFY_CA, NULL, NULL, 0, "not accepted"); /* the system's CAs */
	tls_fails(TLS_REQUIRED, NULL, NULL, plain, "does not speak TLS");
	tls_fails(TLS_VERIFY_CA, "OUTBOXD_TEST_AMQP_USER", NULL, 0, "tls.ca_file");
	b = bench_tls(TLS_VERIFY_CA, "OUTBOXD_TEST_CA_FILE");
	free(b->hosts[0].host);
	b->hosts[0].host = strdup("127.1");
	connected(b);
	b->conf.tls.mode = TLS_REQUIRED;
	free(b->conf.tls.ca_file);
	b->conf.tls.ca_file = NULL;
	connected(b);
	b->conf.tls.mode = TLS_DISABLED;
	ck_assert_int_eq(b->p->ops->connect(b->p, &b->e), -1);
	ck_assert_ptr_nonnull(strstr(b->e.text, "TLS"));
	bench_tls_end(b);
}
END_TEST

START_TEST(a_client_certificate_is_sent_and_one_without_its_key_refused)
{
	struct bench *b;

	NEED("OUTBOXD_TEST_AMQPS_PORT");
	b = bench_tls(TLS_VERIFY_IDENTITY, "OUTBOXD_TEST_CA_FILE");
	b->conf.tls.cert_file = copy_env("OUTBOXD_TEST_CLIENT_CERT_FILE");
	b->conf.tls.key_file = copy_env("OUTBOXD_TEST_CLIENT_KEY_FILE");
	connected(b);
	free(b->conf.tls.key_file);
	b->conf.tls.key_file = copy_env("OUTBOXD_TEST_CA_FILE");
	ck_assert_int_eq(b->p->ops->connect(b->p, &b->e), -1);
	ck_assert_int_eq(b->e.kind, ERR_CONFIG);
	ck_assert_ptr_nonnull(strstr(b->e.text, "tls.key_file"));
	free(b->conf.tls.cert_file);
	free(b->conf.tls.key_file);
	bench_tls_end(b);
}
END_TEST

START_TEST(failed_tls_connects_leave_no_descriptor)
{
	struct bench *b;
	int before = 0;

	NEED("OUTBOXD_TEST_AMQPS_PORT");
	b = bench_tls(TLS_VERIFY_IDENTITY, "OUTBOXD_TEST_OTHER_CA_FILE");
	for (int i = 0; i < 200; i++) {
		if (i % 2 == 0)
			b->hosts[0].port = (uint16_t)atoi(env("OUTBOXD_TEST_AMQPS_PORT"));
		else
			b->hosts[0].port = (uint16_t)atoi(env("OUTBOXD_TEST_AMQP_PORT"));
		ck_assert_int_eq(b->p->ops->connect(b->p, &b->e), -1);
		if (i == 10)
			before = descriptors();
	}
	ck_assert_int_eq(descriptors(), before);
	bench_tls_end(b);
}
END_TEST

/* Last: they take the broker away for a while. */
START_TEST(rabbitmq_killed_is_reported_and_comes_back)
{
	struct consumer c;
	struct bench *b, *t;
	size_t acked;

	NEED_RABBITMQ();
	NEED("OUTBOXD_TEST_SERVERS");
	c = consume("killed");
	b = bench_real();
	t = bench_tls(TLS_REQUIRED, NULL);
	connected(b);
	connected(t);
	for (int i = 0; i < 1000; i++) {
		ck_assert_int_eq(send_one(b, CHANNEL_FAST, "x.killed", "order"), 0);
		ck_assert_int_eq(send_one(t, CHANNEL_FAST, "x.killed", "order"), 0);
	}
	ck_assert_int_eq(servers("kill9 rabbitmq"), 0);
	until_down(b);
	until_down(t); /* and no SIGPIPE */
	acked = b->acked;
	ck_assert_int_eq(b->p->ops->connect(b->p, &b->e), -1);
	/* Reset, where the connection was still taken by a process about to end. */
	ck_assert(b->e.code == ECONNREFUSED || b->e.code == ECONNRESET);
	ck_assert_uint_eq(b->acked, acked);
	ck_assert_int_eq(servers("restart rabbitmq"), 0);
	connected(b);
	b->open = 0;
	ck_assert_int_eq(send_one(b, CHANNEL_FAST, "x.killed", "order"), 0);
	UNTIL(b, b->open == 0);
	amqp_destroy_connection(c.s);
	c = consume("killed");
	bench_tls_end(t);
	bench_real_end(b);
	consumer_end(&c);
}
END_TEST

START_TEST(rabbitmq_shut_down_in_good_order_says_320)
{
	struct bench *b;

	NEED_RABBITMQ();
	NEED("OUTBOXD_TEST_RABBITMQCTL");
	b = bench_real();
	connected(b);
	ck_assert_int_eq(control("stop_app"), 0);
	until_down(b);
	ck_assert_int_eq(control("start_app"), 0);
	ck_assert_int_eq(b->e.code, 320);
	ck_assert_ptr_nonnull(strstr(b->e.text, "shutting down"));
	connected(b);
	bench_real_end(b);
}
END_TEST

UNIT_MAIN("publisher", twenty_thousand_messages_are_acked_once_each,
	merged_reversed_shuffled_and_repeated_acks_change_nothing,
	wrong_tags_are_counted_and_settle_nothing, nacks_and_returns_reach_exactly_their_messages,
	a_return_followed_by_a_nack_is_a_return, the_body_of_a_large_return_is_stepped_over,
	a_missing_exchange_closes_the_quarantine_channel_alone,
	everything_open_on_a_closed_channel_is_forgotten_and_later_acks_ignored,
	reopening_an_open_channel_closes_it_first_and_reports_nothing,
	acks_that_arrive_while_their_channel_is_reopened_are_not_reported,
	nothing_is_heard_of_an_abandoned_channel_while_the_other_one_is_reopened,
	our_close_and_the_brokers_may_cross, blocked_and_unblocked_are_reported,
	a_broker_that_stops_reading_never_blocks_send,
	a_message_larger_than_every_buffer_goes_when_nothing_else_waits,
	acks_that_arrived_before_the_end_count,
	a_connection_closed_by_the_broker_is_answered_and_reported_with_its_code,
	a_connection_cut_off_is_reported, heartbeats_keep_an_idle_connection_and_silence_ends_it,
	closing_is_polite_but_never_waits_long, the_servers_frame_max_is_respected,
	the_broker_learns_who_we_are, strangers_on_the_port_are_told_apart,
	login_vhost_and_passing_refusals_are_told_apart,
	an_unreadable_password_is_a_fault_of_the_configuration,
	refused_resolver_and_timeout_are_link_errors,
	a_black_hole_first_in_the_list_does_not_hide_the_others,
	two_thousand_failed_connects_leave_no_descriptor,
	an_exchange_is_looked_up_without_disturbing_what_is_in_flight,
	junk_in_the_middle_ends_the_connection_cleanly, unexpected_frames_are_counted_and_tolerated,
	rabbitmq_confirms_twenty_thousand_messages_once_each, rabbitmq_returns_what_it_cannot_route,
	rabbitmq_closes_one_channel_a_thousand_times_and_memory_stays_flat,
	rabbitmq_lets_our_close_and_its_own_cross,
	rabbitmq_returns_large_bodies_and_memory_stays_flat,
	rabbitmq_takes_sixteen_mebibytes_byte_for_byte,
	rabbitmq_hands_on_every_property_and_nested_header,
	rabbitmq_tells_wrong_password_missing_vhost_and_exchange_apart,
	rabbitmq_keeps_an_idle_connection_with_a_heartbeat_of_one_second,
	rabbitmq_blocks_us_with_a_memory_alarm_and_lets_go_again,
	rabbitmq_frozen_is_noticed_by_its_silence, rabbitmq_confirms_over_tls_too,
	tls_trusts_only_what_it_was_told_to,
	a_client_certificate_is_sent_and_one_without_its_key_refused,
	failed_tls_connects_leave_no_descriptor, rabbitmq_killed_is_reported_and_comes_back,
	rabbitmq_shut_down_in_good_order_says_320)

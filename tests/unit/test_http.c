#include "http/http.h"
#include "log/log.h"
#include "sys/clock.h"
#include "sys/proc.h"

#include "unit.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static struct http *http;
static atomic_int calls;
static _Atomic size_t page_size;
static unsigned ready_code = 200;

static unsigned on_metrics(void *arg, struct buf *out)
{
	ck_assert_ptr_eq(arg, &calls);
	atomic_fetch_add(&calls, 1);
	buf_adds(out, "outboxd_up 1\n");
	for (size_t i = 0; i < page_size; i++)
		buf_addc(out, i % 64 == 63 ? '\n' : 'x');
	return 200;
}

static unsigned on_livez(void *arg, struct buf *out)
{
	(void)arg;
	buf_adds(out, "ok\n");
	return 200;
}

static unsigned on_readyz(void *arg, struct buf *out)
{
	(void)arg;
	buf_adds(out, ready_code == 200 ? "ok\n" : "source orders is down\n");
	return ready_code;
}

static unsigned on_status(void *arg, struct buf *out)
{
	(void)arg;
	buf_adds(out, "{\"sources\":[]}");
	return 200;
}

static unsigned on_broken(void *arg, struct buf *out)
{
	(void)arg;
	buf_adds(out, "half a pa");
	out->failed = true;
	return 200;
}

static const struct http_pages pages = { on_metrics, on_livez, on_readyz, on_status };

static void start(void)
{
	struct err e;

	proc_ignore_sigpipe();
	ck_assert_msg(http_start(&http, "127.0.0.1", 0, &pages, &calls, &e) == 0, "%s", e.text);
	ck_assert_uint_ne(http_port(http), 0);
}

static int connect_fd(int fd)
{
	struct sockaddr_in sa = { .sin_family = AF_INET,
		.sin_port = htons(http_port(http)),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK) };

	return connect(fd, (struct sockaddr *)&sa, sizeof(sa));
}

static int client(void)
{
	struct timeval limit = { .tv_sec = 20 };
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	ck_assert_int_ge(fd, 0);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	ck_assert_msg(connect_fd(fd) == 0, "connect: %s", strerror(errno));
	return fd;
}

static void say(int fd, const char *text)
{
	ck_assert_int_eq(send(fd, text, strlen(text), MSG_NOSIGNAL), (ssize_t)strlen(text));
}

/* Everything up to the end of the stream. */
static const char *hear_all(int fd)
{
	static char text[1 << 20];
	size_t used = 0;
	ssize_t n;

	while ((n = recv(fd, text + used, sizeof(text) - 1 - used, 0)) > 0)
		used += (size_t)n;
	text[used] = '\0';
	return text;
}

/* One response: the head, and as many bytes as its Content-Length says unless `head_only`. */
static const char *hear_one(int fd, bool head_only)
{
	static char text[1 << 20];
	size_t used = 0, want = SIZE_MAX;

	while (used < want) {
		ssize_t n = recv(fd, text + used, want == SIZE_MAX ? 1 : want - used, 0);
		char *length;

		ck_assert_msg(n > 0, "stream ended after: %.*s", (int)used, text);
		used += (size_t)n;
		text[used] = '\0';
		if (want != SIZE_MAX || used < 4 || strcmp(text + used - 4, "\r\n\r\n") != 0)
			continue;
		length = strstr(text, "\r\nContent-Length: ");
		ck_assert_ptr_nonnull(length);
		want = used + (head_only ? 0 : strtoul(length + 18, NULL, 10));
	}
	return text;
}

static const char *get(const char *request)
{
	int fd = client();
	const char *text;

	say(fd, request);
	text = hear_all(fd);
	close(fd);
	return text;
}

#define END " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

static const char *body_of(const char *response)
{
	const char *end = strstr(response, "\r\n\r\n");

	return end != NULL ? end + 4 : "(no body)";
}

static void ck_code(const char *response, const char *code)
{
	ck_assert_msg(strncmp(response, "HTTP/1.", 7) == 0 && strncmp(response + 9, code, 3) == 0,
		"%s wanted, got: %.40s", code, response);
}

static void ck_quick_metrics(void)
{
	int64_t before = clock_mono_us();
	const char *r = get("GET /metrics" END);

	ck_code(r, "200");
	ck_assert_ptr_nonnull(strstr(r, "outboxd_up 1\n"));
	ck_assert_int_lt(clock_mono_us() - before, US_PER_SEC);
}

START_TEST(each_page_has_its_code_and_type)
{
	const char *r;

	start();
	r = get("GET /metrics" END);
	ck_code(r, "200");
	ck_assert_ptr_nonnull(
		strstr(r, "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
	ck_assert_ptr_nonnull(strstr(r, "\r\nContent-Length: 13\r\n"));
	ck_assert_str_eq(body_of(r), "outboxd_up 1\n");
	r = get("GET /livez" END);
	ck_code(r, "200");
	ck_assert_ptr_nonnull(strstr(r, "\r\nContent-Type: text/plain; charset=utf-8\r\n"));
	ck_assert_str_eq(body_of(r), "ok\n");
	r = get("GET /readyz" END);
	ck_code(r, "200");
	ready_code = 503;
	r = get("GET /readyz" END);
	ck_code(r, "503");
	ck_assert_str_eq(body_of(r), "source orders is down\n");
	r = get("GET /status?pretty=1" END);
	ck_code(r, "200");
	ck_assert_ptr_nonnull(strstr(r, "\r\nContent-Type: application/json\r\n"));
	ck_assert_str_eq(body_of(r), "{\"sources\":[]}");
	http_stop(http);
}
END_TEST

START_TEST(an_unknown_page_is_404_and_another_method_405_with_allow)
{
	const char *r;

	start();
	ck_code(get("GET /" END), "404");
	ck_code(get("GET /metrics/" END), "404");
	ck_code(get("GET //metrics" END), "404");
	r = get("POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n"
		"Connection: close\r\n\r\nhello");
	ck_code(r, "405");
	ck_assert_ptr_nonnull(strstr(r, "\r\nAllow: GET, HEAD\r\n"));
	ck_code(get("DELETE /status" END), "405");
	ck_code(get("BREW /livez" END), "405");
	ck_assert_int_eq(atomic_load(&calls), 0);
	http_stop(http);
}
END_TEST

START_TEST(head_has_the_length_of_the_page_and_no_body)
{
	const char *r;

	start();
	r = get("HEAD /metrics" END);
	ck_code(r, "200");
	ck_assert_ptr_nonnull(strstr(r, "\r\nContent-Length: 13\r\n"));
	ck_assert_ptr_nonnull(strstr(r, "version=0.0.4"));
	ck_assert_str_eq(body_of(r), "");
	http_stop(http);
}
END_TEST

START_TEST(one_connection_serves_many_requests)
{
	int fd;

	start();
	fd = client();
	for (int i = 0; i < 5; i++) {
		say(fd, "GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: "
			"application/openmetrics-text;version=1.0.0,*/*;q=0.1\r\n"
			"Accept-Encoding: gzip\r\n\r\n");
		ck_assert_str_eq(body_of(hear_one(fd, false)), "outboxd_up 1\n");
	}
	say(fd, "HEAD /livez HTTP/1.1\r\nHost: x\r\n\r\n");
	hear_one(fd, true);
	say(fd, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\nGET /readyz HTTP/1.1\r\nHost: x\r\n\r\n");
	ck_assert_str_eq(body_of(hear_one(fd, false)), "ok\n");
	ck_assert_str_eq(body_of(hear_one(fd, false)), "ok\n");
	close(fd);
	http_stop(http);
}
END_TEST

START_TEST(http_1_0_gets_its_page_and_the_end_of_the_stream)
{
	const char *r;

	start();
	r = get("GET /metrics HTTP/1.0\r\n\r\n");
	ck_code(r, "200");
	ck_assert_str_eq(body_of(r), "outboxd_up 1\n");
	http_stop(http);
}
END_TEST

START_TEST(a_client_that_half_closes_still_gets_its_answer)
{
	int fd;
	const char *r;

	start();
	fd = client();
	say(fd, "GET /metrics HTTP/1.0\r\n\r\n");
	shutdown(fd, SHUT_WR);
	r = hear_all(fd);
	ck_code(r, "200");
	ck_assert_str_eq(body_of(r), "outboxd_up 1\n");
	close(fd);
	http_stop(http);
}
END_TEST

START_TEST(a_large_page_arrives_whole)
{
	int fd;

	start();
	page_size = 900000;
	fd = client();
	say(fd, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
	ck_assert_uint_eq(strlen(body_of(hear_one(fd, false))), 13 + page_size);
	close(fd);
	http_stop(http);
}
END_TEST

START_TEST(a_page_that_ran_out_of_memory_is_a_500)
{
	struct http_pages broken = pages;
	const char *r;
	struct err e;

	broken.status = on_broken;
	ck_assert_int_eq(http_start(&http, "127.0.0.1", 0, &broken, &calls, &e), 0);
	r = get("GET /status" END);
	ck_code(r, "500");
	ck_assert_ptr_null(strstr(r, "half"));
	http_stop(http);
}
END_TEST

/* Sends as much as the server takes; it may refuse in the middle. */
static void send_flood(int fd, const char *start_line, size_t bytes)
{
	static char junk[65536];

	memset(junk, 'a', sizeof(junk));
	say(fd, start_line);
	for (size_t sent = 0; sent < bytes;) {
		ssize_t n = send(fd, junk, sizeof(junk), MSG_NOSIGNAL);

		if (n <= 0)
			break;
		sent += (size_t)n;
	}
}

START_TEST(a_huge_header_or_url_is_refused_and_harms_nobody)
{
	int fd, url;
	const char *r;

	start();
	fd = client();
	send_flood(fd, "GET /metrics HTTP/1.1\r\nHost: x\r\nX-Junk: ", 1 << 20);
	url = client();
	send_flood(url, "GET /", 10 << 20);
	ck_quick_metrics();
	r = hear_all(fd);
	ck_assert_msg(r[0] == '\0' || strncmp(r + 9, "4", 1) == 0, "%.40s", r);
	r = hear_all(url);
	ck_assert_msg(r[0] == '\0' || strncmp(r + 9, "4", 1) == 0, "%.40s", r);
	close(fd);
	close(url);
	http_stop(http);
}
END_TEST

START_TEST(garbage_harms_nobody)
{
	static const char *const junk[] = { "\r\n\r\n\r\n", "\x16\x03\x01\x02\x00\x01",
		"GET\r\n\r\n", "GET /metrics\r\n\r\n", "AMQP\0\0\x09\x01",
		"GET /metrics HTTP/9.9\r\n\r\n", "GET /%zz%00 HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /livez HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: -1\r\n\r\n" };

	start();
	for (size_t i = 0; i < 10 * ARRAY_LEN(junk); i++) {
		int fd = client();

		say(fd, junk[i % ARRAY_LEN(junk)]);
		if (i % 2 == 0)
			shutdown(fd, SHUT_WR);
		if (i < 5 * ARRAY_LEN(junk))
			close(fd); /* the others stay, to the end of the test */
	}
	ck_quick_metrics();
	http_stop(http);
}
END_TEST

static void slowloris(int count)
{
	int *fds = calloc((size_t)count, sizeof(*fds));

	start();
	for (int i = 0; i < count; i++) {
		fds[i] = client();
		say(fds[i], "GET /metrics HTTP/1.1\r\nX-a: ");
	}
	for (int round = 0; round < 5; round++) {
		for (int i = 0; i < count; i++)
			send(fds[i], "b", 1, MSG_NOSIGNAL); /* a byte now and then */
		ck_quick_metrics();
	}
	for (int i = 0; i < count; i++)
		close(fds[i]);
	free(fds);
	http_stop(http);
}

START_TEST(fifty_slow_clients_hold_up_nobody)
{
	slowloris(50);
}
END_TEST

START_TEST(four_hundred_slow_clients_hold_up_nobody)
{
	slowloris(400);
}
END_TEST

START_TEST(a_client_in_use_outlives_a_crowd_of_slow_ones)
{
	int good, fds[150];

	start();
	good = client();
	for (size_t i = 0; i < ARRAY_LEN(fds); i++) {
		fds[i] = client();
		say(fds[i], "GET /metrics HTTP/1.1\r\nX-a: ");
		say(good, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n");
		ck_assert_str_eq(body_of(hear_one(good, false)), "ok\n");
	}
	ck_assert_str_eq(hear_all(fds[0]), ""); /* evicted */
	for (size_t i = 0; i < ARRAY_LEN(fds); i++)
		close(fds[i]);
	close(good);
	http_stop(http);
}
END_TEST

START_TEST(clients_that_never_read_hold_up_nobody)
{
	int fds[60], small = 4096;

	start();
	page_size = 500000;
	for (size_t i = 0; i < ARRAY_LEN(fds); i++) {
		fds[i] = client();
		setsockopt(fds[i], SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
		for (int k = 0; k < 20; k++)
			say(fds[i], "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
	}
	page_size = 10;
	ck_quick_metrics();
	for (size_t i = 0; i < ARRAY_LEN(fds); i++)
		close(fds[i]);
	http_stop(http);
}
END_TEST

START_TEST(an_idle_client_is_shown_the_door_after_ten_seconds)
{
	int64_t before = clock_mono_us(), took;
	int fd;

	start();
	fd = client();
	say(fd, "GET /metr");
	hear_all(fd);
	took = clock_mono_us() - before;
	ck_assert_int_gt(took, 8 * US_PER_SEC);
	ck_assert_int_lt(took, 15 * US_PER_SEC);
	close(fd);
	http_stop(http);
}
END_TEST

static int64_t cpu_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
	return (int64_t)ts.tv_sec * US_PER_SEC + ts.tv_nsec / 1000;
}

START_TEST(without_clients_it_sleeps)
{
	int64_t cpu;

	start();
	cpu = cpu_us();
	usleep(300000);
	ck_assert_int_lt(cpu_us() - cpu, 50 * US_PER_MS);
	http_stop(http);
}
END_TEST

START_TEST(out_of_descriptors_a_client_is_turned_away_without_spinning)
{
	int spare[4], fds[256], n = 0;
	struct rlimit r;
	rlim_t before;
	int64_t cpu;
	char c;

	start();
	for (size_t i = 0; i < ARRAY_LEN(spare); i++)
		spare[i] = socket(AF_INET, SOCK_STREAM, 0);
	getrlimit(RLIMIT_NOFILE, &r);
	before = r.rlim_cur;
	r.rlim_cur = 200;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &r), 0);
	while (n < 256 && (fds[n] = dup(0)) >= 0)
		n++;
	ck_assert_int_eq(errno, EMFILE);
	cpu = cpu_us();
	for (size_t i = 0; i < ARRAY_LEN(spare); i++) {
		ck_assert_int_eq(connect_fd(spare[i]), 0);
		ck_assert_int_le(recv(spare[i], &c, 1, 0), 0);
	}
	usleep(500000);
	ck_assert_int_lt(cpu_us() - cpu, 200 * US_PER_MS);
	while (n > 0)
		close(fds[--n]);
	ck_quick_metrics();
	http_stop(http);
	r.rlim_cur = before;
	setrlimit(RLIMIT_NOFILE, &r);
}
END_TEST

START_TEST(a_taken_port_is_an_error_and_free_again_after_stop)
{
	struct http *second = NULL;
	struct err e = { .kind = ERR_NONE };
	uint16_t port;
	int fd;

	start();
	port = http_port(http);
	fd = client(); /* leaves the port in TIME_WAIT */
	say(fd, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
	hear_one(fd, false);
	ck_assert_int_eq(http_start(&second, "127.0.0.1", port, &pages, &calls, &e), -1);
	ck_assert_ptr_null(second);
	ck_assert_int_eq(e.kind, ERR_RETRY);
	ck_assert_int_eq(e.code, EADDRINUSE);
	ck_assert_ptr_nonnull(strstr(e.text, "127.0.0.1"));
	ck_quick_metrics();
	http_stop(http);
	ck_assert_msg(http_start(&http, "127.0.0.1", port, &pages, &calls, &e) == 0, "%s", e.text);
	ck_quick_metrics();
	http_stop(http);
	close(fd);
	ck_assert_int_eq(http_start(&http, "no.such.host", 0, &pages, &calls, &e), -1);
	ck_assert_int_eq(e.kind, ERR_CONFIG);
	http_stop(NULL);
}
END_TEST

START_TEST(ipv6_localhost_and_all_addresses_are_understood)
{
	static const char *const hosts[] = { "::1", "[::1]" };
	struct err e = { .kind = ERR_NONE };

	for (size_t i = 0; i < ARRAY_LEN(hosts); i++) {
		struct sockaddr_in6 sa = { .sin6_family = AF_INET6,
			.sin6_addr = IN6ADDR_LOOPBACK_INIT };
		int fd = socket(AF_INET6, SOCK_STREAM, 0);

		if (fd < 0 || http_start(&http, hosts[i], 0, &pages, &calls, &e) < 0) {
			ck_assert(fd < 0 || e.code == EADDRNOTAVAIL || e.code == EAFNOSUPPORT);
			close(fd); /* a machine without IPv6 */
			continue;
		}
		sa.sin6_port = htons(http_port(http));
		ck_assert_int_eq(connect(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
		say(fd, "GET /livez" END);
		ck_code(hear_all(fd), "200");
		close(fd);
		http_stop(http);
	}
	ck_assert_int_eq(http_start(&http, "localhost", 0, &pages, &calls, &e), 0);
	ck_quick_metrics();
	http_stop(http);
	ck_assert_int_eq(http_start(&http, "*", 0, &pages, &calls, &e), 0);
	ck_quick_metrics();
	http_stop(http);
}
END_TEST

START_TEST(stopping_with_clients_connected_takes_no_time)
{
	int fds[20];
	int64_t before;

	start();
	for (size_t i = 0; i < ARRAY_LEN(fds); i++) {
		fds[i] = client();
		say(fds[i], "GET /m");
	}
	before = clock_mono_us();
	http_stop(http);
	ck_assert_int_lt(clock_mono_us() - before, 2 * US_PER_SEC);
	for (size_t i = 0; i < ARRAY_LEN(fds); i++) {
		hear_all(fds[i]);
		close(fds[i]);
	}
}
END_TEST

UNIT_MAIN("http", each_page_has_its_code_and_type,
	an_unknown_page_is_404_and_another_method_405_with_allow,
	head_has_the_length_of_the_page_and_no_body, one_connection_serves_many_requests,
	http_1_0_gets_its_page_and_the_end_of_the_stream,
	a_client_that_half_closes_still_gets_its_answer, a_large_page_arrives_whole,
	a_page_that_ran_out_of_memory_is_a_500, a_huge_header_or_url_is_refused_and_harms_nobody,
	garbage_harms_nobody, fifty_slow_clients_hold_up_nobody,
	four_hundred_slow_clients_hold_up_nobody, a_client_in_use_outlives_a_crowd_of_slow_ones,
	clients_that_never_read_hold_up_nobody, an_idle_client_is_shown_the_door_after_ten_seconds,
	without_clients_it_sleeps, out_of_descriptors_a_client_is_turned_away_without_spinning,
	a_taken_port_is_an_error_and_free_again_after_stop,
	ipv6_localhost_and_all_addresses_are_understood,
	stopping_with_clients_connected_takes_no_time)

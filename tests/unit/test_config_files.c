#include "base/rng.h"
#include "config/config.h"
#include "test_config.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#define GOOD                                                                                       \
	"brokers: [{name: m, hosts: [localhost], username: u}]\n"                                  \
	"sources:\n- name: s\n  broker: m\n  database: {name: d, username: u}\n"                   \
	"  publish: {exchange: e, routing_key: r}\n"

static double now_s(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static long resident_kib(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return u.ru_maxrss;
}

static void check_faults(const char *path, const char *want)
{
	char *got = faults_of(path);

	ck_assert_msg(
		strncmp(got, want, strlen(want)) == 0, "%s: got %s, wanted %s", path, got, want);
	free(got);
}

static void check_bytes_faults(const void *data, size_t len, const char *want)
{
	check_faults(put_file("bytes.yaml", data, len, 0600), want);
}

#define CHECK_BYTES(lit, want) check_bytes_faults(lit, sizeof(lit) - 1, want)

START_TEST(a_fault_of_the_whole_file_names_the_path_alone)
{
	char *big = calloc(1, (1 << 20) + 1);

	check_faults(in_dir("missing.yaml"), ": cannot be read (No such file or directory): ");
	check_faults("", ": cannot be read (No such file or directory): ");
	check_faults(in_dir(""), ": is a directory: ");
	check_faults("/dev/null", ": is neither a regular file nor a pipe: ");
	CHECK_BYTES("", ": is empty: ");
	CHECK_BYTES("# nothing\n\n# here\n", ": is empty: ");
	CHECK_BYTES("---\n", ": is empty: ");
	CHECK_BYTES("~\n", ": is empty: ");
	CHECK_BYTES("\xEF\xBB\xBF", ": is empty: ");
	CHECK_BYTES(GOOD "\0", ": is a binary file, it holds NUL bytes: ");
	CHECK_BYTES("\x7F"
		    "ELF\2\1\1\0\0",
		": is a binary file, it holds NUL bytes: ");
	CHECK_BYTES("\xFF\xFE"
		    "a\0",
		": is UTF-16: ");
	CHECK_BYTES("\xFE\xFF\0a", ": is UTF-16: ");
	ck_assert_ptr_nonnull(big);
	memset(big, '#', (1 << 20) + 1);
	check_bytes_faults(big, (1 << 20) + 1, ": is larger than 1 MiB: ");
	check_bytes_faults(big, 1 << 20, ": is empty: ");
	free(big);
}
END_TEST

START_TEST(bytes_that_are_not_text_are_found_where_they_stand)
{
	CHECK_BYTES("a: b\nc: \xC3\xA9\xE9\n", ":2:5: not UTF-8 (byte 0xE9): ");
	CHECK_BYTES("\xC0\x80", ":1:1: not UTF-8 (byte 0xC0): ");
	CHECK_BYTES("a: \xED\xA0\x80", ":1:4: not UTF-8 (byte 0xED): ");
	CHECK_BYTES("a: b\r\n\x08: c\r\n", ":2:1: a control character (0x08): ");
	CHECK_BYTES("a: \x7F", ":1:4: a control character (0x7F): ");
}
END_TEST

START_TEST(a_byte_order_mark_and_crlf_change_nothing)
{
	static const char crlf[] =
		"brokers:\r\n- name: m\r\n  hosts: [localhost]\r\n  username: u\r\n"
		"sources:\r\n- name: s\r\n  broker: m\r\n"
		"  database: {name: d, username: u}\r\n"
		"  publish: {exchange: e, routing_key: r}\r\n";
	struct config *c = load_text("\xEF\xBB\xBF" GOOD);

	ck_assert_uint_eq(c->brokers[0].line, 1);
	config_free(c);
	CHECK_BYTES("\xEF\xBB\xBFzzz: 1\n" GOOD, ":1:1: zzz is not a known key: ");
	c = load_text(crlf);
	ck_assert_str_eq(c->sources[0].publish.routing_key, "r");
	ck_assert_uint_eq(c->sources[0].line, 6);
	config_free(c);
	c = load_text("--- # one document\n" GOOD "...\n");
	config_free(c);
}
END_TEST

START_TEST(a_fifo_without_a_writer_does_not_hang)
{
	const char *path = in_dir("fifo");
	double start = now_s();

	ck_assert_int_eq(mkfifo(path, 0600), 0);
	check_faults(path, ": is empty: ");
	ck_assert(now_s() - start < 1.0);
}
END_TEST

START_TEST(a_pipe_is_read_to_its_end)
{
	char path[64];
	struct config *c;
	int fds[2];

	ck_assert_int_eq(pipe(fds), 0);
	ck_assert_int_eq(write(fds[1], GOOD, sizeof(GOOD) - 1), (ssize_t)sizeof(GOOD) - 1);
	close(fds[1]);
	snprintf(path, sizeof(path), "/dev/fd/%d", fds[0]);
	c = load_path(path);
	ck_assert_str_eq(c->path, path);
	config_free(c);
	close(fds[0]);
}
END_TEST

START_TEST(a_pipe_may_be_slow_but_not_large)
{
	char path[64];
	int fds[2], status;
	pid_t child;

	ck_assert_int_eq(pipe(fds), 0);
	snprintf(path, sizeof(path), "/dev/fd/%d", fds[0]);
	child = fork();
	ck_assert_int_ge(child, 0);
	if (child == 0) {
		struct timespec moment = { .tv_nsec = 50000000 };
		char comment[4096];

		close(fds[0]);
		nanosleep(&moment, NULL);
		memset(comment, '#', sizeof(comment));
		for (size_t i = 0; i < (1 << 20) / sizeof(comment) + 1; i++)
			if (write(fds[1], comment, sizeof(comment)) < 0)
				_exit(1);
		_exit(0);
	}
	close(fds[1]);
	check_faults(path, ": is larger than 1 MiB: ");
	close(fds[0]);
	ck_assert_int_eq(waitpid(child, &status, 0), child);
}
END_TEST

START_TEST(a_file_of_another_user_is_said_to_be_unreadable)
{
	const char *path = put_file("secret.yaml", GOOD, sizeof(GOOD) - 1, 0);

	ck_assert_int_eq(chmod(test_dir, 0755), 0);
	if (geteuid() == 0)
		ck_assert_int_eq(seteuid(65534), 0);
	check_faults(path, ": cannot be read (Permission denied): ");
	if (getuid() == 0)
		ck_assert_int_eq(seteuid(0), 0);
}
END_TEST

START_TEST(an_alias_bomb_is_refused_at_once)
{
	static const char bomb[] = "a: &a [x, x, x, x, x, x, x, x, x]\n"
				   "b: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a]\n"
				   "c: &c [*b, *b, *b, *b, *b, *b, *b, *b, *b]\n"
				   "d: &d [*c, *c, *c, *c, *c, *c, *c, *c, *c]\n"
				   "e: &e [*d, *d, *d, *d, *d, *d, *d, *d, *d]\n"
				   "f: &f [*e, *e, *e, *e, *e, *e, *e, *e, *e]\n"
				   "g: &g [*f, *f, *f, *f, *f, *f, *f, *f, *f]\n"
				   "h: &h [*g, *g, *g, *g, *g, *g, *g, *g, *g]\n"
				   "i: &i [*h, *h, *h, *h, *h, *h, *h, *h, *h]\n";
	double start = now_s();
	char *got = faults_of_text(bomb);

	ck_assert_ptr_nonnull(strstr(got, "\n:2:8: an alias (*) is not accepted: "));
	ck_assert_ptr_nonnull(strstr(got, "\n:9:4: an anchor (&) is not accepted: "));
	free(got);
	got = faults_of_text("a: &a [*a]\n");
	ck_assert_ptr_nonnull(strstr(got, "\n:1:8: an alias (*) is not accepted: "));
	free(got);
	ck_assert(now_s() - start < 1.0);
}
END_TEST

/* Each the worst of its kind within 1 MiB: refused in a second, in some tens of megabytes. */
START_TEST(a_hostile_file_costs_little_time_and_memory)
{
	static const struct {
		const char *start, *unit;
	} cases[] = {
		{ "", "[" },
		{ "", "{" },
		{ "", "- " },
		{ "", "? " },
		{ "", "[{" },
		{ "a: ", "[" },
		{ "a: [", "," },
		{ "a: [", "x," },
		{ "sources: [", "x," },
		{ "sources: [", "~," },
		{ "brokers: [", "{a: b}," },
		{ "", "a: b\n" },
		{ "", "&a a: *a\n" },
		{ "sources: [{publish: {headers: {", "a, " },
		{ "a: \"", "\\n" },
		{ "a: ", "\n " },
		{ "", "%" },
		{ "", "!" },
		{ "", "--- \n" },
		{ "a: |\n", " x\n" },
		{ "a: '", "''" },
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct buf b = { 0 };
		long before;
		double start;
		char *got;

		buf_adds(&b, cases[i].start);
		while (b.len < ((size_t)1 << 20) - 100)
			buf_adds(&b, cases[i].unit);
		before = resident_kib();
		start = now_s();
		put_file("hostile.yaml", b.data, b.len, 0600);
		got = faults_of(in_dir("hostile.yaml"));
		ck_assert_msg(now_s() - start < 2.0, "%s%s...: %.1f s", cases[i].start,
			cases[i].unit, now_s() - start);
		/* The address sanitizer keeps freed memory for a while: leave it room. */
		ck_assert_msg(resident_kib() - before < 200L * 1024, "%s%s...: %ld KiB",
			cases[i].start, cases[i].unit, resident_kib() - before);
		free(got);
		buf_fini(&b);
	}
}
END_TEST

START_TEST(more_faults_than_help_are_counted)
{
	struct buf b = { 0 };
	char *got;

	buf_adds(&b, "a: [");
	for (unsigned i = 0; i < 2000; i++)
		buf_adds(&b, "*a,\n ");
	buf_adds(&b, "]\n");
	got = faults_of_text(b.data);
	ck_assert_ptr_nonnull(strstr(got, "\n:1000:2: an alias (*) is not accepted: "));
	ck_assert_ptr_null(strstr(got, "\n:1001:"));
	ck_assert_ptr_nonnull(strstr(got, "\n: 1003 more faults are not shown: "));
	free(got);
	buf_fini(&b);
}
END_TEST

/* Each template alone is fine, or is checked where it stands; this shows only together. */
START_TEST(a_route_that_cannot_work_is_refused)
{
	char yaml[1024], key[257];
	char *got;

	memset(key, 'k', 256);
	key[256] = '\0';
	snprintf(yaml, sizeof(yaml),
		"brokers: [{name: m, hosts: [localhost], username: u}]\n"
		"sources:\n- name: s\n  broker: m\n  database: {name: d, username: u}\n"
		"  publish: {exchange: e, routing_key: %s}\n",
		key);
	got = faults_of_text(yaml);
	ck_assert_msg(
		strncmp(got, ":6:12: sources.s.publish cannot be used: ", 41) == 0, "%s", got);
	free(got);
}
END_TEST

START_TEST(a_hundred_thousand_brackets_are_refused_in_a_blink)
{
	char *text = malloc(100001);
	long before = resident_kib();
	double start;
	char *got;

	ck_assert_ptr_nonnull(text);
	memset(text, '[', 100000);
	text[100000] = '\0';
	start = now_s();
	got = faults_of_text(text);
	ck_assert(now_s() - start < 1.0);
	ck_assert(resident_kib() - before < 16L * 1024);
	ck_assert_ptr_nonnull(strstr(got, ":1:17: nested more than 16 levels deep: "));
	free(got);
	free(text);
}
END_TEST

/* --- secrets -------------------------------------------------------------------------------- */

static int read_secret(enum secret_kind kind, const char *value, struct buf *out, struct err *e)
{
	char *copy = strdup(value);
	struct secret_conf s = { kind, copy };
	int rc = secret_read(&s, out, e);

	free(copy);
	return rc;
}

static void check_secret(const void *data, size_t len, const char *want)
{
	struct buf out = { 0 };
	struct err e;

	ck_assert_int_eq(read_secret(SECRET_FILE, put_file("p", data, len, 0600), &out, &e), 0);
	ck_assert_uint_eq(out.len, strlen(want));
	ck_assert_str_eq(out.data, want);
	secret_wipe(&out);
	ck_assert_ptr_null(out.data);
}

START_TEST(a_secret_is_its_file_less_one_line_end)
{
	char long_one[4097];

	check_secret("hunter2", 7, "hunter2");
	check_secret("hunter2\n", 8, "hunter2");
	check_secret("hunter2\r\n", 9, "hunter2");
	check_secret("hunter2\n\n", 9, "hunter2\n");
	check_secret(" p@ss:#%/ ", 10, " p@ss:#%/ ");
	memset(long_one, 'x', 4096);
	long_one[4096] = '\0';
	check_secret(long_one, 4096, long_one);
}
END_TEST

static void check_no_secret(const char *path, const char *want)
{
	struct buf out = { 0 };
	struct err e;

	buf_adds(&out, "left over");
	ck_assert_int_eq(read_secret(SECRET_FILE, path, &out, &e), -1);
	ck_assert_int_eq(e.kind, ERR_CONFIG);
	ck_assert_msg(strstr(e.text, want) != NULL, "got %s, wanted %s", e.text, want);
	ck_assert_ptr_null(out.data);
}

START_TEST(a_secret_that_cannot_be_one_is_refused)
{
	char long_one[4098];

	memset(long_one, 'x', sizeof(long_one));
	check_no_secret(in_dir("none"), "cannot be read (No such file or directory)");
	check_no_secret(in_dir(""), "is a directory");
	check_no_secret(put_file("p", "", 0, 0600), "is empty");
	check_no_secret(put_file("p", "\n", 1, 0600), "is empty");
	check_no_secret(put_file("p", "a\0b", 3, 0600), "holds a NUL byte");
	check_no_secret(put_file("p", long_one, 4097, 0600), "is larger than 4 KiB");
	ck_assert_int_eq(mkfifo(in_dir("f"), 0600), 0);
	check_no_secret(in_dir("f"), "is not a regular file");
}
END_TEST

START_TEST(a_credential_is_read_from_where_systemd_put_it)
{
	struct buf out = { 0 };
	struct err e;

	unsetenv("CREDENTIALS_DIRECTORY");
	ck_assert_int_eq(read_secret(SECRET_CREDENTIAL, "shop", &out, &e), -1);
	put_text("shop", "hunter2\n");
	setenv("CREDENTIALS_DIRECTORY", test_dir, 1);
	ck_assert_int_eq(read_secret(SECRET_CREDENTIAL, "shop", &out, &e), 0);
	ck_assert_str_eq(out.data, "hunter2");
	ck_assert_int_eq(read_secret(SECRET_CREDENTIAL, "other", &out, &e), -1);
	ck_assert_ptr_null(out.data);
	ck_assert_int_eq(read_secret(SECRET_LITERAL, "in so many words", &out, &e), 0);
	ck_assert_str_eq(out.data, "in so many words");
	secret_wipe(&out);
}
END_TEST

START_TEST(a_secret_is_read_anew_each_time)
{
	const char *path = put_text("p", "one\n");
	char yaml[1024];
	struct config *c;
	struct buf out = { 0 };
	struct err e;

	snprintf(yaml, sizeof(yaml),
		"brokers: [{name: m, hosts: [localhost], username: u, password_file: %s}]\n"
		"sources:\n- name: s\n  broker: m\n  database: {name: d, username: u}\n"
		"  publish: {exchange: e, routing_key: r}\n",
		path);
	c = load_text(yaml);
	ck_assert_int_eq(secret_read(&c->brokers[0].password, &out, &e), 0);
	ck_assert_str_eq(out.data, "one");
	put_text("p", "two\n");
	ck_assert_int_eq(secret_read(&c->brokers[0].password, &out, &e), 0);
	ck_assert_str_eq(out.data, "two");
	secret_wipe(&out);
	config_free(c);
}
END_TEST

START_TEST(a_secret_that_everybody_can_read_is_told_but_loads)
{
	char why[200] = "";
	char *path = strdup(put_file("p", "x", 1, 0644));
	struct secret_conf s = { SECRET_FILE, path }, literal = { SECRET_LITERAL, path };
	struct config *c;

	ck_assert(secret_file_exposed(&s, why, sizeof(why)));
	ck_assert_ptr_nonnull(strstr(why, "mode 0644"));
	ck_assert_int_eq(chmod(path, 0640), 0);
	ck_assert(!secret_file_exposed(&s, why, sizeof(why)));
	ck_assert(!secret_file_exposed(&literal, why, sizeof(why)));
	free(path);

	c = load_path(put_file("open.yaml", GOOD, sizeof(GOOD) - 1, 0644));
	ck_assert(!config_file_exposed(c, why, sizeof(why)));
	config_free(c);
	static const char with[] =
		"brokers: [{name: m, uri: 'amqp://u:p@localhost'}]\n"
		"sources:\n- name: s\n  broker: m\n  database: {name: d, username: u}\n"
		"  publish: {exchange: e, routing_key: r}\n";
	c = load_path(put_file("open.yaml", with, sizeof(with) - 1, 0644));
	ck_assert(config_file_exposed(c, why, sizeof(why)));
	config_free(c);
	c = load_path(put_file("open.yaml", with, sizeof(with) - 1, 0640));
	ck_assert(!config_file_exposed(c, why, sizeof(why)));
	config_free(c);
}
END_TEST

/* --- mutations ------------------------------------------------------------------------------ */

static void mutate(struct rng *r, char *text, size_t *len, size_t room)
{
	static const char spice[] = "[]{}:,-#&*!|>'\"%@`~? \n\t\r\\$0\xC3\xA9\x01\xFF";
	size_t at = rng_below(r, *len), n;

	switch (rng_below(r, 5)) {
	case 0: /* another byte */
		text[at] = spice[rng_below(r, sizeof(spice))];
		break;
	case 1: /* one more */
		if (*len < room) {
			memmove(text + at + 1, text + at, *len - at);
			text[at] = spice[rng_below(r, sizeof(spice))];
			++*len;
		}
		break;
	case 2: /* some gone */
		n = 1 + rng_below(r, 30);
		if (n < *len - at) {
			memmove(text + at, text + at + n, *len - at - n);
			*len -= n;
		}
		break;
	case 3: /* some twice */
		n = 1 + rng_below(r, 60);
		if (n < *len - at && *len + n < room) {
			memmove(text + at + n, text + at, *len - at);
			*len += n;
		}
		break;
	default: /* the rest gone */
		if (at > 0 && rng_below(r, 10) == 0)
			*len = at;
	}
}

START_TEST(no_mutation_of_the_sample_crashes_or_shows_the_secret)
{
	char *sample = sample_here("conf/outboxd.full.yaml");
	size_t length = strlen(sample), good = 0, rounds = 0;
	char *text = malloc(length * 2), *path = strdup(in_dir("mutated.yaml"));
	struct rng r = { 20240229 };
	double start = now_s();

	ck_assert_ptr_nonnull(text);
	for (; rounds < 3000 && now_s() - start < 1.5; rounds++) {
		size_t len = length;
		struct buf faults = { 0 };
		struct config *c = NULL;

		memcpy(text, sample, length);
		for (uint64_t n = 1 + rng_below(&r, 4); n > 0; n--)
			mutate(&r, text, &len, length * 2);
		put_file("mutated.yaml", text, len, 0600);
		if (config_load(&c, path, &faults) == 0) {
			ck_assert_ptr_nonnull(c);
			good++;
		} else {
			ck_assert_ptr_nonnull(faults.data);
			ck_assert(strncmp(faults.data, path, strlen(path)) == 0);
			ck_assert_ptr_null(strstr(faults.data, "hunter2"));
		}
		config_free(c);
		buf_fini(&faults);
	}
	ck_assert_uint_gt(rounds, 50);
	ck_assert_uint_gt(good, 0);
	ck_assert_uint_lt(good, rounds);
	free(path);
	free(text);
	free(sample);
}
END_TEST

UNIT_MAIN("config_files", a_fault_of_the_whole_file_names_the_path_alone,
	bytes_that_are_not_text_are_found_where_they_stand,
	a_byte_order_mark_and_crlf_change_nothing, a_fifo_without_a_writer_does_not_hang,
	a_pipe_is_read_to_its_end, a_pipe_may_be_slow_but_not_large,
	a_file_of_another_user_is_said_to_be_unreadable, an_alias_bomb_is_refused_at_once,
	a_hostile_file_costs_little_time_and_memory,
	a_hundred_thousand_brackets_are_refused_in_a_blink, more_faults_than_help_are_counted,
	a_route_that_cannot_work_is_refused, a_secret_is_its_file_less_one_line_end,
	a_secret_that_cannot_be_one_is_refused, a_credential_is_read_from_where_systemd_put_it,
	a_secret_is_read_anew_each_time, a_secret_that_everybody_can_read_is_told_but_loads,
	no_mutation_of_the_sample_crashes_or_shows_the_secret)

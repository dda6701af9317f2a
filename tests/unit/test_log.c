#include "base/buf.h"
#include "base/str.h"
#include "log/line.h"
#include "log/log.h"

#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TIME_LEN (sizeof("2026-01-02T03:04:05.678901Z") - 1)

static char dir[64];
static char file[128];

static void make_dir(void)
{
	snprintf(dir, sizeof(dir), "/tmp/outboxd-log.XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	snprintf(file, sizeof(file), "%s/outboxd.log", dir);
}

static void remove_dir(void)
{
	char cmd[128];

	snprintf(cmd, sizeof(cmd), "rm -rf %s", dir);
	ck_assert_int_eq(system(cmd), 0);
}

static char *slurp(const char *path)
{
	static char text[4 << 20];
	FILE *f = fopen(path, "r");
	size_t n;

	ck_assert_msg(f != NULL, "%s: %s", path, strerror(errno));
	n = fread(text, 1, sizeof(text) - 1, f);
	fclose(f);
	text[n] = '\0';
	return text;
}

static int64_t now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * US_PER_SEC + ts.tv_nsec / 1000;
}

static void open_log(const char *path, enum log_level level, bool json)
{
	struct err e = { .kind = ERR_NONE };

	ck_assert_msg(log_open(path, level, json, &e) == 0, "%s", e.text);
}

static bool wait_for(const char *path, const char *text, int64_t wait_us)
{
	int64_t until = now_us() + wait_us;

	do {
		if (access(path, R_OK) == 0 && strstr(slurp(path), text) != NULL)
			return true;
		usleep(10000);
	} while (now_us() < until);
	return false;
}

static struct buf format(bool json, const char *msg, const struct log_field *fields)
{
	struct buf b = { 0 };

	log_line_format(&b, json, INT64_C(1767323045678901), LOG_LEVEL_WARN, "mysql", msg, fields);
	ck_assert(!b.failed);
	ck_assert_uint_le(b.len, LOG_LINE_MAX);
	ck_assert_int_eq(b.data[b.len - 1], '\n');
	return b;
}

#define FIELDS(...) ((const struct log_field[]){ __VA_ARGS__, F_END })

static void ck_line(struct buf b, const char *want)
{
	ck_assert_str_eq(b.data, want);
	buf_fini(&b);
}

START_TEST(a_logfmt_line_quotes_only_what_needs_quotes)
{
	ck_line(format(false, "claim failed",
			FIELDS(F_STR("source", "orders"), F_INT("code", 1205),
				F_STR("err", "lock wait"), F_STR("empty", ""), F_STR("eq", "a=b"),
				F_STR("q", "say \"hi\""), F_STR("back", "a\\b"),
				F_STR("utf8", "caf\xC3\xA9"))),
		"2026-01-02T03:04:05.678901Z warn mysql: claim failed source=orders code=1205 "
		"err=\"lock wait\" empty=\"\" eq=\"a=b\" q=\"say \\\"hi\\\"\" back=\"a\\\\b\" "
		"utf8=caf\xC3\xA9\n");
}
END_TEST

START_TEST(a_json_line_has_the_same_fields_with_their_types)
{
	ck_line(format(true, "claim failed",
			FIELDS(F_STR("source", "or\"d"), F_INT("code", -5), F_UINT("n", UINT64_MAX),
				F_REAL("r", 0.1), F_REAL("nan", NAN), F_BOOL("ok", true),
				F_US("took", 1250000))),
		"{\"time\":\"2026-01-02T03:04:05.678901Z\",\"level\":\"warn\",\"module\":\"mysql\","
		"\"msg\":\"claim failed\",\"source\":\"or\\\"d\",\"code\":-5,"
		"\"n\":18446744073709551615,\"r\":0.1,\"nan\":null,\"ok\":true,\"took\":1.250}\n");
}
END_TEST

START_TEST(an_absent_value_is_left_out)
{
	ck_line(format(false, "m",
			FIELDS(F_STR("a", NULL), F_SLICE("b", ((struct slice){ NULL, 0 })),
				F_INT("c", 1))),
		"2026-01-02T03:04:05.678901Z warn mysql: m c=1\n");
}
END_TEST

START_TEST(durations_are_seconds_to_the_precision_they_have)
{
	ck_line(format(false, "m",
			FIELDS(F_US("a", 1250000), F_US("b", 312), F_US("c", -1500000),
				F_US("d", 0), F_US("e", TIME_NEVER), F_US("f", INT64_MIN))),
		"2026-01-02T03:04:05.678901Z warn mysql: m a=1.250 b=0.000312 c=-1.500 d=0.000 "
		"e=never f=-9223372036854.775808\n");
}
END_TEST

START_TEST(nothing_in_a_value_can_forge_a_line_or_move_the_cursor)
{
	static const char evil[] = "x\n2026 error log: forged\r\t\x1b[2J\x7f\xc2\x9b\xff\0y";
	struct slice s = { evil, sizeof(evil) - 1 };
	struct buf b = format(false, evil, FIELDS(F_SLICE("type", s)));

	for (size_t i = 0; i + 1 < b.len; i++)
		ck_assert(b.data[i] >= 0x20 && b.data[i] < 0x7F);
	ck_assert_ptr_nonnull(strstr(b.data,
		" type=\"x\\n2026 error log: forged\\r\\t\\x1b[2J\\x7f\\xc2\\x9b\\xff\\x00y\"\n"));
	buf_fini(&b);
	b = format(true, evil, FIELDS(F_SLICE("type", s)));
	for (size_t i = 0; i + 1 < b.len; i++)
		ck_assert_uint_ge((unsigned char)b.data[i], 0x20);
	buf_fini(&b);
}
END_TEST

START_TEST(a_huge_value_is_cut_at_a_character_and_says_so)
{
	static char big[100001];
	struct buf b;

	for (size_t i = 0; i < sizeof(big) - 1; i += 2)
		memcpy(big + i, "\xC3\xA9", 2);
	for (int json = 0; json < 2; json++) {
		b = format(json, "m", FIELDS(F_STR("v", big), F_INT("after", 7)));
		ck_assert(utf8_valid(buf_slice(&b)));
		ck_assert_ptr_nonnull(strstr(b.data, "...(+97952 bytes)\""));
		ck_assert_ptr_nonnull(strstr(b.data, json ? "\"after\":7}" : " after=7\n"));
		buf_fini(&b);
	}
}
END_TEST

START_TEST(a_line_of_many_huge_values_stays_below_the_limit)
{
	static char big[50001];
	struct log_field fields[12];

	for (int fill = 0; fill < 3; fill++) {
		memset(big, fill == 0 ? 'x' : fill == 1 ? '\x01' : '"', sizeof(big) - 1);
		for (size_t i = 0; i < ARRAY_LEN(fields) - 1; i++)
			fields[i] = F_STR("some_key", big);
		fields[ARRAY_LEN(fields) - 1] = F_END;
		for (int json = 0; json < 2; json++) {
			struct buf b = format(json, big, fields);

			ck_assert_ptr_nonnull(strstr(b.data, "truncated"));
			ck_assert_uint_gt(b.len, LOG_LINE_MAX / 2);
			buf_fini(&b);
		}
	}
}
END_TEST

START_TEST(levels_have_names_and_filter)
{
	enum log_level level;

	ck_assert(log_level_parse("debug", &level) && level == LOG_LEVEL_DEBUG);
	ck_assert(log_level_parse("error", &level) && level == LOG_LEVEL_ERROR);
	ck_assert(!log_level_parse("Error", &level));
	ck_assert(!log_level_parse("", &level));
	ck_assert(log_enabled(LOG_LEVEL_INFO));
	ck_assert(!log_enabled(LOG_LEVEL_DEBUG));
	make_dir();
	open_log(file, LOG_LEVEL_WARN, false);
	log_info("t", "silent", F_INT("n", 1));
	log_write(LOG_LEVEL_INFO, "t", "silent", FIELDS(F_INT("n", 1)));
	log_warn("t", "heard", F_INT("n", 2));
	log_close();
	ck_assert_ptr_null(strstr(slurp(file), "silent"));
	ck_assert_ptr_nonnull(strstr(slurp(file), " warn t: heard n=2\n"));
	remove_dir();
}
END_TEST

START_TEST(the_log_file_is_appended_to_and_not_for_everybody)
{
	struct stat st;

	make_dir();
	umask(0);
	open_log(file, LOG_LEVEL_INFO, true);
	log_info("t", "one", F_INT("n", 1));
	log_close();
	open_log(file, LOG_LEVEL_INFO, false);
	log_info("t", "two", F_INT("n", 2));
	log_close();
	ck_assert_int_eq(stat(file, &st), 0);
	ck_assert_int_eq(st.st_mode & 0777, 0640);
	ck_assert_ptr_nonnull(strstr(slurp(file), "\"msg\":\"one\",\"n\":1}\n"));
	ck_assert_ptr_nonnull(strstr(slurp(file), " info t: two n=2\n"));
	remove_dir();
}
END_TEST

START_TEST(an_open_that_fails_changes_nothing)
{
	struct err e = { .kind = ERR_NONE };

	make_dir();
	open_log(file, LOG_LEVEL_INFO, false);
	ck_assert_int_eq(log_open("/nonexistent/x.log", LOG_LEVEL_ERROR, true, &e), -1);
	ck_assert_int_eq(e.code, ENOENT);
	ck_assert_ptr_nonnull(strstr(e.text, "/nonexistent/x.log"));
	ck_assert_int_eq(log_open(dir, LOG_LEVEL_ERROR, true, &e), -1);
	ck_assert_int_eq(e.code, EISDIR);
	log_info("t", "still here", F_INT("n", 1));
	log_close();
	ck_assert_ptr_nonnull(strstr(slurp(file), " info t: still here n=1\n"));
	remove_dir();
}
END_TEST

#define WRITERS 4
#define LINES 5000

static void *write_lines(void *arg)
{
	for (int i = 0; i < LINES; i++) {
		log_info("t", "line", F_INT("thread", (int64_t)(intptr_t)arg), F_INT("i", i),
			F_STR("fill", "abcdefghijklmnopqrstuvwxyz"));
		if (i % 50 == 0)
			usleep(1000);
	}
	return NULL;
}

static int count_lines(const char *path, int next[WRITERS])
{
	int lines = 0;
	char *save = NULL;

	for (char *line = strtok_r(slurp(path), "\n", &save); line != NULL;
		line = strtok_r(NULL, "\n", &save)) {
		int thread, i;
		const char *at = strstr(line, " thread=");

		ck_assert_msg(at != NULL && strstr(line, "wxyz") != NULL, "split: %s", line);
		ck_assert_int_eq(sscanf(at, " thread=%d i=%d ", &thread, &i), 2);
		ck_assert_int_eq(i, next[thread]); /* each thread's lines in its order */
		next[thread]++;
		lines++;
	}
	return lines;
}

START_TEST(rotation_under_load_loses_and_splits_no_line)
{
	pthread_t threads[WRITERS];
	int next[WRITERS] = { 0 }, lines = 0, rotated = 0;
	char old[160];
	struct err e;

	make_dir();
	open_log(file, LOG_LEVEL_INFO, false);
	for (int i = 0; i < WRITERS; i++)
		pthread_create(&threads[i], NULL, write_lines, (void *)(intptr_t)i);
	for (; rotated < 10; rotated++) {
		usleep(10000);
		snprintf(old, sizeof(old), "%s.%d", file, rotated);
		ck_assert_int_eq(rename(file, old), 0);
		ck_assert_int_eq(log_reopen(&e), 0);
		ck_assert_int_eq(access(file, F_OK), 0);
	}
	for (int i = 0; i < WRITERS; i++)
		pthread_join(threads[i], NULL);
	log_close();
	for (int i = 0; i < rotated; i++) {
		snprintf(old, sizeof(old), "%s.%d", file, i);
		lines += count_lines(old, next);
	}
	lines += count_lines(file, next);
	ck_assert_uint_eq(log_lines_dropped(), 0);
	ck_assert_int_eq(lines, WRITERS * LINES);
	remove_dir();
}
END_TEST

START_TEST(a_reopen_that_fails_keeps_the_old_file_and_tries_again_by_itself)
{
	char moved[96], line[160];
	struct err e = { .kind = ERR_NONE };

	make_dir();
	open_log(file, LOG_LEVEL_INFO, false);
	snprintf(moved, sizeof(moved), "%s.moved", dir);
	ck_assert_int_eq(rename(dir, moved), 0);
	ck_assert_int_eq(log_reopen(&e), -1);
	ck_assert_int_eq(e.code, ENOENT);
	log_info("t", "into the old file", F_INT("n", 1));
	snprintf(line, sizeof(line), "%s/outboxd.log", moved);
	ck_assert(wait_for(line, "into the old file", US_PER_SEC));
	ck_assert_int_eq(mkdir(dir, 0700), 0);
	ck_assert(wait_for(file, "", 8 * US_PER_SEC));
	log_info("t", "into the new file", F_INT("n", 2));
	ck_assert(wait_for(file, "into the new file", US_PER_SEC));
	log_close();
	ck_assert_int_eq(rename(line, file), 0);
	ck_assert_int_eq(rmdir(moved), 0);
	remove_dir();
}
END_TEST

START_TEST(no_descriptor_of_a_rotated_file_stays_open)
{
	struct err e;
	char old[160], link[64], target[256];

	make_dir();
	open_log(file, LOG_LEVEL_INFO, false);
	for (int i = 0; i < 3; i++) {
		snprintf(old, sizeof(old), "%s.%d", file, i);
		ck_assert_int_eq(rename(file, old), 0);
		ck_assert_int_eq(log_reopen(&e), 0);
	}
	usleep(50000);
	for (int fd = 0; fd < 256; fd++) {
		ssize_t n;

		snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
		n = readlink(link, target, sizeof(target) - 1);
		if (n < 0)
			continue;
		target[n] = '\0';
		ck_assert_msg(strstr(target, "outboxd.log.") == NULL, "%s", target);
	}
	log_close();
	remove_dir();
}
END_TEST

/* A stand-in for a full disk that a test can fill and empty: a limit on the file's size. */
static void limit_file_size(rlim_t bytes)
{
	struct rlimit r;

	ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &r), 0);
	r.rlim_cur = bytes;
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &r), 0);
}

START_TEST(lines_lost_on_a_full_disk_are_counted_and_reported_when_it_has_room)
{
	int64_t before;
	char *text, *at, *save = NULL;
	uint64_t dropped;

	signal(SIGXFSZ, SIG_IGN);
	make_dir();
	open_log(file, LOG_LEVEL_INFO, false);
	limit_file_size(1000);
	before = now_us();
	for (int i = 0; i < 100; i++)
		log_info("t", "line", F_INT("i", i), F_STR("end", "end"));
	ck_assert_int_lt(now_us() - before, US_PER_SEC);
	usleep(100000);
	dropped = log_lines_dropped();
	ck_assert_uint_gt(dropped, 50);
	limit_file_size(RLIM_INFINITY);
	ck_assert(wait_for(file, "lines dropped", 3 * US_PER_SEC)); /* without another line */
	log_info("t", "line", F_INT("i", 100), F_STR("end", "end"));
	log_close();
	text = slurp(file);
	at = strstr(text, " warn log: lines dropped count=");
	ck_assert_ptr_nonnull(at);
	ck_assert_uint_eq(strtoull(strchr(at, '=') + 1, NULL, 10), dropped);
	ck_assert_ptr_nonnull(strstr(at, "reason=\"File too large\""));
	ck_assert_ptr_nonnull(strstr(at, "i=100 end=end\n"));
	ck_assert_ptr_null(strstr(at + TIME_LEN, "lines dropped")); /* reported once */
	/* What was cut off is a line of its own. */
	for (char *line = strtok_r(text, "\n", &save); line != NULL;
		line = strtok_r(NULL, "\n", &save)) {
		at = strstr(line, " warn log: ");
		ck_assert_msg(at == NULL || at == line + TIME_LEN, "glued: %s", line);
	}
	remove_dir();
}
END_TEST

START_TEST(dev_full_is_harmless)
{
	open_log("/dev/full", LOG_LEVEL_INFO, false);
	for (int i = 0; i < 1000; i++)
		log_info("t", "line", F_INT("i", i));
	log_close();
	ck_assert_uint_eq(log_lines_dropped(), 1000);
}
END_TEST

/* Replaces stderr by a pipe; returns the end to read. */
static int stderr_pipe(int *saved)
{
	int p[2];

	ck_assert_int_eq(pipe(p), 0);
	*saved = dup(STDERR_FILENO);
	ck_assert_int_ge(dup2(p[1], STDERR_FILENO), 0);
	close(p[1]);
	return p[0];
}

static size_t drain(int fd, char *text, size_t size)
{
	size_t used = 0;
	struct pollfd p = { .fd = fd, .events = POLLIN };

	while (used < size - 1 && poll(&p, 1, 300) == 1) {
		ssize_t n = read(fd, text + used, size - 1 - used);

		if (n <= 0)
			break;
		used += (size_t)n;
	}
	text[used] = '\0';
	return used;
}

START_TEST(a_pipe_nobody_reads_never_blocks_the_caller)
{
	static char text[4 << 20];
	int saved, fd = stderr_pipe(&saved);
	int64_t before = now_us(), took;
	uint64_t dropped;

	open_log(NULL, LOG_LEVEL_INFO, false);
	for (int i = 0; i < 50000; i++)
		log_info("t", "line", F_INT("i", i));
	log_error("t", "important", F_INT("n", 1)); /* room is kept for it */
	took = now_us() - before;
	dropped = log_lines_dropped();
	ck_assert_int_lt(took, 5 * US_PER_SEC);
	ck_assert_uint_gt(dropped, 1000);
	ck_assert_int_eq(fcntl(STDERR_FILENO, F_GETFL) & O_NONBLOCK, 0);
	drain(fd, text, sizeof(text));
	dup2(saved, STDERR_FILENO);
	ck_assert_ptr_nonnull(strstr(text, "lines dropped count="));
	ck_assert_ptr_nonnull(strstr(text, "reason=\"queue full\""));
	ck_assert_ptr_nonnull(strstr(text, "error t: important n=1\n"));
	log_close();
}
END_TEST

START_TEST(closing_gives_up_on_a_pipe_nobody_reads)
{
	int saved, fd = stderr_pipe(&saved);
	int64_t before;

	open_log(NULL, LOG_LEVEL_INFO, false);
	for (int i = 0; i < 20000; i++)
		log_info("t", "line", F_INT("i", i));
	before = now_us();
	log_close();
	ck_assert_int_lt(now_us() - before, 3 * US_PER_SEC);
	log_info("t", "directly", F_INT("n", 1)); /* after closing: no long wait either */
	ck_assert_int_lt(now_us() - before, 4 * US_PER_SEC);
	dup2(saved, STDERR_FILENO);
	close(fd);
}
END_TEST

START_TEST(a_writer_stuck_in_the_kernel_is_left_behind_and_does_no_harm_later)
{
	static char big[2001], text[1 << 20];
	int saved, fd = stderr_pipe(&saved);
	int64_t before;
	struct err e = { .kind = ERR_NONE };

	make_dir();
	memset(big, 'x', sizeof(big) - 1);
	open_log(NULL, LOG_LEVEL_INFO, false);
	/* Lines above PIPE_BUF: a pipe that is nearly full says it takes data, and then blocks. */
	for (int i = 0; i < 30; i++)
		log_info("t", "line", F_STR("a", big), F_STR("b", big), F_STR("c", big));
	usleep(100000);
	before = now_us();
	ck_assert_int_eq(log_open(file, LOG_LEVEL_INFO, false, &e), -1);
	ck_assert_int_eq(e.code, ETIMEDOUT);
	log_close();
	ck_assert_int_lt(now_us() - before, 7 * US_PER_SEC);
	open_log(file, LOG_LEVEL_INFO, false);
	log_info("t", "new writer", F_INT("n", 1));
	drain(fd, text, sizeof(text)); /* lets the old one go on */
	log_info("t", "new writer", F_INT("n", 2));
	log_close();
	dup2(saved, STDERR_FILENO);
	ck_assert_ptr_null(strstr(text, "new writer"));
	ck_assert_ptr_nonnull(strstr(slurp(file), "lines dropped"));
	ck_assert_ptr_nonnull(strstr(slurp(file), "new writer n=1\n"));
	ck_assert_ptr_nonnull(strstr(slurp(file), "new writer n=2\n"));
	ck_assert_ptr_null(strstr(slurp(file), "xxx"));
	remove_dir();
}
END_TEST

START_TEST(a_closed_pipe_is_no_reason_to_die)
{
	int saved, fd = stderr_pipe(&saved);

	signal(SIGPIPE, SIG_IGN);
	close(fd);
	open_log(NULL, LOG_LEVEL_INFO, false);
	log_info("t", "line", F_INT("i", 1));
	log_close();
	log_info("t", "line", F_INT("i", 2));
	dup2(saved, STDERR_FILENO);
	ck_assert_uint_eq(log_lines_dropped(), 2);
}
END_TEST

START_TEST(a_fifo_without_a_reader_is_refused_at_once)
{
	struct err e = { .kind = ERR_NONE };
	int64_t before = now_us();

	make_dir();
	ck_assert_int_eq(mkfifo(file, 0600), 0);
	ck_assert_int_eq(log_open(file, LOG_LEVEL_INFO, false, &e), -1);
	ck_assert_int_eq(e.code, ENXIO);
	ck_assert_int_lt(now_us() - before, US_PER_SEC);
	remove_dir();
}
END_TEST

START_TEST(before_opening_and_after_closing_lines_go_straight_to_stderr)
{
	static char text[65536];
	int saved, fd = stderr_pipe(&saved);

	log_debug("t", "too fine", F_INT("n", 0));
	log_info("t", "before", F_INT("n", 1));
	drain(fd, text, sizeof(text));
	ck_assert_ptr_nonnull(strstr(text, " info t: before n=1\n"));
	make_dir();
	open_log(file, LOG_LEVEL_INFO, false);
	log_info("t", "between", F_INT("n", 2));
	log_close();
	log_info("t", "after", F_INT("n", 3));
	drain(fd, text, sizeof(text));
	dup2(saved, STDERR_FILENO);
	ck_assert_ptr_nonnull(strstr(text, " info t: after n=3\n"));
	ck_assert_ptr_null(strstr(text, "between"));
	ck_assert_ptr_null(strstr(text, "too fine"));
	remove_dir();
}
END_TEST

START_TEST(exit_writes_what_is_queued)
{
	static char text[1 << 20];
	int saved, status, fd = stderr_pipe(&saved);
	pid_t pid = fork();

	if (pid == 0) {
		open_log(NULL, LOG_LEVEL_INFO, false);
		for (int i = 0; i < 5000; i++) /* more than the pipe holds */
			log_info("t", "line", F_INT("i", i));
		exit(0);
	}
	dup2(saved, STDERR_FILENO);
	usleep(200000);
	drain(fd, text, sizeof(text));
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
	ck_assert_ptr_nonnull(strstr(text, "line i=4999\n"));
}
END_TEST

START_TEST(a_forked_child_writes_by_itself)
{
	int status;
	pid_t pid;

	make_dir();
	open_log(file, LOG_LEVEL_INFO, false);
	log_info("t", "parent", F_INT("n", 1));
	pid = fork();
	if (pid == 0) {
		log_info("t", "child", F_INT("n", 2));
		_exit(0);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	log_close();
	ck_assert_ptr_nonnull(strstr(slurp(file), " parent n=1\n"));
	ck_assert_ptr_nonnull(strstr(slurp(file), " child n=2\n"));
	remove_dir();
}
END_TEST

START_TEST(logging_leaves_errno_alone)
{
	int saved, fd = stderr_pipe(&saved);

	signal(SIGPIPE, SIG_IGN);
	close(fd);
	errno = ECHILD;
	log_info("t", "line", F_INT("i", 1));
	ck_assert_int_eq(errno, ECHILD);
	dup2(saved, STDERR_FILENO);
	ck_assert_uint_eq(log_lines_dropped(), 1);
}
END_TEST

START_TEST(what_repeats_is_logged_once_an_interval_with_a_count)
{
	struct log_limit limit = { 0 };
	uint64_t suppressed = 9;

	ck_assert(log_limit_pass(&limit, 100, 50, &suppressed));
	ck_assert_uint_eq(suppressed, 0);
	ck_assert(!log_limit_pass(&limit, 100, 50, &suppressed));
	ck_assert(!log_limit_pass(&limit, 149, 50, &suppressed));
	ck_assert(log_limit_pass(&limit, 150, 50, &suppressed));
	ck_assert_uint_eq(suppressed, 2);
	ck_assert(log_limit_pass(&limit, 1000, 50, &suppressed));
	ck_assert_uint_eq(suppressed, 0);
}
END_TEST

UNIT_MAIN("log", a_logfmt_line_quotes_only_what_needs_quotes,
	a_json_line_has_the_same_fields_with_their_types, an_absent_value_is_left_out,
	durations_are_seconds_to_the_precision_they_have,
	nothing_in_a_value_can_forge_a_line_or_move_the_cursor,
	a_huge_value_is_cut_at_a_character_and_says_so,
	a_line_of_many_huge_values_stays_below_the_limit, levels_have_names_and_filter,
	the_log_file_is_appended_to_and_not_for_everybody, an_open_that_fails_changes_nothing,
	rotation_under_load_loses_and_splits_no_line,
	a_reopen_that_fails_keeps_the_old_file_and_tries_again_by_itself,
	no_descriptor_of_a_rotated_file_stays_open,
	lines_lost_on_a_full_disk_are_counted_and_reported_when_it_has_room, dev_full_is_harmless,
	a_pipe_nobody_reads_never_blocks_the_caller, closing_gives_up_on_a_pipe_nobody_reads,
	a_writer_stuck_in_the_kernel_is_left_behind_and_does_no_harm_later,
	a_closed_pipe_is_no_reason_to_die, a_fifo_without_a_reader_is_refused_at_once,
	before_opening_and_after_closing_lines_go_straight_to_stderr, exit_writes_what_is_queued,
	a_forked_child_writes_by_itself, logging_leaves_errno_alone,
	what_repeats_is_logged_once_an_interval_with_a_count)

#include "base/buf.h"
#include "sys/wakeup.h"

#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[64];
static char path[96];
static struct err e;

static void make_dir(void)
{
	snprintf(dir, sizeof(dir), "/tmp/outboxd-wakeup.XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/wakeup.sock", dir);
}

static void remove_dir(void)
{
	unlink(path);
	ck_assert_int_eq(rmdir(dir), 0);
}

static struct wakeup *open_ok(void)
{
	struct wakeup *w = NULL;

	ck_assert_msg(wakeup_open(&w, path, 0660, NULL, &e) == 0, "%s", e.text);
	return w;
}

static void on_wakeup(void *arg, struct slice source)
{
	struct buf *b = arg;

	buf_addf(b, "<%.*s>", (int)source.len, source.ptr);
}

static void send_raw(const void *data, size_t len)
{
	ck_assert_msg(wakeup_send(path, (struct slice){ data, len }, &e) == 0, "%s", e.text);
}

static void ck_reads(struct wakeup *w, const char *want)
{
	struct buf b = { 0 };

	wakeup_read(w, on_wakeup, &b);
	ck_assert_str_eq(buf_slice(&b).ptr, want);
	buf_fini(&b);
}

START_TEST(a_datagram_is_a_source_and_an_empty_one_means_all)
{
	struct pollfd p;
	struct wakeup *w;

	make_dir();
	w = open_ok();
	p = (struct pollfd){ .fd = wakeup_fd(w), .events = POLLIN };
	ck_assert_int_eq(poll(&p, 1, 0), 0);
	send_raw("orders", 6);
	send_raw("", 0);
	send_raw("billing\n", 8);
	send_raw("\n", 1);
	ck_assert_int_eq(poll(&p, 1, 0), 1);
	ck_reads(w, "<orders><><billing><>");
	ck_assert_int_eq(poll(&p, 1, 0), 0);
	ck_reads(w, "");
	ck_assert_uint_eq(wakeup_junk(w), 0);
	wakeup_close(w);
	remove_dir();
}
END_TEST

START_TEST(junk_is_counted_and_ignored)
{
	char text[1000];
	struct wakeup *w;

	make_dir();
	w = open_ok();
	memset(text, 'x', sizeof(text));
	send_raw(text, 64);
	ck_reads(w, "<xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx>");
	send_raw(text, 65);
	send_raw(text, 1000);
	text[65] = '\n';
	send_raw(text, 66);
	send_raw("a\0b", 3);
	send_raw("a\nb", 3);
	send_raw("\x1b[2J", 4);
	send_raw("\xff", 1);
	send_raw("ok", 2);
	ck_reads(w, "<ok>");
	ck_assert_uint_eq(wakeup_junk(w), 7);
	wakeup_close(w);
	remove_dir();
}
END_TEST

START_TEST(the_file_gets_its_mode_and_group_whatever_the_umask)
{
	struct stat st;
	struct wakeup *w;

	make_dir();
	umask(0077);
	ck_assert_int_eq(wakeup_open(&w, path, 0666, NULL, &e), 0);
	ck_assert_int_eq(stat(path, &st), 0);
	ck_assert(S_ISSOCK(st.st_mode));
	ck_assert_int_eq(st.st_mode & 07777, 0666);
	wakeup_close(w);
	umask(0);
	ck_assert_int_eq(wakeup_open(&w, path, 0600, "", &e), 0);
	ck_assert_int_eq(stat(path, &st), 0);
	ck_assert_int_eq(st.st_mode & 07777, 0600);
	wakeup_close(w);
	if (getuid() == 0) {
		ck_assert_int_eq(wakeup_open(&w, path, 0660, "daemon", &e), 0);
		ck_assert_int_eq(stat(path, &st), 0);
		ck_assert_int_ne(st.st_gid, getgid());
		wakeup_close(w);
		ck_assert_int_eq(wakeup_open(&w, path, 0660, "12345", &e), 0);
		ck_assert_int_eq(stat(path, &st), 0);
		ck_assert_int_eq(st.st_gid, 12345);
		wakeup_close(w);
	}
	ck_assert_int_eq(wakeup_open(&w, path, 0660, "no-such-group", &e), -1);
	ck_assert_ptr_nonnull(strstr(e.text, "no-such-group"));
	ck_assert_int_eq(access(path, F_OK), -1);
	remove_dir();
}
END_TEST

START_TEST(the_socket_file_of_a_dead_process_is_replaced)
{
	struct wakeup *w;
	int status;
	pid_t pid;

	make_dir();
	pid = fork();
	if (pid == 0) {
		open_ok();
		_exit(0); /* as after kill -9: nobody removes the file */
	}
	waitpid(pid, &status, 0);
	ck_assert_int_eq(status, 0);
	ck_assert_int_eq(access(path, F_OK), 0);
	w = open_ok();
	send_raw("orders", 6);
	ck_reads(w, "<orders>");
	wakeup_close(w);
	ck_assert_int_eq(access(path, F_OK), -1);
	remove_dir();
}
END_TEST

START_TEST(a_socket_somebody_listens_on_is_left_alone)
{
	struct wakeup *first, *second = NULL;

	make_dir();
	first = open_ok();
	ck_assert_int_eq(wakeup_open(&second, path, 0660, NULL, &e), -1);
	ck_assert_ptr_null(second);
	ck_assert_ptr_nonnull(strstr(e.text, "another process listens there"));
	ck_assert_ptr_nonnull(strstr(e.text, path));
	send_raw("orders", 6);
	ck_reads(first, "<orders>");
	wakeup_close(first);
	remove_dir();
}
END_TEST

START_TEST(a_listening_stream_socket_is_left_alone_too)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	struct wakeup *w = NULL;
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	make_dir();
	strcpy(sa.sun_path, path);
	ck_assert_int_eq(bind(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
	ck_assert_int_eq(listen(fd, 1), 0);
	ck_assert_int_eq(wakeup_open(&w, path, 0660, NULL, &e), -1);
	ck_assert_int_eq(access(path, F_OK), 0);
	close(fd);
	remove_dir();
}
END_TEST

START_TEST(a_file_that_is_no_socket_is_left_alone)
{
	struct wakeup *w = NULL;
	int fd;

	make_dir();
	fd = open(path, O_CREAT | O_WRONLY, 0600);
	ck_assert_int_ge(fd, 0);
	close(fd);
	ck_assert_int_eq(wakeup_open(&w, path, 0660, NULL, &e), -1);
	ck_assert_ptr_nonnull(strstr(e.text, "no socket"));
	ck_assert_int_eq(access(path, F_OK), 0);
	unlink(path);
	ck_assert_int_eq(symlink("/etc/passwd", path), 0);
	ck_assert_int_eq(wakeup_open(&w, path, 0660, NULL, &e), -1);
	remove_dir();
}
END_TEST

START_TEST(closing_removes_only_ones_own_file)
{
	struct wakeup *first, *second;

	make_dir();
	first = open_ok();
	unlink(path);
	second = open_ok();
	wakeup_close(first);
	ck_assert_int_eq(access(path, F_OK), 0);
	send_raw("orders", 6);
	ck_reads(second, "<orders>");
	wakeup_close(second);
	ck_assert_int_eq(access(path, F_OK), -1);
	remove_dir();
}
END_TEST

START_TEST(impossible_paths_are_refused_with_their_name)
{
	struct wakeup *w = NULL;
	char longer[200];

	memset(longer, 'x', sizeof(longer) - 1);
	longer[sizeof(longer) - 1] = '\0';
	ck_assert_int_eq(wakeup_open(&w, longer, 0660, NULL, &e), -1);
	ck_assert_int_eq(e.kind, ERR_CONFIG);
	ck_assert_int_eq(wakeup_open(&w, "/nonexistent/w.sock", 0660, NULL, &e), -1);
	ck_assert_ptr_nonnull(strstr(e.text, "/nonexistent"));
	ck_assert_int_eq(wakeup_open(&w, "", 0660, NULL, &e), -1);
	wakeup_close(NULL);
}
END_TEST

START_TEST(a_full_queue_never_blocks_a_sender_and_is_read_whole)
{
	struct wakeup *w;
	int sent = 0;

	make_dir();
	w = open_ok();
	alarm(10);
	while (sent < 100000 && wakeup_send(path, SLICE_LIT("orders"), &e) == 0)
		sent++;
	ck_assert_int_lt(sent, 100000);
	ck_assert_int_eq(e.kind, ERR_AGAIN);
	for (int i = 0; i < 100; i++) {
		struct buf b = { 0 };

		wakeup_read(w, on_wakeup, &b);
		sent -= (int)(b.len / strlen("<orders>"));
		buf_fini(&b);
	}
	ck_assert_int_eq(sent, 0);
	wakeup_close(w);
	ck_assert_int_eq(wakeup_send(path, SLICE_LIT("orders"), &e), -1);
	ck_assert_int_eq(e.kind, ERR_LINK);
	remove_dir();
}
END_TEST

START_TEST(of_many_processes_starting_at_once_over_a_stale_file_one_gets_the_socket)
{
	int go[2], hold[2];

	make_dir();
	for (int round = 0; round < 10; round++) {
		int opened = 0;
		char c;

		ck_assert_int_eq(pipe(go), 0);
		ck_assert_int_eq(pipe(hold), 0);
		for (int i = 0; i < 8; i++) {
			if (fork() != 0)
				continue;
			struct wakeup *w;

			close(go[1]);
			close(hold[1]);
			(void)!read(go[0], &c, 1); /* all at once */
			c = wakeup_open(&w, path, 0660, NULL, &e) == 0 ? 'y' : 'n';
			if (c == 'n')
				_exit(1);
			(void)!read(hold[0], &c, 1); /* keep it until everybody has tried */
			_exit(0);                    /* and leave a stale file */
		}
		close(go[1]);
		for (int i = 0; i < 7; i++) {
			int status;

			ck_assert_int_gt(wait(&status), 0);
			opened += WEXITSTATUS(status) == 0;
		}
		ck_assert_int_eq(opened, 0); /* seven lost ... */
		close(hold[1]);
		for (int status; wait(&status) > 0;)
			opened += WEXITSTATUS(status) == 0;
		ck_assert_int_eq(opened, 1); /* ... and the eighth held it meanwhile */
		close(go[0]);
		close(hold[0]);
	}
	remove_dir();
}
END_TEST

START_TEST(a_folder_locked_by_a_stranger_delays_but_does_not_hang)
{
	struct wakeup *w = NULL;
	int fd;

	make_dir();
	fd = open(dir, O_RDONLY | O_DIRECTORY);
	ck_assert_int_eq(flock(fd, LOCK_EX), 0);
	alarm(5);
	ck_assert_int_eq(wakeup_open(&w, path, 0660, NULL, &e), -1);
	ck_assert_int_eq(e.kind, ERR_RETRY);
	close(fd);
	wakeup_close(open_ok());
	remove_dir();
}
END_TEST

#define EXAMPLE_PATH "/run/outboxd/wakeup.sock"

/* From `from` in the README to `to`, with this test's socket for the one of the example. */
static char *example(const char *from, const char *to)
{
	static char text[100000];
	FILE *f = fopen("README.md", "r");
	struct buf out = { 0 };
	char *start, *end, *at;

	ck_assert_ptr_nonnull(f);
	text[fread(text, 1, sizeof(text) - 1, f)] = '\0';
	fclose(f);
	start = strstr(text, from);
	ck_assert_msg(start != NULL, "no '%s' in README.md", from);
	end = strstr(start, to);
	ck_assert_ptr_nonnull(end);
	*end = '\0';
	at = strstr(start, EXAMPLE_PATH);
	ck_assert_ptr_nonnull(at);
	*at = '\0';
	buf_addf(&out, "%s%s%s", start, path, at + strlen(EXAMPLE_PATH));
	return out.data;
}

static void ck_rings(struct wakeup *w, char *command)
{
	ck_assert_msg(system(command) == 0, "%s", command);
	ck_reads(w, "<orders>");
	free(command);
}

START_TEST(the_examples_of_the_readme_ring)
{
	struct wakeup *w;
	char *code;
	struct buf compile = { 0 };

	make_dir();
	w = open_ok();
	ck_rings(w, example("perl -MSocket", "\n```"));
	if (system("python3 -c 'import socket' 2>/dev/null") == 0)
		ck_rings(w, example("python3 -c", "\n```"));
	code = example("struct sockaddr_un to", "```");
	buf_addf(&compile,
		"cc -x c -o '%s/ring' - <<'END' && '%s/ring'; rm -f '%s/ring'\n"
		"#define _GNU_SOURCE\n#include <string.h>\n#include <sys/socket.h>\n"
		"#include <sys/un.h>\nint main(void)\n{\n%s}\nEND\n",
		dir, dir, dir, code);
	free(code);
	ck_rings(w, compile.data);
	wakeup_close(w);
	remove_dir();
}
END_TEST

UNIT_MAIN("wakeup", a_datagram_is_a_source_and_an_empty_one_means_all, junk_is_counted_and_ignored,
	the_file_gets_its_mode_and_group_whatever_the_umask,
	the_socket_file_of_a_dead_process_is_replaced, a_socket_somebody_listens_on_is_left_alone,
	a_listening_stream_socket_is_left_alone_too, a_file_that_is_no_socket_is_left_alone,
	closing_removes_only_ones_own_file, impossible_paths_are_refused_with_their_name,
	a_full_queue_never_blocks_a_sender_and_is_read_whole,
	of_many_processes_starting_at_once_over_a_stale_file_one_gets_the_socket,
	a_folder_locked_by_a_stranger_delays_but_does_not_hang, the_examples_of_the_readme_ring)

/* test_config.h: what the tests of lib/config share: a directory of their own and files in it. */
#ifndef OUTBOXD_TEST_CONFIG_H
#define OUTBOXD_TEST_CONFIG_H

#include "config/config.h"

#include "unit.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char test_dir[] = "/tmp/outboxd-config-XXXXXX";

static inline void remove_test_dir(void)
{
	char command[sizeof(test_dir) + 16];

	snprintf(command, sizeof(command), "rm -rf '%s'", test_dir);
	if (system(command) != 0)
		fprintf(stderr, "%s is left behind\n", test_dir);
}

/* Check forks a process a test: each makes its own directory. */
static inline const char *in_dir(const char *name)
{
	static char paths[4][PATH_MAX];
	static unsigned turn;
	char *path = paths[turn++ % 4];

	if (strstr(test_dir, "XXXXXX") != NULL) {
		ck_assert_ptr_nonnull(mkdtemp(test_dir));
		atexit(remove_test_dir);
	}
	snprintf(path, PATH_MAX, "%s/%s", test_dir, name);
	return path;
}

static inline const char *put_file(const char *name, const void *data, size_t len, mode_t mode)
{
	const char *path = in_dir(name);
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(fchmod(fd, mode), 0);
	ck_assert_int_eq(write(fd, data, len), (ssize_t)len);
	close(fd);
	return path;
}

static inline const char *put_text(const char *name, const char *text)
{
	return put_file(name, text, strlen(text), 0600);
}

/* Loads what must be right. */
static inline struct config *load_path(const char *path)
{
	struct config *c = NULL;
	struct buf faults = { 0 };

	if (config_load(&c, path, &faults) < 0)
		ck_abort_msg("unexpected faults:\n%s", faults.data);
	ck_assert_uint_eq(faults.len, 0);
	buf_fini(&faults);
	return c;
}

static inline struct config *load_text(const char *yaml)
{
	return load_path(put_text("good.yaml", yaml));
}

/* Loads what must be wrong; the faults, each line without the file's path, are the caller's. */
static inline char *faults_of(const char *path)
{
	struct config *c = NULL;
	struct buf faults = { 0 }, out = { 0 };
	size_t n = strlen(path);

	ck_assert_int_eq(config_load(&c, path, &faults), -1);
	ck_assert_ptr_null(c);
	for (char *line = faults.data, *end; line != NULL && *line != '\0'; line = end + 1) {
		end = strchr(line, '\n');
		ck_assert_ptr_nonnull(end);
		ck_assert_msg(strncmp(line, path, n) == 0, "no path in front: %s", line);
		buf_add(&out, line + n, (size_t)(end + 1 - line) - n);
	}
	buf_fini(&faults);
	ck_assert_ptr_nonnull(out.data);
	return out.data;
}

static inline char *faults_of_text(const char *yaml)
{
	return faults_of(put_text("bad.yaml", yaml));
}

/* The whole of a file of the project; tests run at its top. */
static inline char *slurp(const char *path)
{
	FILE *f = fopen(path, "re");
	struct buf b = { 0 };
	char part[4096];
	size_t n;

	ck_assert_msg(f != NULL, "cannot open %s", path);
	while ((n = fread(part, 1, sizeof(part), f)) > 0)
		buf_add(&b, part, n);
	fclose(f);
	ck_assert_ptr_nonnull(b.data);
	return b.data;
}

/* The project's samples name /etc/outboxd; here they are read with secrets in the test's directory.
 */
static inline char *sample_here(const char *path)
{
	static const char etc[] = "/etc/outboxd/";
	char *text = slurp(path), *at = text, *found;
	struct buf b = { 0 };

	put_text("rabbit.pass", "hunter2\n");
	put_text("shop.pass", "hunter2\n");
	while ((found = strstr(at, etc)) != NULL) {
		buf_add(&b, at, (size_t)(found - at));
		buf_adds(&b, in_dir(""));
		at = found + sizeof(etc) - 1;
	}
	buf_adds(&b, at);
	free(text);
	return b.data;
}

#endif

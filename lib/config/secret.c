#include "config/config.h"
#include "config/file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define SECRET_MAX 4096

void secret_wipe(struct buf *secret)
{
	file_wipe(secret);
}

/* Where a secret of kind file or credential is read from. */
static int secret_path(const struct secret_conf *s, struct buf *path, struct err *e)
{
	const char *dir;

	if (s->kind == SECRET_FILE) {
		buf_adds(path, s->value);
	} else {
		dir = getenv("CREDENTIALS_DIRECTORY");
		if (dir == NULL || dir[0] == '\0')
			return err_set(e, ERR_CONFIG, 0,
				"has no $CREDENTIALS_DIRECTORY to be read from: run under systemd "
				"with "
				"LoadCredential=, or use password_file");
		buf_addf(path, "%s/%s", dir, s->value);
	}
	if (path->failed)
		return err_set(e, ERR_NOMEM, 0, "no memory for a path");
	return 0;
}

static int read_problem(enum file_problem p, struct err *e)
{
	int code = errno;

	switch (p) {
	case FILE_OK:
		return 0;
	case FILE_CANNOT_OPEN:
	case FILE_CANNOT_READ:
		return err_set(e, ERR_CONFIG, code,
			"cannot be read (%s): create it, readable for the daemon's user",
			strerror(code));
	case FILE_IS_DIRECTORY:
		return err_set(e, ERR_CONFIG, 0, "is a directory: name a file in it");
	case FILE_IS_SPECIAL:
	case FILE_STALLED:
		return err_set(e, ERR_CONFIG, 0,
			"is not a regular file: it is read again at each reconnect, so use one");
	case FILE_TOO_LARGE:
		return err_set(e, ERR_CONFIG, 0,
			"is larger than 4 KiB: keep nothing but the password in it");
	case FILE_NO_MEMORY:
		break;
	}
	return err_set(e, ERR_NOMEM, 0, "no memory to read it");
}

/* The texts hold neither the secret nor the path: a password may have been given where its file's
 * path belongs. */
static int read_file_secret(const struct secret_conf *s, struct buf *out, struct err *e)
{
	struct buf path = { 0 };
	int rc = secret_path(s, &path, e);

	if (rc == 0)
		rc = read_problem(file_read(path.data, SECRET_MAX, 0, out, NULL), e);
	buf_fini(&path);
	if (rc < 0)
		return -1;
	if (out->len > 0 && out->data[out->len - 1] == '\n') {
		out->len--;
		if (out->len > 0 && out->data[out->len - 1] == '\r')
			out->len--;
		out->data[out->len] = '\0';
	}
	if (out->len == 0)
		return err_set(e, ERR_CONFIG, 0, "is empty: write the password into it");
	if (memchr(out->data, '\0', out->len) != NULL)
		return err_set(e, ERR_CONFIG, 0,
			"holds a NUL byte: write the password as text, on one line");
	return 0;
}

int secret_read(const struct secret_conf *s, struct buf *out, struct err *e)
{
	int rc = 0;

	secret_wipe(out);
	if (s->kind == SECRET_NONE || s->kind == SECRET_LITERAL) {
		const char *value = s->value != NULL ? s->value : "";

		rc = buf_adds(out, value);
		if (rc < 0)
			err_set(e, ERR_NOMEM, 0, "no memory for a secret");
	} else {
		rc = read_file_secret(s, out, e);
	}
	if (rc < 0)
		secret_wipe(out);
	return rc;
}

static bool exposed(const char *path, const char *what, char *why, size_t size)
{
	struct stat st;

	if (stat(path, &st) < 0 || (st.st_mode & 0007) == 0)
		return false;
	snprintf(why, size, "%s is open to every user (mode %04o): chmod o= it", what,
		(unsigned)(st.st_mode & 07777));
	return true;
}

bool secret_file_exposed(const struct secret_conf *s, char *why, size_t size)
{
	return s->kind == SECRET_FILE && exposed(s->value, "the password's file", why, size);
}

bool config_file_exposed(const struct config *c, char *why, size_t size)
{
	bool literal = false;

	for (size_t i = 0; i < c->broker_count; i++)
		literal = literal || c->brokers[i].password.kind == SECRET_LITERAL;
	for (size_t i = 0; i < c->source_count; i++)
		literal = literal || c->sources[i].database.password.kind == SECRET_LITERAL;
	return literal && exposed(c->path, "the file, which holds a password,", why, size);
}

#include "sys/wakeup.h"

#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define READ_MAX 1024
#define LOCK_TRIES 20
#define LOCK_WAIT_MS 10

struct wakeup {
	int fd;
	char *path;
	bool made; /* the file at `path` was this one: */
	dev_t dev;
	ino_t ino;
	uint64_t junk;
};

static int socket_address(struct sockaddr_un *sa, const char *path, struct err *e)
{
	*sa = (struct sockaddr_un){ .sun_family = AF_UNIX };
	if (path[0] == '\0' || !str_copy(sa->sun_path, sizeof(sa->sun_path), path))
		return err_set(e, ERR_CONFIG, ENAMETOOLONG,
			"wakeup socket %s: the path must have 1 to %zu bytes", path,
			sizeof(sa->sun_path) - 1);
	return 0;
}

static int datagram_socket(struct err *e)
{
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		err_set(e, ERR_RETRY, errno, "wakeup socket: %m");
	return fd;
}

/* Looking whether a socket file is stale and replacing it is not one step. Among processes of ours
 * a lock on the folder makes it one; it needs no file of its own. */
static int lock_folder(const char *path, struct err *e)
{
	const char *slash = strrchr(path, '/');
	char folder[sizeof(((struct sockaddr_un *)0)->sun_path) + 1] = ".";
	int fd;

	if (slash != NULL) {
		size_t len = slash > path ? (size_t)(slash - path) : 1;

		memcpy(folder, path, len);
		folder[len] = '\0';
	}
	fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return err_set(e, ERR_CONFIG, errno, "wakeup socket: folder %s: %m", folder);
	for (int i = 0; i < LOCK_TRIES; i++) {
		if (flock(fd, LOCK_EX | LOCK_NB) == 0)
			return fd;
		if (errno != EWOULDBLOCK && errno != EINTR)
			break;
		poll(NULL, 0, LOCK_WAIT_MS);
	}
	err_set(e, ERR_RETRY, errno, "wakeup socket: lock on folder %s: %m", folder);
	close(fd);
	return -1;
}

/* 0: nothing at that path any more. */
static int remove_stale(const struct sockaddr_un *sa, struct err *e)
{
	struct stat st;
	int probe, rc;

	if (lstat(sa->sun_path, &st) < 0)
		return errno == ENOENT ? 0
				       : err_set(e, ERR_CONFIG, errno, "wakeup socket %s: %m",
						 sa->sun_path);
	if (!S_ISSOCK(st.st_mode))
		return err_set(e, ERR_CONFIG, EEXIST,
			"wakeup socket %s: a file that is no socket is in its place", sa->sun_path);
	probe = datagram_socket(e);
	if (probe < 0)
		return -1;
	rc = connect(probe, (const struct sockaddr *)sa, sizeof(*sa)) < 0 ? errno : 0;
	close(probe);
	if (rc != ECONNREFUSED) /* EPROTOTYPE: a stream socket that is listened on */
		return err_set(e, ERR_CONFIG, EADDRINUSE,
			"wakeup socket %s: another process listens there", sa->sun_path);
	if (unlink(sa->sun_path) < 0 && errno != ENOENT)
		return err_set(e, ERR_CONFIG, errno, "wakeup socket %s: remove: %m", sa->sun_path);
	return 0;
}

static int find_group(const char *group, gid_t *gid, struct err *e)
{
	struct group gr, *found = NULL;
	char text[4096];
	uint64_t number;
	int rc;

	if (str_to_u64(slice_str(group), &number) && number < (gid_t)-1) {
		*gid = (gid_t)number;
		return 0;
	}
	rc = getgrnam_r(group, &gr, text, sizeof(text), &found);
	if (found == NULL)
		return err_set(e, ERR_CONFIG, rc, "wakeup socket: no group \"%s\"", group);
	*gid = gr.gr_gid;
	return 0;
}

/* Nobody may send before the permissions are as they should be: a new file takes over the bits of
 * its socket, so it starts with none. */
static int bind_socket(struct wakeup *w, const struct sockaddr_un *sa, unsigned mode,
	const char *group, struct err *e)
{
	struct stat st;
	gid_t gid = (gid_t)-1;

	if (group != NULL && group[0] != '\0' && find_group(group, &gid, e) < 0)
		return -1;
	if (remove_stale(sa, e) < 0)
		return -1;
	if (fchmod(w->fd, 0) < 0 || bind(w->fd, (const struct sockaddr *)sa, sizeof(*sa)) < 0)
		return err_set(e, ERR_CONFIG, errno, "wakeup socket %s: %m", w->path);
	if (lstat(w->path, &st) == 0) {
		w->made = true;
		w->dev = st.st_dev;
		w->ino = st.st_ino;
	}
	if (gid != (gid_t)-1 && lchown(w->path, (uid_t)-1, gid) < 0)
		return err_set(
			e, ERR_CONFIG, errno, "wakeup socket %s: group %s: %m", w->path, group);
	if (chmod(w->path, mode & 0777) < 0)
		return err_set(
			e, ERR_CONFIG, errno, "wakeup socket %s: mode %04o: %m", w->path, mode);
	return 0;
}

static void unlink_ours(struct wakeup *w)
{
	struct stat st;

	if (w->made && lstat(w->path, &st) == 0 && st.st_dev == w->dev && st.st_ino == w->ino)
		unlink(w->path);
	w->made = false;
}

int wakeup_open(
	struct wakeup **out, const char *path, unsigned mode, const char *group, struct err *e)
{
	struct wakeup *w = calloc(1, sizeof(*w));
	struct sockaddr_un sa;
	int folder = -1;

	if (w == NULL)
		return err_set(e, ERR_NOMEM, ENOMEM, "wakeup socket");
	w->fd = -1;
	if (socket_address(&sa, path, e) < 0)
		goto fail;
	w->path = strdup(path);
	if (w->path == NULL) {
		err_set(e, ERR_NOMEM, ENOMEM, "wakeup socket");
		goto fail;
	}
	w->fd = datagram_socket(e);
	if (w->fd < 0)
		goto fail;
	folder = lock_folder(path, e);
	if (folder < 0 || bind_socket(w, &sa, mode, group, e) < 0)
		goto fail;
	close(folder);
	*out = w;
	return 0;
fail:
	if (folder >= 0) {
		unlink_ours(w);
		close(folder);
	}
	wakeup_close(w);
	return -1;
}

void wakeup_close(struct wakeup *w)
{
	int folder;

	if (w == NULL)
		return;
	if (w->made) {
		folder = lock_folder(w->path, NULL);
		unlink_ours(w);
		if (folder >= 0)
			close(folder);
	}
	if (w->fd >= 0)
		close(w->fd);
	free(w->path);
	free(w);
}

int wakeup_fd(const struct wakeup *w)
{
	return w->fd;
}

static bool is_name(struct slice s)
{
	if (s.len > WAKEUP_NAME_MAX || !utf8_valid(s))
		return false;
	for (size_t i = 0; i < s.len; i++)
		if ((unsigned char)s.ptr[i] < 0x20 || s.ptr[i] == 0x7F)
			return false;
	return true;
}

void wakeup_read(struct wakeup *w, wakeup_cb *cb, void *arg)
{
	for (int i = 0; i < READ_MAX; i++) {
		char text[WAKEUP_NAME_MAX + 2]; /* a newline, and one more to know what is longer */
		struct slice name = { text, 0 };
		ssize_t n = recv(w->fd, text, sizeof(text), MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return;
		name.len = (size_t)n;
		if (name.len > 0 && text[name.len - 1] == '\n')
			name.len--;
		if (is_name(name))
			cb(arg, name);
		else
			w->junk++;
	}
}

uint64_t wakeup_junk(const struct wakeup *w)
{
	return w->junk;
}

int wakeup_send(const char *path, struct slice source, struct err *e)
{
	struct sockaddr_un sa;
	ssize_t n;
	int fd, rc = 0;

	if (socket_address(&sa, path, e) < 0)
		return -1;
	fd = datagram_socket(e);
	if (fd < 0)
		return -1;
	n = sendto(fd, source.len > 0 ? source.ptr : "", source.len, MSG_DONTWAIT | MSG_NOSIGNAL,
		(struct sockaddr *)&sa, sizeof(sa));
	if (n < 0)
		rc = err_set(e, errno == EAGAIN ? ERR_AGAIN : ERR_LINK, errno,
			"wakeup socket %s: %m", path);
	close(fd);
	return rc;
}

#include "log/log.h"

#include "base/buf.h"
#include "base/str.h"
#include "log/line.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define QUEUE_BYTES (1u << 20)
/* The last part of the queue is kept for warnings and errors: chatter cannot push them out. */
#define QUEUE_RESERVE (QUEUE_BYTES / 8)
#define OPEN_WAIT_US (3 * US_PER_SEC)
#define CLOSE_WAIT_US (2 * US_PER_SEC)
#define GIVE_UP_US                                                                                 \
	(200 * US_PER_MS) /* the writer stops waiting that long before log_close() does */
#define DIRECT_WAIT_MS 200
#define REOPEN_EVERY_US (5 * US_PER_SEC)
#define REPORT_EVERY_US (1 * US_PER_SEC)
#define WHY_QUEUE_FULL (-1) /* instead of an errno */

/* What log_open() wants of the writer, which alone opens, writes and closes: a call on a hung disk
 * holds up nobody else. */
enum wish { WISH_NONE, WISH_ASKED, WISH_TAKEN, WISH_ANSWERED };

static struct {
	pthread_mutex_t lock;
	pthread_cond_t wake; /* something for the writer */
	pthread_cond_t done; /* the writer answers, or is gone */

	bool running; /* a writer of this generation takes lines from the queue */
	bool gone;    /* it has ended by itself: pthread_join() returns at once */
	/* A writer stuck in the kernel at log_close() is left to itself; its generation being over
	 * tells it to touch nothing but its own descriptor. */
	unsigned generation;
	pthread_t thread;

	int fd;     /* the writer's once it runs */
	char *path; /* NULL: stderr */
	int64_t reopen_at_us;

	char *ring; /* QUEUE_BYTES of lines, each behind its length as a uint16_t */
	size_t head, used;
	uint64_t dropped; /* since the last report */
	int why;
	int64_t report_at_us;
	bool torn; /* direct writing only: the last line ended without its newline */

	enum wish wish;
	unsigned wish_number;
	const char *wish_path; /* the asker's, valid while ASKED */
	int wish_errno;
} lg = { .lock = PTHREAD_MUTEX_INITIALIZER, .fd = STDERR_FILENO };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static atomic_int level_now = LOG_LEVEL_INFO;
static atomic_bool json_now;
static atomic_int_least64_t stop_at_us; /* log_close() waits until then; 0: it does not */
static atomic_uint_fast64_t dropped_total;

static int64_t mono_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * US_PER_SEC + ts.tv_nsec / 1000;
}

static int64_t wall_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return (int64_t)ts.tv_sec * US_PER_SEC + ts.tv_nsec / 1000;
}

static void init_conds(void)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&lg.wake, &attr);
	pthread_cond_init(&lg.done, &attr);
	pthread_condattr_destroy(&attr);
}

/* Whoever forks (a test, a library) gets a child without a writer thread: it writes directly. */
static void fork_before(void)
{
	pthread_mutex_lock(&lg.lock);
}

static void fork_parent(void)
{
	pthread_mutex_unlock(&lg.lock);
}

static void fork_child(void)
{
	lg.running = false;
	lg.generation++;
	free(lg.ring);
	lg.ring = NULL;
	lg.head = lg.used = 0;
	init_conds();
	pthread_mutex_unlock(&lg.lock);
}

static void set_up(void)
{
	init_conds();
	pthread_atfork(fork_before, fork_parent, fork_child);
	atexit(log_close);
}

static int wait_until(pthread_cond_t *cond, int64_t at_us)
{
	struct timespec ts = { .tv_sec = (time_t)(at_us / US_PER_SEC),
		.tv_nsec = (long)(at_us % US_PER_SEC) * 1000 };

	return pthread_cond_timedwait(cond, &lg.lock, &ts);
}

static void count_dropped(uint64_t lines, int why)
{
	lg.dropped += lines;
	lg.why = why;
	atomic_fetch_add(&dropped_total, lines);
}

/* ---- writing ---- */

/* Waits until fd takes data: poll(2) leaves the O_NONBLOCK of a shared stderr alone. The writer
 * waits as long as it takes, or until log_close() gives up. */
static bool writable(int fd, bool writer)
{
	struct pollfd p = { .fd = fd, .events = POLLOUT };

	for (;;) {
		int n = poll(&p, 1, writer ? 100 : DIRECT_WAIT_MS);
		int64_t stop_at;

		if (n > 0 || (n < 0 && errno != EINTR))
			return true; /* an error: write(2) will say which */
		if (!writer)
			return false;
		stop_at = atomic_load(&stop_at_us);
		if (stop_at != 0 && mono_us() >= stop_at)
			return false;
	}
}

/* One write(2) a line. What a full disk cut off is closed with a newline before the next line, so
 * that no two lines ever run together. line[-1] is the caller's to spare. 0 or an errno. */
static int put_line(int fd, char *line, size_t len, bool *torn, bool writer)
{
	bool begun = false;

	if (*torn) {
		*--line = '\n';
		len++;
	}
	while (len > 0) {
		ssize_t n;

		if (!writable(fd, writer)) {
			*torn |= begun;
			return EAGAIN;
		}
		n = write(fd, line, len);
		if (n < 0 && (errno == EINTR || (errno == EAGAIN && writer)))
			continue;
		if (n <= 0) {
			int why = n < 0 ? errno : EIO;

			*torn |= begun;
			return why;
		}
		begun = true;
		line += n;
		len -= (size_t)n;
	}
	*torn = false;
	return 0;
}

/* The longest report is far below LOG_LINE_MAX. */
static size_t format_report(char *line, uint64_t lines, int why)
{
	char text[128] = "queue full";
	struct buf b = { 0 };
	size_t len = 0;

	if (why != WHY_QUEUE_FULL)
		str_copy(text, sizeof(text), strerrordesc_np(why) ? strerrordesc_np(why) : "?");
	log_line_format(&b, atomic_load(&json_now), wall_us(), LOG_LEVEL_WARN, "log",
		"lines dropped",
		(const struct log_field[]){ F_UINT("count", lines), F_STR("reason", text), F_END });
	if (!b.failed && b.len <= LOG_LINE_MAX) {
		memcpy(line, b.data, b.len);
		len = b.len;
	}
	buf_fini(&b);
	return len;
}

/* Says how many lines were lost. False while that cannot be written either. Called and returns with
 * the lock held; `unlocked` lets go of it for the write. */
static bool report_dropped(int fd, bool *torn, bool unlocked)
{
	char line[1 + LOG_LINE_MAX];
	uint64_t lines = lg.dropped;
	unsigned generation = lg.generation;
	int why = lg.why;
	size_t len;

	if (lines == 0)
		return true;
	if (unlocked)
		pthread_mutex_unlock(&lg.lock);
	len = format_report(line + 1, lines, why);
	why = len > 0 ? put_line(fd, line + 1, len, torn, unlocked) : ENOMEM;
	if (unlocked) {
		pthread_mutex_lock(&lg.lock);
		if (generation != lg.generation)
			return false;
	}
	lg.report_at_us = mono_us() + REPORT_EVERY_US;
	if (why != 0) {
		lg.why = why;
		return false;
	}
	lg.dropped -= lines;
	return true;
}

/* ---- the queue: a byte ring ---- */

static void ring_copy_in(const void *data, size_t len)
{
	size_t at = (lg.head + lg.used) % QUEUE_BYTES, first = QUEUE_BYTES - at;

	if (first > len)
		first = len;
	memcpy(lg.ring + at, data, first);
	memcpy(lg.ring, (const char *)data + first, len - first);
	lg.used += len;
}

static void ring_copy_out(void *data, size_t len)
{
	size_t first = QUEUE_BYTES - lg.head;

	if (first > len)
		first = len;
	memcpy(data, lg.ring + lg.head, first);
	memcpy((char *)data + first, lg.ring, len - first);
	lg.head = (lg.head + len) % QUEUE_BYTES;
	lg.used -= len;
}

static bool queue_line(enum log_level level, const char *line, uint16_t len)
{
	size_t room = QUEUE_BYTES - (level < LOG_LEVEL_WARN ? QUEUE_RESERVE : 0);

	if (lg.used + sizeof(len) + len > room)
		return false;
	ring_copy_in(&len, sizeof(len));
	ring_copy_in(line, len);
	return true;
}

static size_t take_line(char *line)
{
	uint16_t len;

	if (lg.used == 0)
		return 0;
	ring_copy_out(&len, sizeof(len));
	ring_copy_out(line, len);
	return len;
}

static uint64_t queue_discard(void)
{
	uint64_t lines = 0;

	while (lg.used > 0) {
		uint16_t len;

		ring_copy_out(&len, sizeof(len));
		lg.head = (lg.head + len) % QUEUE_BYTES;
		lg.used -= len;
		lines++;
	}
	return lines;
}

/* ---- the writer thread ---- */

/* O_NONBLOCK so that a FIFO without a reader fails rather than hangs; files do not care. */
static int open_path(const char *path)
{
	return open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0640);
}

/* Serves what log_open() or log_reopen() asked for, or the reopen that failed last time. Returns
 * the descriptor this made superfluous, to be closed without the lock, or stderr's. */
static int serve_wish(unsigned generation)
{
	bool asked = lg.wish == WISH_ASKED;
	unsigned number = lg.wish_number;
	const char *want = asked ? lg.wish_path : lg.path;
	char *path = want != NULL ? strdup(want) : NULL;
	bool failed = want != NULL && path == NULL;
	int fd = STDERR_FILENO, old = STDERR_FILENO, why = failed ? ENOMEM : 0;

	if (asked)
		lg.wish = WISH_TAKEN;
	if (path != NULL) {
		pthread_mutex_unlock(&lg.lock);
		fd = open_path(path);
		why = fd < 0 ? errno : 0;
		pthread_mutex_lock(&lg.lock);
	}
	if (generation != lg.generation || (asked && number != lg.wish_number)) {
		free(path);
		return why == 0 ? fd : STDERR_FILENO; /* nobody waits for it any more */
	}
	if (why == 0) {
		old = lg.fd;
		lg.fd = fd;
		free(lg.path);
		lg.path = path;
		lg.reopen_at_us = TIME_NEVER;
	} else {
		if (path != NULL && lg.path != NULL && strcmp(path, lg.path) == 0)
			lg.reopen_at_us = mono_us() + REOPEN_EVERY_US;
		free(path);
	}
	if (asked) {
		lg.wish = WISH_ANSWERED;
		lg.wish_errno = why;
		pthread_cond_broadcast(&lg.done);
	}
	return old;
}

static void close_unlocked(int fd)
{
	if (fd == STDERR_FILENO)
		return;
	pthread_mutex_unlock(&lg.lock);
	close(fd);
	pthread_mutex_lock(&lg.lock);
}

/* The file behind the descriptor is beyond hope, unlike a disk that is merely full. */
static bool wants_reopen(int why)
{
	return lg.path != NULL && lg.reopen_at_us == TIME_NEVER && why != ENOSPC && why != EDQUOT &&
	       why != EFBIG && why != EAGAIN;
}

static void *writer_main(void *arg)
{
	unsigned generation = (unsigned)(uintptr_t)arg;
	char line[1 + LOG_LINE_MAX];
	bool torn = false;
	int fd;

	pthread_mutex_lock(&lg.lock);
	fd = lg.fd;
	while (generation == lg.generation) {
		size_t len;

		if (lg.wish == WISH_ASKED || lg.reopen_at_us <= mono_us()) {
			int old = serve_wish(generation);

			if (generation == lg.generation && fd != lg.fd) {
				fd = lg.fd;
				torn = false;
			}
			close_unlocked(old);
			continue;
		}
		len = take_line(line + 1);
		if (len > 0) {
			int why;

			if (!report_dropped(fd, &torn, true)) {
				if (generation == lg.generation)
					count_dropped(1, lg.why);
				else
					atomic_fetch_add(&dropped_total, 1);
				continue;
			}
			pthread_mutex_unlock(&lg.lock);
			why = put_line(fd, line + 1, len, &torn, true);
			pthread_mutex_lock(&lg.lock);
			if (generation != lg.generation)
				break;
			if (why != 0) {
				count_dropped(1, why);
				if (wants_reopen(why))
					lg.reopen_at_us = mono_us() + REOPEN_EVERY_US;
			}
			continue;
		}
		if (lg.dropped > 0 &&
			(atomic_load(&stop_at_us) != 0 || lg.report_at_us <= mono_us()))
			report_dropped(fd, &torn, true);
		if (generation != lg.generation)
			break;
		if (lg.used > 0 || lg.wish == WISH_ASKED)
			continue;
		if (atomic_load(&stop_at_us) != 0)
			break;
		if (lg.dropped > 0)
			wait_until(&lg.wake, lg.report_at_us);
		else if (lg.reopen_at_us != TIME_NEVER)
			wait_until(&lg.wake, lg.reopen_at_us);
		else
			pthread_cond_wait(&lg.wake, &lg.lock);
	}
	close_unlocked(fd);
	if (generation == lg.generation) {
		lg.gone = true;
		pthread_cond_broadcast(&lg.done);
	}
	pthread_mutex_unlock(&lg.lock);
	return NULL;
}

/* ---- the outside ---- */

static int start_writer(void)
{
	sigset_t all, before;
	int rc;

	lg.ring = malloc(QUEUE_BYTES);
	if (lg.ring == NULL)
		return ENOMEM;
	lg.head = lg.used = 0;
	lg.reopen_at_us = TIME_NEVER;
	lg.gone = false;
	lg.generation++;
	sigfillset(&all); /* signals are the main thread's */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(&lg.thread, NULL, writer_main, (void *)(uintptr_t)lg.generation);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc != 0) {
		free(lg.ring);
		lg.ring = NULL;
		return rc;
	}
	lg.running = true;
	return 0;
}

/* The lock is held. */
static int ask_writer(const char *path)
{
	int64_t until = mono_us() + OPEN_WAIT_US;
	int why;

	lg.wish = WISH_ASKED;
	lg.wish_path = path;
	lg.wish_number++;
	pthread_cond_signal(&lg.wake);
	while (lg.wish != WISH_ANSWERED)
		if (wait_until(&lg.done, until) == ETIMEDOUT)
			break;
	why = lg.wish == WISH_ANSWERED ? lg.wish_errno : ETIMEDOUT;
	lg.wish = WISH_NONE;
	lg.wish_number++; /* a late answer is for nobody */
	return why;
}

static int open_failed(struct err *e, const char *path, int why)
{
	const char *text = strerrordesc_np(why);

	return err_set(e, ERR_CONFIG, why, "log file %s: %s", path != NULL ? path : "stderr",
		text != NULL ? text : "unknown error");
}

int log_open(const char *path, enum log_level level, bool json, struct err *e)
{
	int why = 0;
	bool started = false;

	pthread_once(&once, set_up);
	pthread_mutex_lock(&lg.lock);
	if (!lg.running) {
		why = start_writer();
		started = why == 0;
	}
	if (why == 0)
		why = ask_writer(path);
	pthread_mutex_unlock(&lg.lock);
	if (why != 0) {
		if (started)
			log_close();
		return open_failed(e, path, why);
	}
	atomic_store(&level_now, (int)level);
	atomic_store(&json_now, json);
	return 0;
}

int log_reopen(struct err *e)
{
	char *path = NULL;
	bool wanted;
	int why = 0, rc = 0;

	pthread_mutex_lock(&lg.lock);
	wanted = lg.running && lg.path != NULL;
	if (wanted) {
		path = strdup(lg.path);
		why = path != NULL ? ask_writer(path) : ENOMEM;
	}
	pthread_mutex_unlock(&lg.lock);
	if (why != 0)
		rc = open_failed(e, path, why);
	free(path);
	return rc;
}

void log_close(void)
{
	int64_t until = mono_us() + CLOSE_WAIT_US;
	pthread_t thread;
	bool ended;

	pthread_mutex_lock(&lg.lock);
	if (!lg.running) {
		pthread_mutex_unlock(&lg.lock);
		return;
	}
	atomic_store(&stop_at_us, until - GIVE_UP_US);
	pthread_cond_signal(&lg.wake);
	while (!lg.gone)
		if (wait_until(&lg.done, until) == ETIMEDOUT)
			break;
	ended = lg.gone;
	thread = lg.thread;
	lg.running = false;
	lg.generation++;
	count_dropped(queue_discard(), lg.dropped > 0 ? lg.why : WHY_QUEUE_FULL);
	lg.fd = STDERR_FILENO; /* the writer closes its own, a stuck one when it comes back */
	lg.torn = false;
	free(lg.path);
	lg.path = NULL;
	free(lg.ring);
	lg.ring = NULL;
	atomic_store(&stop_at_us, 0);
	pthread_mutex_unlock(&lg.lock);
	if (ended)
		pthread_join(thread, NULL);
	else
		pthread_detach(thread);
}

uint64_t log_lines_dropped(void)
{
	return atomic_load(&dropped_total);
}

bool log_enabled(enum log_level level)
{
	return (int)level >= atomic_load_explicit(&level_now, memory_order_relaxed);
}

/* Without a writer: at start, at the end, in a forked child. The lock is held. */
static void write_directly(struct buf *b)
{
	char line[1 + LOG_LINE_MAX];
	int why;

	if (!report_dropped(lg.fd, &lg.torn, false)) {
		count_dropped(1, lg.why);
		return;
	}
	memcpy(line + 1, b->data, b->len);
	why = put_line(lg.fd, line + 1, b->len, &lg.torn, false);
	if (why != 0)
		count_dropped(1, why);
}

void log_write(enum log_level level, const char *module, const char *message,
	const struct log_field *fields)
{
	struct buf b = { 0 };
	int saved = errno;

	if (!log_enabled(level))
		return;
	log_line_format(&b, atomic_load(&json_now), wall_us(), level, module, message, fields);
	pthread_mutex_lock(&lg.lock);
	if (b.failed || b.len > LOG_LINE_MAX) {
		count_dropped(1, ENOMEM);
	} else if (!lg.running) {
		write_directly(&b);
	} else if (queue_line(level, b.data, (uint16_t)b.len)) {
		pthread_cond_signal(&lg.wake);
	} else {
		count_dropped(1, WHY_QUEUE_FULL);
	}
	pthread_mutex_unlock(&lg.lock);
	buf_fini(&b);
	errno = saved;
}

bool log_limit_pass(struct log_limit *l, int64_t now_us, int64_t interval_us, uint64_t *suppressed)
{
	if (l->next_us != 0 && now_us < l->next_us) {
		l->suppressed++;
		return false;
	}
	*suppressed = l->suppressed;
	l->suppressed = 0;
	l->next_us = now_us + interval_us;
	return true;
}

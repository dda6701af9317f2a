#include "config/config.h"

#include "base/str.h"
#include "config/decode.h"
#include "config/file.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#define FILE_MAX_SIZE ((size_t)1 << 20)

static bool read_whole(const char *path, struct buf *text, struct faults *f)
{
	enum file_problem p = file_read(path, FILE_MAX_SIZE, FILE_ALLOW_PIPE, text, NULL);
	int code = errno;

	switch (p) {
	case FILE_OK:
		return true;
	case FILE_CANNOT_OPEN:
	case FILE_CANNOT_READ:
		fault_file(f, "cannot be read (%s): check the path and its permissions",
			strerror(code));
		break;
	case FILE_IS_DIRECTORY:
		fault_file(f, "is a directory: name the file in it");
		break;
	case FILE_IS_SPECIAL:
		fault_file(f, "is neither a regular file nor a pipe: name a file");
		break;
	case FILE_TOO_LARGE:
		fault_file(f, "is larger than 1 MiB: split it, no configuration needs that");
		break;
	case FILE_STALLED:
		fault_file(f, "is a pipe that nobody finishes writing: close it, or name a file");
		break;
	case FILE_NO_MEMORY:
		f->failed = true;
		break;
	}
	return false;
}

/* What no text file holds, found before the parser sees it: its own words for these are poor. */
static bool check_bytes(struct slice *text, struct faults *f)
{
	unsigned line = 1, column = 1;

	if (text->len >= 2 &&
		(memcmp(text->ptr, "\xFF\xFE", 2) == 0 || memcmp(text->ptr, "\xFE\xFF", 2) == 0)) {
		fault_file(f, "is UTF-16: save it as UTF-8");
		return false;
	}
	if (memchr(text->ptr, '\0', text->len) != NULL) {
		fault_file(f, "is a binary file, it holds NUL bytes: name a YAML file");
		return false;
	}
	if (text->len >= 3 && memcmp(text->ptr, "\xEF\xBB\xBF", 3) == 0) {
		text->ptr += 3;
		text->len -= 3;
	}
	for (size_t i = 0; i < text->len; column++) {
		unsigned char c = (unsigned char)text->ptr[i];
		size_t n = utf8_sequence(text->ptr + i, text->len - i);

		if (n == 0) {
			fault_at(f, line, column, "not UTF-8 (byte 0x%02X): save the file as UTF-8",
				c);
			return false;
		}
		if ((c < 0x20 && c != '\t' && c != '\n' && c != '\r') || c == 0x7F) {
			fault_at(f, line, column, "a control character (0x%02X): remove it", c);
			return false;
		}
		i += n;
		if (c == '\n') {
			line++;
			column = 0;
		}
	}
	return true;
}

static bool is_empty(const struct tree *t)
{
	return t->root == NULL || node_empty(t->root);
}

/* The host's name, made a name we accept. */
static char *default_instance(void)
{
	char host[65];
	size_t n;

	if (gethostname(host, sizeof(host)) < 0)
		host[0] = '\0';
	host[sizeof(host) - 1] = '\0';
	n = strlen(host);
	for (size_t i = 0; i < n; i++)
		if (strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-",
			    host[i]) == NULL)
			host[i] = '-';
	return conf_dup(slice_str(n > 0 ? host : "outboxd"));
}

static void decode(struct tree *t, struct faults *f, struct config *c)
{
	struct decode d = { .faults = f, .tree = t };

	if (is_empty(t)) {
		if (!t->cut)
			fault_file(f, "is empty: write at least brokers and sources");
		return;
	}
	if (t->root->type != NODE_MAP) {
		if (!t->cut)
			fault_at(f, t->root->line, t->root->column,
				"the file is %s: write a mapping, with brokers and sources",
				node_type_name(t->root));
		return;
	}
	decode_map(&d, &conf_top, (struct scope){ t->root, NULL }, t->root, c);
	check_rules(&d, c);
	if (c->instance == NULL)
		c->instance = default_instance();
	f->failed = f->failed || d.nomem || c->instance == NULL;
}

static void load(struct config *c, struct faults *f)
{
	struct buf raw = { 0 };
	struct slice text;
	struct tree tree = { 0 };

	if (read_whole(c->path, &raw, f)) {
		text = buf_slice(&raw);
		if (check_bytes(&text, f)) {
			tree_read(&tree, text, f);
			decode(&tree, f, c);
		}
	}
	tree_fini(&tree);
	file_wipe(&raw);
}

int config_load(struct config **out, const char *path, struct buf *faults)
{
	struct config *c = calloc(1, sizeof(*c));
	struct faults f;
	int rc = -1;

	faults_init(&f, path);
	if (c != NULL)
		c->path = conf_dup(slice_str(path));
	if (c == NULL || c->path == NULL)
		f.failed = true;
	else
		load(c, &f);
	if (faults_any(&f)) {
		faults_print(&f, faults);
	} else {
		*out = c;
		c = NULL;
		rc = 0;
	}
	faults_fini(&f);
	config_free(c);
	return rc;
}

void config_free(struct config *c)
{
	if (c == NULL)
		return;
	conf_free_fields(&conf_top, c);
	free(c->path);
	free(c);
}

const struct source_conf *config_source(const struct config *c, const char *name)
{
	for (size_t i = 0; i < c->source_count; i++)
		if (c->sources[i].name != NULL && strcmp(c->sources[i].name, name) == 0)
			return &c->sources[i];
	return NULL;
}

const struct inbox_conf *config_inbox(const struct config *c, const char *name)
{
	for (size_t i = 0; i < c->inbox_count; i++)
		if (c->inboxes[i].name != NULL && strcmp(c->inboxes[i].name, name) == 0)
			return &c->inboxes[i];
	return NULL;
}

bool config_window_open(const struct window_conf *w, int64_t wall_us)
{
	unsigned minute = (unsigned)(wall_us / US_PER_SEC / 60 % (24 * 60));

	if (!w->limited)
		return true;
	return w->from < w->to ? minute >= w->from && minute < w->to
			       : minute >= w->from || minute < w->to;
}

const struct broker_conf *config_broker(const struct config *c, const char *name)
{
	for (size_t i = 0; i < c->broker_count; i++)
		if (c->brokers[i].name != NULL && strcmp(c->brokers[i].name, name) == 0)
			return &c->brokers[i];
	return NULL;
}

int64_t redelivery_sum(const struct redelivery_conf *r, struct buf *text)
{
	const int64_t total_us = r->message_ttl_us + r->max_retry_wait_us + r->manual_window_us;
	char ttl[STR_DURATION_MAX], wait[STR_DURATION_MAX], window[STR_DURATION_MAX],
		sum[STR_DURATION_MAX];

	str_duration(r->message_ttl_us, ttl);
	str_duration(r->max_retry_wait_us, wait);
	str_duration(r->manual_window_us, window);
	str_duration(total_us, sum);
	buf_addf(text, "message_ttl %s + max_retry_wait %s + manual_window %s = %s", ttl, wait,
		window, sum);
	return total_us;
}

int source_make_route(struct route **out, const struct source_conf *source, size_t max_header_bytes,
	const char *marker, struct err *e)
{
	const struct publish_conf *p = &source->publish;
	const struct route_conf conf = {
		.source = source->name,
		.exchange = p->exchange,
		.routing_key = p->routing_key,
		.headers = p->headers,
		.header_count = p->header_count,
		.body = p->body,
		.mandatory = p->mandatory,
		.persistent = p->persistent,
		.max_message_size =
			source->broker != NULL ? source->broker->max_message_size : UINT64_MAX,
		.max_header_bytes = max_header_bytes,
		.marker = marker,
	};

	return route_new(out, &conf, e);
}

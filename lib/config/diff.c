#include "config/diff.h"

#include "base/str.h"
#include "config/keys.h"

#include <inttypes.h>
#include <string.h>

static const char *text_or_none(const char *s)
{
	return s != NULL ? s : "(none)";
}

static void show_hosts(struct buf *out, const struct endpoint *hosts, size_t count)
{
	for (size_t i = 0; i < count; i++)
		buf_addf(out, "%s%s:%u", i > 0 ? " " : "", hosts[i].host, hosts[i].port);
}

static void show_headers(struct buf *out, const struct route_header *h, size_t count)
{
	for (size_t i = 0; i < count; i++)
		buf_addf(out, "%s%s=%s", i > 0 ? " " : "", h[i].name, h[i].template);
}

static void show_window(struct buf *out, const struct window_conf *w)
{
	if (!w->limited)
		buf_adds(out, text_or_none(NULL));
	else
		buf_addf(out, "%02u:%02u-%02u:%02u", w->from / 60, w->from % 60, w->to / 60,
			w->to % 60);
}

/* The value of a key as text. A literal secret is shown in full: for comparison only. */
static void show(struct buf *out, const struct conf_key *k, const void *base)
{
	const void *at = (const char *)base + k->offset;
	const void *count = (const char *)base + k->count_offset;
	char text[STR_DURATION_MAX];

	switch (k->type) {
	case CONF_STRING:
	case CONF_NAME:
	case CONF_IDENT:
	case CONF_PATH:
	case CONF_TEMPLATE:
		buf_adds(out, text_or_none(*(char *const *)at));
		break;
	case CONF_UINT:
		buf_addf(out, "%u", *(const unsigned *)at);
		break;
	case CONF_MODE:
		buf_addf(out, "%04o", *(const unsigned *)at);
		break;
	case CONF_PORT:
		buf_addf(out, "%u", *(const uint16_t *)at);
		break;
	case CONF_SIZE:
		buf_addf(out, "%" PRIu64 "B", *(const uint64_t *)at);
		break;
	case CONF_DURATION:
	case CONF_SECONDS:
		str_duration(*(const int64_t *)at, text);
		buf_adds(out, text);
		break;
	case CONF_AGE:
		if (*(const int64_t *)at == AGE_NEVER) {
			buf_adds(out, "never");
			break;
		}
		str_duration(*(const int64_t *)at, text);
		buf_adds(out, text);
		break;
	case CONF_WINDOW:
		show_window(out, at);
		break;
	case CONF_SHARE:
		buf_addf(out, "%g", *(const double *)at);
		break;
	case CONF_BOOL:
		buf_adds(out, *(const bool *)at ? "true" : "false");
		break;
	case CONF_WORD:
		buf_adds(out, k->words[*(const int *)at]);
		break;
	case CONF_EITHER:
		buf_adds(out, k->words[*(const bool *)at]);
		break;
	case CONF_LISTEN:
		buf_addf(out, "%s:%u", text_or_none(((const struct http_conf *)at)->host),
			((const struct http_conf *)at)->port);
		break;
	case CONF_HOST:
	case CONF_HOSTS:
		show_hosts(out, *(struct endpoint *const *)at, *(const size_t *)count);
		break;
	case CONF_HEADERS:
		show_headers(out, *(struct route_header *const *)at, *(const size_t *)count);
		break;
	case CONF_SECRET:
		buf_addf(out, "%d %s", ((const struct secret_conf *)at)->kind,
			text_or_none(((const struct secret_conf *)at)->value));
		break;
	case CONF_URI: /* taken apart into hosts, vhost, ... */
	case CONF_MAP:
	case CONF_LIST:
	case CONF_DEFAULTS:
		break;
	}
}

struct diff {
	void (*change)(void *arg, const char *line);
	void *arg;
	unsigned count;
	const char *but; /* a key of the outermost table that does not count; NULL: all do */
};

static void report(
	struct diff *d, const char *what, const char *key, const char *before, const char *after)
{
	struct buf line = { 0 };

	d->count++;
	if (d->change == NULL)
		return;
	buf_adds(&line, what);
	if (key != NULL && key[0] != '\0')
		buf_addf(&line, "%s: %s -> %s", key, before, after);
	if (!line.failed)
		d->change(d->arg, line.data);
	buf_fini(&line);
}

static void compare(struct diff *d, const struct conf_table *t, const char *prefix, const void *a,
	const void *b)
{
	for (const struct conf_key *k = t->keys; k->name != NULL; k++) {
		struct buf before = { 0 }, after = { 0 }, key = { 0 };

		if (d->but != NULL && strcmp(d->but, k->name) == 0)
			continue;
		buf_addf(&key, "%s%s", prefix, k->name);
		if (k->type == CONF_MAP) {
			buf_addc(&key, '.');
			compare(d, k->table, key.data, (const char *)a + k->offset,
				(const char *)b + k->offset);
		} else {
			show(&before, k, a);
			show(&after, k, b);
			if (!slice_eq(buf_slice(&before), buf_slice(&after)))
				report(d, "", key.data,
					k->type == CONF_SECRET ? "(secret)"
							       : buf_slice(&before).ptr,
					k->type == CONF_SECRET ? "(changed)"
							       : buf_slice(&after).ptr);
		}
		if (before.data != NULL)
			explicit_bzero(before.data, before.cap);
		if (after.data != NULL)
			explicit_bzero(after.data, after.cap);
		buf_fini(&before);
		buf_fini(&after);
		buf_fini(&key);
	}
}

bool config_source_equal(const struct source_conf *a, const struct source_conf *b)
{
	struct diff d = { .but = "retention" };

	compare(&d, &conf_source, "", a, b);
	compare(&d, &conf_broker, "", a->broker, b->broker);
	return d.count == 0 && (a->retention.sent_us == 0) == (b->retention.sent_us == 0);
}

bool config_retention_equal(const struct retention_conf *a, const struct retention_conf *b)
{
	struct diff d = { 0 };

	compare(&d, conf_find(&conf_source, SLICE_LIT("retention"))->table, "", a, b);
	return d.count == 0;
}

bool config_inbox_equal(const struct inbox_conf *a, const struct inbox_conf *b)
{
	struct diff d = { 0 };

	compare(&d, &conf_inbox, "", a, b);
	return d.count == 0;
}

static void whole(struct diff *d, const char *kind, const char *name, const char *what)
{
	char line[160];

	snprintf(line, sizeof(line), "%s %s: %s", kind, name, what);
	report(d, line, NULL, NULL, NULL);
}

unsigned config_diff(const struct config *before, const struct config *after,
	void (*change)(void *arg, const char *line), void *arg)
{
	struct diff d = { .change = change, .arg = arg };
	char prefix[100];

	compare(&d, &conf_top, "", before, after);
	for (size_t i = 0; i < before->broker_count; i++) {
		const struct broker_conf *old = &before->brokers[i],
					 *now = config_broker(after, old->name);

		snprintf(prefix, sizeof(prefix), "broker %s: ", old->name);
		if (now == NULL)
			whole(&d, "broker", old->name, "removed");
		else
			compare(&d, &conf_broker, prefix, old, now);
	}
	for (size_t i = 0; i < after->broker_count; i++)
		if (config_broker(before, after->brokers[i].name) == NULL)
			whole(&d, "broker", after->brokers[i].name, "added");
	for (size_t i = 0; i < before->source_count; i++) {
		const struct source_conf *old = &before->sources[i],
					 *now = config_source(after, old->name);

		snprintf(prefix, sizeof(prefix), "source %s: ", old->name);
		if (now == NULL)
			whole(&d, "source", old->name, "removed");
		else
			compare(&d, &conf_source, prefix, old, now);
	}
	for (size_t i = 0; i < after->source_count; i++)
		if (config_source(before, after->sources[i].name) == NULL)
			whole(&d, "source", after->sources[i].name, "added");
	for (size_t i = 0; i < before->inbox_count; i++) {
		const struct inbox_conf *old = &before->inboxes[i],
					*now = config_inbox(after, old->name);

		snprintf(prefix, sizeof(prefix), "inbox %s: ", old->name);
		if (now == NULL)
			whole(&d, "inbox", old->name, "removed");
		else
			compare(&d, &conf_inbox, prefix, old, now);
	}
	for (size_t i = 0; i < after->inbox_count; i++)
		if (config_inbox(before, after->inboxes[i].name) == NULL)
			whole(&d, "inbox", after->inboxes[i].name, "added");
	return d.count;
}

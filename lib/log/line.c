#include "log/line.h"

#include "base/str.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define VALUE_MAX 2048 /* of a value as written, escapes included */
#define CUT_MAX 40     /* "...(+18446744073709551615 bytes)" and a quote */
#define TAIL_MAX sizeof("\"truncated\":true,}\n") /* what must still fit at the end */

static const char *const level_names[] = {
	[LOG_LEVEL_DEBUG] = "debug",
	[LOG_LEVEL_INFO] = "info",
	[LOG_LEVEL_WARN] = "warn",
	[LOG_LEVEL_ERROR] = "error",
};

const char *log_level_name(enum log_level level)
{
	return (size_t)level < ARRAY_LEN(level_names) ? level_names[level] : "unknown";
}

bool log_level_parse(const char *name, enum log_level *out)
{
	for (size_t i = 0; i < ARRAY_LEN(level_names); i++) {
		if (strcmp(name, level_names[i]) == 0) {
			*out = (enum log_level)i;
			return true;
		}
	}
	return false;
}

/* Length of the character at s.ptr[i] that may stand as it is; 0: it must be escaped. The controls
 * U+0080 to U+009F move cursors on some terminals, as ESC does. */
static size_t plain(struct slice s, size_t i)
{
	unsigned char c = (unsigned char)s.ptr[i];
	size_t n;

	if (c < 0x20 || c == 0x7F)
		return 0;
	n = utf8_sequence(s.ptr + i, s.len - i);
	if (n == 2 && c == 0xC2 && (unsigned char)s.ptr[i + 1] < 0xA0)
		return 0;
	return n;
}

static size_t escape_one(char out[8], struct slice s, size_t i, bool quoted)
{
	unsigned char c = (unsigned char)s.ptr[i];

	if (c == '\n' || c == '\t' || c == '\r') {
		snprintf(out, 8, "\\%c", c == '\n' ? 'n' : c == '\t' ? 't' : 'r');
		return 1;
	}
	if (quoted && (c == '"' || c == '\\')) {
		snprintf(out, 8, "\\%c", c);
		return 1;
	}
	out[0] = '\0';
	if (plain(s, i) == 0) {
		snprintf(out, 8, "\\x%02x", c);
		return 1;
	}
	return 0;
}

/* Adds s with its escapes, at most max bytes of it, and says what was cut. */
static void add_text(struct buf *b, struct slice s, bool json, bool quoted, size_t max)
{
	size_t start = b->len, i = 0;

	while (i < s.len && !b->failed) {
		size_t before = b->len, n;
		char esc[8];

		if (json) {
			n = utf8_sequence(s.ptr + i, s.len - i);
			n = n > 0 ? n : 1;
			buf_add_json(b, (struct slice){ s.ptr + i, n });
		} else if (escape_one(esc, s, i, quoted) > 0) {
			n = 1;
			buf_adds(b, esc);
		} else {
			n = plain(s, i);
			buf_add(b, s.ptr + i, n);
		}
		if (b->len - start > max) {
			b->len = before;
			buf_addf(b, "...(+%zu bytes)", s.len - i);
			return;
		}
		i += n;
	}
}

static bool needs_quotes(struct slice s)
{
	if (s.len == 0)
		return true;
	for (size_t i = 0; i < s.len;) {
		size_t n = plain(s, i);

		if (n == 0 || strchr(" \"=\\", s.ptr[i]) != NULL)
			return true;
		i += n;
	}
	return false;
}

static void add_string(struct buf *b, struct slice s, bool json, size_t max)
{
	bool quoted = json || s.len > max || needs_quotes(s);

	if (quoted)
		buf_addc(b, '"');
	add_text(b, s, json, true, max);
	if (quoted)
		buf_addc(b, '"');
}

static void add_real(struct buf *b, double v, bool json)
{
	char text[40];

	if (isnan(v) || isinf(v)) {
		buf_adds(b, json ? "null" : isnan(v) ? "NaN" : v > 0 ? "+Inf" : "-Inf");
		return;
	}
	for (int digits = 15; digits <= 17; digits++) {
		snprintf(text, sizeof(text), "%.*g", digits, v);
		if (strtod(text, NULL) == v)
			break;
	}
	buf_adds(b, text);
}

/* Seconds: 1.250, and 0.000312 where milliseconds would hide it. */
static void add_duration(struct buf *b, int64_t us, bool json)
{
	uint64_t abs = us < 0 ? -(uint64_t)us : (uint64_t)us;
	uint64_t sec = abs / (uint64_t)US_PER_SEC, rest = abs % (uint64_t)US_PER_SEC;

	if (us == TIME_NEVER) {
		buf_adds(b, json ? "null" : "never");
		return;
	}
	if (us < 0)
		buf_addc(b, '-');
	if (rest % 1000 == 0)
		buf_addf(b, "%" PRIu64 ".%03" PRIu64, sec, rest / 1000);
	else
		buf_addf(b, "%" PRIu64 ".%06" PRIu64, sec, rest);
}

static void add_value(struct buf *b, const struct log_field *f, bool json, size_t max)
{
	switch (f->type) {
	case LOG_F_STR:
		add_string(b, f->str, json, max);
		break;
	case LOG_F_INT:
		buf_addf(b, "%" PRId64, f->i);
		break;
	case LOG_F_UINT:
		buf_addf(b, "%" PRIu64, f->u);
		break;
	case LOG_F_REAL:
		add_real(b, f->real, json);
		break;
	case LOG_F_BOOL:
		buf_adds(b, f->b ? "true" : "false");
		break;
	case LOG_F_DURATION:
		add_duration(b, f->i, json);
		break;
	}
}

static void add_key(struct buf *b, const char *key, bool json)
{
	if (json)
		buf_addf(b, ",\"%s\":", key);
	else
		buf_addf(b, " %s=", key);
}

static void add_time(struct buf *b, int64_t us)
{
	time_t sec = (time_t)(us / US_PER_SEC);
	struct tm tm;

	if (gmtime_r(&sec, &tm) == NULL)
		memset(&tm, 0, sizeof(tm));
	buf_addf(b, "%04d-%02d-%02dT%02d:%02d:%02d.%06dZ", tm.tm_year + 1900, tm.tm_mon + 1,
		tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec, (int)(us % US_PER_SEC));
}

static void add_head(struct buf *b, bool json, int64_t wall_us, enum log_level level,
	const char *module, const char *message)
{
	if (json)
		buf_adds(b, "{\"time\":\"");
	add_time(b, wall_us);
	buf_addf(b, json ? "\",\"level\":\"%s\",\"module\":\"" : " %s ", log_level_name(level));
	add_text(b, slice_str(module), json, false, VALUE_MAX / 8);
	buf_adds(b, json ? "\",\"msg\":\"" : ": ");
	add_text(b, slice_str(message), json, false, VALUE_MAX);
	if (json)
		buf_addc(b, '"');
}

void log_line_format(struct buf *b, bool json, int64_t wall_us, enum log_level level,
	const char *module, const char *message, const struct log_field *fields)
{
	buf_reserve(b, 400); /* most lines: one allocation */
	add_head(b, json, wall_us, level, module, message);
	for (const struct log_field *f = fields; f->key != NULL && !b->failed; f++) {
		size_t need = strlen(f->key) + 5 + CUT_MAX + TAIL_MAX, max;

		if (f->type == LOG_F_STR && f->str.ptr == NULL)
			continue;
		if (b->len + need + CUT_MAX > LOG_LINE_MAX) {
			add_key(b, "truncated", json);
			buf_adds(b, "true");
			break;
		}
		max = LOG_LINE_MAX - b->len - need;
		add_key(b, f->key, json);
		add_value(b, f, json, max < VALUE_MAX ? max : VALUE_MAX);
	}
	buf_adds(b, json ? "}\n" : "\n");
}

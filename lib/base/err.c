#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* A cut in the middle of a UTF-8 sequence would make the text unfit for JSON and for the database.
 */
static void trim_partial_utf8(char *text, size_t len)
{
	size_t i = len;

	while (i > 0 && len - i < 4 && ((unsigned char)text[i - 1] & 0xC0) == 0x80)
		i--;
	if (i > 0 && ((unsigned char)text[i - 1] & 0xC0) == 0xC0)
		text[i - 1] = '\0';
}

PRINTF(3, 0)
static void put(char *dst, size_t size, const char *fmt, va_list ap)
{
	int n = vsnprintf(dst, size, fmt, ap);

	if (n < 0)
		dst[0] = '\0';
	else if ((size_t)n >= size)
		trim_partial_utf8(dst, size - 1);
}

int err_set(struct err *e, enum err_kind kind, long code, const char *fmt, ...)
{
	va_list ap;

	if (e == NULL)
		return -1;
	e->kind = kind;
	e->code = code;
	va_start(ap, fmt);
	put(e->text, sizeof(e->text), fmt, ap);
	va_end(ap);
	return -1;
}

int err_wrap(struct err *e, const char *fmt, ...)
{
	struct err outer = { .kind = ERR_NONE };
	va_list ap;
	size_t used;

	if (e == NULL)
		return -1;
	va_start(ap, fmt);
	put(outer.text, sizeof(outer.text), fmt, ap);
	va_end(ap);
	used = strlen(outer.text);
	if (used + 2 < sizeof(outer.text)) {
		int n = snprintf(outer.text + used, sizeof(outer.text) - used, ": %s", e->text);

		if (n > 0 && (size_t)n >= sizeof(outer.text) - used)
			trim_partial_utf8(outer.text, sizeof(outer.text) - 1);
	}
	memcpy(e->text, outer.text, sizeof(e->text));
	return -1;
}

const char *err_kind_name(enum err_kind kind)
{
	static const char *const names[] = {
		[ERR_NONE] = "none",
		[ERR_CONFIG] = "config",
		[ERR_RETRY] = "retry",
		[ERR_REFUSED] = "refused",
		[ERR_LINK] = "link",
		[ERR_NOMEM] = "memory",
		[ERR_AGAIN] = "again",
	};

	return (size_t)kind < ARRAY_LEN(names) ? names[kind] : "unknown";
}

#include "base/buf.h"

#include "base/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void buf_fini(struct buf *b)
{
	free(b->data);
	*b = (struct buf){ 0 };
}

void buf_reset(struct buf *b)
{
	b->len = 0;
	b->failed = false;
	if (b->data != NULL)
		b->data[0] = '\0';
}

void buf_shrink(struct buf *b, size_t keep)
{
	if (b->len == 0 && b->cap > keep)
		buf_fini(b);
}

int buf_reserve(struct buf *b, size_t more)
{
	size_t need, cap;
	char *data;

	if (b->failed || more > SIZE_MAX / 2 - b->len - 1) {
		b->failed = true;
		return -1;
	}
	need = b->len + more + 1;
	if (need <= b->cap)
		return 0;
	cap = b->cap > 0 ? b->cap : 64;
	while (cap < need)
		cap *= 2;
	data = realloc(b->data, cap);
	if (data == NULL) {
		b->failed = true;
		return -1;
	}
	b->data = data;
	b->cap = cap;
	return 0;
}

int buf_add(struct buf *b, const void *data, size_t len)
{
	if (buf_reserve(b, len) < 0)
		return -1;
	if (len > 0)
		memcpy(b->data + b->len, data, len);
	b->len += len;
	b->data[b->len] = '\0';
	return 0;
}

int buf_add_slice(struct buf *b, struct slice s)
{
	return buf_add(b, s.ptr, s.len);
}

int buf_addc(struct buf *b, char c)
{
	return buf_add(b, &c, 1);
}

int buf_adds(struct buf *b, const char *s)
{
	return buf_add(b, s, strlen(s));
}

int buf_addu(struct buf *b, uint64_t v)
{
	char digits[20];
	size_t at = sizeof(digits);

	do {
		digits[--at] = (char)('0' + v % 10);
		v /= 10;
	} while (v > 0);
	return buf_add(b, digits + at, sizeof(digits) - at);
}

int buf_addvf(struct buf *b, const char *fmt, va_list ap)
{
	va_list again;
	int n;

	va_copy(again, ap);
	n = vsnprintf(NULL, 0, fmt, again);
	va_end(again);
	if (n < 0 || buf_reserve(b, (size_t)n) < 0) {
		b->failed = true;
		return -1;
	}
	vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap);
	b->len += (size_t)n;
	return 0;
}

int buf_addf(struct buf *b, const char *fmt, ...)
{
	va_list ap;
	int rc;

	va_start(ap, fmt);
	rc = buf_addvf(b, fmt, ap);
	va_end(ap);
	return rc;
}

int buf_add_json(struct buf *b, struct slice s)
{
	size_t i = 0;

	while (i < s.len) {
		unsigned char c = (unsigned char)s.ptr[i];

		if (c == '"' || c == '\\') {
			buf_addc(b, '\\');
			buf_addc(b, (char)c);
			i++;
		} else if (c < 0x20 || c == 0x7F) {
			buf_addf(b, "\\u%04x", c);
			i++;
		} else if (c < 0x80) {
			buf_addc(b, (char)c);
			i++;
		} else {
			size_t n = utf8_sequence(s.ptr + i, s.len - i);

			if (n == 0) {
				buf_adds(b, "\xEF\xBF\xBD");
				i++;
			} else {
				buf_add(b, s.ptr + i, n);
				i += n;
			}
		}
	}
	return b->failed ? -1 : 0;
}

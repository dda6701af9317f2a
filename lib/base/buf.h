/* buf.h: a growable run of bytes. Zero-initialised is empty and valid. Kept as large as it once
 * grew, so that a buffer used again and again stops allocating; buf_shrink() gives memory back
 * after an outlier. */
#ifndef OUTBOXD_BUF_H
#define OUTBOXD_BUF_H

#include "base/base.h"
#include "base/slice.h"

#include <stdarg.h>
#include <stdbool.h>

struct buf {
	char *data; /* len bytes, then one NUL that is not counted once anything was added */
	size_t len;
	size_t cap;
	bool failed; /* an allocation failed: contents are incomplete; sticky until buf_reset() */
};

void buf_fini(struct buf *b);
/* Empty again, memory kept. */
void buf_reset(struct buf *b);
/* Frees the memory of an empty buffer that grew beyond `keep` bytes. */
void buf_shrink(struct buf *b, size_t keep);

/* All adders return 0, or -1 when memory ran out; b->failed then says so too, so that a sequence of
 * adds may be checked once at its end. */
int buf_reserve(struct buf *b, size_t more);
int buf_add(struct buf *b, const void *data, size_t len);
int buf_add_slice(struct buf *b, struct slice s);
int buf_addc(struct buf *b, char c);
int buf_adds(struct buf *b, const char *s);
/* Decimal; many times faster than a format, for what is written per row. */
int buf_addu(struct buf *b, uint64_t v);
int buf_addf(struct buf *b, const char *fmt, ...) PRINTF(2, 3);
int buf_addvf(struct buf *b, const char *fmt, va_list ap) PRINTF(2, 0);

/* Adds `s` as the inside of a JSON string: quotes, backslashes and control characters escaped,
 * bytes that are not UTF-8 replaced by U+FFFD. The quotes around it are the caller's. */
int buf_add_json(struct buf *b, struct slice s);

static inline struct slice buf_slice(const struct buf *b)
{
	return (struct slice){ b->data != NULL ? b->data : "", b->len };
}

#endif

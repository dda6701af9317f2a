/* slice.h: a run of bytes that somebody else owns. Not NUL-terminated; may contain NUL.
 * ptr == NULL is SQL NULL or "absent"; an empty value has ptr != NULL and len == 0. */
#ifndef OUTBOXD_SLICE_H
#define OUTBOXD_SLICE_H

#include "base/base.h"

#include <stdbool.h>
#include <string.h>

struct slice {
	const char *ptr;
	size_t len;
};

#define SLICE_LIT(s) ((struct slice){ "" s, sizeof(s) - 1 })

static inline struct slice slice_str(const char *s)
{
	return (struct slice){ s, s != NULL ? strlen(s) : 0 };
}

/* Equality is by bytes; absent equals absent only. */
static inline bool slice_starts(struct slice s, const char *head)
{
	size_t n = strlen(head);

	return s.ptr != NULL && s.len >= n && memcmp(s.ptr, head, n) == 0;
}

static inline bool slice_eq(struct slice a, struct slice b)
{
	if (a.ptr == NULL || b.ptr == NULL)
		return a.ptr == b.ptr;
	return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0);
}

#endif

/* json.h: reads JSON text to the letter of RFC 8259, a token at a time, without a tree and without
 * memory of its own.
 *
 * Why not json-c here: its strict mode (0.16) lets NaN, Infinity, "1." and raw control characters
 * pass, cuts member names at \u0000 and turns integers beyond 64 bits into 18446744073709551615. A
 * body embedded on its word could be one that no consumer reads. */
#ifndef OUTBOXD_JSON_H
#define OUTBOXD_JSON_H

#include "base/slice.h"

#define JSON_DEPTH_MAX 1024

enum json_token {
	JSON_ERROR, /* error and error_byte say what and where; sticky */
	JSON_END,   /* one whole value was read and nothing but blanks follows */
	JSON_NULL,
	JSON_TRUE,
	JSON_FALSE,
	JSON_INTEGER,  /* text: the digits with their sign, of any length */
	JSON_FRACTION, /* text: a number with a fraction or an exponent */
	JSON_STRING,   /* text: what stands between the quotes; see json_unescape() */
	JSON_NAME,     /* likewise; the member's value is the next token */
	JSON_OBJECT,
	JSON_OBJECT_END,
	JSON_ARRAY,
	JSON_ARRAY_END,
};

struct json_reader {
	struct slice text; /* of the last token, borrowed from the document */
	bool escaped;      /* the last name or string has escapes: text is not yet its value */
	const char *error;
	size_t error_byte; /* 1 is the document's first byte */
	bool too_deep;     /* the error is that depth_max does not suffice */
	unsigned depth;    /* open objects and arrays */
	/* private */
	const char *start, *p, *end;
	unsigned depth_max;
	int expect;
	uint64_t objects[JSON_DEPTH_MAX / 64]; /* bit n: level n is an object */
};

/* `document` is borrowed until the last json_next(). More than `depth_max` levels (at most
 * JSON_DEPTH_MAX) of objects and arrays are an error. */
void json_begin(struct json_reader *r, struct slice document, unsigned depth_max);
enum json_token json_next(struct json_reader *r);

/* Writes the value of an escaped name or string, as the reader handed it out, to `out`, which has
 * room for text.len bytes, and its length to *len. NUL bytes (\u0000) are kept. False: a \u escape
 * is half of a surrogate pair, which no UTF-8 can stand for. */
bool json_unescape(struct slice text, char *out, size_t *len);

#endif

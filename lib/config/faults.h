/* faults.h: what is wrong with a file, gathered while it is read and printed in its order. Texts
 * read "WHAT: WHAT TO DO". A caller never passes a secret, nor the value of a key that may hold
 * one. */
#ifndef OUTBOXD_CONFIG_FAULTS_H
#define OUTBOXD_CONFIG_FAULTS_H

#include "base/buf.h"

/* More than this many help nobody; the rest is counted. */
#define FAULTS_MAX 1000

struct fault {
	unsigned line, column; /* from 1; line 0: the whole file */
	size_t order;          /* of finding it, among those at one place */
	char *text;
};

struct faults {
	const char *path; /* borrowed */
	struct fault *items;
	size_t count, cap;
	size_t left_out;
	bool failed; /* memory ran out: some may be lost, though never all knowledge of them */
};

void faults_init(struct faults *f, const char *path);
void faults_fini(struct faults *f);

void fault_at(struct faults *f, unsigned line, unsigned column, const char *fmt, ...) PRINTF(4, 5);
void fault_file(struct faults *f, const char *fmt, ...) PRINTF(2, 3);

static inline bool faults_any(const struct faults *f)
{
	return f->count > 0 || f->failed;
}

/* Sorted by line and column, one a line. */
void faults_print(struct faults *f, struct buf *out);

/* Adds at most `max` bytes of text, control characters as '?', "..." where it was cut. */
void faults_add_shown(struct buf *out, struct slice text, size_t max);

#endif

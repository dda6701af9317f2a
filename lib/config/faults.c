#include "config/faults.h"

#include "base/str.h"

#include <stdlib.h>

void faults_init(struct faults *f, const char *path)
{
	*f = (struct faults){ .path = path };
}

void faults_fini(struct faults *f)
{
	for (size_t i = 0; i < f->count; i++)
		free(f->items[i].text);
	free(f->items);
	faults_init(f, f->path);
}

static void add(struct faults *f, unsigned line, unsigned column, const char *fmt, va_list ap)
	PRINTF(4, 0);

static void add(struct faults *f, unsigned line, unsigned column, const char *fmt, va_list ap)
{
	struct buf text = { 0 };

	if (f->count == FAULTS_MAX) {
		f->left_out++;
		return;
	}
	if (f->count == f->cap) {
		size_t cap = f->cap == 0 ? 16 : f->cap * 2;
		struct fault *items = realloc(f->items, cap * sizeof(*items));

		if (items == NULL) {
			f->failed = true;
			return;
		}
		f->items = items;
		f->cap = cap;
	}
	if (buf_addvf(&text, fmt, ap) < 0) {
		f->failed = true;
		buf_fini(&text);
		return;
	}
	f->items[f->count] = (struct fault){ line, column, f->count, text.data };
	f->count++;
}

void fault_at(struct faults *f, unsigned line, unsigned column, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	add(f, line, column, fmt, ap);
	va_end(ap);
}

void fault_file(struct faults *f, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	add(f, 0, 0, fmt, ap);
	va_end(ap);
}

static int by_place(const void *left, const void *right)
{
	const struct fault *a = left, *b = right;

	if (a->line != b->line)
		return a->line < b->line ? -1 : 1;
	if (a->column != b->column)
		return a->column < b->column ? -1 : 1;
	return a->order < b->order ? -1 : a->order > b->order;
}

void faults_print(struct faults *f, struct buf *out)
{
	if (f->count > 1)
		qsort(f->items, f->count, sizeof(*f->items), by_place);
	for (size_t i = 0; i < f->count; i++) {
		const struct fault *it = &f->items[i];

		if (it->line == 0)
			buf_addf(out, "%s: %s\n", f->path, it->text);
		else
			buf_addf(out, "%s:%u:%u: %s\n", f->path, it->line, it->column, it->text);
	}
	if (f->left_out > 0)
		buf_addf(out, "%s: %zu more faults are not shown: mend those above first\n",
			f->path, f->left_out);
	if (f->failed)
		buf_addf(out, "%s: out of memory while reading it: free some and try again\n",
			f->path);
}

/* A control character, C1 ones (U+0080 to U+009F) included: it could change the look of a terminal.
 */
static bool is_control(const char *p, size_t n)
{
	unsigned char c = (unsigned char)p[0];

	return n == 0 || (n == 1 && (c < 0x20 || c == 0x7F)) ||
	       (n == 2 && c == 0xC2 && (unsigned char)p[1] < 0xA0);
}

void faults_add_shown(struct buf *out, struct slice text, size_t max)
{
	size_t end = utf8_prefix(text, max);

	for (size_t i = 0; i < end;) {
		size_t n = utf8_sequence(text.ptr + i, end - i);

		if (is_control(text.ptr + i, n))
			buf_addc(out, '?');
		else
			buf_add(out, text.ptr + i, n);
		i += n > 0 ? n : 1;
	}
	if (end < text.len)
		buf_adds(out, "...");
}

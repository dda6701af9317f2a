#include "message/template.h"

#include "base/str.h"
#include "message/route.h"

#include <stdlib.h>

#define COLUMN_NAME_MAX 64 /* characters, as MySQL has it */

#define ALLOWED                                                                                    \
	"{event_id} {event_type} {aggregate_type} {aggregate_id} {source} {column:NAME}, "         \
	"and {{ or }} for a brace"

/* clang-format off */
static const struct known {
	const char *name;
	bool alone; /* {name} will do, without "column:" */
	size_t offset;
} known[] = {
	{ "event_id",          true,  offsetof(struct row, event_id) },
	{ "event_type",        true,  offsetof(struct row, event_type) },
	{ "aggregate_type",    true,  offsetof(struct row, aggregate_type) },
	{ "aggregate_id",      true,  offsetof(struct row, aggregate_id) },
	{ "aggregate_version", false, offsetof(struct row, aggregate_version) },
	{ "trace_id",          false, offsetof(struct row, trace_id) },
	{ "traceparent",       false, offsetof(struct row, traceparent) },
	{ "tracestate",        false, offsetof(struct row, tracestate) },
	{ "headers",           false, offsetof(struct row, headers) },
};

static const struct { const char *name, *why; } refused[] = {
	{ "payload", "the payload is the body and can be of any size" },
	/* The relay writes these: a message would differ from one attempt to the next. */
	{ "status", "the relay changes it" },
	{ "retry_count", "the relay changes it" },
	{ "next_retry_at", "the relay changes it" },
	{ "locked_by", "the relay changes it" },
	{ "locked_until", "the relay changes it" },
	{ "last_error", "the relay changes it" },
	{ "sent_at", "the relay changes it" },
};
/* clang-format on */

enum piece_kind { PIECE_ERROR = -1, PIECE_END, PIECE_TEXT, PIECE_SOURCE, PIECE_COLUMN };

struct piece {
	struct slice text;         /* PIECE_TEXT; PIECE_COLUMN: the name as written */
	const struct known *known; /* PIECE_COLUMN: NULL for an extra one */
};

static char lower(char c)
{
	return c >= 'A' && c <= 'Z' ? (char)(c + ('a' - 'A')) : c;
}

/* MySQL's column names know no case. Bytes beyond ASCII are compared as they are: at worst a column
 * is selected twice. */
static bool same_column(struct slice a, const char *b)
{
	if (a.len != strlen(b))
		return false;
	for (size_t i = 0; i < a.len; i++) {
		if (lower(a.ptr[i]) != lower(b[i]))
			return false;
	}
	return true;
}

static size_t characters(const char *from, const char *to)
{
	size_t n = 0;

	for (; from < to; from++)
		n += ((unsigned char)*from & 0xC0) != 0x80;
	return n;
}

static enum piece_kind fail(const char *template, const char *at, const char *what, struct slice s,
	const char *rest, struct err *e)
{
	err_set(e, ERR_CONFIG, 0, "character %zu: %s%.*s%s", characters(template, at) + 1, what,
		(int)utf8_prefix(s, 80), s.ptr, rest);
	return PIECE_ERROR;
}

/* Names are put between backquotes in statements: none may hold one. */
static bool column_name_ok(struct slice name)
{
	if (name.len == 0 || name.ptr[name.len - 1] == ' ' ||
		characters(name.ptr, name.ptr + name.len) > COLUMN_NAME_MAX)
		return false;
	for (size_t i = 0; i < name.len; i++) {
		unsigned char c = (unsigned char)name.ptr[i];

		if (c < 0x20 || c == 0x7F || c == '`' || c == '{')
			return false;
	}
	return true;
}

/* `at` is the opening brace; `name` what stands between the braces. */
static enum piece_kind placeholder(
	const char *template, const char *at, struct slice name, struct piece *out, struct err *e)
{
	static const struct slice prefix = { "column:", 7 };
	struct slice column;

	if (slice_eq(name, SLICE_LIT("source")))
		return PIECE_SOURCE;
	for (size_t i = 0; i < ARRAY_LEN(known); i++) {
		if (known[i].alone && slice_eq(name, slice_str(known[i].name))) {
			*out = (struct piece){ .text = name, .known = &known[i] };
			return PIECE_COLUMN;
		}
	}
	if (name.len < prefix.len || memcmp(name.ptr, prefix.ptr, prefix.len) != 0)
		return fail(template, at, "{", name, "} is no placeholder; allowed: " ALLOWED, e);
	column = (struct slice){ name.ptr + prefix.len, name.len - prefix.len };
	if (!column_name_ok(column))
		return fail(template, at, "{", name,
			"} names no column; allowed: {column:NAME}, a NAME of 1 to 64 characters "
			"without backquotes, braces and control characters",
			e);
	for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
		if (!same_column(column, refused[i].name))
			continue;
		err_set(e, ERR_CONFIG, 0,
			"character %zu: {column:%s} can't be used: %s; allowed: " ALLOWED,
			characters(template, at) + 1, refused[i].name, refused[i].why);
		return PIECE_ERROR;
	}
	*out = (struct piece){ .text = column };
	for (size_t i = 0; i < ARRAY_LEN(known); i++) {
		if (same_column(column, known[i].name))
			out->known = &known[i];
	}
	return PIECE_COLUMN;
}

/* The next piece from *pos on, which moves behind it. `template` is valid UTF-8. */
static enum piece_kind piece_next(
	const char *template, const char **pos, struct piece *out, struct err *e)
{
	const char *from = *pos, *p = from;
	size_t n;

	if (*p == '\0')
		return PIECE_END;
	n = strcspn(p, "{}");
	if (n > 0 || p[0] == p[1]) {
		/* A run without braces, or a doubled brace, of which one is the text. */
		out->text = (struct slice){ from, n > 0 ? n : 1 };
		*pos = p + (n > 0 ? n : 2);
		return PIECE_TEXT;
	}
	if (*p == '}')
		return fail(
			template, p, "a '}' without its '{'; allowed: ", SLICE_LIT(ALLOWED), "", e);
	p++;
	n = strcspn(p, "}");
	if (p[n] == '\0')
		return fail(template, from, "a '{' without its '}'; allowed: ", SLICE_LIT(ALLOWED),
			"", e);
	*pos = p + n + 1;
	return placeholder(template, from, (struct slice){ p, n }, out, e);
}

static int check_utf8(const char *template, struct err *e)
{
	struct slice s = slice_str(template);
	size_t n;

	for (size_t i = 0; i < s.len; i += n) {
		n = utf8_sequence(s.ptr + i, s.len - i);
		if (n == 0)
			return err_set(e, ERR_CONFIG, 0, "character %zu: not UTF-8",
				characters(template, template + i) + 1);
	}
	return 0;
}

int route_check_template(const char *template, struct err *e)
{
	const char *pos = template;
	enum piece_kind kind;
	struct piece piece;

	if (check_utf8(template, e) < 0)
		return -1;
	do {
		kind = piece_next(template, &pos, &piece, e);
	} while (kind > PIECE_END);
	return kind == PIECE_END ? 0 : -1;
}

static int extra_index(struct template_columns *c, struct slice name, size_t *index, struct err *e)
{
	size_t i;

	for (i = 0; i < c->count; i++) {
		if (same_column(name, c->names[i]))
			break;
	}
	if (i == ROW_EXTRA_MAX)
		return err_set(e, ERR_CONFIG, 0,
			"column %.*s is one too many: the templates of a source may name %d "
			"columns "
			"beyond the standard ones",
			(int)name.len, name.ptr, ROW_EXTRA_MAX);
	if (i == c->count) {
		c->names[i] = strndup(name.ptr, name.len);
		if (c->names[i] == NULL)
			return err_set(e, ERR_NOMEM, 0, "template: no memory");
		c->count++;
	}
	*index = i;
	return 0;
}

static int add_column(struct template *t, struct template_columns *columns,
	const struct piece *piece, struct err *e)
{
	struct template_part *p = &t->parts[t->count];

	if (piece->known != NULL) {
		p->column = piece->known->name;
		p->at = piece->known->offset;
	} else {
		if (extra_index(columns, piece->text, &p->at, e) < 0)
			return -1;
		p->extra = true;
		p->column = columns->names[p->at];
	}
	t->count++;
	return 0;
}

/* Text next to text becomes one part. Pointers are set by the caller once the text is complete. */
static int add_literal(struct template *t, struct slice s, struct err *e)
{
	if (s.len == 0)
		return 0;
	if (buf_add_slice(&t->text, s) < 0)
		return err_set(e, ERR_NOMEM, 0, "template: no memory");
	if (t->count == 0 || t->parts[t->count - 1].column != NULL)
		t->parts[t->count++] = (struct template_part){ 0 };
	t->parts[t->count - 1].literal.len += s.len;
	return 0;
}

int template_compile(struct template *t, struct template_columns *columns, const char *text,
	struct slice source, struct err *e)
{
	const char *pos = text, *literal;
	enum piece_kind kind;
	struct piece piece;
	size_t pieces = 1;

	if (route_check_template(text, e) < 0)
		return -1;
	while (piece_next(text, &pos, &piece, e) > PIECE_END)
		pieces++;
	t->parts = calloc(pieces, sizeof(*t->parts));
	if (t->parts == NULL)
		return err_set(e, ERR_NOMEM, 0, "template: no memory");
	pos = text;
	while ((kind = piece_next(text, &pos, &piece, e)) > PIECE_END) {
		int rc = kind == PIECE_COLUMN
				 ? add_column(t, columns, &piece, e)
				 : add_literal(t, kind == PIECE_SOURCE ? source : piece.text, e);

		if (rc < 0)
			return -1;
	}
	literal = t->text.data;
	for (size_t i = 0; i < t->count; i++) {
		if (t->parts[i].column != NULL)
			continue;
		t->parts[i].literal.ptr = literal;
		literal += t->parts[i].literal.len;
	}
	return 0;
}

void template_fini(struct template *t)
{
	free(t->parts);
	buf_fini(&t->text);
	*t = (struct template){ 0 };
}

void template_columns_fini(struct template_columns *columns)
{
	for (size_t i = 0; i < columns->count; i++)
		free(columns->names[i]);
	columns->count = 0;
}

bool template_length(const struct template *t, const struct row *row, size_t *len)
{
	size_t n = 0;

	for (size_t i = 0; i < t->count; i++) {
		struct slice s = template_value(&t->parts[i], row);

		if (s.ptr == NULL)
			return false;
		n += s.len;
	}
	*len = n;
	return true;
}

struct slice template_expand(const struct template *t, const struct row *row, struct buf *text)
{
	size_t from = text->len;

	if (template_fixed(t))
		return template_literal(t);
	if (t->count == 1)
		return template_value(&t->parts[0], row);
	for (size_t i = 0; i < t->count; i++)
		buf_add_slice(text, template_value(&t->parts[i], row));
	return (struct slice){ text->data + from, text->len - from };
}

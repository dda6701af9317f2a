#include "message/json.h"

#include "base/str.h"

enum expect { VALUE, VALUE_OR_END, NAME, NAME_OR_END, COMMA_OR_END, NOTHING };

void json_begin(struct json_reader *r, struct slice document, unsigned depth_max)
{
	r->text = (struct slice){ 0 };
	r->escaped = false;
	r->error = NULL;
	r->error_byte = 0;
	r->too_deep = false;
	r->depth = 0;
	r->start = r->p = document.ptr != NULL ? document.ptr : "";
	r->end = r->start + document.len;
	r->depth_max = depth_max < JSON_DEPTH_MAX ? depth_max : JSON_DEPTH_MAX;
	r->expect = VALUE;
}

static enum json_token fail(struct json_reader *r, const char *what)
{
	if (r->error == NULL) {
		r->error = what;
		r->error_byte = (size_t)(r->p - r->start) + 1;
	}
	return JSON_ERROR;
}

static void skip_blanks(struct json_reader *r)
{
	while (r->p < r->end && (*r->p == ' ' || *r->p == '\n' || *r->p == '\r' || *r->p == '\t'))
		r->p++;
}

static bool in_object(const struct json_reader *r)
{
	unsigned level = r->depth - 1;

	return r->depth > 0 && (r->objects[level / 64] >> level % 64 & 1) != 0;
}

static void value_read(struct json_reader *r)
{
	r->expect = r->depth > 0 ? COMMA_OR_END : NOTHING;
}

static enum json_token open_level(struct json_reader *r, bool object)
{
	uint64_t bit;

	if (r->depth == r->depth_max) {
		r->too_deep = true;
		return fail(r, "objects and lists are nested too deep");
	}
	bit = UINT64_C(1) << r->depth % 64;
	if (object)
		r->objects[r->depth / 64] |= bit;
	else
		r->objects[r->depth / 64] &= ~bit;
	r->depth++;
	r->p++;
	r->expect = object ? NAME_OR_END : VALUE_OR_END;
	return object ? JSON_OBJECT : JSON_ARRAY;
}

static enum json_token close_level(struct json_reader *r)
{
	bool object = in_object(r);

	r->p++;
	r->depth--;
	value_read(r);
	return object ? JSON_OBJECT_END : JSON_ARRAY_END;
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

/* At the byte after a backslash. */
static bool read_escape(struct json_reader *r)
{
	if (r->p < r->end && *r->p != '\0' && strchr("\"\\/bfnrt", *r->p) != NULL) {
		r->p++;
		return true;
	}
	if (r->p < r->end && *r->p == 'u') {
		int i;

		r->p++;
		for (i = 0; i < 4 && r->p < r->end && hex_digit(*r->p) >= 0; i++)
			r->p++;
		if (i == 4)
			return true;
	}
	return false;
}

static enum json_token read_string(struct json_reader *r, enum json_token token)
{
	const char *from = ++r->p;

	r->escaped = false;
	for (;;) {
		unsigned char c;

		while (r->p < r->end && (unsigned char)*r->p >= 0x20 &&
			(unsigned char)*r->p < 0x80 && *r->p != '"' && *r->p != '\\')
			r->p++;
		if (r->p == r->end)
			return fail(r, "a string does not end");
		c = (unsigned char)*r->p;
		if (c == '"')
			break;
		if (c == '\\') {
			r->escaped = true;
			r->p++;
			if (!read_escape(r))
				return fail(r, "not an escape");
		} else if (c < 0x20) {
			return fail(r, "a control character in a string must be escaped");
		} else {
			size_t n = utf8_sequence(r->p, (size_t)(r->end - r->p));

			if (n == 0)
				return fail(r, "not UTF-8");
			r->p += n;
		}
	}
	r->text = (struct slice){ from, (size_t)(r->p - from) };
	r->p++;
	return token;
}

static bool read_digits(struct json_reader *r)
{
	const char *from = r->p;

	while (r->p < r->end && *r->p >= '0' && *r->p <= '9')
		r->p++;
	return r->p > from;
}

static enum json_token read_number(struct json_reader *r)
{
	const char *from = r->p;
	enum json_token token = JSON_INTEGER;

	if (*r->p == '-')
		r->p++;
	if (r->p < r->end && *r->p == '0')
		r->p++;
	else if (!read_digits(r))
		return fail(r, "a digit is missing");
	if (r->p < r->end && *r->p == '.') {
		token = JSON_FRACTION;
		r->p++;
		if (!read_digits(r))
			return fail(r, "a digit is missing");
	}
	if (r->p < r->end && (*r->p == 'e' || *r->p == 'E')) {
		token = JSON_FRACTION;
		r->p++;
		if (r->p < r->end && (*r->p == '+' || *r->p == '-'))
			r->p++;
		if (!read_digits(r))
			return fail(r, "a digit is missing");
	}
	r->text = (struct slice){ from, (size_t)(r->p - from) };
	return token;
}

static enum json_token read_word(struct json_reader *r, struct slice word, enum json_token token)
{
	if ((size_t)(r->end - r->p) < word.len || memcmp(r->p, word.ptr, word.len) != 0)
		return fail(r, "a value is missing");
	r->p += word.len;
	return token;
}

static enum json_token read_value(struct json_reader *r)
{
	enum json_token token;

	switch (*r->p) {
	case '{':
		return open_level(r, true);
	case '[':
		return open_level(r, false);
	case '"':
		token = read_string(r, JSON_STRING);
		break;
	case 't':
		token = read_word(r, SLICE_LIT("true"), JSON_TRUE);
		break;
	case 'f':
		token = read_word(r, SLICE_LIT("false"), JSON_FALSE);
		break;
	case 'n':
		token = read_word(r, SLICE_LIT("null"), JSON_NULL);
		break;
	default:
		if (*r->p != '-' && (*r->p < '0' || *r->p > '9'))
			return fail(r, "a value is missing");
		token = read_number(r);
	}
	if (token != JSON_ERROR)
		value_read(r);
	return token;
}

static enum json_token read_name(struct json_reader *r)
{
	if (*r->p != '"')
		return fail(r, "a member's name is missing");
	if (read_string(r, JSON_NAME) == JSON_ERROR)
		return JSON_ERROR;
	skip_blanks(r);
	if (r->p == r->end || *r->p != ':')
		return fail(r, "a ':' is missing");
	r->p++;
	r->expect = VALUE;
	return JSON_NAME;
}

enum json_token json_next(struct json_reader *r)
{
	if (r->error != NULL)
		return JSON_ERROR;
	skip_blanks(r);
	if (r->expect == NOTHING)
		return r->p == r->end ? JSON_END : fail(r, "something follows the value");
	if (r->p == r->end)
		return fail(r, r->p == r->start ? "empty" : "it ends too soon");
	if (r->expect != VALUE && r->expect != NAME && *r->p == (in_object(r) ? '}' : ']'))
		return close_level(r);
	if (r->expect == COMMA_OR_END) {
		if (*r->p != ',')
			return fail(r, in_object(r) ? "a ',' or '}' is missing"
						    : "a ',' or ']' is missing");
		r->p++;
		skip_blanks(r);
		if (r->p == r->end)
			return fail(r, "it ends too soon");
		r->expect = in_object(r) ? NAME : VALUE;
	}
	if (r->expect == NAME || r->expect == NAME_OR_END)
		return read_name(r);
	return read_value(r);
}

/* The four hex digits at p, which the reader has seen already. */
static uint32_t unit_at(const char *p)
{
	uint32_t unit = 0;

	for (int i = 0; i < 4; i++)
		unit = unit << 4 | (uint32_t)hex_digit(p[i]);
	return unit;
}

static size_t put_utf8(char *out, uint32_t c)
{
	if (c < 0x80) {
		out[0] = (char)c;
		return 1;
	}
	if (c < 0x800) {
		out[0] = (char)(0xC0 | c >> 6);
		out[1] = (char)(0x80 | (c & 0x3F));
		return 2;
	}
	if (c < 0x10000) {
		out[0] = (char)(0xE0 | c >> 12);
		out[1] = (char)(0x80 | (c >> 6 & 0x3F));
		out[2] = (char)(0x80 | (c & 0x3F));
		return 3;
	}
	out[0] = (char)(0xF0 | c >> 18);
	out[1] = (char)(0x80 | (c >> 12 & 0x3F));
	out[2] = (char)(0x80 | (c >> 6 & 0x3F));
	out[3] = (char)(0x80 | (c & 0x3F));
	return 4;
}

bool json_unescape(struct slice text, char *out, size_t *len)
{
	static const char letters[] = "bfnrt", values[] = "\b\f\n\r\t";
	const char *p = text.ptr, *end = text.ptr + text.len;
	size_t n = 0;

	while (p < end) {
		const char *letter;
		uint32_t c, low;

		if (*p != '\\') {
			out[n++] = *p++;
			continue;
		}
		p++;
		if (*p != 'u') {
			letter = strchr(letters, *p);
			out[n++] = letter != NULL ? values[letter - letters] : *p;
			p++;
			continue;
		}
		c = unit_at(p + 1);
		p += 5;
		if (c >= 0xDC00 && c <= 0xDFFF)
			return false;
		if (c >= 0xD800 && c <= 0xDBFF) {
			if (end - p < 6 || p[0] != '\\' || p[1] != 'u')
				return false;
			low = unit_at(p + 2);
			if (low < 0xDC00 || low > 0xDFFF)
				return false;
			c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
			p += 6;
		}
		n += put_utf8(out + n, c);
	}
	*len = n;
	return true;
}

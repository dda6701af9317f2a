#include "base/str.h"
#include "config/decode.h"
#include "config/uri.h"

#include <stdlib.h>

char *conf_dup(struct slice s)
{
	char *p = malloc(s.len + 1);

	if (p == NULL)
		return NULL;
	if (s.len > 0)
		memcpy(p, s.ptr, s.len);
	p[s.len] = '\0';
	return p;
}

static const char *no_memory(void)
{
	return "cannot be kept: free some memory";
}

/* "is not a duration: give one, such as 30s; 1s to 1h" */
static const char *not_a(const struct conf_key *k, const char *how, struct buf *problem)
{
	buf_addf(problem, "is not %s: give %s, ", conf_a_type(k), how);
	conf_range(k, problem);
	return problem->failed ? no_memory() : problem->data;
}

static const char *out_of_range(const struct conf_key *k, struct buf *problem)
{
	buf_adds(problem, "is out of range: give ");
	conf_range(k, problem);
	return problem->failed ? no_memory() : problem->data;
}

static bool has_control(struct slice s)
{
	for (size_t i = 0; i < s.len; i++)
		if ((unsigned char)s.ptr[i] < 0x20 || s.ptr[i] == 0x7F)
			return true;
	return false;
}

static bool all_of(struct slice s, const char *more)
{
	for (size_t i = 0; i < s.len; i++) {
		char c = s.ptr[i];

		if ((c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') &&
			(c == '\0' || strchr(more, c) == NULL))
			return false;
	}
	return true;
}

static const char *check_text(const struct conf_key *k, struct slice s, struct buf *problem)
{
	if (memchr(s.ptr, '\0', s.len) != NULL)
		return "holds a NUL character: leave it out";
	if (!utf8_valid(s))
		return "is not UTF-8: check the environment variables in it";
	/* Whatever a literal password holds is the password. */
	if (has_control(s) && k->type != CONF_SECRET && k->type != CONF_URI)
		return "holds a line break or control character: leave it out";
	if (s.len > k->hi && k->type != CONF_LISTEN && k->type != CONF_HOST) {
		buf_addf(problem, "is too long (%zu bytes): shorten it to %u bytes at most", s.len,
			(unsigned)k->hi);
		return problem->failed ? no_memory() : problem->data;
	}
	return NULL;
}

static const char *check_ident(struct slice s)
{
	if (memchr(s.ptr, '`', s.len) != NULL)
		return "holds a backquote: give the bare name, without quotes";
	if (s.ptr[s.len - 1] == ' ')
		return "ends in a blank: no MySQL name may";
	return NULL;
}

static const char *take_string(const struct conf_key *k, struct slice s, void *field)
{
	char **to = field;

	if (k->type == CONF_NAME && !all_of(s, "_.-"))
		return "is not a name: use letters, digits, _ . and - only";
	if (k->type == CONF_IDENT && check_ident(s) != NULL)
		return check_ident(s);
	*to = conf_dup(s);
	return *to != NULL ? NULL : no_memory();
}

static const char *take_template(struct slice s, void *field, struct buf *problem)
{
	char **to = field;
	struct err e;

	*to = conf_dup(s);
	if (*to == NULL)
		return no_memory();
	if (route_check_template(*to, &e) == 0)
		return NULL;
	free(*to);
	*to = NULL;
	buf_addf(problem, "is not a usable template: %s", e.text);
	return problem->failed ? no_memory() : problem->data;
}

static const char *take_uint(
	const struct conf_key *k, struct slice s, void *field, struct buf *problem)
{
	uint64_t v;

	if (!str_to_u64(s, &v))
		return not_a(k, "digits only, without leading zeros", problem);
	if (v < k->lo || v > k->hi)
		return out_of_range(k, problem);
	if (k->type == CONF_PORT)
		*(uint16_t *)field = (uint16_t)v;
	else
		*(unsigned *)field = (unsigned)v;
	return NULL;
}

static const char *take_size(
	const struct conf_key *k, struct slice s, void *field, struct buf *problem)
{
	uint64_t v;

	if (!str_to_size(s, &v))
		return not_a(k, "a whole number with its unit, such as 64KiB", problem);
	if (v < k->lo || v > k->hi)
		return out_of_range(k, problem);
	*(uint64_t *)field = v;
	return NULL;
}

static const char *take_duration(
	const struct conf_key *k, struct slice s, void *field, struct buf *problem)
{
	int64_t v;

	if (!str_to_duration_us(s, &v))
		return not_a(
			k, "a whole number with its unit, such as 30s (ms, s, m, h, d)", problem);
	if ((uint64_t)v < k->lo || (uint64_t)v > k->hi)
		return out_of_range(k, problem);
	if (k->type == CONF_SECONDS && v % US_PER_SEC != 0)
		return "is not in whole seconds: round it, the protocol counts seconds";
	*(int64_t *)field = v;
	return NULL;
}

static const char *take_age(
	const struct conf_key *k, struct slice s, void *field, struct buf *problem)
{
	static const char how[] = "never, or a whole number with its unit, such as 7d (s, m, h, d)";
	int64_t v = AGE_NEVER;

	if (!slice_eq(s, SLICE_LIT("never"))) {
		if (!str_to_duration_us(s, &v))
			return not_a(k, how, problem);
		if ((uint64_t)v > k->hi || (v < US_PER_SEC && (v != 0 || k->lo != 0)))
			return out_of_range(k, problem);
	}
	*(int64_t *)field = v;
	return NULL;
}

/* "HH:MM" at s: minutes of the day, at most 24:00. */
static bool take_minutes(const char *s, unsigned *out)
{
	for (size_t i = 0; i < 5; i++)
		if (i == 2 ? s[i] != ':' : s[i] < '0' || s[i] > '9')
			return false;
	*out = (unsigned)((s[0] - '0') * 10 + s[1] - '0') * 60 +
	       (unsigned)((s[3] - '0') * 10 + s[4] - '0');
	return s[3] <= '5' && *out <= 24 * 60;
}

static const char *take_window(struct slice s, void *field)
{
	static const char wrong[] =
		"is not a window of the day: give it in UTC, such as \"01:00-05:00\"";
	struct window_conf w = { .limited = true };

	if (s.len != 11 || s.ptr[5] != '-' || !take_minutes(s.ptr, &w.from) ||
		!take_minutes(s.ptr + 6, &w.to))
		return wrong;
	if (w.from % (24 * 60) == w.to % (24 * 60))
		return "begins when it ends: leave it out for any time";
	w.from %= 24 * 60;
	*(struct window_conf *)field = w;
	return NULL;
}

/* 0 to 1 with at most nine digits after the point; strtod() would take hex, exponents and locales.
 */
static const char *take_share(
	const struct conf_key *k, struct slice s, void *field, struct buf *problem)
{
	const char *point = memchr(s.ptr, '.', s.len);
	size_t whole_len = point != NULL ? (size_t)(point - s.ptr) : s.len;
	uint64_t whole;
	double part = 0, unit = 1;

	if (!str_to_u64((struct slice){ s.ptr, whole_len }, &whole))
		return not_a(k, "digits with a point, such as 0.2", problem);
	if (point != NULL && (s.len - whole_len < 2 || s.len - whole_len > 10))
		return not_a(k, "digits with a point, such as 0.2", problem);
	for (size_t i = whole_len + 1; i < s.len; i++) {
		if (s.ptr[i] < '0' || s.ptr[i] > '9')
			return not_a(k, "digits with a point, such as 0.2", problem);
		part = part * 10 + (s.ptr[i] - '0');
		unit *= 10;
	}
	if (whole > 1 || (whole == 1 && part > 0))
		return out_of_range(k, problem);
	*(double *)field = (double)whole + part / unit;
	return NULL;
}

static const char *take_mode(struct slice s, void *field)
{
	unsigned mode = 0;

	if (s.len != 4 || s.ptr[0] != '0')
		return "is not an octal mode: give four digits, such as \"0660\"";
	for (size_t i = 1; i < s.len; i++) {
		if (s.ptr[i] < '0' || s.ptr[i] > '7')
			return "is not an octal mode: give four digits, such as \"0660\"";
		mode = mode << 3 | (unsigned)(s.ptr[i] - '0');
	}
	*(unsigned *)field = mode;
	return NULL;
}

static const char *take_word(
	const struct conf_key *k, struct slice s, void *field, struct buf *problem)
{
	for (unsigned i = 0; k->words[i] != NULL; i++) {
		if (!slice_eq(s, slice_str(k->words[i])))
			continue;
		if (k->type == CONF_EITHER)
			*(bool *)field = i != 0;
		else
			memcpy(field, &i, sizeof(i)); /* an enum of non-negative values */
		return NULL;
	}
	buf_adds(problem, "is not a known word: give one of ");
	conf_range(k, problem);
	return problem->failed ? no_memory() : problem->data;
}

static const char *take_bool(struct slice s, void *field)
{
	if (!slice_eq(s, SLICE_LIT("true")) && !slice_eq(s, SLICE_LIT("false")))
		return "is not a boolean: write true or false";
	*(bool *)field = s.ptr[0] == 't';
	return NULL;
}

static const char *take_listen(struct slice s, void *field)
{
	struct http_conf *http = field;
	struct hostport at;
	const char *problem = hostport_parse(s, &at);

	if (problem != NULL)
		return problem;
	if (at.port == 0)
		return "has no port: write it like 127.0.0.1:9788";
	http->host = conf_dup(slice_str(at.host));
	http->port = at.port;
	return http->host != NULL ? NULL : no_memory();
}

static const char *take_host(const struct conf_key *k, struct slice s, void *field)
{
	struct endpoint **hosts = field, *one;
	char host[HOST_MAX + 1];
	const char *problem = host_parse(s, host);
	size_t count = 1;

	if (problem != NULL)
		return problem;
	one = calloc(1, sizeof(*one));
	if (one == NULL)
		return no_memory();
	one->host = conf_dup(slice_str(host));
	if (one->host == NULL) {
		free(one);
		return no_memory();
	}
	*hosts = one;
	memcpy((char *)field - k->offset + k->count_offset, &count, sizeof(count));
	return NULL;
}

static const char *take_secret(const struct conf_key *k, struct slice s, void *field)
{
	struct secret_conf *secret = field;

	if (k->lo == SECRET_CREDENTIAL &&
		(memchr(s.ptr, '/', s.len) != NULL || slice_eq(s, SLICE_LIT(".")) ||
			slice_eq(s, SLICE_LIT(".."))))
		return "is a path: give the name that LoadCredential= gives it";
	if (k->lo != SECRET_LITERAL && has_control(s))
		return "holds a line break or control character: leave it out";
	secret->value = conf_dup(s);
	if (secret->value == NULL)
		return no_memory();
	secret->kind = (enum secret_kind)k->lo;
	return NULL;
}

const char *scalar_parse(
	const struct conf_key *k, struct slice text, void *field, struct buf *problem)
{
	const char *bad;

	switch (k->type) {
	case CONF_STRING:
	case CONF_NAME:
	case CONF_IDENT:
	case CONF_PATH:
		bad = check_text(k, text, problem);
		return bad != NULL ? bad : take_string(k, text, field);
	case CONF_TEMPLATE:
		bad = check_text(k, text, problem);
		return bad != NULL ? bad : take_template(text, field, problem);
	case CONF_SECRET:
		bad = check_text(k, text, problem);
		return bad != NULL ? bad : take_secret(k, text, field);
	case CONF_URI:
		return check_text(k, text, problem); /* the rest in finish.c */
	case CONF_LISTEN:
		bad = check_text(k, text, problem);
		return bad != NULL ? bad : take_listen(text, field);
	case CONF_HOST:
		bad = check_text(k, text, problem);
		return bad != NULL ? bad : take_host(k, text, field);
	case CONF_UINT:
	case CONF_PORT:
		return take_uint(k, text, field, problem);
	case CONF_SIZE:
		return take_size(k, text, field, problem);
	case CONF_DURATION:
	case CONF_SECONDS:
		return take_duration(k, text, field, problem);
	case CONF_AGE:
		return take_age(k, text, field, problem);
	case CONF_WINDOW:
		return take_window(text, field);
	case CONF_SHARE:
		return take_share(k, text, field, problem);
	case CONF_MODE:
		return take_mode(text, field);
	case CONF_WORD:
	case CONF_EITHER:
		return take_word(k, text, field, problem);
	case CONF_BOOL:
		return take_bool(text, field);
	case CONF_HOSTS:
	case CONF_HEADERS:
	case CONF_MAP:
	case CONF_LIST:
	case CONF_DEFAULTS:
		break;
	}
	return "cannot be text: see outboxd.yaml(5)";
}

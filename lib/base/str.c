#include "base/str.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

bool str_to_u64(struct slice s, uint64_t *out)
{
	uint64_t v = 0;

	if (s.len == 0 || (s.len > 1 && s.ptr[0] == '0'))
		return false;
	for (size_t i = 0; i < s.len; i++) {
		unsigned digit = (unsigned)(unsigned char)s.ptr[i] - '0';

		if (digit > 9 || v > (UINT64_MAX - digit) / 10)
			return false;
		v = v * 10 + digit;
	}
	*out = v;
	return true;
}

struct unit {
	const char *name;
	uint64_t factor;
};

static bool with_unit(struct slice s, const struct unit *units, size_t count, uint64_t *out)
{
	size_t digits = 0;
	uint64_t v;

	while (digits < s.len && s.ptr[digits] >= '0' && s.ptr[digits] <= '9')
		digits++;
	if (!str_to_u64((struct slice){ s.ptr, digits }, &v))
		return false;
	for (size_t i = 0; i < count; i++) {
		if (!slice_eq((struct slice){ s.ptr + digits, s.len - digits },
			    slice_str(units[i].name)))
			continue;
		if (v > INT64_MAX / units[i].factor)
			return false;
		*out = v * units[i].factor;
		return true;
	}
	return false;
}

static const struct unit time_units[] = {
	{ "d", UINT64_C(86400000000) },
	{ "h", UINT64_C(3600000000) },
	{ "m", UINT64_C(60000000) },
	{ "s", UINT64_C(1000000) },
	{ "ms", UINT64_C(1000) },
};

bool str_to_duration_us(struct slice s, int64_t *out_us)
{
	uint64_t v;

	if (!with_unit(s, time_units, ARRAY_LEN(time_units), &v))
		return false;
	*out_us = (int64_t)v;
	return true;
}

/* `n` digits from s->ptr on, at most `max`; then s begins behind them. */
static bool take_digits(struct slice *s, unsigned n, int max, int *out)
{
	int v = 0;

	if (s->len < n)
		return false;
	for (unsigned i = 0; i < n; i++) {
		if (s->ptr[i] < '0' || s->ptr[i] > '9')
			return false;
		v = v * 10 + (s->ptr[i] - '0');
	}
	s->ptr += n;
	s->len -= n;
	*out = v;
	return v <= max;
}

static bool take_char(struct slice *s, const char *any)
{
	if (s->len == 0 || s->ptr[0] == '\0' || strchr(any, s->ptr[0]) == NULL)
		return false;
	s->ptr++;
	s->len--;
	return true;
}

/* "Z" or "+01:00", in seconds east of Greenwich; nothing may follow. */
static bool take_zone(struct slice *s, int *out)
{
	int hours, minutes, sign;

	*out = 0;
	if (take_char(s, "Zz"))
		return s->len == 0;
	if (s->len == 0)
		return false;
	sign = s->ptr[0] == '-' ? -1 : 1;
	if (!take_char(s, "+-") || !take_digits(s, 2, 23, &hours) || !take_char(s, ":") ||
		!take_digits(s, 2, 59, &minutes))
		return false;
	*out = sign * (hours * 3600 + minutes * 60);
	return s->len == 0;
}

bool str_to_time_us(struct slice s, int64_t *out_us)
{
	struct tm tm = { 0 }, same;
	int64_t fraction = 0, unit = 100000;
	int zone;
	time_t t;

	if (!take_digits(&s, 4, 9999, &tm.tm_year) || !take_char(&s, "-") ||
		!take_digits(&s, 2, 12, &tm.tm_mon) || !take_char(&s, "-") ||
		!take_digits(&s, 2, 31, &tm.tm_mday) || !take_char(&s, "Tt ") ||
		!take_digits(&s, 2, 23, &tm.tm_hour) || !take_char(&s, ":") ||
		!take_digits(&s, 2, 59, &tm.tm_min) || !take_char(&s, ":") ||
		!take_digits(&s, 2, 59, &tm.tm_sec))
		return false;
	if (take_char(&s, ".")) {
		if (s.len == 0 || s.ptr[0] < '0' || s.ptr[0] > '9')
			return false;
		for (; s.len > 0 && s.ptr[0] >= '0' && s.ptr[0] <= '9';
			s.ptr++, s.len--, unit /= 10)
			fraction += (s.ptr[0] - '0') * unit;
	}
	if (!take_zone(&s, &zone))
		return false;
	tm.tm_year -= 1900;
	tm.tm_mon -= 1;
	same = tm;
	t = timegm(&same); /* moves a date that does not exist to one that does */
	if (same.tm_mday != tm.tm_mday || same.tm_mon != tm.tm_mon)
		return false;
	*out_us = ((int64_t)t - zone) * 1000000 + fraction;
	return true;
}

bool str_to_size(struct slice s, uint64_t *out_bytes)
{
	static const struct unit units[] = {
		{ "B", 1 },
		{ "KiB", UINT64_C(1) << 10 },
		{ "MiB", UINT64_C(1) << 20 },
		{ "GiB", UINT64_C(1) << 30 },
	};

	return with_unit(s, units, ARRAY_LEN(units), out_bytes);
}

void str_duration(int64_t us, char out[STR_DURATION_MAX])
{
	if (us == 0) {
		str_copy(out, STR_DURATION_MAX, "0s");
		return;
	}
	for (size_t i = 0; i < ARRAY_LEN(time_units); i++) {
		int64_t factor = (int64_t)time_units[i].factor;

		if (us % factor == 0) {
			snprintf(out, STR_DURATION_MAX, "%" PRId64 "%s", us / factor,
				time_units[i].name);
			return;
		}
	}
	snprintf(out, STR_DURATION_MAX, "%" PRId64 "us", us);
}

size_t utf8_sequence(const char *p, size_t len)
{
	const unsigned char *u = (const unsigned char *)p;
	size_t n;
	uint32_t cp;

	if (len == 0)
		return 0;
	if (u[0] < 0x80)
		return 1;
	if (u[0] >= 0xC2 && u[0] <= 0xDF)
		n = 2, cp = u[0] & 0x1F;
	else if (u[0] >= 0xE0 && u[0] <= 0xEF)
		n = 3, cp = u[0] & 0x0F;
	else if (u[0] >= 0xF0 && u[0] <= 0xF4)
		n = 4, cp = u[0] & 0x07;
	else
		return 0;
	if (len < n)
		return 0;
	for (size_t i = 1; i < n; i++) {
		if ((u[i] & 0xC0) != 0x80)
			return 0;
		cp = cp << 6 | (u[i] & 0x3F);
	}
	if (n == 3 && (cp < 0x800 || (cp >= 0xD800 && cp <= 0xDFFF)))
		return 0;
	if (n == 4 && (cp < 0x10000 || cp > 0x10FFFF))
		return 0;
	return n;
}

bool utf8_valid(struct slice s)
{
	for (size_t i = 0; i < s.len;) {
		size_t n = utf8_sequence(s.ptr + i, s.len - i);

		if (n == 0)
			return false;
		i += n;
	}
	return true;
}

size_t utf8_prefix(struct slice s, size_t max)
{
	size_t n = s.len < max ? s.len : max;

	if (n == s.len)
		return n;
	while (n > 0 && ((unsigned char)s.ptr[n] & 0xC0) == 0x80)
		n--;
	return n;
}

bool str_copy(char *dst, size_t size, const char *src)
{
	size_t len = strlen(src), n = len < size ? len : size - 1;

	memcpy(dst, src, n);
	dst[n] = '\0';
	return n == len;
}

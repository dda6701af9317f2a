#include "mysql/values.h"

#include "base/str.h"

#include <strings.h>

/* Days since 1970-01-01 of a date of the proleptic Gregorian calendar (H. Hinnant's algorithm). */
static int64_t days_from_civil(int64_t year, unsigned month, unsigned day)
{
	int64_t era;
	unsigned year_of_era, day_of_year, day_of_era;

	year -= month <= 2;
	era = (year >= 0 ? year : year - 399) / 400;
	year_of_era = (unsigned)(year - era * 400);
	day_of_year = (153 * (month > 2 ? month - 3 : month + 9) + 2) / 5 + day - 1;
	day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
	return era * 146097 + (int64_t)day_of_era - 719468;
}

static bool digits(const char *p, unsigned n, unsigned *out)
{
	unsigned value = 0;

	for (unsigned i = 0; i < n; i++) {
		if (p[i] < '0' || p[i] > '9')
			return false;
		value = value * 10 + (unsigned)(p[i] - '0');
	}
	*out = value;
	return true;
}

int64_t value_time_us(struct slice v)
{
	unsigned year, month, day, hour, minute, second, fraction = 0;
	int64_t us;

	if (v.ptr == NULL || v.len < 19 || v.ptr[4] != '-' || v.ptr[7] != '-' || v.ptr[13] != ':' ||
		v.ptr[16] != ':')
		return 0;
	if (!digits(v.ptr, 4, &year) || !digits(v.ptr + 5, 2, &month) ||
		!digits(v.ptr + 8, 2, &day) || !digits(v.ptr + 11, 2, &hour) ||
		!digits(v.ptr + 14, 2, &minute) || !digits(v.ptr + 17, 2, &second))
		return 0;
	if (month < 1 || month > 12 || day < 1 || day > 31)
		return 0;
	if (v.len > 20 && v.ptr[19] == '.') {
		unsigned n = v.len - 20 > 6 ? 6 : (unsigned)(v.len - 20);

		if (!digits(v.ptr + 20, n, &fraction))
			return 0;
		for (; n < 6; n++)
			fraction *= 10;
	}
	us = days_from_civil(year, month, day) * 86400 + hour * 3600 + minute * 60 + second;
	return us * US_PER_SEC + fraction;
}

bool value_id(struct slice v, uint64_t *out)
{
	if (v.ptr == NULL || v.len == 0)
		return false;
	if (v.ptr[0] == '-') {
		uint64_t magnitude;

		if (!str_to_u64((struct slice){ v.ptr + 1, v.len - 1 }, &magnitude) ||
			magnitude > (uint64_t)INT64_MAX + 1)
			return false;
		*out = -magnitude;
		return true;
	}
	return str_to_u64(v, out);
}

uint32_t value_count(struct slice v)
{
	uint64_t n;

	if (v.ptr == NULL || !str_to_u64(v, &n))
		return 0;
	return n > UINT32_MAX ? UINT32_MAX : (uint32_t)n;
}

int64_t value_int(struct slice v, int64_t otherwise)
{
	uint64_t n;

	return value_id(v, &n) ? (int64_t)n : otherwise;
}

bool value_is(struct slice v, const char *word)
{
	size_t n = strlen(word);

	return v.ptr != NULL && v.len == n && strncasecmp(v.ptr, word, n) == 0;
}

bool value_true(struct slice v)
{
	return value_is(v, "1") || value_is(v, "ON") || value_is(v, "YES") || value_is(v, "TRUE");
}

unsigned value_takeovers(struct slice last_error)
{
	static const char head[] = "LEASE_EXPIRED: taken over ";
	size_t i = sizeof(head) - 1;
	unsigned n = 0;

	if (last_error.ptr == NULL || last_error.len <= i || memcmp(last_error.ptr, head, i) != 0)
		return 0;
	for (; i < last_error.len && last_error.ptr[i] >= '0' && last_error.ptr[i] <= '9'; i++)
		if (n < 1000000)
			n = n * 10 + (unsigned)(last_error.ptr[i] - '0');
	return n;
}

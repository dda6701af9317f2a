#include "relay/failure.h"

#include "base/base.h"

#include <limits.h>

const char *failure_name(enum failure f)
{
	static const char *const names[FAILURES] = {
		[FAIL_UNROUTABLE] = "UNROUTABLE",
		[FAIL_NACKED] = "NACKED",
		[FAIL_TOO_LARGE] = "TOO_LARGE",
		[FAIL_INVALID] = "INVALID",
		[FAIL_REFUSED] = "REFUSED",
		[FAIL_CONFIRM_TIMEOUT] = "CONFIRM_TIMEOUT",
		[FAIL_LEASE_EXPIRED] = "LEASE_EXPIRED",
		[FAIL_SKIPPED] = "SKIPPED",
	};

	return (size_t)f < FAILURES ? names[f] : "UNKNOWN";
}

bool failure_is(enum failure f, struct slice last_error)
{
	struct slice name = slice_str(failure_name(f));

	return last_error.len > name.len && last_error.ptr[name.len] == ':' &&
	       memcmp(last_error.ptr, name.ptr, name.len) == 0;
}

unsigned failure_takeovers(struct slice last_error)
{
	const struct slice head = SLICE_LIT("LEASE_EXPIRED: taken over ");
	unsigned n = 0;

	if (last_error.len <= head.len || memcmp(last_error.ptr, head.ptr, head.len) != 0)
		return 0;
	for (size_t i = head.len; i < last_error.len; i++) {
		char c = last_error.ptr[i];

		if (c < '0' || c > '9' || n > UINT_MAX / 10 - 1)
			break;
		n = n * 10 + (unsigned)(c - '0');
	}
	return n;
}

#include "relay/failure.h"

#include "base/base.h"

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

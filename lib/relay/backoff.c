#include "relay/backoff.h"

int64_t backoff_us(int64_t base_us, int64_t cap_us, unsigned attempt, double jitter, double draw)
{
	int64_t delay = base_us < cap_us ? base_us : cap_us;
	double moved;

	for (unsigned i = 1; i < attempt && delay < cap_us; i++)
		delay = delay > cap_us / 2 ? cap_us : delay * 2;
	moved = (double)delay * (1.0 + jitter * (2.0 * draw - 1.0));
	if (moved > (double)cap_us)
		return cap_us;
	return moved < 0.0 ? 0 : (int64_t)moved;
}

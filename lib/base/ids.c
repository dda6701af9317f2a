#include "base/ids.h"

#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

void ids_sort(uint64_t *ids, size_t count)
{
	for (size_t i = 1; i < count; i++)
		if (ids[i - 1] > ids[i]) {
			qsort(ids, count, sizeof(ids[0]), by_value);
			return;
		}
}

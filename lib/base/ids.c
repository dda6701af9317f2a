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

size_t ids_find(const uint64_t *ids, size_t count, uint64_t id)
{
	size_t low = 0, high = count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (ids[middle] < id)
			low = middle + 1;
		else
			high = middle;
	}
	return low < count && ids[low] == id ? low : count;
}

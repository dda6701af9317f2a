/* ids.h: lists of row ids. */
#ifndef OUTBOXD_IDS_H
#define OUTBOXD_IDS_H

#include <stddef.h>
#include <stdint.h>

/* Ascending. They mostly are already, and are then left alone. */
void ids_sort(uint64_t *ids, size_t count);
/* Where it stands in an ascending list; `count`: nowhere. */
size_t ids_find(const uint64_t *ids, size_t count, uint64_t id);

#endif

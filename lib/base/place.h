/* place.h: where a row stands in the order of all: by created_at, then by id. */
#ifndef OUTBOXD_PLACE_H
#define OUTBOXD_PLACE_H

#include <stdbool.h>
#include <stdint.h>

struct place {
	int64_t created_us; /* wall clock of the database */
	uint64_t id;
};

static inline bool place_before(struct place a, struct place b)
{
	return a.created_us != b.created_us ? a.created_us < b.created_us : a.id < b.id;
}

#endif

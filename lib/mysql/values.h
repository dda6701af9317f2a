/* values.h: values of the text protocol, read strictly and without copying. Pure. */
#ifndef OUTBOXD_MYSQL_VALUES_H
#define OUTBOXD_MYSQL_VALUES_H

#include "base/slice.h"

#include <stdbool.h>

/* "2026-01-02 03:04:05[.678901]" as microseconds since 1970-01-01 UTC. NULL, a zero date and what
 * is not a date give 0. */
int64_t value_time_us(struct slice v);

/* An integer of any signedness; a negative one as its two's complement. False if it is neither. */
bool value_id(struct slice v, uint64_t *out);

/* A count: NULL and negative give 0, too large gives UINT32_MAX. */
uint32_t value_count(struct slice v);

/* Signed; NULL and what is not a number give `otherwise`. */
int64_t value_int(struct slice v, int64_t otherwise);

/* "1", "ON", "YES", "TRUE", in any case. */
bool value_true(struct slice v);

/* Equal without regard to case, ASCII. */
bool value_is(struct slice v, const char *word);

/* How many times in a row a lease has expired, from the last_error that the last takeover wrote
 * (statements.h); 0 if last_error says something else. */
unsigned value_takeovers(struct slice last_error);

#endif

/* base.h: the macros every file may use. */
#ifndef OUTBOXD_BASE_H
#define OUTBOXD_BASE_H

#include <stddef.h>
#include <stdint.h>

/* The struct that embeds `member`, from a pointer to that member. */
#define container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

#define PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define MUST_CHECK __attribute__((warn_unused_result))

/* Monotonic or wall-clock instants and lengths of time are int64_t microseconds, named *_us. */
#define US_PER_MS INT64_C(1000)
#define US_PER_SEC INT64_C(1000000)
#define TIME_NEVER INT64_MAX

#endif

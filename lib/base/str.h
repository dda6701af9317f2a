/* str.h: strict readers of text. None takes leading or trailing blanks, signs or junk; none wraps
 * around. */
#ifndef OUTBOXD_STR_H
#define OUTBOXD_STR_H

#include "base/base.h"
#include "base/slice.h"

#include <stdbool.h>

/* Decimal without leading zeros ("0" itself is fine). false: not such a number, or above
 * UINT64_MAX. */
bool str_to_u64(struct slice s, uint64_t *out);

/* A length of time with a unit: "250ms" "5s" "10m" "2h" "7d"; one number, one unit, no fractions.
 */
bool str_to_duration_us(struct slice s, int64_t *out_us);

/* A size with a unit: "512B" "64KiB" "16MiB" "2GiB". */
bool str_to_size(struct slice s, uint64_t *out_bytes);

/* "1h30m" style is never printed: the largest unit that divides exactly ("90s", "5m", "250ms",
 * "0s"). */
#define STR_DURATION_MAX 32
void str_duration(int64_t us, char out[STR_DURATION_MAX]);

/* RFC 3339, "2026-01-02T03:04:05[.678901](Z|+01:00)", as microseconds since 1970-01-01 UTC; digits
 * beyond the sixth are cut. A leap second is none. */
bool str_to_time_us(struct slice s, int64_t *out_us);

/* Length in bytes of the valid UTF-8 sequence at p (1 to 4), 0 if there is none (overlong forms,
 * surrogates and values above U+10FFFF are not valid: RFC 3629). */
size_t utf8_sequence(const char *p, size_t len);
bool utf8_valid(struct slice s);

/* Length of the longest prefix of s that is at most max bytes and does not cut a UTF-8 sequence. */
size_t utf8_prefix(struct slice s, size_t max);

/* Copies at most size-1 bytes and always terminates; returns false if it had to cut. */
bool str_copy(char *dst, size_t size, const char *src);

#endif

/* sha1.h: SHA-1 (FIPS 180-4), for the name of a lock; nothing here is a secret. MySQL 9.7 has no
 * SHA1() any more. */
#ifndef OUTBOXD_MYSQL_SHA1_H
#define OUTBOXD_MYSQL_SHA1_H

#include "base/slice.h"

#define SHA1_HEX 41

void sha1_hex(struct slice text, char out[SHA1_HEX]);

#endif

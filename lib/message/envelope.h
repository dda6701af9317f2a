/* envelope.h: a message ready to be published; knows nothing of rabbitmq-c. Slices are borrowed
 * from the row, the route and the arena that envelope_build() was given, and live as long as those
 * do. */
#ifndef OUTBOXD_ENVELOPE_H
#define OUTBOXD_ENVELOPE_H

#include "base/slice.h"

#include <stdbool.h>

/* The AMQP 0-9-1 field types the relay writes (RabbitMQ's errata: S t l d A F). */
enum field_type { FIELD_STRING, FIELD_BOOL, FIELD_INT, FIELD_DOUBLE, FIELD_ARRAY, FIELD_TABLE };

struct field {
	struct slice name; /* absent inside an array */
	enum field_type type;
	union {
		struct slice string;
		bool boolean;
		int64_t integer;
		double real;
		struct {
			struct field *items;
			size_t count;
		} many; /* FIELD_ARRAY, FIELD_TABLE */
	};
};

struct envelope {
	struct slice exchange;
	struct slice routing_key;
	struct slice message_id;
	struct slice type;
	struct slice content_type;
	struct slice app_id;
	struct slice expiration; /* milliseconds in decimal; absent: none */
	uint64_t timestamp;      /* seconds since 1970, as AMQP has it */
	uint8_t delivery_mode;   /* 2: persistent, 1: transient */
	bool mandatory;
	struct field *headers;
	size_t header_count;
	size_t header_bytes; /* encoded size of the header table, its 4-byte length included */
	struct slice body;
};

#endif

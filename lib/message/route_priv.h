/* route_priv.h: the compiled route as envelope.c reads it; route.h is for everybody else. */
#ifndef OUTBOXD_ROUTE_PRIV_H
#define OUTBOXD_ROUTE_PRIV_H

#include "base/str.h"
#include "message/route.h"
#include "message/template.h"

struct configured_header {
	char *name;
	struct template value;
};

struct route {
	struct template exchange;
	struct template routing_key;
	struct configured_header *headers;
	size_t header_count;
	struct template_columns columns;
	char *source;
	char *source_uri; /* cloudEvents_source */
	char *marker;     /* or NULL */
	enum body_format body;
	bool mandatory;
	uint8_t delivery_mode;
	uint64_t max_message_size;
	size_t max_header_bytes;
};

/* Names of headers no row and no configuration may set. */
bool route_name_reserved(struct slice name);

/* utf8_valid(), several times faster on the ASCII that most values are. */
static inline bool is_utf8(struct slice s)
{
	uint64_t eight;
	size_t i = 0;

	for (; i + sizeof(eight) <= s.len; i += sizeof(eight)) {
		memcpy(&eight, s.ptr + i, sizeof(eight));
		if ((eight & UINT64_C(0x8080808080808080)) != 0)
			break;
	}
	while (i < s.len && (unsigned char)s.ptr[i] < 0x80)
		i++;
	return i == s.len || utf8_valid((struct slice){ s.ptr + i, s.len - i });
}

/* Control characters of ASCII, NUL and DEL included. */
static inline bool has_control(struct slice s)
{
	for (size_t i = 0; i < s.len; i++) {
		if ((unsigned char)s.ptr[i] < 0x20 || s.ptr[i] == 0x7F)
			return true;
	}
	return false;
}

#endif

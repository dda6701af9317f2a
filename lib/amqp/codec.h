/* codec.h: AMQP 0-9-1 frames, to bytes and from bytes. Knows no socket.
 *
 *	 type  channel  size        payload          end
 *	+-----+--------+-----------+----------------+------+
 *	| u8  |  u16   |    u32    |   size bytes   | 0xCE |
 *	+-----+--------+-----------+----------------+------+
 */
#ifndef OUTBOXD_AMQP_CODEC_H
#define OUTBOXD_AMQP_CODEC_H

#include "amqp/rabbitmq.h"
#include "base/buf.h"
#include "base/err.h"
#include "message/envelope.h"

#define FRAME_OVERHEAD 8 /* everything but the payload */
#define FRAME_HEAD 7     /* what comes before the payload */

/* A broker that offers less cannot carry a basic.publish with two full short strings. */
#define FRAME_MAX_FLOOR 1024

/* Deeper headers are refused here: readers of many clients recurse. */
#define FIELD_DEPTH_MAX 32

struct frame {
	uint8_t type; /* AMQP_FRAME_METHOD, ... */
	uint16_t channel;
	struct slice payload;
};

/* Memory used again and again; codec_init() first. */
struct codec {
	amqp_pool_t pool;
};

void codec_init(struct codec *c);
void codec_fini(struct codec *c);

/* ---- out: each appends whole frames to *out, or on -1 leaves it as it was. */

/* Any method but basic.publish; ERR_NOMEM, or ERR_REFUSED if it does not fit a frame of 16 KiB. */
int codec_method(struct buf *out, uint16_t channel, uint32_t id, void *method, struct err *e);
int codec_heartbeat(struct buf *out);

/* What a message takes on the wire. */
struct codec_size {
	size_t header; /* payload of the content header frame */
	size_t total;
};

/* -1 (ERR_REFUSED): the message breaks a limit of the protocol or of frame_max, "INVALID: ..." or
 * "TOO_LARGE: ...". */
int codec_measure(const struct envelope *env, size_t frame_max, struct codec_size *size,
	struct err *e) MUST_CHECK;

/* basic.publish, content header and body of a measured message: size->total bytes. */
int codec_publish(struct codec *c, struct buf *out, uint16_t channel, const struct envelope *env,
	size_t frame_max, const struct codec_size *size, struct err *e) MUST_CHECK;

/* The largest header table that fits, whatever the other properties are. */
size_t codec_max_header_bytes(size_t frame_max);

/* ---- in: everything is checked, nothing recurses over what a peer sent. */

/* 1: *f is the frame at the start of `in`, of *used bytes; its payload lies in `in`. 0: more bytes
 * are needed. -1: this is no AMQP, or breaks a limit. */
int codec_frame(struct slice in, size_t frame_max, struct frame *f, size_t *used, struct err *e);

/* The method of a METHOD frame; lives until the next call. Not for methods that hold tables. NULL:
 * malformed or unknown. */
void *codec_decode(struct codec *c, const struct frame *f, uint32_t *id, struct err *e);

/* The delivery tag and the multiple flag of basic.ack and basic.nack: the hot path. */
bool codec_is_confirm(const struct frame *f, uint64_t *tag, bool *multiple, bool *ack);

/* Body size and message id (absent: ptr NULL) of a HEADER frame. */
int codec_content_header(
	const struct frame *f, uint64_t *body_size, struct slice *message_id, struct err *e);

/* connection.start: is PLAIN among the mechanisms, and what the server says it is. */
struct server_start {
	unsigned major, minor;
	struct slice product, version; /* may be absent */
	bool plain;
};
int codec_connection_start(const struct frame *f, struct server_start *s, struct err *e);

static inline amqp_bytes_t codec_bytes(struct slice s)
{
	/* The library takes what it only reads as void *. */
	union {
		const char *in;
		void *out;
	} p = { .in = s.ptr };

	return (amqp_bytes_t){ .len = s.len, .bytes = p.out };
}

static inline struct slice codec_slice(amqp_bytes_t b)
{
	return (struct slice){ b.bytes, b.len };
}

#endif

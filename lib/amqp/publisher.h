/* publisher.h: relay/publisher.h over RabbitMQ. */
#ifndef OUTBOXD_AMQP_PUBLISHER_H
#define OUTBOXD_AMQP_PUBLISHER_H

#include "config/config.h"
#include "relay/publisher.h"
#include "sys/guard.h"

/* Once, before the first thread. */
int amqp_global_init(struct err *e) MUST_CHECK;

/* Borrows conf, connection_name ("outboxd INSTANCE source SOURCE": what the broker's operators see)
 * and guard (may be NULL) for its lifetime. The caller fills (*out)->events before connect(). */
int amqp_publisher_new(struct publisher **out, const struct broker_conf *conf,
	const char *connection_name, struct guard *guard, struct err *e) MUST_CHECK;

/* Does the exchange exist, and may this user see it? Asked on a channel of its own, so nothing in
 * flight is disturbed. Connected publishers only; blocks, bounded by connect_timeout. ERR_REFUSED
 * with the broker's code (404, 403) if not. */
int amqp_check_exchange(struct publisher *p, const char *exchange, struct err *e) MUST_CHECK;

/* The queue's argument x-message-ttl, or AMQP_NO_TTL. Creates and changes nothing. As above;
 * ERR_REFUSED with the broker's code: 404 (there is no such queue), 403 (the user may not configure
 * it), 0 (it does not tell). */
#define AMQP_NO_TTL INT64_C(-1)
int amqp_queue_ttl(
	struct publisher *p, const char *queue, int64_t *ttl_us, struct err *e) MUST_CHECK;

/* What no correct broker does: counted, tolerated. */
struct amqp_oddities {
	uint64_t duplicate_acks;
	uint64_t unknown_acks;
	uint64_t unknown_returns;
	uint64_t strange_frames;
};
void amqp_publisher_oddities(const struct publisher *p, struct amqp_oddities *out);

#endif

/* check_queue.h: `outboxd check` of the queue that an inbox's consumer reads. */
#ifndef OUTBOXD_CHECK_QUEUE_H
#define OUTBOXD_CHECK_QUEUE_H

#include "config/config.h"
#include "mysql/schema.h"
#include "relay/publisher.h"

/* Is redelivery.message_ttl what the queue has? Asks a connected publisher of redelivery.broker. */
void check_queue(const struct inbox_conf *inbox, struct publisher *publisher,
	const struct finding_sink *sink);

#endif

/* rabbitmq.h: rabbitmq-c, under whichever name it is installed; the one place that includes it.
 *
 * Of the library only the protocol's codec is used: encoding and decoding of methods and
 * properties, its memory pools, its constants. Its connections are not: they block without limit in
 * publish, try a name's addresses under one deadline, send heartbeats only inside their own calls,
 * and before 0.16 read out of bounds when a stranger answers. */
#ifndef OUTBOXD_AMQP_RABBITMQ_H
#define OUTBOXD_AMQP_RABBITMQ_H

#if __has_include(<rabbitmq-c/amqp.h>)
#include <rabbitmq-c/amqp.h>
#include <rabbitmq-c/framing.h>
#else
#include <amqp.h>
#include <amqp_framing.h>
#endif

#endif

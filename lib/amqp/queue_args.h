/* queue_args.h: what a queue's x-message-ttl is, out of the broker's refusals. Pure: sends nothing.
 *
 * AMQP 0-9-1 has no question for it. But a queue that exists and is declared with other arguments
 * stays as it is, and the refusal names the first that differs, and what the queue has:
 *
 *	declare durable, x-message-ttl -1     406 ... 'x-expires' ... current is ... '600000'
 *	the same with x-expires 600000        406 ... 'x-message-ttl' ... current is '60000'
 *
 * A TTL of -1 is what no queue has and none can be created with: whatever becomes of the queue in
 * between, nothing comes into being. */
#ifndef OUTBOXD_AMQP_QUEUE_ARGS_H
#define OUTBOXD_AMQP_QUEUE_ARGS_H

#include "amqp/rabbitmq.h"
#include "base/slice.h"

#include <stdint.h>

/* More than a queue can have that is compared. */
#define QUEUE_ARGS_MAX 20

struct queue_arg {
	char name[64];
	bool has;      /* false: the queue has none */
	char type[16]; /* "long", "longstr", "bool", ...; empty: not told */
	char value[256];
};

/* The refusal of a declaration, with whatever comes before it; false: it is none of this kind, or
 * was cut short. */
bool queue_arg_parse(struct slice refusal, struct queue_arg *out);

struct queue_args {
	bool durable, auto_delete;
	struct queue_arg known[QUEUE_ARGS_MAX];
	size_t count;
	amqp_table_entry_t entries[QUEUE_ARGS_MAX + 1];
};

void queue_args_init(struct queue_args *q);

/* The next declaration; lives as long as *q and the name, until the next call. */
void queue_args_declare(struct queue_args *q, struct slice queue, amqp_queue_declare_t *m);

enum queue_args_next {
	QUEUE_ARGS_AGAIN, /* declare again */
	QUEUE_ARGS_DONE,  /* *ttl_ms is the queue's TTL, or -1 if it has none */
	QUEUE_ARGS_STUCK, /* nothing more can be learnt */
};
enum queue_args_next queue_args_refused(
	struct queue_args *q, struct slice refusal, int64_t *ttl_ms);

#endif

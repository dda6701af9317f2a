/* mq.h: the broker as a test uses it: exchanges, queues, and what arrived in them. Everything
 * declared is durable and goes by itself some minutes after its last use. */
#ifndef OUTBOXD_TESTS_MQ_H
#define OUTBOXD_TESTS_MQ_H

#include "support/env.h"

struct mq;

struct mq *mq_open(void);
void mq_close(struct mq *mq);
/* After the broker was away. */
void mq_reopen(struct mq *mq, int64_t ms);

void mq_declare_exchange(struct mq *mq, const char *name, const char *type);
/* What no queue is bound for goes on to the exchange `over`. */
void mq_declare_exchange_over(struct mq *mq, const char *name, const char *over);
/* Nobody may publish to it: 403 for whoever does. */
void mq_declare_exchange_internal(struct mq *mq, const char *name);
void mq_delete_exchange(struct mq *mq, const char *name);
void mq_declare_queue(struct mq *mq, const char *name);
/* It takes no more than `most` messages: what is beyond is nacked. */
void mq_declare_queue_limited(struct mq *mq, const char *name, unsigned most);
/* It has one consumer at a time. */
void mq_declare_queue_single(struct mq *mq, const char *name);
/* `arguments` as name, value, ...: a number, or a text; NULL ends them. */
void mq_declare_queue_with(
	struct mq *mq, const char *name, bool durable, const char *const *arguments);
bool mq_queue_exists(struct mq *mq, const char *name);
void mq_delete_queue(struct mq *mq, const char *name);
void mq_bind(struct mq *mq, const char *queue, const char *exchange, const char *key);
void mq_unbind(struct mq *mq, const char *queue, const char *exchange, const char *key);
int64_t mq_depth(struct mq *mq, const char *queue);

struct message_header {
	char *name;
	char kind;  /* as on the wire: S t l d A F I ... */
	char *text; /* S: the string; numbers in decimal; t: true, false; A, F: [..] {..} */
};

struct message {
	char *exchange, *routing_key;
	char *message_id, *type, *app_id, *content_type; /* NULL: absent */
	uint64_t timestamp;
	unsigned delivery_mode; /* 0: absent */
	bool redelivered;
	struct message_header *headers;
	unsigned header_count;
	char *body; /* and a NUL that is not counted */
	size_t len;
};

/* What arrived, in that order. */
struct inbox {
	struct message *messages;
	size_t count, cap;
	bool no_bodies; /* memory */
};

/* Takes everything that is in the queue now; returns how many. */
size_t mq_drain(struct mq *mq, const char *queue, struct inbox *into);
void inbox_fini(struct inbox *in);
unsigned inbox_count(const struct inbox *in, const char *message_id);
const struct message *inbox_find(const struct inbox *in, const char *message_id);
const struct message_header *message_header(const struct message *m, const char *name);

/* A memory alarm: no publisher's messages are read until it is lifted. */
void mq_alarm(bool on);
/* rabbitmqctl with these words. */
void mq_control(const char *const *words);

#endif

#include "check_queue.h"

#include "amqp/publisher.h"
#include "base/str.h"

#include <stdio.h>

struct queue_check {
	const struct inbox_conf *inbox;
	const struct finding_sink *sink;
	char where[400];
};

static void report(struct queue_check *c, enum severity severity, const char *what, const char *fix)
{
	const struct finding f = { severity, c->where, what, fix };

	c->sink->found(c->sink->arg, &f);
}

static void report_unread(struct queue_check *c, const struct err *e)
{
	const struct redelivery_conf *r = &c->inbox->redelivery;
	char what[700], fix[700];

	snprintf(
		what, sizeof(what), "message_ttl cannot be compared with the queue's: %s", e->text);
	if (e->code == 404)
		snprintf(fix, sizeof(fix), "correct redelivery.queue, or vhost of broker %s",
			r->broker->name);
	else if (e->code == 403)
		snprintf(fix, sizeof(fix),
			"let %.255s configure the queue, or name another broker's user in "
			"redelivery.broker, or leave redelivery.queue out",
			r->broker->username);
	else
		snprintf(fix, sizeof(fix),
			"see that the queue's messages live no longer than message_ttl, and leave "
			"redelivery.queue out");
	report(c, SEVERITY_WARNING, what, fix);
}

static void report_longer(struct queue_check *c, int64_t ttl_us)
{
	const struct inbox_conf *in = c->inbox;
	struct redelivery_conf real = in->redelivery;
	char ttl[STR_DURATION_MAX], told[STR_DURATION_MAX], kept[STR_DURATION_MAX], fix[200];
	struct buf sum = { 0 }, what = { 0 };
	int64_t total_us;

	real.message_ttl_us = ttl_us;
	total_us = redelivery_sum(&real, &sum);
	str_duration(ttl_us, ttl);
	str_duration(in->redelivery.message_ttl_us, told);
	str_duration(in->retention.processed_us, kept);
	snprintf(fix, sizeof(fix), "message_ttl: %s", ttl);
	buf_addf(&what, "its messages live for %s (x-message-ttl), message_ttl says %s", ttl, told);
	if (in->retention.processed_us != AGE_NEVER && in->retention.processed_us <= total_us) {
		buf_addf(&what,
			": retention.processed %s does not exceed %s, for which a message may come "
			"again",
			kept, sum.failed ? "the sum" : sum.data);
		snprintf(fix, sizeof(fix),
			"message_ttl: %s, and more retention.processed than the "
			"sum; or a queue with less x-message-ttl",
			ttl);
		report(c, SEVERITY_FAULT, what.failed ? "" : what.data, fix);
	} else {
		report(c, SEVERITY_WARNING, what.failed ? "" : what.data, fix);
	}
	buf_fini(&sum);
	buf_fini(&what);
}

void check_queue(const struct inbox_conf *inbox, struct publisher *publisher,
	const struct finding_sink *sink)
{
	const struct redelivery_conf *r = &inbox->redelivery;
	struct queue_check c = { .inbox = inbox, .sink = sink };
	char ttl[STR_DURATION_MAX], what[200];
	struct err e = { 0 };
	int64_t ttl_us;

	snprintf(c.where, sizeof(c.where), "inbox %s: queue %s", inbox->name, r->queue);
	if (amqp_queue_ttl(publisher, r->queue, &ttl_us, &e) < 0) {
		report_unread(&c, &e);
	} else if (ttl_us == AMQP_NO_TTL) {
		report(&c, SEVERITY_WARNING,
			"it has no x-message-ttl: unless a policy gives it one, which cannot be "
			"seen from here, a message may lie in it for ever, and message_ttl is no "
			"limit",
			"see that a policy has message-ttl, or declare the queue with one");
	} else if (ttl_us > r->message_ttl_us) {
		report_longer(&c, ttl_us);
	} else {
		str_duration(ttl_us, ttl);
		snprintf(what, sizeof(what),
			"its messages live for %s (x-message-ttl), no longer than message_ttl",
			ttl);
		report(&c, SEVERITY_NOTE, what, "");
	}
}

#include "amqp/queue_args.h"

#include "unit.h"

#include <stdio.h>
#include <string.h>

#define REFUSED(arg, rest)                                                                         \
	"the broker closed the channel: 406 PRECONDITION_FAILED - inequivalent arg '" arg          \
	"' for queue 'q' in vhost '/': " rest

START_TEST(a_refusal_names_the_argument_and_what_the_queue_has)
{
	static const struct {
		const char *text, *name, *type, *value; /* value NULL: it has none */
	} refusals[] = {
		{ REFUSED("x-message-ttl", "received '-1' but current is '60000'"), "x-message-ttl",
			"", "60000" },
		{ REFUSED("x-message-ttl", "received the value '-1' of type 'long' but current is "
					   "the value '60000' of type 'signedint'"),
			"x-message-ttl", "signedint", "60000" },
		{ REFUSED("x-message-ttl",
			  "received the value '-1' of type 'long' but current is none"),
			"x-message-ttl", "", NULL },
		{ REFUSED("x-dead-letter-exchange",
			  "received none but current is the value 'it's' of type 'longstr'"),
			"x-dead-letter-exchange", "longstr", "it's" },
		{ REFUSED("durable", "received 'true' but current is 'false'"), "durable", "",
			"false" },
		{ "inequivalent arg 'x-message-ttl' for queue ''x' but current is '7'' in vhost "
		  "'/': received '-1' but current is '60000'.",
			"x-message-ttl", "", "60000" },
	};

	for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
		struct queue_arg a;

		ck_assert_msg(
			queue_arg_parse(slice_str(refusals[i].text), &a), "%s", refusals[i].text);
		ck_assert_str_eq(a.name, refusals[i].name);
		ck_assert_str_eq(a.type, refusals[i].type);
		ck_assert_int_eq(a.has, refusals[i].value != NULL);
		ck_assert_str_eq(a.value, a.has ? refusals[i].value : "");
	}
}
END_TEST

START_TEST(what_is_cut_short_or_something_else_is_not_guessed_at)
{
	static const char *const texts[] = {
		"",
		"NOT_FOUND - no queue 'q' in vhost '/'",
		"invalid arg 'x-message-ttl' for queue 'q' in vhost '/': {value_negative,-1}",
		"inequivalent arg 'x-message-ttl",
		"inequivalent arg 'x-message-ttl' for queue 'q",
		"inequivalent arg 'x-message-ttl' for queue 'q' but current is '7'...",
		REFUSED("x-message-ttl", "received '-1' but current is"),
		REFUSED("x-message-ttl", "received '-1' but current is "),
		REFUSED("x-message-ttl", "received '-1' but current is '"),
		REFUSED("x-message-ttl", "received '-1' but current is '600..."),
		REFUSED("x-message-ttl",
			"received '-1' but current is the value '60000' of type 'sig..."),
	};

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		struct queue_arg a;

		ck_assert_msg(!queue_arg_parse(slice_str(texts[i]), &a), "%s", texts[i]);
	}
}
END_TEST

static enum queue_args_next hear(struct queue_args *q, const char *text, int64_t *ttl_ms)
{
	return queue_args_refused(q, slice_str(text), ttl_ms);
}

START_TEST(each_refusal_corrects_the_next_declaration_until_the_ttl_is_told)
{
	struct queue_args q;
	amqp_queue_declare_t m;
	int64_t ttl_ms = 0;

	queue_args_init(&q);
	queue_args_declare(&q, SLICE_LIT("q"), &m);
	ck_assert(m.durable && !m.auto_delete && !m.passive);
	ck_assert_int_eq(
		hear(&q, REFUSED("durable", "received 'true' but current is 'false'"), &ttl_ms),
		QUEUE_ARGS_AGAIN);
	ck_assert_int_eq(
		hear(&q, REFUSED("auto_delete", "received 'false' but current is 'true'"), &ttl_ms),
		QUEUE_ARGS_AGAIN);
	ck_assert_int_eq(hear(&q,
				 REFUSED("x-expires", "received none but current is the value "
						      "'600000' of type 'long'"),
				 &ttl_ms),
		QUEUE_ARGS_AGAIN);
	ck_assert_int_eq(hear(&q,
				 REFUSED("x-overflow", "received none but current is the value "
						       "'drop-head' of type 'longstr'"),
				 &ttl_ms),
		QUEUE_ARGS_AGAIN);
	queue_args_declare(&q, SLICE_LIT("q"), &m);
	ck_assert(!m.durable && m.auto_delete);
	ck_assert_int_eq(m.arguments.num_entries, 3);
	ck_assert_int_eq(m.arguments.entries[1].value.kind, AMQP_FIELD_KIND_I64);
	ck_assert_int_eq(m.arguments.entries[1].value.value.i64, 600000);
	ck_assert_int_eq(m.arguments.entries[2].value.kind, AMQP_FIELD_KIND_UTF8);
	ck_assert_uint_eq(m.arguments.entries[2].value.value.bytes.len, strlen("drop-head"));
	ck_assert_int_eq(
		hear(&q, REFUSED("x-message-ttl", "received '-1' but current is '0'"), &ttl_ms),
		QUEUE_ARGS_DONE);
	ck_assert_int_eq(ttl_ms, 0);
	ck_assert_int_eq(hear(&q,
				 REFUSED("x-message-ttl", "received the value '-1' of type 'long' "
							  "but current is none"),
				 &ttl_ms),
		QUEUE_ARGS_DONE);
	ck_assert_int_eq(ttl_ms, -1);
}
END_TEST

START_TEST(the_type_of_a_queue_is_told_without_the_type_of_the_value)
{
	struct queue_args q;
	amqp_queue_declare_t m;
	int64_t ttl_ms = 0;

	queue_args_init(&q);
	ck_assert_int_eq(
		hear(&q, REFUSED("x-queue-type", "received 'classic' but current is 'quorum'"),
			&ttl_ms),
		QUEUE_ARGS_AGAIN);
	queue_args_declare(&q, SLICE_LIT("q"), &m);
	ck_assert_int_eq(m.arguments.num_entries, 2);
	ck_assert_int_eq(m.arguments.entries[1].value.kind, AMQP_FIELD_KIND_UTF8);
	ck_assert_uint_eq(m.arguments.entries[1].value.value.bytes.len, strlen("quorum"));
}
END_TEST

START_TEST(no_declaration_could_ever_create_a_queue)
{
	struct queue_args q;
	amqp_queue_declare_t m;
	int64_t ttl_ms = 0;
	enum queue_args_next next = QUEUE_ARGS_AGAIN;

	queue_args_init(&q);
	for (unsigned i = 0; next == QUEUE_ARGS_AGAIN; i++) {
		char text[200];

		queue_args_declare(&q, SLICE_LIT("q"), &m);
		ck_assert_mem_eq(m.arguments.entries[0].key.bytes, "x-message-ttl", 13);
		ck_assert_int_eq(m.arguments.entries[0].value.value.i64, -1);
		snprintf(text, sizeof(text),
			REFUSED("x-%u", "received none but current is the value '1' of type "
					"'bool'"),
			i);
		next = hear(&q, text, &ttl_ms);
		ck_assert_uint_le(i, QUEUE_ARGS_MAX);
	}
	ck_assert_int_eq(next, QUEUE_ARGS_STUCK);
}
END_TEST

START_TEST(what_leads_nowhere_is_given_up)
{
	struct queue_args q;
	int64_t ttl_ms = 5;
	const char *again = REFUSED("x-x", "received none but current is the value '1' of type "
					   "'double'");

	queue_args_init(&q);
	ck_assert_int_eq(hear(&q, "whatever", &ttl_ms), QUEUE_ARGS_STUCK);
	ck_assert_int_eq(
		hear(&q, REFUSED("durable", "received 'true' but current is 'true'"), &ttl_ms),
		QUEUE_ARGS_STUCK);
	ck_assert_int_eq(hear(&q, again, &ttl_ms), QUEUE_ARGS_AGAIN);
	ck_assert_int_eq(hear(&q, again, &ttl_ms), QUEUE_ARGS_STUCK);
	ck_assert_int_eq(
		hear(&q, REFUSED("x-message-ttl", "received '-1' but current is 'long'"), &ttl_ms),
		QUEUE_ARGS_STUCK);
	ck_assert_int_eq(ttl_ms, 5);
	ck_assert_int_eq(hear(&q,
				 REFUSED("x-message-ttl",
					 "received '-1' but current is '9223372036854775807'"),
				 &ttl_ms),
		QUEUE_ARGS_DONE);
	ck_assert_int_lt(ttl_ms, INT64_MAX / 1000 / 100);
}
END_TEST

UNIT_MAIN("queue_args", a_refusal_names_the_argument_and_what_the_queue_has,
	what_is_cut_short_or_something_else_is_not_guessed_at,
	each_refusal_corrects_the_next_declaration_until_the_ttl_is_told,
	the_type_of_a_queue_is_told_without_the_type_of_the_value,
	no_declaration_could_ever_create_a_queue, what_leads_nowhere_is_given_up)

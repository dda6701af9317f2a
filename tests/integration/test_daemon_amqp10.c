/* `body: cloudevents` as a client of AMQP 1.0 sees it: Qpid Proton, by tests/support/amqp10.
 *
 * RabbitMQ makes application properties of headers since version 4; before it drops them. */
#include "support/rig.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRACE "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

static char seen[16000];

static unsigned broker_version(void)
{
	const char *version = getenv("OUTBOXD_TEST_AMQP_VERSION");

	return version != NULL ? (unsigned)strtoul(version, NULL, 10) : 0;
}

/* One event from the table to a client; what it saw is in `seen`. */
static void send_and_receive(void)
{
	const struct env *env = env_get();
	struct rig r;
	struct conf c;
	struct daemon *d = daemon_new("amqp10");
	char script[600], port[16], address[80];
	const char *argv[] = { script, env->mq_host, port, env->mq_user, env->mq_password, address,
		"1", NULL };

	snprintf(script, sizeof(script), "%s/tests/support/amqp10", env->repository);
	snprintf(port, sizeof(port), "%u", env->mq_port);
	rig_open(&r, 1);
	rig_conf(&r, &c);
	snprintf(address, sizeof(address), "%s/%s", broker_version() < 4 ? "/amq/queue" : "/queues",
		r.queue);
	c.source[0].publish = "      body: cloudevents\n";
	db_exec(r.db,
		"ALTER TABLE %s.outbox_event ADD traceparent VARCHAR(64) NULL; "
		"INSERT INTO %s.outbox_event SET event_id='0197-e1',aggregate_type='order',"
		"aggregate_id='\xc5\xa1-42',aggregate_version=7,event_type='paid',"
		"traceparent='" TRACE "',headers='{\"vip\": true, \"rate\": 1.5}',"
		"payload='{\"text\": \"k\xc5\xaf\xc5\x88 \xf0\x9f\x90\x87\"}',"
		"created_at='2026-01-02 03:04:05.678901'",
		r.schema[0].name, r.schema[0].name);
	daemon_configure(d, &c);
	daemon_start(d);
	rig_wait_sent(&r, 0, 20000);
	daemon_stop(d);
	if (env_run(seen, sizeof(seen), argv) != 0)
		FAIL("%s: %s", script, seen);
	daemon_free(d);
	rig_close(&r);
}

static void require_seen(const char *part, const char *name, const char *type, const char *value)
{
	char line[300];

	snprintf(line, sizeof(line), "%s\t%s\t%s\t%s\n", part, name, type, value);
	if (strstr(seen, line) == NULL)
		FAIL("not seen: %s in:\n%s", line, seen);
}

START_TEST(a_client_of_amqp_1_0_sees_id_content_type_and_the_payload_untouched)
{
	send_and_receive();
	require_seen("property", "id", "str", "0197-e1");
	require_seen("property", "content_type", "symbol", "application/json");
	require_seen("property", "durable", "bool", "True");
	require_seen("body", "data", "bytes", "{\"text\": \"k\xc5\xaf\xc5\x88 \xf0\x9f\x90\x87\"}");
}
END_TEST

START_TEST(cloudevents_attributes_are_application_properties_of_amqp_1_0)
{
	if (broker_version() < 4) {
		printf("SKIPPED: CloudEvents over AMQP 1.0: RabbitMQ %u drops headers there\n",
			broker_version());
		return;
	}
	send_and_receive();
	require_seen("application", "cloudEvents_specversion", "str", "1.0");
	require_seen("application", "cloudEvents_id", "str", "0197-e1");
	require_seen("application", "cloudEvents_source", "str", "/outboxd/s0");
	require_seen("application", "cloudEvents_type", "str", "paid");
	require_seen("application", "cloudEvents_subject", "str", "\xc5\xa1-42");
	require_seen("application", "cloudEvents_time", "str", "2026-01-02T03:04:05.678901Z");
	require_seen("application", "cloudEvents_traceparent", "str", TRACE);
	require_seen("application", "aggregate_version", "int", "7");
	require_seen("application", "vip", "bool", "True");
	require_seen("application", "rate", "float", "1.5");
}
END_TEST

RIG_MAIN("daemon: AMQP 1.0", 120,
	a_client_of_amqp_1_0_sees_id_content_type_and_the_payload_untouched,
	cloudevents_attributes_are_application_properties_of_amqp_1_0)

/* idle.c: what sources cost while nothing happens, and what they take in memory while much does. */
#include "bench.h"

#include "mysql/ddl.h"
#include "sys/clock.h"

#include <unistd.h>

#define MANY 100
#define SCHEMA "outboxd_bench_idle"
#define QUIET_S 5 /* until polling has slowed down */

static void measure(const struct bench *b, struct report *r, unsigned sources)
{
	struct daemon_conf conf = {
		.sources = sources, .tables = SCHEMA, .http_port = free_port()
	};
	struct counts before, after;
	double daemon, mysqld, broker, seconds;
	int64_t start_us;
	pid_t pid;

	config_free(configure(b, &conf));
	pid = daemon_start(b);
	wait_metric(conf.http_port, "outboxd_leader", sources);
	wait_series(conf.http_port, "outboxd_backlog_events", sources); /* counted once */
	sleep(QUIET_S);
	before = counts_now();
	daemon = cpu_us(pid);
	mysqld = cpu_us(b->mysqld);
	broker = cpu_us(b->broker);
	start_us = clock_mono_us();
	sleep(b->seconds);
	seconds = (double)(clock_mono_us() - start_us) / 1e6;
	after = counts_now();
	r->idle[r->idles++] = (struct idle){
		.sources = sources,
		.statements = (after.statements - before.statements) / seconds,
		.daemon_share = (cpu_us(pid) - daemon) / seconds / 1e6,
		.mysqld_share = (cpu_us(b->mysqld) - mysqld) / seconds / 1e6,
		.broker_share = (cpu_us(b->broker) - broker) / seconds / 1e6,
		.resident_mb = memory_mb(pid, "VmRSS"),
	};
	daemon_stop(pid);
}

void measure_idle(const struct bench *b, struct report *r)
{
	sql("CREATE DATABASE " SCHEMA);
	sql("USE " SCHEMA);
	sql("%s", ddl_outbox);
	for (unsigned i = 0; i < MANY; i++)
		sql("CREATE TABLE outbox%u LIKE outbox_event", i);
	measure(b, r, 1);
	measure(b, r, MANY);
	sql("USE mysql");
	sql("DROP DATABASE " SCHEMA);
}

void measure_memory(const struct bench *b, struct report *r)
{
	struct daemon_conf conf = { .sources = SCHEMAS, .http_port = free_port() };
	char schema[40];
	pid_t pid;

	for (unsigned i = 0; i < SCHEMAS; i++) {
		snprintf(schema, sizeof(schema), "outboxd_bench%u", i);
		fill(schema, b->memory);
	}
	config_free(configure(b, &conf));
	pid = daemon_start(b);
	wait_published(conf.http_port, b->memory * SCHEMAS);
	r->peak_mb = memory_mb(pid, "VmHWM");
	daemon_stop(pid);
	purge_queue(b);
}

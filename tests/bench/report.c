/* report.c: the same figures as text and as JSON. */
#include "bench.h"

#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

static double rate(const struct pass *p)
{
	return (double)p->events / p->seconds;
}

/* What it would reach of the limit with the machine to itself and both cores always busy. */
static double by_cpu(const struct report *r, const struct pass *p)
{
	double cores = (double)sysconf(_SC_NPROCESSORS_ONLN);

	return cores * 1e6 / (p->mysqld_us + p->broker_us + p->client_us) / r->limit;
}

/* ---- text */

static void text_passes(const struct bench *b, const struct report *r, FILE *f)
{
	double one = rate(&r->pass[ONE_BY_ONE]);

	fprintf(f, "\nThroughput, mean of %u rounds; CPU in microseconds an event\n", b->rounds);
	fprintf(f, "%-20s %8s %9s %7s %7s %7s %11s %9s %7s\n", "", "events", "events/s", "mysqld",
		"broker", "client", "one-by-one", "of limit", "by CPU");
	for (unsigned i = 0; i < r->passes; i++) {
		const struct pass *p = &r->pass[i];

		fprintf(f, "%-20s %8" PRIu64 " %9.0f %7.1f %7.1f %7.1f %9.1f x", p->name, p->events,
			rate(p), p->mysqld_us, p->broker_us, p->client_us, rate(p) / one);
		if (i >= DAEMON_NONE)
			fprintf(f, " %9.2f %7.2f", rate(p) / r->limit, by_cpu(r, p));
		fputc('\n', f);
	}
	fprintf(f, "limit %.0f events/s = %ld cores / (%.1f + %.1f + %.1f us)\n", r->limit,
		sysconf(_SC_NPROCESSORS_ONLN), r->pass[DATABASE_ALONE].mysqld_us,
		r->pass[BROKER_ALONE].broker_us, CLIENT_US);

	fprintf(f, "\nAn event costs the database\n");
	fprintf(f, "%-20s %11s %9s %13s %9s %9s\n", "", "statements", "commits", "binlog bytes",
		"bytes in", "bytes out");
	for (unsigned i = 0; i < r->passes; i++) {
		const struct pass *p = &r->pass[i];

		if (i == BROKER_ALONE)
			continue;
		fprintf(f, "%-20s %11.3f %9.4f %13.0f %9.0f %9.0f\n", p->name, p->statements,
			p->commits, p->binlog_bytes, p->db_received, p->db_sent);
	}
	if (r->pass[BROKER_ALONE].mq_sent > 0)
		fprintf(f, "and %.0f bytes to the broker, for a payload of 170\n",
			r->pass[BROKER_ALONE].mq_sent);
}

static void text_claims(const struct bench *b, const struct report *r, FILE *f)
{
	const struct claim_cost *least = &r->claim[0];

	fprintf(f,
		"\nA claim of %d rows, %u of each table in turns; p50 beside that of the first\n",
		BATCH, b->claims);
	fprintf(f, "%-26s | %-36s | %s\n", "", "right after ANALYZE TABLE",
		"statistics from 1,000 rows");
	fprintf(f, "%-26s |", "table");
	for (int i = 0; i < 2; i++)
		fprintf(f, " %8s %5s %6s %6s %5s%s", "examined", "locks", "p50 ms", "p99 ms",
			"ratio", i == 0 ? "  |" : "\n");
	for (unsigned i = 0; i < r->claims; i++) {
		const struct claim_cost *c = &r->claim[i];

		fprintf(f,
			"%-26s | %8.2f %5.2f %6.2f %6.1f %5.2f  | %8.2f %5.2f %6.2f %6.1f %5.2f\n",
			c->name, c->fresh.examined, c->fresh.locks, c->fresh.took.p50_ms,
			c->fresh.took.p99_ms, c->fresh.took.p50_ms / least->fresh.took.p50_ms,
			c->stale.examined, c->stale.locks, c->stale.took.p50_ms,
			c->stale.took.p99_ms, c->stale.took.p50_ms / least->stale.took.p50_ms);
	}
	fprintf(f,
		"(examined, locks: of all statements of the transaction, for each row claimed)\n");
}

static void text_held(const struct report *r, FILE *f)
{
	const struct held_cost *h = &r->held;

	fprintf(f,
		"\nPurge held back by a snapshot, %" PRIu64
		" events sent: mean claim %.2f ms for %.0f rows at first,\n%.2f ms for %.0f rows "
		"at "
		"last, %.2f times as long\n",
		h->events, h->first_ms, h->first_rows, h->last_ms, h->last_rows,
		h->last_ms / h->first_ms);
}

static void text_latency(const struct bench *b, const struct report *r, FILE *f)
{
	fprintf(f, "\nFrom commit to confirm, %u s each\n", b->seconds);
	fprintf(f, "%-26s %9s %8s %8s %8s %14s\n", "", "events/s", "p50 ms", "p99 ms", "p50",
		"p99");
	fprintf(f, "%-26s %9s %8.2f %8.2f\n", "one claim transaction", "", r->claim_alone.p50_ms,
		r->claim_alone.p99_ms);
	fprintf(f, "%-26s %9s %8.2f %8.2f\n", "one durable confirm", "", r->confirm_alone.p50_ms,
		r->confirm_alone.p99_ms);
	fprintf(f, "%-26s %9s %8.2f %8.2f\n", "both", "", r->floor.p50_ms, r->floor.p99_ms);
	for (unsigned i = 0; i < r->latencies; i++) {
		const struct latency *l = &r->latency[i];

		fprintf(f, "%-26s %9.0f %8.2f %8.2f %6.1f x %6.1f x of both\n", l->name, l->rate,
			l->lag.p50_ms, l->lag.p99_ms, l->lag.p50_ms / r->floor.p50_ms,
			l->lag.p99_ms / r->floor.p99_ms);
	}
}

static void text_idle(const struct bench *b, const struct report *r, FILE *f)
{
	fprintf(f, "\nIdle at default poll_interval, over %u s; shares of one core\n", b->seconds);
	fprintf(f, "%-20s %13s %9s %9s %9s %12s\n", "", "statements/s", "outboxd", "mysqld",
		"broker", "resident MB");
	for (unsigned i = 0; i < r->idles; i++) {
		const struct idle *d = &r->idle[i];
		char name[40];

		snprintf(name, sizeof(name), "%u source%s", d->sources, d->sources == 1 ? "" : "s");
		fprintf(f, "%-20s %13.2f %8.2f%% %8.2f%% %8.2f%% %12.1f\n", name, d->statements,
			d->daemon_share * 100, d->mysqld_share * 100, d->broker_share * 100,
			d->resident_mb);
	}
}

void report_text(const struct bench *b, const struct report *r, FILE *f)
{
	fprintf(f, "MySQL %s, RabbitMQ %s, sync_binlog=%.0f, flush at commit=%.0f; %ld cores\n",
		getenv("OUTBOXD_TEST_MYSQL_VERSION"), getenv("OUTBOXD_TEST_AMQP_VERSION"),
		number("SELECT @@sync_binlog"), number("SELECT @@innodb_flush_log_at_trx_commit"),
		sysconf(_SC_NPROCESSORS_ONLN));
	fprintf(f,
		"--events %" PRIu64 " --rounds %u --rows %" PRIu64 " --most %" PRIu64
		" --claims %u --held %" PRIu64 " --seconds %u --memory %" PRIu64 "\n",
		b->events, b->rounds, b->rows, b->most, b->claims, b->held, b->seconds, b->memory);
	fprintf(f, "the machine's load before: %.1f\n", r->load);
	if (r->passes > 0)
		text_passes(b, r, f);
	if (r->claims > 0)
		text_claims(b, r, f);
	if (r->held.events > 0)
		text_held(r, f);
	if (r->latencies > 0)
		text_latency(b, r, f);
	if (r->idles > 0)
		text_idle(b, r, f);
	if (r->peak_mb > 0)
		fprintf(f,
			"\nPeak resident memory, %d ordered sources with %" PRIu64
			" events each: %.1f MB\n",
			SCHEMAS, b->memory, r->peak_mb);
}

/* ---- JSON: names are ours and need no escapes */

static void json_passes(const struct report *r, FILE *f)
{
	fprintf(f, ",\n\"limit_events_per_second\":%.1f,\n\"passes\":[", r->limit);
	for (unsigned i = 0; i < r->passes; i++) {
		const struct pass *p = &r->pass[i];

		fprintf(f,
			"%s\n {\"name\":\"%s\",\"events\":%" PRIu64
			",\"seconds\":%.4f,\"events_per_second\":%.1f,\"mysqld_us\":%.2f,"
			"\"broker_us\":%.2f,\"client_us\":%.2f,\"statements\":%.4f,\"commits\":%."
			"5f,"
			"\"binlog_bytes\":%.1f,\"db_bytes_in\":%.1f,\"db_bytes_out\":%.1f",
			i > 0 ? "," : "", p->name, p->events, p->seconds, rate(p), p->mysqld_us,
			p->broker_us, p->client_us, p->statements, p->commits, p->binlog_bytes,
			p->db_received, p->db_sent);
		if (p->mq_sent > 0)
			fprintf(f, ",\"mq_bytes_in\":%.1f", p->mq_sent);
		if (i >= DAEMON_NONE)
			fprintf(f, ",\"of_limit\":%.3f,\"of_limit_by_cpu\":%.3f",
				rate(p) / r->limit, by_cpu(r, p));
		fprintf(f, ",\"times_one_by_one\":%.2f}", rate(p) / rate(&r->pass[ONE_BY_ONE]));
	}
	fprintf(f, "]");
}

static void json_spread(const char *name, const struct spread *s, FILE *f)
{
	fprintf(f, "\"%s\":{\"p50_ms\":%.3f,\"p99_ms\":%.3f}", name, s->p50_ms, s->p99_ms);
}

static void json_claims(const struct report *r, FILE *f)
{
	fprintf(f, ",\n\"claims\":[");
	for (unsigned i = 0; i < r->claims; i++) {
		const struct claim_cost *c = &r->claim[i];

		fprintf(f,
			"%s\n {\"table\":\"%s\",\"rows\":%" PRIu64
			",\"examined\":%.3f,\"locks\":%.3f,\"examined_stale\":%.3f,"
			"\"locks_stale\":%.3f,",
			i > 0 ? "," : "", c->name, c->rows, c->fresh.examined, c->fresh.locks,
			c->stale.examined, c->stale.locks);
		json_spread("analyzed", &c->fresh.took, f);
		fputc(',', f);
		json_spread("stale", &c->stale.took, f);
		fprintf(f, "}");
	}
	fprintf(f, "]");
}

static void json_latency(const struct report *r, FILE *f)
{
	fprintf(f, ",\n\"floor\":{");
	json_spread("claim", &r->claim_alone, f);
	fputc(',', f);
	json_spread("confirm", &r->confirm_alone, f);
	fputc(',', f);
	json_spread("both", &r->floor, f);
	fprintf(f, "},\n\"latency\":[");
	for (unsigned i = 0; i < r->latencies; i++) {
		const struct latency *l = &r->latency[i];

		fprintf(f,
			"%s\n {\"name\":\"%s\",\"events\":%" PRIu64 ",\"events_per_second\":%.1f,",
			i > 0 ? "," : "", l->name, l->events, l->rate);
		json_spread("commit_to_confirm", &l->lag, f);
		fprintf(f, "}");
	}
	fprintf(f, "]");
}

static void json_idle(const struct report *r, FILE *f)
{
	fprintf(f, ",\n\"idle\":[");
	for (unsigned i = 0; i < r->idles; i++) {
		const struct idle *d = &r->idle[i];

		fprintf(f,
			"%s\n "
			"{\"sources\":%u,\"statements_per_second\":%.3f,\"outboxd_share\":%.4f,"
			"\"mysqld_share\":%.4f,\"broker_share\":%.4f,\"resident_mb\":%.2f}",
			i > 0 ? "," : "", d->sources, d->statements, d->daemon_share,
			d->mysqld_share, d->broker_share, d->resident_mb);
	}
	fprintf(f, "]");
}

void report_json(const struct bench *b, const struct report *r, FILE *f)
{
	(void)b;
	fprintf(f, "{\"cores\":%ld,\"load_before\":%.2f", sysconf(_SC_NPROCESSORS_ONLN), r->load);
	if (r->passes > 0)
		json_passes(r, f);
	if (r->claims > 0)
		json_claims(r, f);
	if (r->held.events > 0)
		fprintf(f,
			",\n\"snapshot\":{\"events\":%" PRIu64
			",\"first_claim_ms\":%.3f,\"last_claim_ms\":%.3f,\"first_rows\":%.1f,"
			"\"last_rows\":%.1f}",
			r->held.events, r->held.first_ms, r->held.last_ms, r->held.first_rows,
			r->held.last_rows);
	if (r->latencies > 0)
		json_latency(r, f);
	if (r->idles > 0)
		json_idle(r, f);
	if (r->peak_mb > 0)
		fprintf(f, ",\n\"peak_resident_mb\":%.2f", r->peak_mb);
	fprintf(f, "}\n");
}

/* held.c: claims while a long snapshot (a backup, a forgotten session) keeps the server from
 * purging the index entries of rows that have been sent: the daemon's own histogram over the first
 * and the last of them. */
#include "bench.h"

/* A twentieth of the events: seconds, so that claims of every kind are among them. */
#define PART(events) ((events) / 20 + 1)

struct claims {
	double seconds, count, events;
};

static struct claims claims_now(unsigned port)
{
	return (struct claims){
		.seconds = scrape(port, "outboxd_claim_duration_seconds_sum"),
		.count = scrape(port, "outboxd_claim_duration_seconds_count"),
		.events = scrape(port, "outboxd_events_published_total"),
	};
}

static double mean_ms(const struct claims *from, const struct claims *to)
{
	return (to->seconds - from->seconds) * 1e3 / (to->count - from->count);
}

static double mean_rows(const struct claims *from, const struct claims *to)
{
	return (to->events - from->events) / (to->count - from->count);
}

void measure_held(const struct bench *b, struct report *r)
{
	struct daemon_conf conf = { .sources = 1, .http_port = free_port() };
	MYSQL *snapshot = db_another(b);
	uint64_t part = PART(b->held);
	struct claims from, first, before, last;
	pid_t pid;

	fill("outboxd_bench0", b->held);
	sql_on(snapshot, "USE outboxd_bench0");
	sql_on(snapshot, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ");
	sql_on(snapshot, "START TRANSACTION WITH CONSISTENT SNAPSHOT");
	config_free(configure(b, &conf));
	pid = daemon_start(b);
	wait_published(conf.http_port, part / 20); /* once it has begun */
	from = claims_now(conf.http_port);
	wait_published(conf.http_port, part);
	first = claims_now(conf.http_port);
	wait_published(conf.http_port, b->held - part);
	before = claims_now(conf.http_port);
	wait_published(conf.http_port, b->held);
	last = claims_now(conf.http_port);
	if (number_on(snapshot, "SELECT COUNT(*) FROM outbox_event WHERE status='PENDING'") <
		(double)b->held)
		die("snapshot", "was not held");
	daemon_stop(pid);
	mysql_close(snapshot);
	purge_queue(b);
	r->held = (struct held_cost){
		.events = b->held,
		.first_ms = mean_ms(&from, &first),
		.last_ms = mean_ms(&before, &last),
		.first_rows = mean_rows(&from, &first),
		.last_rows = mean_rows(&before, &last),
	};
}

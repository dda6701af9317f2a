#include "relay/relay_metrics.h"

#include <string.h>

static const double seconds_fast[] = { 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,
	2.5, 5, 10 };
static const double seconds_lag[] = { 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30,
	60, 300, 3600 };

static const char *broker_error_name(enum broker_error e)
{
	static const char *const names[BROKER_ERRORS] = {
		[BROKER_ERR_LINK] = "link",
		[BROKER_ERR_CONFIG] = "config",
		[BROKER_ERR_CHANNEL] = "channel",
		[BROKER_ERR_TIMEOUT] = "timeout",
		[BROKER_ERR_PROTOCOL] = "protocol",
	};

	return names[e];
}

void relay_metrics_init(struct relay_metrics *m, struct metrics *r, const char *source, int ordered)
{
	struct metric_label by_source[] = { { "source", source }, { NULL, NULL } };
	struct metric_label by_class[] = { { "source", source }, { "class", NULL },
		{ NULL, NULL } };

	*m = (struct relay_metrics){ .registry = r };
	m->published = metrics_counter(r, "events_published_total",
		"Events confirmed by the broker and not returned.", by_source);
	m->retried = metrics_counter(r, "events_retried_total",
		"Events charged with a failed attempt and put back for another.", by_source);
	m->redelivered = metrics_counter(r, "events_redelivered_total",
		"Events sent again after an unknown outcome, so possibly delivered twice.",
		by_source);
	m->lease_lost = metrics_counter(r, "lease_lost_total",
		"Rows that were no longer this relay's when it wrote them back.", by_source);
	m->recovered = metrics_counter(r, "leases_recovered_total",
		"Rows taken over after another relay's lease had expired.", by_source);
	m->purged = metrics_counter(r, "purged_events_total",
		"Events that retention deleted or moved, those deleted as they were sent included.",
		by_source);
	m->hazards = metrics_counter(r, "order_hazards_total",
		"Events sent after later ones of their aggregate: committed late, or put back.",
		by_source);
	for (int f = 0; f < FAILURES; f++) {
		by_class[1].value = failure_name((enum failure)f);
		m->failed[f] = metrics_counter(
			r, "events_failed_total", "Charged or final failures of events.", by_class);
		m->dead[f] = metrics_counter(
			r, "events_dead_total", "Events that were given up.", by_class);
	}
	for (int k = ERR_CONFIG; k < ERR_AGAIN; k++) {
		by_class[1].value = err_kind_name((enum err_kind)k);
		m->db_errors[k] =
			metrics_counter(r, "db_errors_total", "Failed database calls.", by_class);
	}
	for (int b = 0; b < BROKER_ERRORS; b++) {
		by_class[1].value = broker_error_name((enum broker_error)b);
		m->broker_errors[b] = metrics_counter(r, "broker_errors_total",
			"Failures of the broker's connection or channels.", by_class);
	}
	m->in_flight = metrics_gauge(
		r, "in_flight_messages", "Messages sent and not yet confirmed.", by_source);
	if (ordered)
		m->leader = metrics_gauge(
			r, "leader", "1 while this process leads the ordered source.", by_source);
	m->source_up =
		metrics_gauge(r, "source_up", "1 while the source's database answers.", by_source);
	m->last_poll = metrics_gauge(r, "last_poll_timestamp_seconds",
		"When the source was last polled with success.", by_source);
	m->claim_seconds = metrics_histogram(r, "claim_duration_seconds",
		"Time a claim transaction took.", by_source, seconds_fast, ARRAY_LEN(seconds_fast));
	m->confirm_seconds = metrics_histogram(r, "confirm_duration_seconds",
		"Time from publish to confirm.", by_source, seconds_fast, ARRAY_LEN(seconds_fast));
	m->lag_seconds = metrics_histogram(r, "delivery_lag_seconds",
		"Time from created_at to confirm, by the database's clock.", by_source, seconds_lag,
		ARRAY_LEN(seconds_lag));
}

void relay_metrics_fini(struct relay_metrics *m)
{
	struct metric *single[] = { m->published, m->retried, m->redelivered, m->lease_lost,
		m->recovered, m->hazards, m->purged, m->in_flight, m->leader, m->source_up,
		m->last_poll, m->claim_seconds, m->confirm_seconds, m->lag_seconds };

	if (m->registry == NULL)
		return;
	for (size_t i = 0; i < ARRAY_LEN(single); i++)
		metrics_drop(m->registry, single[i]);
	for (int f = 0; f < FAILURES; f++) {
		metrics_drop(m->registry, m->failed[f]);
		metrics_drop(m->registry, m->dead[f]);
	}
	for (int k = ERR_CONFIG; k < ERR_AGAIN; k++)
		metrics_drop(m->registry, m->db_errors[k]);
	for (int b = 0; b < BROKER_ERRORS; b++)
		metrics_drop(m->registry, m->broker_errors[b]);
	memset(m, 0, sizeof(*m));
}

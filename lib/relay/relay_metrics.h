/* relay_metrics.h: the series one source's relay writes. Zeroed is valid: nothing is counted. */
#ifndef OUTBOXD_RELAY_METRICS_H
#define OUTBOXD_RELAY_METRICS_H

#include "base/err.h"
#include "metrics/metrics.h"
#include "relay/failure.h"

enum broker_error {
	BROKER_ERR_LINK,
	BROKER_ERR_CONFIG,
	BROKER_ERR_CHANNEL,
	BROKER_ERR_TIMEOUT,
	BROKER_ERR_PROTOCOL,
	BROKER_ERRORS
};

struct relay_metrics {
	struct metrics *registry;
	struct metric *published, *retried, *redelivered, *lease_lost, *recovered, *hazards,
		*purged;
	struct metric *failed[FAILURES], *dead[FAILURES];
	struct metric *db_errors[ERR_AGAIN];
	struct metric *broker_errors[BROKER_ERRORS];
	struct metric *in_flight, *leader, *source_up, *last_poll;
	struct metric *claim_seconds, *confirm_seconds, *lag_seconds;
};

/* Series labelled source=<source>; `leader` only where the source is ordered. */
void relay_metrics_init(
	struct relay_metrics *m, struct metrics *registry, const char *source, int ordered);
void relay_metrics_fini(struct relay_metrics *m);

#endif

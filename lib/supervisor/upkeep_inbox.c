/* upkeep_inbox.c: the gauges of inboxes. Which series there are depends on what the table holds: a
 * consumer keeps those it once had for as long as it has any row. */
#include "supervisor/upkeep_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct inbox_series {
	char consumer[129];
	char status[65]; /* empty: the age of its oldest unprocessed row */
	struct metric *gauge;
};

int inbox_count_rows(struct item *it, void *arg, struct err *e)
{
	(void)arg;
	return inbox_sample_read(it->session, &it->inbox_table, it->inbox, &it->counted, e);
}

static struct inbox_series *series_of(
	struct upkeep *u, struct item *it, const char *consumer, const char *status)
{
	struct metric_label labels[] = { { "inbox", it->name }, { "consumer", consumer },
		{ status[0] != '\0' ? "status" : NULL, status }, { NULL, NULL } };
	struct inbox_series *s;

	for (size_t i = 0; i < it->series_count; i++)
		if (strcmp(it->series[i].consumer, consumer) == 0 &&
			strcmp(it->series[i].status, status) == 0)
			return &it->series[i];
	if (it->series_count == it->series_cap) {
		size_t cap = it->series_cap * 2 + 16;
		struct inbox_series *more = reallocarray(it->series, cap, sizeof(*more));

		if (more == NULL)
			return NULL; /* a gauge less */
		it->series = more;
		it->series_cap = cap;
	}
	s = &it->series[it->series_count++];
	*s = (struct inbox_series){ 0 };
	memcpy(s->consumer, consumer, strlen(consumer));
	memcpy(s->status, status, strlen(status));
	s->gauge = status[0] != '\0'
			   ? metrics_gauge(u->metrics, "inbox_events",
				     "Rows of the inbox by consumer and status.", labels)
			   : metrics_gauge(u->metrics, "inbox_oldest_unprocessed_age_seconds",
				     "Since received_at of the consumer's oldest row that is not "
				     "processed; 0: none.",
				     labels);
	return s;
}

static bool has_rows(const struct inbox_sample *sample, const char *consumer)
{
	for (size_t i = 0; i < sample->age_count; i++)
		if (strcmp(sample->ages[i].consumer, consumer) == 0)
			return true;
	return false;
}

void inbox_set_series(struct upkeep *u, struct item *it)
{
	const struct inbox_sample *now = &it->counted;

	for (size_t i = 0; i < it->series_count;) {
		struct inbox_series *s = &it->series[i];

		if (has_rows(now, s->consumer)) {
			metric_set(s->gauge, 0);
			i++;
		} else {
			metrics_drop(u->metrics, s->gauge);
			*s = it->series[--it->series_count];
		}
	}
	for (size_t i = 0; i < now->count_count; i++) {
		const struct inbox_count *c = &now->counts[i];
		struct inbox_series *s =
			series_of(u, it, c->consumer, c->status[0] != '\0' ? c->status : "none");

		if (s != NULL)
			metric_set(s->gauge, (double)c->rows);
	}
	for (size_t i = 0; i < now->age_count; i++) {
		struct inbox_series *s = series_of(u, it, now->ages[i].consumer, "");

		if (s != NULL && now->ages[i].oldest_us < 0)
			metric_absent(s->gauge);
		else if (s != NULL)
			metric_set(s->gauge, (double)now->ages[i].oldest_us / US_PER_SEC);
	}
}

void inbox_set_absent(struct item *it)
{
	for (size_t i = 0; i < it->series_count; i++)
		metric_absent(it->series[i].gauge);
}

void inbox_drop(struct upkeep *u, struct item *it)
{
	for (size_t i = 0; i < it->series_count; i++)
		metrics_drop(u->metrics, it->series[i].gauge);
	free(it->series);
	inbox_sample_fini(&it->counted);
}

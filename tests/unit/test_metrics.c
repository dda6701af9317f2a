#include "base/str.h"
#include "metrics/metrics.h"

#include "unit.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* ---- a strict reader of the text format, sharing nothing with the writer ---- */

struct reader {
	const char *p;
	char family[128], type[16];
	char last_family[128];
	char bucket_series[1024]; /* the histogram series whose buckets are being read */
	double bucket_le, bucket_value;
	bool had_inf, had_sum;
	int samples;
};

#define EXPECT(r, cond) ck_assert_msg(cond, "%s at: %.60s", #cond, (r)->p)

static void read_char(struct reader *r, char c)
{
	EXPECT(r, *r->p == c);
	r->p++;
}

static void read_word(struct reader *r, char *out, size_t size, const char *more)
{
	size_t n = 0;

	EXPECT(r, strchr("0123456789", *r->p) == NULL);
	while (*r->p != '\0' &&
		(strchr("abcdefghijklmnopqrstuvwxyz_", *r->p) != NULL ||
			strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", *r->p) != NULL ||
			strchr(more, *r->p) != NULL)) {
		EXPECT(r, n + 1 < size);
		out[n++] = *r->p++;
	}
	out[n] = '\0';
	EXPECT(r, n > 0);
}

static double read_number(struct reader *r, char end)
{
	char *after;
	double v = strtod(r->p, &after);

	EXPECT(r, after > r->p && *after == end);
	EXPECT(r, strncmp(r->p, "inf", 3) != 0 && strncmp(r->p, "nan", 3) != 0);
	EXPECT(r, strncmp(r->p, "-nan", 4) != 0 && *r->p != ' ');
	r->p = after;
	return v;
}

static void read_comment(struct reader *r)
{
	char name[128];

	EXPECT(r, strncmp(r->p, "# HELP ", 7) == 0);
	r->p += 7;
	read_word(r, name, sizeof(name), ":");
	EXPECT(r, strcmp(name, r->last_family) > 0); /* each once, sorted */
	EXPECT(r, strncmp(name, "outboxd_", 8) == 0);
	strcpy(r->family, name);
	strcpy(r->last_family, name);
	read_char(r, ' ');
	for (; *r->p != '\n'; r->p++) {
		EXPECT(r, *r->p != '\0');
		if (*r->p == '\\') {
			r->p++;
			EXPECT(r, *r->p == '\\' || *r->p == 'n');
		}
	}
	r->p++;
	EXPECT(r, strncmp(r->p, "# TYPE ", 7) == 0);
	r->p += 7;
	read_word(r, name, sizeof(name), ":");
	EXPECT(r, strcmp(name, r->family) == 0);
	read_char(r, ' ');
	read_word(r, r->type, sizeof(r->type), "");
	EXPECT(r, strcmp(r->type, "counter") == 0 || strcmp(r->type, "gauge") == 0 ||
			  strcmp(r->type, "histogram") == 0);
	read_char(r, '\n');
	EXPECT(r, strncmp(r->p, r->family, strlen(r->family)) == 0); /* never without a sample */
}

/* Everything but le goes into `series`; returns whether there was an le. */
static bool read_labels(struct reader *r, char *series, size_t size, double *le)
{
	bool has_le = false;

	read_char(r, '{');
	for (;;) {
		char name[64];
		const char *start = r->p;

		read_word(r, name, sizeof(name), "");
		read_char(r, '=');
		read_char(r, '"');
		if (strcmp(name, "le") == 0) {
			has_le = true;
			*le = read_number(r, '"');
		} else {
			for (; *r->p != '"'; r->p++) {
				EXPECT(r, *r->p != '\n' && *r->p != '\0');
				if (*r->p == '\\') {
					r->p++;
					EXPECT(r, *r->p != '\0' && strchr("\\\"n", *r->p) != NULL);
				}
			}
			EXPECT(r, strlen(series) + (size_t)(r->p - start) + 2 < size);
			strncat(series, start, (size_t)(r->p - start));
		}
		read_char(r, '"');
		if (*r->p == '}')
			break;
		read_char(r, ',');
	}
	read_char(r, '}');
	return has_le;
}

static void check_histogram(
	struct reader *r, const char *suffix, const char *series, bool has_le, double le, double v)
{
	if (strcmp(suffix, "_bucket") == 0) {
		EXPECT(r, has_le);
		if (strcmp(series, r->bucket_series) != 0 || r->had_inf) {
			strcpy(r->bucket_series, series);
			r->bucket_le = -INFINITY;
			r->bucket_value = 0;
			r->had_inf = r->had_sum = false;
		}
		EXPECT(r, le > r->bucket_le && v >= r->bucket_value);
		r->bucket_le = le;
		r->bucket_value = v;
		r->had_inf = isinf(le);
	} else if (strcmp(suffix, "_sum") == 0) {
		EXPECT(r, r->had_inf && !has_le && strcmp(series, r->bucket_series) == 0);
		r->had_sum = true;
	} else {
		EXPECT(r, strcmp(suffix, "_count") == 0);
		EXPECT(r, r->had_sum && !has_le && strcmp(series, r->bucket_series) == 0);
		EXPECT(r, v == r->bucket_value); /* the +Inf bucket */
	}
}

static void read_sample(struct reader *r)
{
	char name[128], series[1024] = "";
	bool has_le = false;
	double le = 0, v;

	read_word(r, name, sizeof(name), ":");
	EXPECT(r, strncmp(name, r->family, strlen(r->family)) == 0);
	if (*r->p == '{')
		has_le = read_labels(r, series, sizeof(series), &le);
	read_char(r, ' ');
	v = read_number(r, '\n');
	read_char(r, '\n');
	if (strcmp(r->type, "histogram") == 0) {
		check_histogram(r, name + strlen(r->family), series, has_le, le, v);
	} else {
		EXPECT(r, strcmp(name, r->family) == 0 && !has_le);
		EXPECT(r, strcmp(r->type, "gauge") == 0 || v >= 0);
	}
	r->samples++;
}

static int check_text(const char *text)
{
	struct reader r = { .p = text };

	ck_assert(utf8_valid(slice_str(text)));
	while (*r.p != '\0') {
		if (*r.p == '#')
			read_comment(&r);
		else
			read_sample(&r);
	}
	return r.samples;
}

/* `promtool check metrics` too, where there is one. */
static void check_with_promtool(const char *text)
{
	FILE *f;

	if (system("command -v promtool >/dev/null 2>&1") != 0)
		return;
	f = popen("promtool check metrics", "w");
	ck_assert_ptr_nonnull(f);
	fputs(text, f);
	ck_assert_int_eq(pclose(f), 0);
}

static const char *render(struct metrics *m)
{
	static struct buf b;

	buf_reset(&b);
	ck_assert_int_eq(metrics_render(m, &b), 0);
	check_text(buf_slice(&b).ptr);
	return buf_slice(&b).ptr;
}

#define LABELS(...) ((const struct metric_label[]){ __VA_ARGS__, { NULL, NULL } })

/* ---- */

START_TEST(an_empty_registry_renders_as_nothing)
{
	struct metrics *m = metrics_new();

	ck_assert_str_eq(render(m), "");
	metrics_free(m);
	metrics_free(NULL);
}
END_TEST

START_TEST(families_are_sorted_and_each_has_one_head)
{
	struct metrics *m = metrics_new();
	struct metric *b = metrics_counter(
		m, "bees_total", "Bees.", LABELS({ "source", "orders" }, { "class", "NACKED" }));

	metrics_gauge(m, "ants", "Ants.", NULL);
	metrics_counter(m, "bees_total", "Bees.", LABELS({ "source", "billing" }));
	metric_add(b, 41);
	metric_add(b, 1);
	ck_assert_str_eq(render(m), "# HELP outboxd_ants Ants.\n"
				    "# TYPE outboxd_ants gauge\n"
				    "outboxd_ants 0\n"
				    "# HELP outboxd_bees_total Bees.\n"
				    "# TYPE outboxd_bees_total counter\n"
				    "outboxd_bees_total{class=\"NACKED\",source=\"orders\"} 42\n"
				    "outboxd_bees_total{source=\"billing\"} 0\n");
	ck_assert_double_eq(metric_value(b), 42);
	check_with_promtool(render(m));
	metrics_free(m);
}
END_TEST

START_TEST(the_same_labels_are_the_same_series_until_the_last_reference_goes)
{
	struct metrics *m = metrics_new();
	struct metric *a = metrics_counter(m, "x_total", "X.", LABELS({ "a", "1" }, { "b", "2" }));
	struct metric *b = metrics_counter(m, "x_total", "X.", LABELS({ "b", "2" }, { "a", "1" }));

	ck_assert_ptr_eq(a, b);
	metric_add(a, 3);
	metrics_drop(m, a);
	ck_assert_ptr_nonnull(strstr(render(m), "outboxd_x_total{a=\"1\",b=\"2\"} 3\n"));
	metrics_drop(m, b);
	ck_assert_str_eq(render(m), "");
	a = metrics_counter(m, "x_total", "X.", LABELS({ "a", "1" }, { "b", "2" }));
	ck_assert_double_eq(metric_value(a), 0);
	metrics_drop(m, NULL);
	metrics_free(m);
}
END_TEST

START_TEST(no_label_value_breaks_the_page)
{
	struct metrics *m = metrics_new();

	metrics_gauge(m, "g", "G.", LABELS({ "source", "a\"b\\c\nd\te\r" }));
	metrics_gauge(m, "g", "G.", LABELS({ "source", "\xF0\x9F\x98\x80" }));
	metrics_gauge(m, "g", "G.", LABELS({ "source", "x\xFF\xC3y" }));
	metrics_gauge(m, "g", "G.", LABELS({ "source", "" }));
	ck_assert_ptr_nonnull(strstr(render(m), "outboxd_g{source=\"a\\\"b\\\\c\\nd\te\r\"} 0\n"));
	ck_assert_ptr_nonnull(strstr(render(m), "{source=\"\xF0\x9F\x98\x80\"} 0\n"));
	ck_assert_ptr_nonnull(strstr(render(m), "{source=\"x\xEF\xBF\xBD\xEF\xBF\xBDy\"} 0\n"));
	ck_assert_ptr_nonnull(strstr(render(m), "{source=\"\"} 0\n"));
	check_with_promtool(render(m));
	metrics_free(m);
}
END_TEST

START_TEST(values_that_become_equal_on_the_page_are_one_series)
{
	struct metrics *m = metrics_new();
	struct metric *a = metrics_gauge(m, "g", "G.", LABELS({ "source", "x\xFF" }));

	ck_assert_ptr_eq(a, metrics_gauge(m, "g", "G.", LABELS({ "source", "x\xFE" })));
	metrics_free(m);
}
END_TEST

START_TEST(help_is_escaped_and_quotes_in_it_are_not)
{
	struct metrics *m = metrics_new();

	metrics_gauge(m, "g", "a \\ b\nc \"d\"", NULL);
	ck_assert_ptr_nonnull(strstr(render(m), "# HELP outboxd_g a \\\\ b\\nc \"d\"\n"));
	metrics_free(m);
}
END_TEST

START_TEST(a_gauge_can_be_absent_and_a_family_of_absent_gauges_is_not_there)
{
	struct metrics *m = metrics_new();
	struct metric *a = metrics_gauge(m, "g", "G.", LABELS({ "s", "a" }));
	struct metric *b = metrics_gauge(m, "g", "G.", LABELS({ "s", "b" }));

	metrics_gauge(m, "other", "O.", NULL);
	metric_absent(a);
	metric_set(b, 2.5);
	ck_assert_ptr_null(strstr(render(m), "{s=\"a\"}"));
	ck_assert_ptr_nonnull(strstr(render(m), "outboxd_g{s=\"b\"} 2.5\n"));
	metric_absent(b);
	ck_assert_ptr_null(strstr(render(m), "outboxd_g"));
	ck_assert_ptr_nonnull(strstr(render(m), "outboxd_other 0\n"));
	metric_set(a, 1);
	ck_assert_ptr_nonnull(strstr(render(m), "outboxd_g{s=\"a\"} 1\n"));
	metrics_free(m);
}
END_TEST

START_TEST(numbers_read_back_as_they_were)
{
	static const double values[] = { 0, -1, 0.1, 1.0 / 3, 1e300, 5e-324, 1760000000.123456,
		-0.0, 123456789012345678.0, 0.30000000000000004 };
	struct metrics *m = metrics_new();
	struct metric *g = metrics_gauge(m, "g", "G.", NULL);

	for (size_t i = 0; i < ARRAY_LEN(values); i++) {
		metric_set(g, values[i]);
		ck_assert(strtod(strstr(render(m), "\noutboxd_g ") + 11, NULL) == values[i]);
	}
	metric_set(g, 0.1);
	ck_assert_ptr_nonnull(strstr(render(m), "\noutboxd_g 0.1\n"));
	metric_set(g, INFINITY);
	ck_assert_ptr_nonnull(strstr(render(m), "\noutboxd_g +Inf\n"));
	metric_set(g, -INFINITY);
	ck_assert_ptr_nonnull(strstr(render(m), "\noutboxd_g -Inf\n"));
	metric_set(g, -NAN);
	ck_assert_ptr_nonnull(strstr(render(m), "\noutboxd_g NaN\n"));
	metrics_free(m);
}
END_TEST

START_TEST(a_counter_counts_exactly_up_to_64_bits)
{
	struct metrics *m = metrics_new();
	struct metric *c = metrics_counter(m, "c_total", "C.", NULL);

	metric_add(c, UINT64_MAX - 1);
	metric_add(c, 1);
	ck_assert_ptr_nonnull(strstr(render(m), "\noutboxd_c_total 18446744073709551615\n"));
	metrics_free(m);
}
END_TEST

START_TEST(buckets_are_cumulative_and_a_bound_belongs_to_its_bucket)
{
	static const double bounds[] = { 0.005, 0.1, 1, 10 };
	struct metrics *m = metrics_new();
	struct metric *h = metrics_histogram(
		m, "h_seconds", "H.", LABELS({ "source", "s" }), bounds, ARRAY_LEN(bounds));

	for (int round = 0; round < 3; round++) {
		metric_observe(h, 0.005);
		metric_observe(h, 0.5);
		metric_observe(h, 0.5);
		metric_observe(h, 99);
		render(m); /* the halves change places each time */
	}
	ck_assert_str_eq(render(m), "# HELP outboxd_h_seconds H.\n"
				    "# TYPE outboxd_h_seconds histogram\n"
				    "outboxd_h_seconds_bucket{source=\"s\",le=\"0.005\"} 3\n"
				    "outboxd_h_seconds_bucket{source=\"s\",le=\"0.1\"} 3\n"
				    "outboxd_h_seconds_bucket{source=\"s\",le=\"1\"} 9\n"
				    "outboxd_h_seconds_bucket{source=\"s\",le=\"10\"} 9\n"
				    "outboxd_h_seconds_bucket{source=\"s\",le=\"+Inf\"} 12\n"
				    "outboxd_h_seconds_sum{source=\"s\"} 300.015\n"
				    "outboxd_h_seconds_count{source=\"s\"} 12\n");
	ck_assert_double_eq(metric_value(h), 12);
	metric_observe(h, NAN);
	ck_assert_double_eq(metric_value(h), 13);
	ck_assert_ptr_nonnull(strstr(render(m), "le=\"+Inf\"} 13\n"));
	metrics_free(m);
}
END_TEST

START_TEST(a_histogram_without_labels_or_buckets_is_valid)
{
	static const double bounds[] = { 1 };
	struct metrics *m = metrics_new();

	metric_observe(metrics_histogram(m, "ants", "Ants.", NULL, NULL, 0), 2);
	metric_observe(metrics_histogram(m, "bees", "Bees.", NULL, bounds, 1), 2);
	ck_assert_ptr_nonnull(strstr(render(m),
		"outboxd_ants_bucket{le=\"+Inf\"} 1\noutboxd_ants_sum 2\noutboxd_ants_count 1\n"));
	ck_assert_ptr_nonnull(strstr(render(m), "outboxd_bees_bucket{le=\"1\"} 0\n"));
	check_with_promtool(render(m));
	metrics_free(m);
}
END_TEST

START_TEST(null_series_are_taken_everywhere)
{
	metric_add(NULL, 1);
	metric_set(NULL, 1);
	metric_absent(NULL);
	metric_observe(NULL, 1);
	ck_assert_double_eq(metric_value(NULL), 0);
}
END_TEST

#define THREADS 4
#define ROUNDS 50000

static struct metrics *shared;
static atomic_int running;

static void *observe(void *arg)
{
	static const double bounds[] = { 1, 2, 3 };
	struct metric *c = metrics_counter(shared, "c_total", "C.", NULL);
	struct metric *h = metrics_histogram(shared, "h", "H.", NULL, bounds, 3);
	struct metric *g = metrics_gauge(shared, "g", "G.", NULL);

	(void)arg;
	for (int i = 0; i < ROUNDS; i++) {
		metric_add(c, 1);
		metric_observe(h, 2);
		metric_set(g, i);
		if (i % 1000 == 0) {
			struct metric *passing =
				metrics_gauge(shared, "p", "P.", LABELS({ "n", "1" }));

			metric_set(passing, i);
			metrics_drop(shared, passing);
		}
	}
	atomic_fetch_sub(&running, 1);
	return NULL;
}

START_TEST(under_load_every_page_is_valid_and_each_histogram_of_one_instant)
{
	pthread_t threads[THREADS];
	char want[64];
	int pages = 0;

	shared = metrics_new();
	atomic_store(&running, THREADS);
	for (int i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, observe, NULL);
	while (atomic_load(&running) > 0 || pages < 2) {
		const char *page = render(shared);
		const char *sum = strstr(page, "\noutboxd_h_sum ");
		const char *count = strstr(page, "\noutboxd_h_count ");

		if (sum != NULL) /* each observation was a 2 */
			ck_assert(strtod(sum + 15, NULL) == 2 * strtod(count + 17, NULL));
		pages++;
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	snprintf(want, sizeof(want), "\noutboxd_c_total %d\n", THREADS * ROUNDS);
	ck_assert_ptr_nonnull(strstr(render(shared), want));
	snprintf(want, sizeof(want), "\noutboxd_h_sum %d\n", 2 * THREADS * ROUNDS);
	ck_assert_ptr_nonnull(strstr(render(shared), want));
	metrics_free(shared);
}
END_TEST

UNIT_MAIN("metrics", an_empty_registry_renders_as_nothing,
	families_are_sorted_and_each_has_one_head,
	the_same_labels_are_the_same_series_until_the_last_reference_goes,
	no_label_value_breaks_the_page, values_that_become_equal_on_the_page_are_one_series,
	help_is_escaped_and_quotes_in_it_are_not,
	a_gauge_can_be_absent_and_a_family_of_absent_gauges_is_not_there,
	numbers_read_back_as_they_were, a_counter_counts_exactly_up_to_64_bits,
	buckets_are_cumulative_and_a_bound_belongs_to_its_bucket,
	a_histogram_without_labels_or_buckets_is_valid, null_series_are_taken_everywhere,
	under_load_every_page_is_valid_and_each_histogram_of_one_instant)

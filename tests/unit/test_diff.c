#include "config/diff.h"

#include "unit.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct config *load(const char *text)
{
	char path[] = "/tmp/outboxd-test-diff-XXXXXX";
	int fd = mkstemp(path);
	struct config *conf = NULL;
	struct buf faults = { 0 };

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
	if (config_load(&conf, path, &faults) < 0)
		ck_abort_msg("%s", faults.data);
	unlink(path);
	buf_fini(&faults);
	return conf;
}

#define BROKER(rest)                                                                               \
	"brokers:\n  - { name: b, hosts: [127.0.0.1], username: u, password: s3cret" rest " }\n"
#define SOURCE(name, rest)                                                                         \
	"  - { name: " name ", broker: b, database: { name: " name                                 \
	", username: u }, publish: { exchange: x, routing_key: k }" rest " }\n"

static char seen[4096];

static void on_change(void *arg, const char *line)
{
	(void)arg;
	snprintf(seen + strlen(seen), sizeof(seen) - strlen(seen), "%s\n", line);
}

static unsigned diff(const char *before, const char *after)
{
	struct config *a = load(before), *b = load(after);
	unsigned count;

	seen[0] = '\0';
	count = config_diff(a, b, on_change, NULL);
	config_free(a);
	config_free(b);
	return count;
}

START_TEST(the_same_file_twice_has_no_changes)
{
	ck_assert_uint_eq(diff(BROKER("") "sources:\n" SOURCE("a", ""),
				  "# moved\n" BROKER("") "sources:\n" SOURCE("a", "")),
		0);
}
END_TEST

START_TEST(a_change_is_named_with_its_source_and_both_values)
{
	ck_assert_uint_eq(
		diff(BROKER("") "sources:\n" SOURCE("a", ""),
			BROKER("") "sources:\n" SOURCE("a", ", batch: 200, retry: { base: 3s }")),
		2);
	ck_assert_ptr_nonnull(strstr(seen, "source a: batch: 500 -> 200\n"));
	ck_assert_ptr_nonnull(strstr(seen, "source a: retry.base: 2s -> 3s\n"));
}
END_TEST

START_TEST(added_and_removed_sources_are_named)
{
	ck_assert_uint_eq(diff(BROKER("") "sources:\n" SOURCE("a", ""),
				  BROKER("") "sources:\n" SOURCE("c", "")),
		2);
	ck_assert_str_eq(seen, "source a: removed\nsource c: added\n");
}
END_TEST

START_TEST(a_rotated_secret_is_a_change_whose_value_is_not_told)
{
	ck_assert_uint_gt(diff("brokers:\n  - { name: b, hosts: [127.0.0.1], username: u, "
			       "password: 0ther }\nsources:\n" SOURCE("a", ""),
				  BROKER("") "sources:\n" SOURCE("a", "")),
		0);
	ck_assert_ptr_null(strstr(seen, "0ther"));
	ck_assert_ptr_null(strstr(seen, "s3cret"));
}
END_TEST

#define INBOX(name, rest)                                                                          \
	"  - { name: " name ", database: { name: " name ", username: u }" rest " }\n"
#define BASE BROKER("") "sources:\n" SOURCE("a", "")

START_TEST(inboxes_come_go_and_change)
{
	ck_assert_uint_eq(diff(BASE "inboxes:\n" INBOX("i", ""),
				  BASE "inboxes:\n" INBOX("i", ", retention: { processed: never }")
					  INBOX("j", "")),
		2);
	ck_assert_str_eq(seen, "inbox i: retention.processed: 14d -> never\ninbox j: added\n");
	ck_assert_uint_eq(diff(BASE "inboxes:\n" INBOX("i", ""), BASE), 1);
	ck_assert_str_eq(seen, "inbox i: removed\n");
}
END_TEST

START_TEST(retention_is_a_change_that_the_relay_sees_only_where_rows_go_as_they_are_sent)
{
	struct config *a = load(BASE), *b, *c;

	ck_assert_uint_eq(diff(BASE, BROKER("") "sources:\n" SOURCE("a",
					     ", retention: { sent: never, window: "
					     "'22:00-01:30', max_rate: 5 }")),
		3);
	ck_assert_str_eq(seen, "source a: retention.sent: 7d -> never\n"
			       "source a: retention.window: (none) -> 22:00-01:30\n"
			       "source a: retention.max_rate: 0 -> 5\n");
	b = load(BROKER("") "sources:\n" SOURCE("a", ", retention: { sent: 1h, batch: 7 }"));
	c = load(BROKER("") "sources:\n" SOURCE("a", ", retention: { sent: 0s }"));
	ck_assert(config_source_equal(&a->sources[0], &b->sources[0]));
	ck_assert(!config_source_equal(&b->sources[0], &c->sources[0]));
	ck_assert(config_source_equal(&c->sources[0], &c->sources[0]));
	config_free(a);
	config_free(b);
	config_free(c);
}
END_TEST

START_TEST(a_source_differs_when_its_broker_does)
{
	struct config *a = load(BROKER("") "sources:\n" SOURCE("a", ""));
	struct config *b = load(BROKER(", confirm_timeout: 7s") "sources:\n" SOURCE("a", ""));

	ck_assert(!config_source_equal(&a->sources[0], &b->sources[0]));
	ck_assert(config_source_equal(&a->sources[0], &a->sources[0]));
	config_free(a);
	config_free(b);
}
END_TEST

UNIT_MAIN("diff", the_same_file_twice_has_no_changes,
	a_change_is_named_with_its_source_and_both_values, added_and_removed_sources_are_named,
	a_rotated_secret_is_a_change_whose_value_is_not_told, inboxes_come_go_and_change,
	retention_is_a_change_that_the_relay_sees_only_where_rows_go_as_they_are_sent,
	a_source_differs_when_its_broker_does)

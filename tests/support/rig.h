/* rig.h: what one test of the daemon stands on: a connection to each server, some schemas, an
 * exchange with a queue that gets everything routed by it. */
#ifndef OUTBOXD_TESTS_RIG_H
#define OUTBOXD_TESTS_RIG_H

#include "support/daemon.h"
#include "support/db.h"
#include "support/mq.h"
#include "support/oracle.h"

#define RIG_SCHEMAS 4

struct rig {
	struct db *db;
	struct mq *mq;
	struct schema schema[RIG_SCHEMAS];
	unsigned schemas;
	char exchange[40], queue[40];
	struct inbox inbox; /* what was drained so far */
};

/* The full table in `schemas` databases, a topic exchange, a queue bound to "#". */
void rig_open(struct rig *r, unsigned schemas);
void rig_open_with(struct rig *r, unsigned schemas, const char *ddl);
void rig_close(struct rig *r); /* after a test that passed */

/* A source "s<i>" for each schema. */
void rig_conf(const struct rig *r, struct conf *c);

uint64_t rig_rows(struct rig *r, unsigned schema, const char *where);
/* Until no row of the schema satisfies the condition any more. */
void rig_wait_none(struct rig *r, unsigned schema, const char *where, int64_t ms);
/* Until all rows are SENT (or DEAD). */
void rig_wait_sent(struct rig *r, unsigned schema, int64_t ms);
/* The rows that are PROCESSING now may be sent twice: something is about to die, or just did.
 * Returns how many there are. */
uint64_t rig_suspect(struct rig *r, unsigned schema);
/* Drains the queue and has the oracle judge. */
void rig_judge(struct rig *r, unsigned schema, const struct allowance *a, struct findings *f);

/* main() of a Check program whose tests need the servers; each is a case by its own name, so that
 * CK_RUN_CASE=name runs one. */
#define RIG_MAIN(title, seconds, ...)                                                              \
	static void rig_failed(const char *text)                                                   \
	{                                                                                          \
		ck_abort_msg("%s", text);                                                          \
	}                                                                                          \
	int main(void)                                                                             \
	{                                                                                          \
		const TTest *tests[] = { __VA_ARGS__ };                                            \
		Suite *suite = suite_create(title);                                                \
		SRunner *runner;                                                                   \
		int failed;                                                                        \
                                                                                                   \
		if (env_missing() != NULL) {                                                       \
			printf("SKIPPED: %s: %s\n0 passed, 0 failed, 1 skipped\n", title,          \
				env_missing());                                                    \
			return EXIT_SUCCESS;                                                       \
		}                                                                                  \
		env_on_failure = rig_failed;                                                       \
		for (size_t i = 0; i < ARRAY_LEN(tests); i++) {                                    \
			TCase *tcase = tcase_create(tests[i]->name);                               \
                                                                                                   \
			tcase_set_timeout(tcase, seconds);                                         \
			tcase_add_test(tcase, tests[i]);                                           \
			suite_add_tcase(suite, tcase);                                             \
		}                                                                                  \
		runner = srunner_create(suite);                                                    \
		srunner_run_all(runner, CK_ENV);                                                   \
		failed = srunner_ntests_failed(runner);                                            \
		srunner_free(runner);                                                              \
		return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;                                  \
	}

#endif

/* unit.h: what a Check program needs besides its tests. */
#ifndef OUTBOXD_TESTS_UNIT_H
#define OUTBOXD_TESTS_UNIT_H

#include <check.h>
#include <stdlib.h>

/* main() of a test program: runs one suite with one case of these tests. */
#define UNIT_MAIN(name, ...)                                                                       \
	int main(void)                                                                             \
	{                                                                                          \
		const TTest *tests[] = { __VA_ARGS__ };                                            \
		Suite *suite = suite_create(name);                                                 \
		TCase *tcase = tcase_create(name);                                                 \
		SRunner *runner = srunner_create(suite);                                           \
		int failed;                                                                        \
                                                                                                   \
		tcase_set_timeout(tcase, 60);                                                      \
		for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)                      \
			tcase_add_test(tcase, tests[i]);                                           \
		suite_add_tcase(suite, tcase);                                                     \
		srunner_run_all(runner, CK_ENV);                                                   \
		failed = srunner_ntests_failed(runner);                                            \
		srunner_free(runner);                                                              \
		return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;                                  \
	}

#endif

/* env.h: the servers a test runs against, as `tests/servers env` exports them, and the small things
 * every test needs: time, waiting, failing with a reason.
 *
 * OUTBOXD_TEST_ON=mariadb makes MariaDB the database of the whole run. OUTBOXD_BIN is the program
 * under test; else it is looked for in the folders above the test's own. */
#ifndef OUTBOXD_TESTS_ENV_H
#define OUTBOXD_TESTS_ENV_H

#include "base/base.h"

#include <stdbool.h>

struct env {
	const char *db_host, *db_user, *db_password, *db_version;
	unsigned db_port;
	bool mariadb;
	const char *mq_host, *mq_user, *mq_password;
	unsigned mq_port;
	const char *rabbitmqctl; /* NULL: none */
	const char *servers;     /* tests/servers; NULL: the servers are not ours to stop */
	char binary[512];
	char shim[512];       /* tests/shim; not for programs with a sanitizer */
	char repository[512]; /* where sql/ is */
	bool thorough;        /* OUTBOXD_TEST_LONG */
};

/* Fails the test if there are no servers: see env_missing(). */
const struct env *env_get(void);
/* NULL, or why tests with real servers cannot run here. */
const char *env_missing(void);

enum which_server { SERVER_DATABASE, SERVER_BROKER };

/* One of the verbs of tests/servers: "freeze", "thaw", "kill9", "restart". What is broken is
 * written down, so that the next test mends it if this one dies meanwhile: env_mend(). */
void env_server(enum which_server which, const char *verb);
void env_mend(void);
/* The same for what else a test breaks: it writes it down, and is asked whether it was. */
void env_mark(const char *what, bool broken);
bool env_marked(const char *what);

/* Called with the reason when a test fails; must not return. Without one: stderr, exit 1. */
extern void (*env_on_failure)(const char *text);
/* Called before that, to show logs; several can be added. */
void env_add_witness(void (*show)(void *arg), void *arg);
void env_drop_witness(void *arg);
void env_fail(const char *file, int line, const char *fmt, ...) PRINTF(3, 4)
	__attribute__((noreturn));

#define FAIL(...) env_fail(__FILE__, __LINE__, __VA_ARGS__)
#define REQUIRE(cond)                                                                              \
	do {                                                                                       \
		if (!(cond))                                                                       \
			FAIL("not true: %s", #cond);                                               \
	} while (0)
#define REQUIRE_INT(a, op, b)                                                                      \
	do {                                                                                       \
		long long a_ = (long long)(a), b_ = (long long)(b);                                \
		if (!(a_ op b_))                                                                   \
			FAIL("%s %s %s: %lld, %lld", #a, #op, #b, a_, b_);                         \
	} while (0)
#define REQUIRE_STR(a, b)                                                                          \
	do {                                                                                       \
		const char *a_ = (a), *b_ = (b);                                                   \
		if (a_ == NULL || strcmp(a_, b_) != 0)                                             \
			FAIL("%s: \"%s\", should be \"%s\"", #a, a_ != NULL ? a_ : "(null)", b_);  \
	} while (0)
/* Looks every few milliseconds until it is true. */
#define WAIT_FOR(ms, cond)                                                                         \
	do {                                                                                       \
		int64_t until_ = env_now_us() + (int64_t)(ms)*US_PER_MS;                           \
		while (!(cond)) {                                                                  \
			if (env_now_us() > until_)                                                 \
				FAIL("not within %d ms: %s", (int)(ms), #cond);                    \
			env_sleep_ms(20);                                                          \
		}                                                                                  \
	} while (0)

int64_t env_now_us(void); /* monotonic */
void env_sleep_ms(int64_t ms);
/* A name nobody has: "PREFIX" and 10 letters and digits. */
void env_name(char *out, size_t size, const char *prefix);
uint64_t env_random(void);

/* Runs a program to its end; returns its exit status. `out` (or NULL) gets what it printed. */
int env_run(char *out, size_t size, const char *const *argv);
/* The whole file, to be freed, or NULL. */
char *env_read_file(const char *path);
void env_write_file(const char *path, const char *text);
/* A TCP port of loopback that is free at the moment. */
unsigned env_free_port(void);

#endif

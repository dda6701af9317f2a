#include "relay/event.h"

#include "unit.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static bool move_is_refused(enum event_state from, enum event_state to)
{
	pid_t pid = fork();
	int status = 0;

	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		struct event ev = { .state = from };
		const struct rlimit none = { 0, 0 };

		setrlimit(RLIMIT_CORE, &none);
		if (freopen("/dev/null", "w", stderr) == NULL)
			_exit(2);
		event_move(&ev, to);
		_exit(ev.state == to ? 0 : 1);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	if (WIFSIGNALED(status)) {
		ck_assert_int_eq(WTERMSIG(status), SIGABRT);
		return true;
	}
	ck_assert_int_eq(WEXITSTATUS(status), 0);
	return false;
}

START_TEST(only_these_moves_are_allowed)
{
	/* from, in the order of the states: where to */
	static const char *const allowed[EVENT_STATES] = {
		[EVENT_FREE] = "claimed",
		[EVENT_CLAIMED] = "published failed released lost",
		[EVENT_PUBLISHED] = "confirmed failed unknown released lost",
		[EVENT_UNKNOWN] = "published failed released lost",
		[EVENT_CONFIRMED] = "settled lost",
		[EVENT_FAILED] = "settled lost",
		[EVENT_RELEASED] = "settled lost",
		[EVENT_SETTLED] = "free",
		[EVENT_LOST] = "free",
	};

	for (int from = 0; from < EVENT_STATES; from++)
		for (int to = 0; to < EVENT_STATES; to++) {
			bool may = strstr(allowed[from], event_state_name((enum event_state)to)) !=
				   NULL;

			ck_assert_msg(may == !move_is_refused(
						     (enum event_state)from, (enum event_state)to),
				"%s to %s", event_state_name((enum event_state)from),
				event_state_name((enum event_state)to));
		}
}
END_TEST

static struct row sample(const char *payload)
{
	return (struct row){
		.id = 7,
		.created_us = 123456789,
		.retry_count = 3,
		.event_id = SLICE_LIT("e-7"),
		.aggregate_type = SLICE_LIT("order"),
		.aggregate_id = SLICE_LIT(""),
		.event_type = SLICE_LIT("created"),
		.payload = slice_str(payload),
		.last_error = SLICE_LIT("NACKED: once"),
		.trace_id = { "a\0b", 3 },
	};
}

static void end(struct event_pool *p, struct event *ev)
{
	event_move(ev, EVENT_RELEASED);
	event_move(ev, EVENT_SETTLED);
	event_free(p, ev);
}

START_TEST(an_event_keeps_a_copy_of_its_row)
{
	struct slice more[] = { SLICE_LIT("x"), { NULL, 0 }, SLICE_LIT("") };
	struct slice extra[ROW_EXTRA_MAX];
	struct row row = sample("{\"a\":1}"), got;
	struct event_pool p;
	struct event *ev;

	row.extra = more;
	event_pool_init(&p, 2, 3);
	ev = event_new(&p, &row);
	ck_assert_ptr_nonnull(ev);
	memset(more, 0, sizeof(more));
	event_row(&p, ev, &got, extra);
	ck_assert_uint_eq(got.id, 7);
	ck_assert_int_eq(got.created_us, 123456789);
	ck_assert_uint_eq(got.retry_count, 3);
	ck_assert(slice_eq(got.event_id, SLICE_LIT("e-7")));
	ck_assert(slice_eq(got.aggregate_type, SLICE_LIT("order")));
	ck_assert(slice_eq(got.aggregate_id, SLICE_LIT("")));
	ck_assert(slice_eq(got.payload, SLICE_LIT("{\"a\":1}")));
	ck_assert(slice_eq(got.trace_id, (struct slice){ "a\0b", 3 }));
	ck_assert_ptr_null(got.headers.ptr);
	ck_assert_ptr_null(got.traceparent.ptr);
	ck_assert(slice_eq(got.extra[0], SLICE_LIT("x")));
	ck_assert_ptr_null(got.extra[1].ptr);
	ck_assert(slice_eq(got.extra[2], SLICE_LIT("")));
	end(&p, ev);
	event_pool_fini(&p);
}
END_TEST

START_TEST(a_pool_gives_no_more_than_it_has_and_counts_bytes)
{
	static char large[100000];
	struct row row = sample("{}");
	struct event_pool p;
	struct event *a, *b;

	event_pool_init(&p, 2, 0);
	a = event_new(&p, &row);
	memset(large, 'x', sizeof(large) - 1);
	row.payload = slice_str(large);
	b = event_new(&p, &row);
	ck_assert_ptr_nonnull(a);
	ck_assert_ptr_nonnull(b);
	ck_assert_ptr_null(event_new(&p, &row));
	ck_assert_uint_gt(p.bytes, sizeof(large));
	end(&p, b);
	ck_assert_uint_lt(p.bytes, 2000);
	ck_assert_uint_gt(p.bytes, 0);
	end(&p, a);
	ck_assert_uint_eq(p.bytes, 0);
	ck_assert_uint_eq(p.used, 0);
	ck_assert_uint_eq(p.allocated, 2);
	a = event_new(&p, &row);
	ck_assert_uint_eq(p.allocated, 2);
	event_set_error(a, "NACKED: %d", 1);
	ck_assert_str_eq(a->error, "NACKED: 1");
	event_set_error(a, "UNROUTABLE: %s", "again");
	ck_assert_str_eq(a->error, "UNROUTABLE: again");
	end(&p, a);
	event_pool_fini(&p);
}
END_TEST

UNIT_MAIN("event", only_these_moves_are_allowed, an_event_keeps_a_copy_of_its_row,
	a_pool_gives_no_more_than_it_has_and_counts_bytes)

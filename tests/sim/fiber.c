#include "fiber.h"

#include <stdint.h>
#include <stdlib.h>
#include <ucontext.h>

#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif

#ifdef SANITIZED
#include <sanitizer/common_interface_defs.h>
#endif

#define STACK_BYTES ((size_t)512 * 1024)

struct fiber {
	ucontext_t inside, outside;
	void (*run)(void *arg);
	void *arg;
	char *stack;
#ifdef SANITIZED
	void *fake_inside, *fake_outside;
	const void *outside_stack;
	size_t outside_size;
#endif
};

static void leave_to_fiber(struct fiber *f)
{
#ifdef SANITIZED
	__sanitizer_start_switch_fiber(&f->fake_outside, f->stack, STACK_BYTES);
#endif
	swapcontext(&f->outside, &f->inside);
#ifdef SANITIZED
	__sanitizer_finish_switch_fiber(f->fake_outside, NULL, NULL);
#endif
}

static void main_of(unsigned hi, unsigned lo)
{
	struct fiber *f = (struct fiber *)((uintptr_t)hi << 16 << 16 | lo);

#ifdef SANITIZED
	__sanitizer_finish_switch_fiber(NULL, &f->outside_stack, &f->outside_size);
#endif
	f->run(f->arg);
	abort();
}

struct fiber *fiber_new(void (*run)(void *arg), void *arg)
{
	struct fiber *f = calloc(1, sizeof(*f));
	uintptr_t p = (uintptr_t)f;

	if (f == NULL || (f->stack = malloc(STACK_BYTES)) == NULL)
		abort();
	f->run = run;
	f->arg = arg;
	if (getcontext(&f->inside) < 0)
		abort();
	f->inside.uc_stack.ss_sp = f->stack;
	f->inside.uc_stack.ss_size = STACK_BYTES;
	makecontext(&f->inside, (void (*)(void))main_of, 2, (unsigned)(p >> 16 >> 16), (unsigned)p);
	return f;
}

void fiber_free(struct fiber *f)
{
	if (f == NULL)
		return;
	free(f->stack);
	free(f);
}

void fiber_enter(struct fiber *f)
{
	leave_to_fiber(f);
}

void fiber_yield(struct fiber *f)
{
#ifdef SANITIZED
	__sanitizer_start_switch_fiber(&f->fake_inside, f->outside_stack, f->outside_size);
#endif
	swapcontext(&f->inside, &f->outside);
#ifdef SANITIZED
	__sanitizer_finish_switch_fiber(f->fake_inside, &f->outside_stack, &f->outside_size);
#endif
}

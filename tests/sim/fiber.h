/* fiber.h: a function on a stack of its own, which can give way in the middle. */
#ifndef OUTBOXD_SIM_FIBER_H
#define OUTBOXD_SIM_FIBER_H

struct fiber;

/* `run` is called by the first fiber_enter(), and must never return. */
struct fiber *fiber_new(void (*run)(void *arg), void *arg);
void fiber_free(struct fiber *f);
/* From the main stack: runs the fiber until it yields. */
void fiber_enter(struct fiber *f);
/* From the fiber: back to who entered it. */
void fiber_yield(struct fiber *f);

#endif

#include "mysql/walk.h"

#include "mysql/statements_order.h"
#include "mysql/values.h"

static int64_t not_negative(int64_t us)
{
	return us > 0 ? us : 0;
}

static void read_unsent(const struct slice *v, struct walk_step *out)
{
	out->due_us = not_negative(value_int(v[WALK_RETRY_IN], 0));
	if (v[WALK_BEHIND].ptr != NULL)
		out->head = HEAD_WAITING;
	else if (value_is(v[WALK_STATUS], "RETRY"))
		out->head = HEAD_RETRY;
	else
		out->head = value_true(v[WALK_DELAYED]) ? HEAD_DELAYED : HEAD_READY;
}

bool walk_read(const struct slice *v, bool pass_dead, struct walk_step *out)
{
	*out = (struct walk_step){ .behind = v[WALK_BEHIND], .bars = true };
	if (!value_id(v[WALK_ID], &out->at.id))
		return false;
	out->at.created_us = value_time_us(v[WALK_CREATED]);
	if (value_is(v[WALK_STATUS], "SENT")) {
		out->sent = true;
		out->bars = false;
	} else if (value_is(v[WALK_STATUS], "DEAD")) {
		out->head = HEAD_DEAD;
		out->due_us = TIME_NEVER;
		out->bars = !pass_dead && !value_true(v[WALK_SKIPPED]);
	} else if (value_is(v[WALK_STATUS], "PROCESSING")) {
		out->head = value_true(v[WALK_OWNED]) ? HEAD_OWNED : HEAD_PROCESSING;
		out->due_us = not_negative(value_int(v[WALK_LEASE_LEFT], 0));
	} else if (value_is(v[WALK_STATUS], "PENDING") || value_is(v[WALK_STATUS], "RETRY")) {
		read_unsent(v, out);
	} else {
		out->bars = false;
	}
	return true;
}

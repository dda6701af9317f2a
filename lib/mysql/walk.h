/* walk.h: rows met on the way along an aggregate, as sql_before() and sql_behind() give them, and
 * what they mean to those behind. The relay and the commands judge alike. */
#ifndef OUTBOXD_MYSQL_WALK_H
#define OUTBOXD_MYSQL_WALK_H

#include "base/slice.h"
#include "relay/store.h"

struct walk_step {
	struct place at;
	bool sent;            /* everything before it has been passed */
	bool bars;            /* it must go before what is behind it */
	enum order_head head; /* bars: what it is */
	int64_t due_us;       /* bars: see struct order_probe */
	struct slice behind;  /* HEAD_WAITING: the event_id it waits for */
};

/* false: the row has no usable id. `pass_dead`: DEAD rows bar nobody; those of class SKIPPED never
 * do, nor do rows in a state that is not ours. */
bool walk_read(const struct slice *values, bool pass_dead, struct walk_step *out);

#endif

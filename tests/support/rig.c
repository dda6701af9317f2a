#include "support/rig.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void rig_open_with(struct rig *r, unsigned schemas, const char *ddl)
{
	*r = (struct rig){ .schemas = schemas };
	env_mend();
	if (env_marked("alarm"))
		mq_alarm(false);
	r->db = db_open();
	r->mq = mq_open();
	for (unsigned i = 0; i < schemas; i++)
		schema_make(r->db, &r->schema[i], ddl);
	env_name(r->exchange, sizeof(r->exchange), "it.x.");
	env_name(r->queue, sizeof(r->queue), "it.q.");
	mq_declare_exchange(r->mq, r->exchange, "topic");
	mq_declare_queue(r->mq, r->queue);
	mq_bind(r->mq, r->queue, r->exchange, "#");
}

void rig_open(struct rig *r, unsigned schemas)
{
	rig_open_with(r, schemas, "outbox_event.sql");
}

void rig_close(struct rig *r)
{
	for (unsigned i = 0; i < r->schemas; i++)
		schema_drop(r->db, &r->schema[i]);
	mq_delete_queue(r->mq, r->queue);
	mq_delete_exchange(r->mq, r->exchange);
	inbox_fini(&r->inbox);
	db_close(r->db);
	mq_close(r->mq);
}

void rig_conf(const struct rig *r, struct conf *c)
{
	conf_init(c);
	for (unsigned i = 0; i < r->schemas; i++) {
		char name[16];

		snprintf(name, sizeof(name), "s%u", i);
		conf_add(c, name, &r->schema[i], r->exchange);
	}
}

uint64_t rig_rows(struct rig *r, unsigned schema, const char *where)
{
	return (uint64_t)db_int(r->db, "SELECT COUNT(*) FROM %s.outbox_event WHERE %s",
		r->schema[schema].name, where);
}

void rig_wait_none(struct rig *r, unsigned schema, const char *where, int64_t ms)
{
	int64_t until = env_now_us() + ms * US_PER_MS;

	/* the first will do: counting them all would slow down what is waited for */
	while (db_int(r->db, "SELECT EXISTS(SELECT 1 FROM %s.outbox_event WHERE %s)",
		       r->schema[schema].name, where) > 0) {
		if (env_now_us() > until)
			FAIL("after %" PRId64 " ms still %" PRIu64 " rows of s%u with: %s", ms,
				rig_rows(r, schema, where), schema, where);
		env_sleep_ms(40);
	}
}

void rig_wait_sent(struct rig *r, unsigned schema, int64_t ms)
{
	rig_wait_none(r, schema, "status IN ('PENDING','PROCESSING','RETRY')", ms);
}

void rig_judge(struct rig *r, unsigned schema, const struct allowance *a, struct findings *f)
{
	mq_drain(r->mq, r->queue, &r->inbox);
	oracle(r->db, &r->schema[schema], &r->inbox, a, f);
}

uint64_t rig_suspect(struct rig *r, unsigned schema)
{
	const char *name = r->schema[schema].name;

	/* else it would lock what it reads */
	db_exec(r->db, "SET TRANSACTION ISOLATION LEVEL READ COMMITTED");
	db_exec(r->db,
		"INSERT IGNORE INTO %s.suspect SELECT event_id FROM %s.outbox_event WHERE "
		"status='PROCESSING'",
		name, name);
	return rig_rows(r, schema, "status='PROCESSING'");
}

/* e2e_producer: the service of `make e2e`: events 1 to COUNT, in transactions that also move the
 * service's own row, which says how far it is. Killed at any moment it goes on from there.
 *
 *	e2e_producer SCHEMA COUNT AGGREGATES PER_SECOND BACKLOG SEED
 *
 * Event n is version (n - 1) / AGGREGATES + 1 of its aggregate. PER_SECOND 0: as fast as it goes,
 *which is never more than BACKLOG events ahead of the relay. Some transactions are rolled back:
 *their events "r-<n>" must never be seen. */
#include "base/buf.h"
#include "base/rng.h"
#include "support/db.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define TRANSACTION 100
#define LOOK_EVERY 10 /* transactions: how far is the relay? */
#define ROLL_BACK_ONE_IN 20

static void insert(struct db *db, char kind, uint64_t first, uint64_t count, uint64_t aggregates)
{
	struct buf b = { 0 };

	buf_adds(&b, "INSERT INTO outbox_event (event_id,aggregate_type,aggregate_id,"
		     "aggregate_version,event_type,payload) VALUES ");
	for (uint64_t n = first; n < first + count; n++)
		buf_addf(&b,
			"%s('%c-%" PRIu64 "','thing','%" PRIu64 "',%" PRIu64
			",'changed','{\"n\":%" PRIu64
			",\"text\":\"k\xc5\xaf\xc5\x88 \xe2\x82\xac\"}')",
			n > first ? "," : "", kind, n, (n - 1) % aggregates,
			(n - 1) / aggregates + 1, n);
	db_exec(db, "%s", b.data);
	buf_fini(&b);
}

int main(int argc, char **argv)
{
	uint64_t count, aggregates, per_second, backlog, done = 0, here = 0;
	int64_t began_us = env_now_us();
	struct rng rng;
	struct db *db;

	if (argc != 7) {
		fprintf(stderr, "usage: e2e_producer SCHEMA COUNT AGGREGATES PER_SECOND BACKLOG "
				"SEED\n");
		return 2;
	}
	count = strtoull(argv[2], NULL, 10);
	aggregates = strtoull(argv[3], NULL, 10);
	per_second = strtoull(argv[4], NULL, 10);
	backlog = strtoull(argv[5], NULL, 10);
	rng.state = strtoull(argv[6], NULL, 10);
	db = db_open();
	db_exec(db, "USE %s", argv[1]);
	for (unsigned turn = 0; done < count; turn++) {
		uint64_t n;
		bool back = rng_below(&rng, ROLL_BACK_ONE_IN) == 0;

		while (turn % LOOK_EVERY == 0 &&
			(uint64_t)db_int(db, "SELECT COUNT(*) FROM outbox_event WHERE "
					     "status='PENDING'") > backlog)
			env_sleep_ms(100);
		/* Locked before the events are written: their order is that of the commits. */
		db_exec(db, "START TRANSACTION");
		done = (uint64_t)db_int(db, "SELECT committed FROM progress FOR UPDATE");
		n = count - done < TRANSACTION ? count - done : TRANSACTION;
		if (n > 0)
			insert(db, back ? 'r' : 'e', done + 1, n, aggregates);
		db_exec(db, "UPDATE progress SET committed=committed+%" PRIu64 "; %s", n,
			back ? "ROLLBACK" : "COMMIT");
		if (back)
			continue;
		done += n;
		here += n;
		while (per_second > 0 &&
			(uint64_t)(env_now_us() - began_us) * per_second / US_PER_SEC < here)
			env_sleep_ms(5);
	}
	db_close(db);
	return 0;
}

/* oracle.h: the one judge of every run with the real servers: what stands in the table against what
 * arrived at the broker. */
#ifndef OUTBOXD_TESTS_ORACLE_H
#define OUTBOXD_TESTS_ORACLE_H

#include "support/db.h"
#include "support/mq.h"

struct findings {
	uint64_t rows, sent, dead, pending, retry, processing;
	uint64_t arrived;     /* messages of this table */
	uint64_t foreign;     /* messages of no row of it */
	uint64_t lost;        /* SENT, and no copy arrived */
	uint64_t missing;     /* neither SENT nor DEAD */
	uint64_t unrecorded;  /* DEAD, though a copy arrived */
	uint64_t duplicates;  /* copies beyond the first */
	uint64_t unexplained; /* of those: rows that are not in the table of suspects */
	uint64_t disordered;  /* first arrivals before that of an earlier event of the aggregate */
	uint64_t charged;     /* rows with retry_count > 0 */
	uint64_t untidy; /* SENT or DEAD with owner, lease or next_retry_at; SENT without sent_at */
	char first[300]; /* an example of what is wrong */
};

/* Messages of other sources in the inbox are foreign: in a shared queue that is no fault. */
void oracle_look(struct findings *f, struct db *db, const struct schema *s, const struct inbox *in);

/* What a run may do. Zeroed: everything exactly once and SENT at the first attempt. */
struct allowance {
	uint64_t duplicates;
	bool suspects;          /* and only of rows in the table of suspects */
	uint64_t dead, charged; /* exactly so many */
	uint64_t missing;       /* exactly so many wait in the table */
	bool charged_any;
	bool ordered; /* order per aggregate is required */
	bool foreign; /* a shared queue */
};

void oracle_judge(const struct findings *f, const struct allowance *a);
/* Looks and judges; `f` may be NULL. */
void oracle(struct db *db, const struct schema *s, const struct inbox *in,
	const struct allowance *a, struct findings *f);

#endif

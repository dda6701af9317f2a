/* schema.h: an outbox table as it is, and whether the relay can work with it. Reading needs a
 * connection; judging is pure. */
#ifndef OUTBOXD_MYSQL_SCHEMA_H
#define OUTBOXD_MYSQL_SCHEMA_H

#include "config/config.h"
#include "mysql/session.h"
#include "mysql/statements.h"

struct schema_column {
	char name[260];
	char type[32];    /* DATA_TYPE: varchar, timestamp, ... */
	char charset[40]; /* empty: not text */
	char collation[64];
	char *full; /* COLUMN_TYPE: enum('PENDING',...), int unsigned */
	char extra[120];
	bool nullable;
	bool has_default;
	uint64_t length;   /* characters of a text */
	unsigned fraction; /* digits of the second */
};

/* One index; at most so many columns of it are kept. */
#define SCHEMA_PARTS 16
struct schema_index {
	char name[260];
	bool unique;
	bool usable; /* B-tree, visible */
	unsigned count;
	struct schema_part {
		char column[260];
		bool whole, ascending;
	} part[SCHEMA_PARTS];
};

struct schema {
	char database[260], table[260]; /* in the server's spelling, where the table exists */
	char kind[32];                  /* BASE TABLE, VIEW; empty: there is none */
	char engine[32];
	struct schema_column *columns;
	size_t column_count;
	struct schema_index *indexes;
	size_t index_count;
};

int schema_read(struct session *c, const char *database, const char *table, struct schema *out,
	struct err *e) MUST_CHECK;
/* Takes a zero-initialised one too. */
void schema_fini(struct schema *s);

const struct schema_column *schema_column(const struct schema *s, const char *name);
bool schema_generated(const struct schema_column *c);
/* The quoted names of all columns that can be written, with commas between. */
void schema_add_columns(const struct schema *s, struct buf *out);

/* FAULT: the relay refuses to work. */
enum severity { SEVERITY_NOTE, SEVERITY_WARNING, SEVERITY_FAULT };
const char *severity_name(enum severity s);

struct finding {
	enum severity severity;
	const char *where; /* "source orders: shop.outbox_event.created_at" */
	const char *what;
	const char *fix; /* a statement, or what to do; empty where nothing needs to be done */
};

struct finding_sink {
	void (*found)(void *arg, const struct finding *f);
	void *arg;
};

/* What the relay wants of a table. */
struct schema_wish {
	const char *const *extra; /* columns beyond the known ones */
	size_t extra_count;
	bool ordered;
	const char *owner; /* fits into locked_by; NULL: 128 characters */
};

/* Every deviation. With none of them a FAULT, *table is what statements need. */
void schema_judge(const struct schema *s, const struct schema_wish *wish,
	const struct finding_sink *sink, struct outbox_table *table);

/* What EXPLAIN says of a statement, row by row, in the traditional format. */
struct query_plan {
	char text[300];  /* of the rows, for people */
	bool scan, sort; /* a whole table is read (of an index that is normal while the table is
			  * empty); something is sorted or put aside */
};
void plan_add(struct query_plan *p, const struct slice *values, unsigned count);

/* `outboxd check` of one source: connects on its own, reports everything there is to say about
 * server, account, table, indexes, plans and clock. -1: could not look at all (which has been
 * reported as a FAULT too). */
int mysql_check(const struct source_conf *conf, const char *const *extra, size_t extra_count,
	const struct finding_sink *sink, struct err *e);

#endif

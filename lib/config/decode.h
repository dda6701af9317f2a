/* decode.h: a tree of nodes into structs, as the key tables say. Private to lib/config. */
#ifndef OUTBOXD_CONFIG_DECODE_H
#define OUTBOXD_CONFIG_DECODE_H

#include "config/keys.h"
#include "config/tree.h"

#define PATH_SHOWN_MAX 400

/* One mapping of the file, and the one it inherits from (a source: defaults), each possibly NULL.
 */
struct scope {
	struct node *own, *base;
};

struct decode {
	struct faults *faults;
	struct tree *tree;
	bool partial; /* defaults: nothing is required, nothing is filled in */
	bool nomem;
	char path[PATH_SHOWN_MAX]; /* of the mapping at hand: "sources.orders.publish" */
	/* Which mapping each decoded one came from; in the tree's memory. */
	struct node **broker_nodes, **source_nodes, **inbox_nodes;
	struct node *defaults;
};

/* Fills the zeroed struct `out` from the table. `at` is where a missing key is reported. */
void decode_map(struct decode *d, const struct conf_table *t, struct scope s, const struct node *at,
	void *out);

/* The value that counts for a key of this scope, environment variables filled in; NULL when left
 * out. `inherited` may be NULL. Nodes that were reported come back with bad set. */
struct node *decode_pick(struct decode *d, const struct conf_table *t, const struct conf_key *k,
	struct scope s, bool *inherited);
/* The same by name, and the scope of a mapping beneath this one. */
struct node *decode_find(
	struct decode *d, const struct conf_table *t, struct scope s, const char *name);
struct scope decode_sub(struct scope s, const char *name);
const struct conf_table *decode_sub_table(const struct conf_table *t, const char *name);

/* Paths: push returns what pop needs. */
size_t decode_push(struct decode *d, struct slice name);
void decode_pop(struct decode *d, size_t mark);

/* Steps that need a whole mapping; called by decode_map() for these tables. In finish.c. */
void finish_broker(struct decode *d, struct scope s, const struct node *at, struct broker_conf *b);
void finish_database(
	struct decode *d, struct scope s, const struct node *at, struct database_conf *db);
void finish_source(
	struct decode *d, struct scope s, const struct node *at, struct source_conf *src);

void finish_inbox(struct decode *d, struct scope s, const struct node *at, struct inbox_conf *in);

/* Rules between keys, in rules.c. Runs once everything is decoded. */
void check_rules(struct decode *d, struct config *c);

/* In scalar.c: text into the field at `field`. NULL, or "WHAT: WHAT TO DO" without the value, built
 * in `problem` where it is not fixed. */
const char *scalar_parse(
	const struct conf_key *k, struct slice text, void *field, struct buf *problem);

/* In hint.c: what an unknown key was meant to be, as "WHAT TO DO". */
void hint_unknown(struct buf *out, const struct conf_table *here, struct slice name);

/* A NUL-terminated copy of the caller's own; NULL when memory ran out. */
char *conf_dup(struct slice s);

#endif

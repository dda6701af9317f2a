/* tree.h: YAML text as a tree of nodes with their places; the only file that knows of libyaml is
 * tree.c. What could surprise is refused there: anchors, aliases, tags, merge keys, several
 * documents, deep nesting. Duplicate keys are kept and marked, for who reads the tree knows their
 * full names. */
#ifndef OUTBOXD_CONFIG_TREE_H
#define OUTBOXD_CONFIG_TREE_H

#include "base/slice.h"
#include "config/faults.h"

#define TREE_MAX_DEPTH 16
#define TREE_MAX_NODES 50000
#define TREE_MAX_KEYS 256 /* in one mapping */

enum node_type { NODE_SCALAR, NODE_LIST, NODE_MAP };

struct node {
	enum node_type type;
	unsigned line, column; /* from 1 */
	unsigned key_line, key_column;
	struct slice key;           /* in a mapping; NUL-terminated too */
	const struct node *earlier; /* in a mapping: the entry that had this key before */
	bool plain;                 /* a scalar without quotes */
	bool bad;                   /* reported already: take it as given, believe nothing of it */
	bool resolved;              /* text has been through environment substitution */
	bool substituted;           /* and some variable was taken */
	struct slice raw;           /* as in the file: what messages may show */
	struct slice text;          /* NUL-terminated too */
	struct node *child, *last;  /* of a list or mapping */
	struct node *next;
	unsigned count; /* children */
};

struct tree {
	struct node *root; /* NULL: nothing in it */
	bool cut; /* the text broke off with a fault: what is missing may have been to come */
	struct tree_chunk *chunks;
	size_t nodes;
};

/* Reads what it can; faults go to `f`. Frees nothing on faults: tree_fini() is always due. */
void tree_read(struct tree *t, struct slice yaml, struct faults *f);
/* Zeroes every byte before freeing it: there may be secrets among them. */
void tree_fini(struct tree *t);

/* Memory that lives as long as the tree; NULL when there is none. */
void *tree_alloc(struct tree *t, size_t size);
/* A NUL-terminated copy. ptr NULL when memory ran out. */
struct slice tree_copy(struct tree *t, struct slice s);

/* The first entry of that name, or NULL; `map` may be NULL. */
struct node *node_get(const struct node *map, const char *key);
/* A value that says nothing: no text, or plain ~ or null. */
bool node_empty(const struct node *n);
/* "text", "a list", "a mapping". */
const char *node_type_name(const struct node *n);

#endif

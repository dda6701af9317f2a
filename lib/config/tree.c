#include "config/tree.h"

#include "base/str.h"

#include <stdlib.h>
#include <yaml.h>

#define CHUNK_SIZE ((size_t)16 << 10)

struct tree_chunk {
	struct tree_chunk *next;
	size_t size, used;
	max_align_t data[];
};

void *tree_alloc(struct tree *t, size_t size)
{
	struct tree_chunk *c = t->chunks;
	char *p;

	size = (size + sizeof(max_align_t) - 1) / sizeof(max_align_t) * sizeof(max_align_t);
	if (c == NULL || c->size - c->used < size) {
		size_t room = size > CHUNK_SIZE ? size : CHUNK_SIZE;

		c = calloc(1, sizeof(*c) + room);
		if (c == NULL)
			return NULL;
		c->size = room;
		c->next = t->chunks;
		t->chunks = c;
	}
	p = (char *)c->data + c->used;
	c->used += size;
	return p;
}

struct slice tree_copy(struct tree *t, struct slice s)
{
	char *p = tree_alloc(t, s.len + 1);

	if (p == NULL)
		return (struct slice){ NULL, 0 };
	if (s.len > 0)
		memcpy(p, s.ptr, s.len);
	p[s.len] = '\0';
	return (struct slice){ p, s.len };
}

void tree_fini(struct tree *t)
{
	while (t->chunks != NULL) {
		struct tree_chunk *c = t->chunks;

		t->chunks = c->next;
		explicit_bzero(c->data, c->size);
		free(c);
	}
	*t = (struct tree){ 0 };
}

struct node *node_get(const struct node *map, const char *key)
{
	struct slice name = slice_str(key);

	if (map == NULL || map->type != NODE_MAP)
		return NULL;
	for (struct node *n = map->child; n != NULL; n = n->next)
		if (slice_eq(n->key, name))
			return n;
	return NULL;
}

bool node_empty(const struct node *n)
{
	static const char *const nulls[] = { "~", "null", "Null", "NULL" };

	if (n->type != NODE_SCALAR || n->bad)
		return false;
	if (n->text.len == 0)
		return true;
	for (size_t i = 0; n->plain && !n->substituted && i < ARRAY_LEN(nulls); i++)
		if (slice_eq(n->text, slice_str(nulls[i])))
			return true;
	return false;
}

const char *node_type_name(const struct node *n)
{
	return n->type == NODE_SCALAR ? "text" : n->type == NODE_LIST ? "a list" : "a mapping";
}

struct reader {
	struct tree *tree;
	struct faults *faults;
	struct slice yaml;
	struct {
		struct node *node;
		struct node *key; /* of a mapping: read, its value still to come */
	} open[TREE_MAX_DEPTH];
	unsigned depth;
	unsigned documents;
};

static unsigned mark_line(const yaml_mark_t *m)
{
	return (unsigned)m->line + 1;
}

static unsigned mark_column(const yaml_mark_t *m)
{
	return (unsigned)m->column + 1;
}

/* All these return 0, or -1 to stop reading. */
static int stop(struct reader *r)
{
	r->tree->cut = true;
	return -1;
}

static int no_memory(struct reader *r)
{
	r->faults->failed = true;
	return stop(r);
}

static void add_child(struct node *parent, struct node *n)
{
	if (parent->last != NULL)
		parent->last->next = n;
	else
		parent->child = n;
	parent->last = n;
	parent->count++;
}

static int add_entry(struct reader *r, struct node *map, const struct node *key, struct node *value)
{
	if (key->type != NODE_SCALAR) {
		fault_at(r->faults, key->line, key->column,
			"%s stands where a key should be: write KEY: VALUE, and quote text that "
			"starts with { or [",
			node_type_name(key));
		return 0;
	}
	if (key->bad)
		return 0;
	if (key->plain && slice_eq(key->text, SLICE_LIT("<<"))) {
		fault_at(r->faults, key->line, key->column,
			"a merge key (<<) is not accepted: write the keys out, or use defaults");
		return 0;
	}
	if (map->count == TREE_MAX_KEYS) {
		fault_at(r->faults, key->line, key->column,
			"more than %d keys in one mapping: leave some out", TREE_MAX_KEYS);
		return stop(r);
	}
	value->key = key->text;
	value->key_line = key->line;
	value->key_column = key->column;
	for (const struct node *n = map->child; n != NULL && value->earlier == NULL; n = n->next)
		if (slice_eq(n->key, value->key))
			value->earlier = n;
	add_child(map, value);
	return 0;
}

static int attach(struct reader *r, struct node *n)
{
	struct node *parent, *key;

	if (r->depth == 0) {
		r->tree->root = n;
		return 0;
	}
	parent = r->open[r->depth - 1].node;
	if (parent->type == NODE_LIST) {
		add_child(parent, n);
		return 0;
	}
	key = r->open[r->depth - 1].key;
	if (key == NULL) {
		r->open[r->depth - 1].key = n;
		return 0;
	}
	r->open[r->depth - 1].key = NULL;
	return add_entry(r, parent, key, n);
}

static struct node *new_node(struct reader *r, enum node_type type, const yaml_event_t *ev,
	const yaml_char_t *anchor, const yaml_char_t *tag)
{
	unsigned line = mark_line(&ev->start_mark), column = mark_column(&ev->start_mark);
	struct node *n;

	if (r->tree->nodes == TREE_MAX_NODES) {
		fault_at(r->faults, line, column, "more than %d values: split the file",
			TREE_MAX_NODES);
		stop(r);
		return NULL;
	}
	n = tree_alloc(r->tree, sizeof(*n));
	if (n == NULL) {
		no_memory(r);
		return NULL;
	}
	r->tree->nodes++;
	*n = (struct node){ .type = type, .line = line, .column = column };
	if (anchor != NULL)
		fault_at(r->faults, line, column,
			"an anchor (&) is not accepted: leave it out; values all sources share "
			"belong in defaults");
	if (tag != NULL) {
		fault_at(r->faults, line, column,
			"a tag (!) is not accepted: leave it out, or quote text that starts with "
			"!");
		n->bad = true;
	}
	return n;
}

static int on_scalar(struct reader *r, const yaml_event_t *ev)
{
	struct slice text = { (const char *)ev->data.scalar.value, ev->data.scalar.length };
	struct node *n = new_node(r, NODE_SCALAR, ev, ev->data.scalar.anchor, ev->data.scalar.tag);

	if (n == NULL)
		return -1;
	n->plain = ev->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
	n->raw = n->text = tree_copy(r->tree, text);
	if (n->text.ptr == NULL)
		return no_memory(r);
	return attach(r, n);
}

static int on_alias(struct reader *r, const yaml_event_t *ev)
{
	struct node *n = new_node(r, NODE_SCALAR, ev, NULL, NULL);

	if (n == NULL)
		return -1;
	fault_at(r->faults, n->line, n->column,
		"an alias (*) is not accepted: write the value out, or quote text that starts with "
		"*");
	n->bad = true;
	n->raw = n->text = SLICE_LIT("");
	return attach(r, n);
}

static int on_open(struct reader *r, enum node_type type, const yaml_event_t *ev,
	const yaml_char_t *anchor, const yaml_char_t *tag)
{
	struct node *n = new_node(r, type, ev, anchor, tag);

	if (n == NULL)
		return -1;
	if (r->depth == TREE_MAX_DEPTH) {
		fault_at(r->faults, n->line, n->column,
			"nested more than %d levels deep: no key needs that; see outboxd.yaml(5)",
			TREE_MAX_DEPTH);
		return stop(r);
	}
	if (attach(r, n) < 0)
		return -1;
	r->open[r->depth].node = n;
	r->open[r->depth].key = NULL;
	r->depth++;
	return 0;
}

static int on_event(struct reader *r, const yaml_event_t *ev)
{
	switch (ev->type) {
	case YAML_DOCUMENT_START_EVENT:
		if (++r->documents == 1)
			return 0;
		fault_at(r->faults, mark_line(&ev->start_mark), mark_column(&ev->start_mark),
			"a second document starts here: keep one, without --- between");
		return -1; /* the first is complete */
	case YAML_SCALAR_EVENT:
		return on_scalar(r, ev);
	case YAML_ALIAS_EVENT:
		return on_alias(r, ev);
	case YAML_SEQUENCE_START_EVENT:
		return on_open(r, NODE_LIST, ev, ev->data.sequence_start.anchor,
			ev->data.sequence_start.tag);
	case YAML_MAPPING_START_EVENT:
		return on_open(
			r, NODE_MAP, ev, ev->data.mapping_start.anchor, ev->data.mapping_start.tag);
	case YAML_SEQUENCE_END_EVENT:
	case YAML_MAPPING_END_EVENT:
		r->depth--;
		return 0;
	default:
		return 0;
	}
}

/* A mark's index counts characters. */
static char byte_at(const struct reader *r, const yaml_mark_t *m)
{
	size_t at = 0;

	for (size_t i = 0; i < m->index && at < r->yaml.len; i++) {
		size_t n = utf8_sequence(r->yaml.ptr + at, r->yaml.len - at);

		at += n > 0 ? n : 1;
	}
	return at < r->yaml.len ? r->yaml.ptr[at] : '\0';
}

/* libyaml's texts are fixed words; none holds a part of the file. */
static void syntax_fault(struct reader *r, const yaml_parser_t *p)
{
	const char *problem = p->problem != NULL ? p->problem : "it cannot be read";
	const yaml_mark_t *at = &p->problem_mark;

	stop(r);
	if (p->error == YAML_MEMORY_ERROR) {
		r->faults->failed = true;
		return;
	}
	if (p->error == YAML_SCANNER_ERROR && byte_at(r, at) == '\t') {
		fault_at(r->faults, mark_line(at), mark_column(at),
			"not valid YAML, a tab: indent with spaces");
		return;
	}
	if (p->context != NULL && p->context_mark.line < at->line)
		fault_at(r->faults, mark_line(at), mark_column(at),
			"not valid YAML, %s %s from line %u: mend indentation, quotes or brackets "
			"here or there",
			problem, p->context, mark_line(&p->context_mark));
	else
		fault_at(r->faults, mark_line(at), mark_column(at),
			"not valid YAML, %s: mend indentation, quotes or brackets here", problem);
}

static void parse(struct reader *r, yaml_parser_t *p)
{
	bool more = true;

	while (more) {
		yaml_event_t ev;

		if (!yaml_parser_parse(p, &ev)) {
			syntax_fault(r, p);
			return;
		}
		more = ev.type != YAML_STREAM_END_EVENT && on_event(r, &ev) == 0;
		if (ev.type == YAML_SCALAR_EVENT)
			explicit_bzero(ev.data.scalar.value, ev.data.scalar.length);
		yaml_event_delete(&ev);
	}
}

void tree_read(struct tree *t, struct slice yaml, struct faults *f)
{
	struct reader r = { .tree = t, .faults = f, .yaml = yaml };
	yaml_parser_t parser;

	*t = (struct tree){ 0 };
	if (!yaml_parser_initialize(&parser)) {
		f->failed = true;
		t->cut = true;
		return;
	}
	yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
	yaml_parser_set_input_string(&parser, (const unsigned char *)yaml.ptr, yaml.len);
	parse(&r, &parser);
	yaml_parser_delete(&parser);
}

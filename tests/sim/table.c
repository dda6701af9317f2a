#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A treap: a search tree by key, a heap by priority; priorities are a hash of the id, so that the
 * same run builds the same trees. */

static bool less(const struct tnode *a, const struct tnode *b)
{
	if (a->k1 != b->k1)
		return a->k1 < b->k1;
	if (a->k2 != b->k2)
		return a->k2 < b->k2;
	return a->id < b->id;
}

static void split(struct tnode *t, const struct tnode *key, struct tnode **l, struct tnode **r)
{
	while (t != NULL) {
		if (less(t, key)) {
			*l = t;
			l = &t->kid[1];
			t = *l;
		} else {
			*r = t;
			r = &t->kid[0];
			t = *r;
		}
	}
	*l = *r = NULL;
}

void tree_insert(struct tnode **root, struct tnode *n)
{
	struct tnode *l, *r;

	while (*root != NULL && (*root)->prio >= n->prio)
		root = &(*root)->kid[less(*root, n)];
	split(*root, n, &l, &r);
	n->kid[0] = l;
	n->kid[1] = r;
	*root = n;
}

void tree_remove(struct tnode **root, struct tnode *n)
{
	struct tnode *a = n->kid[0], *b = n->kid[1];

	while (*root != n)
		root = &(*root)->kid[less(*root, n)];
	while (a != NULL && b != NULL) {
		if (a->prio >= b->prio) {
			*root = a;
			root = &a->kid[1];
			a = *root;
		} else {
			*root = b;
			root = &b->kid[0];
			b = *root;
		}
	}
	*root = a != NULL ? a : b;
}

struct tnode *tree_first(struct tnode *t)
{
	while (t != NULL && t->kid[0] != NULL)
		t = t->kid[0];
	return t;
}

struct tnode *tree_last(struct tnode *t)
{
	while (t != NULL && t->kid[1] != NULL)
		t = t->kid[1];
	return t;
}

struct tnode *tree_after(struct tnode *t, const struct tnode *key)
{
	struct tnode *best = NULL;

	while (t != NULL) {
		if (less(key, t)) {
			best = t;
			t = t->kid[0];
		} else {
			t = t->kid[1];
		}
	}
	return best;
}

struct tnode *tree_before(struct tnode *t, const struct tnode *key)
{
	struct tnode *best = NULL;

	while (t != NULL) {
		if (less(t, key)) {
			best = t;
			t = t->kid[1];
		} else {
			t = t->kid[0];
		}
	}
	return best;
}

void table_init(struct table *t, size_t aggregates)
{
	*t = (struct table){ .aggregate_count = aggregates };
	t->aggregates = calloc(aggregates, sizeof(t->aggregates[0]));
	if (t->aggregates == NULL)
		abort();
	for (size_t i = 0; i < aggregates; i++) {
		snprintf(t->aggregates[i].type, sizeof(t->aggregates[i].type), "t%zu", i % 3);
		snprintf(t->aggregates[i].id, sizeof(t->aggregates[i].id), "a%zu", i / 2);
	}
}

void table_fini(struct table *t)
{
	for (size_t i = 1; i <= t->count; i++)
		free(t->rows[i]);
	free((void *)t->rows);
	free(t->aggregates);
	*t = (struct table){ 0 };
}

struct trow *table_insert(struct table *t, struct aggregate *a, int64_t created_us)
{
	struct trow *r = calloc(1, sizeof(*r));
	uint64_t h;

	if (t->count + 2 > t->cap) {
		t->cap = t->cap > 0 ? t->cap * 2 : 1024;
		t->rows = realloc((void *)t->rows, t->cap * sizeof(struct trow *));
	}
	if (r == NULL || t->rows == NULL)
		abort();
	r->id = ++t->count;
	t->rows[r->id] = r;
	h = r->id * UINT64_C(0x9E3779B97F4A7C15);
	r->index.prio = (uint32_t)(h >> 32);
	r->order.prio = (uint32_t)(h >> 16);
	r->aggregate = a;
	r->created_us = created_us;
	r->next_retry_us = r->locked_until_us = r->sent_us = NO_TIME;
	snprintf(r->event_id, sizeof(r->event_id), "evt-%llu", (unsigned long long)r->id);
	return r;
}

static struct tnode **order_tree(struct trow *r)
{
	return r->status == ST_SENT ? &r->aggregate->sent : &r->aggregate->unsent;
}

void table_link(struct table *t, struct trow *r)
{
	t->in_status[r->status]++;
	if (r->status != ST_SENT && r->status != ST_DEAD)
		t->open++;
	r->order.k1 = r->created_us;
	r->order.k2 = 0;
	r->order.id = r->id;
	tree_insert(order_tree(r), &r->order);
	if (r->status == ST_SENT)
		return;
	r->index.k1 = r->status == ST_PROCESSING ? r->locked_until_us : r->next_retry_us;
	r->index.k2 = r->created_us;
	r->index.id = r->id;
	tree_insert(&t->tree[r->status], &r->index);
}

void table_unlink(struct table *t, struct trow *r)
{
	t->in_status[r->status]--;
	if (r->status != ST_SENT && r->status != ST_DEAD)
		t->open--;
	tree_remove(order_tree(r), &r->order);
	if (r->status != ST_SENT)
		tree_remove(&t->tree[r->status], &r->index);
}

void table_commit(struct table *t, struct trow *r, int64_t now_us)
{
	r->visible = true;
	r->visible_us = now_us;
	table_link(t, r);
}

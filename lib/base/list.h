/* list.h: an intrusive, circular, doubly linked list. A node is in at most one list; a node outside
 * any list points to itself after list_init() or list_del(). */
#ifndef OUTBOXD_LIST_H
#define OUTBOXD_LIST_H

#include "base/base.h"

#include <stdbool.h>

struct list {
	struct list *prev, *next;
};

static inline void list_init(struct list *l)
{
	l->prev = l->next = l;
}

static inline bool list_empty(const struct list *l)
{
	return l->next == l;
}

static inline void list_insert_before(struct list *at, struct list *node)
{
	node->prev = at->prev;
	node->next = at;
	at->prev->next = node;
	at->prev = node;
}

static inline void list_push_back(struct list *l, struct list *node)
{
	list_insert_before(l, node);
}

static inline void list_push_front(struct list *l, struct list *node)
{
	list_insert_before(l->next, node);
}

static inline void list_del(struct list *node)
{
	node->prev->next = node->next;
	node->next->prev = node->prev;
	list_init(node);
}

/* The first, or last, node's object, or NULL. */
#define list_first(l, type, member) (list_empty(l) ? NULL : container_of((l)->next, type, member))
#define list_last(l, type, member) (list_empty(l) ? NULL : container_of((l)->prev, type, member))

/* `pos` may be deleted in the body. */
#define list_each_safe(pos, tmp, l)                                                                \
	for (struct list *pos = (l)->next, *tmp = pos->next; pos != (l); pos = tmp, tmp = pos->next)
#define list_each(pos, l) for (struct list *pos = (l)->next; pos != (l); pos = pos->next)

#endif

/* Rules between keys. Each looks at values only where none of them was reported already. */
#include "base/str.h"
#include "config/decode.h"
#include "config/uri.h"

#include <stdlib.h>
#include <strings.h>

struct view {
	struct decode *d;
	struct config *c;
	struct source_conf *src;
	struct scope s;
	struct node *node; /* of the source */
};

static struct scope source_scope(const struct decode *d, size_t i)
{
	return (struct scope){ d->source_nodes[i], d->defaults };
}

static struct node *in_source(struct view *v, const char *sub, const char *key)
{
	if (sub == NULL)
		return decode_find(v->d, &conf_source, v->s, key);
	return decode_find(v->d, decode_sub_table(&conf_source, sub), decode_sub(v->s, sub), key);
}

static bool sound(const struct node *n)
{
	return n == NULL || !n->bad;
}

/* The first that is written somewhere, for a fault has to point at something. */
static const struct node *place(const struct node *a, const struct node *b, const struct node *c)
{
	return a != NULL ? a : b != NULL ? b : c;
}

/* Names come twice: each later one is a fault at its own line. */
static void check_names(struct decode *d, const char *what, struct node **nodes, size_t count)
{
	for (size_t i = 1; i < count; i++) {
		struct node *name = node_get(nodes[i], "name");

		if (name == NULL || name->bad || node_empty(name))
			continue;
		for (size_t j = 0; j < i; j++) {
			struct node *other = node_get(nodes[j], "name");

			if (other == NULL || !slice_eq(other->text, name->text))
				continue;
			fault_at(d->faults, name->line, name->column,
				"%s.%s is a name given twice, first on line %u: choose another",
				what, name->text.ptr, other->line);
			name->bad = true;
			break;
		}
	}
}

static bool broker_names_known(const struct decode *d, const struct config *c)
{
	for (size_t i = 0; i < c->broker_count; i++) {
		const struct node *name = node_get(d->broker_nodes[i], "name");

		if (c->brokers[i].name == NULL || (name != NULL && name->bad))
			return false;
	}
	return c->broker_count > 0;
}

/* "a, b, ..." */
static void list_brokers(const struct config *c, struct buf *out)
{
	for (size_t i = 0; i < c->broker_count && i < 10; i++)
		buf_addf(out, "%s%s", i > 0 ? ", " : "", c->brokers[i].name);
	if (c->broker_count > 10)
		buf_adds(out, ", ...");
}

static void check_broker(struct view *v)
{
	struct node *n = in_source(v, NULL, "broker");
	struct buf known = { 0 };

	if (v->src->broker_name == NULL)
		return;
	v->src->broker = config_broker(v->c, v->src->broker_name);
	if (v->src->broker != NULL || !broker_names_known(v->d, v->c) || n == NULL || n->bad)
		return;
	list_brokers(v->c, &known);
	fault_at(v->d->faults, n->line, n->column,
		"sources.%s.broker \"%s\" is not a broker of this file: choose one of %s",
		v->src->name, v->src->broker_name, known.failed ? "those above" : known.data);
	n->bad = true;
	buf_fini(&known);
}

static void check_lease(struct view *v)
{
	const struct broker_conf *b = v->src->broker;
	char lease[STR_DURATION_MAX], confirm[STR_DURATION_MAX], query[STR_DURATION_MAX],
		sum[STR_DURATION_MAX];
	struct node *n = in_source(v, NULL, "lease"),
		    *q = in_source(v, "database", "query_timeout");
	struct node *confirms;
	const struct node *at;
	int64_t need;

	if (b == NULL || !sound(n) || !sound(q))
		return;
	confirms = node_get(v->d->broker_nodes[b - v->c->brokers], "confirm_timeout");
	need = b->confirm_timeout_us + v->src->database.query_timeout_us;
	if (!sound(confirms) || v->src->lease_us > need)
		return;
	str_duration(v->src->lease_us, lease);
	str_duration(b->confirm_timeout_us, confirm);
	str_duration(v->src->database.query_timeout_us, query);
	str_duration(need, sum);
	at = place(n, q, v->node);
	fault_at(v->d->faults, at->line, at->column,
		"sources.%s.lease %s does not exceed confirm_timeout %s of broker %s + "
		"query_timeout %s: make it more than %s",
		v->src->name, lease, confirm, b->name, query, sum);
}

static void check_workers(struct view *v)
{
	struct node *n = in_source(v, NULL, "workers"), *o = in_source(v, NULL, "ordering");

	if (n == NULL || n->bad || !sound(o) || v->src->workers <= 1 ||
		v->src->ordering == ORDERING_NONE)
		return;
	fault_at(v->d->faults, n->line, n->column,
		"sources.%s.workers %u needs ordering none: set that, or keep 1 worker, for "
		"several would break the order",
		v->src->name, v->src->workers);
}

static void check_retry(struct view *v)
{
	struct node *base = in_source(v, "retry", "base"), *cap = in_source(v, "retry", "cap");
	char low[STR_DURATION_MAX], high[STR_DURATION_MAX];
	const struct node *at = place(base, cap, v->node);

	if (!sound(base) || !sound(cap) || v->src->retry.base_us <= v->src->retry.cap_us)
		return;
	str_duration(v->src->retry.base_us, low);
	str_duration(v->src->retry.cap_us, high);
	fault_at(v->d->faults, at->line, at->column,
		"sources.%s.retry.base %s is more than cap %s: raise cap or lower base",
		v->src->name, low, high);
}

static bool same_host(const struct endpoint *a, const struct endpoint *b)
{
	return a->port == b->port &&
	       (strcasecmp(a->host, b->host) == 0 ||
		       (host_is_loopback(a->host) && host_is_loopback(b->host)));
}

static bool same_server(const struct database_conf *a, const struct database_conf *b)
{
	if (a->socket != NULL && b->socket != NULL)
		return strcmp(a->socket, b->socket) == 0;
	for (size_t i = 0; i < a->host_count; i++)
		for (size_t j = 0; j < b->host_count; j++)
			if (same_host(&a->hosts[i], &b->hosts[j]))
				return true;
	return false;
}

/* Ids are one table's own: in an archive those of two outbox tables collide, and a table that is
 * read as an outbox would have its archived rows deleted again. */
static void check_archive_of_others(struct view *v, const struct node *archive, size_t index)
{
	const struct source_conf *src = v->src;
	const char *table = src->retention.archive_table;

	if (src->database.name == NULL || src->table == NULL)
		return;
	for (size_t i = 0; i < v->c->source_count; i++) {
		const struct source_conf *o = &v->c->sources[i];
		const char *theirs = o->retention.archive_table;
		bool outbox;

		/* of two that read one table check_tables() speaks */
		if (i == index || o->name == NULL || o->database.name == NULL || o->table == NULL ||
			strcmp(o->database.name, src->database.name) != 0 ||
			strcmp(o->table, src->table) == 0 ||
			!same_server(&o->database, &src->database))
			continue;
		outbox = strcmp(o->table, table) == 0;
		if (!outbox && (i > index || theirs == NULL || strcmp(theirs, table) != 0))
			continue;
		fault_at(v->d->faults, archive->line, archive->column,
			outbox ? "sources.%s.retention.archive_table %s.%s is the outbox table of "
				 "source %s of line %u: name another"
			       : "sources.%s.retention.archive_table %s.%s is the archive of "
				 "source %s of line %u already: give each source its own",
			src->name, src->database.name, table, o->name, o->line);
		return;
	}
}

/* What is moved away must have somewhere else to go, and be there to be moved. */
static void check_retention(struct view *v, size_t index)
{
	struct node *archive = in_source(v, "retention", "archive_table");
	const struct retention_conf *r = &v->src->retention;

	if (archive == NULL || archive->bad || r->archive_table == NULL)
		return;
	if (v->src->table != NULL && strcasecmp(r->archive_table, v->src->table) == 0)
		fault_at(v->d->faults, archive->line, archive->column,
			"sources.%s.retention.archive_table %s is the outbox table itself: name "
			"another",
			v->src->name, r->archive_table);
	else if (sound(in_source(v, "retention", "sent")) && r->sent_us == 0)
		fault_at(v->d->faults, archive->line, archive->column,
			"sources.%s.retention.archive_table gets nothing with sent 0s, which "
			"deletes an event as it is sent: make sent longer, or leave archive_table "
			"out",
			v->src->name);
	else
		check_archive_of_others(v, archive, index);
}

/* Two sources of one process that read one table would fight over it, under two names. */
static void check_tables(struct view *v, size_t index)
{
	const struct source_conf *src = v->src;
	const struct node *at = place(in_source(v, NULL, "table"), NULL, v->node);

	if (src->name == NULL || src->database.name == NULL || src->table == NULL)
		return;
	for (size_t i = 0; i < index; i++) {
		const struct source_conf *o = &v->c->sources[i];

		if (o->database.name == NULL || o->table == NULL || o->name == NULL ||
			strcmp(o->database.name, src->database.name) != 0 ||
			strcmp(o->table, src->table) != 0 ||
			!same_server(&o->database, &src->database))
			continue;
		fault_at(v->d->faults, at->line, at->column,
			"sources.%s.table %s.%s is read by source %s of line %u already: give each "
			"table one source",
			src->name, src->database.name, src->table, o->name, o->line);
		return;
	}
}

static void check_inbox_tables(struct decode *d, const struct config *c, size_t index)
{
	const struct inbox_conf *in = &c->inboxes[index];
	struct node *node = d->inbox_nodes[index];
	const struct node *at = place(node_get(node, "table"), NULL, node);

	if (in->name == NULL || in->database.name == NULL || in->table == NULL)
		return;
	for (size_t i = 0; i < index; i++) {
		const struct inbox_conf *o = &c->inboxes[i];

		if (o->name == NULL || o->database.name == NULL || o->table == NULL ||
			strcmp(o->database.name, in->database.name) != 0 ||
			strcmp(o->table, in->table) != 0 ||
			!same_server(&o->database, &in->database))
			continue;
		fault_at(d->faults, at->line, at->column,
			"inboxes.%s.table %s.%s is inbox %s of line %u already: give each table "
			"one inbox",
			in->name, in->database.name, in->table, o->name, o->line);
		return;
	}
}

/* A row that is gone before its message can come again for the last time lets the effect happen
 * twice. */
static void check_redelivery(struct decode *d, const struct config *c, size_t index)
{
	static const char *const parts[] = { "message_ttl", "max_retry_wait", "manual_window" };
	const struct inbox_conf *in = &c->inboxes[index];
	struct scope s = { d->inbox_nodes[index], NULL };
	const struct conf_table *keeps = decode_sub_table(&conf_inbox, "retention"),
				*comes = decode_sub_table(&conf_inbox, "redelivery");
	struct node *n = decode_find(d, keeps, decode_sub(s, "retention"), "processed");
	const struct node *at = place(n, NULL, d->inbox_nodes[index]);
	char kept[STR_DURATION_MAX];
	struct buf text = { 0 };
	int64_t total_us = redelivery_sum(&in->redelivery, &text);
	bool good = sound(n);

	for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
		struct node *p = decode_find(d, comes, decode_sub(s, "redelivery"), parts[i]);

		good = good && sound(p);
		at = n == NULL && p != NULL && at == d->inbox_nodes[index] ? p : at;
	}
	str_duration(in->retention.processed_us, kept);
	if (in->name != NULL && good && !text.failed && in->retention.processed_us != AGE_NEVER &&
		in->retention.processed_us <= total_us)
		fault_at(d->faults, at->line, at->column,
			"inboxes.%s.retention.processed %s does not exceed %s, for which a "
			"message may come again: make it more than that",
			in->name, kept, text.data);
	buf_fini(&text);
}

/* Which broker has the queue: the one named, or the only one there is. */
static void check_queue(struct decode *d, struct config *c, size_t index)
{
	struct inbox_conf *in = &c->inboxes[index];
	struct redelivery_conf *r = &in->redelivery;
	const struct conf_table *t = decode_sub_table(&conf_inbox, "redelivery");
	struct scope s = decode_sub((struct scope){ d->inbox_nodes[index], NULL }, "redelivery");
	struct node *queue = decode_find(d, t, s, "queue"), *n = decode_find(d, t, s, "broker");
	struct buf known = { 0 };

	if (r->broker_name != NULL)
		r->broker = config_broker(c, r->broker_name);
	else if (r->queue != NULL && n == NULL && c->broker_count == 1)
		r->broker = c->brokers;
	if (r->broker != NULL || c->brokers == NULL || in->name == NULL || !sound(n) ||
		!sound(queue) || !broker_names_known(d, c))
		return;
	list_brokers(c, &known);
	if (r->broker_name != NULL && n != NULL)
		fault_at(d->faults, n->line, n->column,
			"inboxes.%s.redelivery.broker \"%s\" is not a broker of this file: choose "
			"one of %s",
			in->name, r->broker_name, known.failed ? "those above" : known.data);
	else if (r->queue != NULL && queue != NULL)
		fault_at(d->faults, queue->line, queue->column,
			"inboxes.%s.redelivery.queue does not say on which broker: give "
			"redelivery.broker, one of %s",
			in->name, known.failed ? "those above" : known.data);
	buf_fini(&known);
}

/* What only shows when all templates of a source come together, such as too many columns. */
static void check_route(struct view *v)
{
	const struct source_conf *src = v->src;
	const struct node *at = place(decode_sub(v->s, "publish").own, NULL, v->node);
	struct route *route = NULL;
	struct err e;

	if (source_make_route(&route, src, SIZE_MAX, NULL, &e) < 0) {
		if (e.kind == ERR_NOMEM)
			v->d->nomem = true;
		else
			fault_at(v->d->faults, at->line, at->column,
				"sources.%s.publish cannot be used: %s", src->name, e.text);
	}
	route_free(route);
}

/* The broker serves heartbeats between statements: one longer than the heartbeat loses it. */
static void check_heartbeat(struct decode *d, struct config *c, size_t broker)
{
	const struct broker_conf *b = &c->brokers[broker];
	struct node *n = node_get(d->broker_nodes[broker], "heartbeat");
	char beat[STR_DURATION_MAX], query[STR_DURATION_MAX];
	const struct source_conf *slowest = NULL;
	struct node *slowest_key = NULL;
	size_t slowest_index = 0;
	const struct node *at;

	if (b->name == NULL || !sound(n))
		return;
	for (size_t i = 0; i < c->source_count; i++) {
		struct view v = { d, c, &c->sources[i], source_scope(d, i), d->source_nodes[i] };
		struct node *q;

		if (c->sources[i].broker != b)
			continue;
		q = in_source(&v, "database", "query_timeout");
		if (!sound(q) || c->sources[i].database.query_timeout_us <= b->heartbeat_us)
			continue;
		if (slowest != NULL && slowest->database.query_timeout_us >=
					       c->sources[i].database.query_timeout_us)
			continue;
		slowest = &c->sources[i];
		slowest_key = q;
		slowest_index = i;
	}
	if (slowest == NULL)
		return;
	at = place(n != NULL && !node_empty(n) ? n : NULL, slowest_key,
		d->source_nodes[slowest_index]);
	str_duration(b->heartbeat_us, beat);
	str_duration(slowest->database.query_timeout_us, query);
	fault_at(d->faults, at->line, at->column,
		"brokers.%s.heartbeat %s is less than query_timeout %s of source %s: make it at "
		"least that",
		b->name, beat, query, slowest->name);
}

void check_rules(struct decode *d, struct config *c)
{
	if (d->tree->cut || d->nomem)
		return;
	check_names(d, "brokers", d->broker_nodes, c->broker_count);
	check_names(d, "sources", d->source_nodes, c->source_count);
	check_names(d, "inboxes", d->inbox_nodes, c->inbox_count);
	for (size_t i = 0; i < c->source_count; i++) {
		struct view v = { d, c, &c->sources[i], source_scope(d, i), d->source_nodes[i] };

		if (c->sources[i].name == NULL)
			continue;
		check_broker(&v);
		check_lease(&v);
		check_workers(&v);
		check_retry(&v);
		check_retention(&v, i);
		check_tables(&v, i);
		if (!faults_any(d->faults))
			check_route(&v);
	}
	for (size_t i = 0; i < c->broker_count; i++)
		check_heartbeat(d, c, i);
	for (size_t i = 0; i < c->inbox_count; i++) {
		check_inbox_tables(d, c, i);
		check_redelivery(d, c, i);
		check_queue(d, c, i);
	}
}

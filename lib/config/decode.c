#include "config/decode.h"

#include "base/str.h"
#include "config/uri.h"

#include <stdlib.h>

#define SHOWN_VALUE 40
#define SHOWN_KEY 64
#define ENV_RESULT_MAX ((size_t)64 << 10)

static bool is_name_char(char c)
{
	return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
	       c == '_';
}

size_t decode_push(struct decode *d, struct slice name)
{
	size_t mark = strlen(d->path);
	struct buf shown = { 0 };

	faults_add_shown(&shown, name.len > 0 ? name : SLICE_LIT("\"\""), SHOWN_KEY);
	if (!shown.failed && shown.data != NULL)
		snprintf(d->path + mark, sizeof(d->path) - mark, "%s%s", mark > 0 ? "." : "",
			shown.data);
	buf_fini(&shown);
	return mark;
}

void decode_pop(struct decode *d, size_t mark)
{
	d->path[mark] = '\0';
}

/* An unknown key may be a password that lost its colon or blank ("{password:secret}"): what follows
 * the first character no key has is not shown. */
static struct slice shown_key(struct slice key)
{
	size_t n = 0;

	while (n < key.len && (is_name_char(key.ptr[n]) || key.ptr[n] == '.' || key.ptr[n] == '-'))
		n++;
	return (struct slice){ key.ptr, n };
}

static size_t push_index(struct decode *d, unsigned i)
{
	size_t mark = strlen(d->path);

	snprintf(d->path + mark, sizeof(d->path) - mark, "[%u]", i);
	return mark;
}

/* What such a key holds is never shown. */
static bool is_secret(const struct conf_key *k)
{
	return k->type == CONF_SECRET || k->type == CONF_URI;
}

/* Nor is what looks like a URI with a password, wherever it was put. */
static bool may_show(const struct conf_key *k, const struct node *n)
{
	return n->type == NODE_SCALAR && !is_secret(k) &&
	       memchr(n->raw.ptr, '@', n->raw.len) == NULL;
}

static void fault_value(
	struct decode *d, const struct conf_key *k, struct node *n, const char *problem)
{
	struct buf shown = { 0 };

	n->bad = true;
	if (may_show(k, n)) {
		buf_adds(&shown, " \"");
		faults_add_shown(&shown, n->raw, SHOWN_VALUE);
		buf_adds(&shown, "\"");
	}
	fault_at(d->faults, n->line, n->column, "%s%s %s", d->path,
		shown.failed || shown.data == NULL ? "" : shown.data, problem);
	buf_fini(&shown);
}

/* --- environment variables ------------------------------------------------------------------ */

static size_t name_length(struct slice s)
{
	size_t n = 0;

	while (n < s.len && is_name_char(s.ptr[n]) && (n > 0 || s.ptr[0] < '0' || s.ptr[0] > '9'))
		n++;
	return n;
}

/* Adds what ${NAME} at `s` stands for; `*used` is its length in the text. */
static const char *take_variable(
	struct slice s, bool secret, struct buf *out, size_t *used, struct buf *problem)
{
	size_t n = name_length((struct slice){ s.ptr + 2, s.len - 2 });
	char name[128];
	const char *value;

	if (n == 0 || n >= sizeof(name) || 2 + n >= s.len || s.ptr[2 + n] != '}')
		return "has ${ without NAME}: write ${NAME} for a variable, $$ for a dollar sign";
	memcpy(name, s.ptr + 2, n);
	name[n] = '\0';
	*used = n + 3;
	value = getenv(name);
	if (value != NULL) {
		buf_adds(out, value);
		return NULL;
	}
	if (secret) /* it may be a password with a ${ in it */
		return "names an environment variable that is not set: set it, or write $$ for a "
		       "dollar sign";
	buf_addf(problem,
		"needs the environment variable %s, which is not set: set it, or write "
		"$$ for a dollar sign",
		name);
	return problem->data;
}

static const char *substitute(
	const struct node *n, bool secret, struct buf *out, bool *taken, struct buf *problem)
{
	for (size_t i = 0; i < n->raw.len;) {
		struct slice rest = { n->raw.ptr + i, n->raw.len - i };
		size_t used = 1;
		const char *bad;

		if (rest.ptr[0] != '$') {
			buf_addc(out, rest.ptr[0]);
		} else if (rest.len > 1 && rest.ptr[1] == '$') {
			buf_addc(out, '$');
			used = 2;
		} else if (rest.len > 1 && rest.ptr[1] == '{') {
			bad = take_variable(rest, secret, out, &used, problem);
			if (bad != NULL)
				return bad;
			*taken = true;
		} else {
			return "has a lone $: write $$ for a dollar sign, ${NAME} for a variable";
		}
		if (out->len > ENV_RESULT_MAX)
			return "is longer than 64 KiB with its variables: shorten it";
		i += used;
	}
	return NULL;
}

/* Once a node. After this the text is what counts, and YAML's structure is long settled: a variable
 * cannot add keys. */
static void resolve(struct decode *d, const struct conf_key *k, struct node *n)
{
	struct buf out = { 0 }, problem = { 0 };
	bool taken = false;
	const char *bad;

	if (n->resolved || n->bad || n->type != NODE_SCALAR)
		return;
	n->resolved = true;
	if (memchr(n->raw.ptr, '$', n->raw.len) == NULL)
		return;
	bad = substitute(n, is_secret(k), &out, &taken, &problem);
	if (out.failed || problem.failed) {
		d->nomem = n->bad = true;
	} else if (bad != NULL) {
		n->bad = true;
		fault_at(d->faults, n->line, n->column, "%s %s", d->path, bad);
	} else {
		n->text = tree_copy(d->tree, buf_slice(&out));
		n->substituted = taken;
		if (n->text.ptr == NULL) {
			n->text = SLICE_LIT("");
			d->nomem = n->bad = true;
		}
	}
	if (out.data != NULL)
		explicit_bzero(out.data, out.cap);
	buf_fini(&out);
	buf_fini(&problem);
}

/* --- finding values ------------------------------------------------------------------------- */

static struct node *usable(struct decode *d, const struct conf_key *k, const struct node *map)
{
	struct node *n = node_get(map, k->name);
	size_t mark;

	if (n == NULL)
		return NULL;
	if (!n->resolved) {
		mark = decode_push(d, slice_str(k->name));
		resolve(d, k, n);
		decode_pop(d, mark);
	}
	return node_empty(n) ? NULL : n;
}

static bool group_given(
	struct decode *d, const struct conf_table *t, unsigned group, const struct node *map)
{
	for (const struct conf_key *k = t->keys; k->name != NULL; k++)
		if (k->group == group && usable(d, k, map) != NULL)
			return true;
	return false;
}

struct node *decode_pick(struct decode *d, const struct conf_table *t, const struct conf_key *k,
	struct scope s, bool *inherited)
{
	struct node *n = usable(d, k, s.own);

	if (inherited != NULL)
		*inherited = false;
	if (n != NULL || s.base == NULL || k->flags & KEY_OWN)
		return n;
	if (k->group != 0 && group_given(d, t, k->group, s.own))
		return NULL;
	if (inherited != NULL)
		*inherited = true;
	return usable(d, k, s.base);
}

struct node *decode_find(
	struct decode *d, const struct conf_table *t, struct scope s, const char *name)
{
	return decode_pick(d, t, conf_find(t, slice_str(name)), s, NULL);
}

static struct node *map_of(const struct node *map, const char *name)
{
	struct node *n = node_get(map, name);

	return n != NULL && n->type == NODE_MAP && !n->bad ? n : NULL;
}

struct scope decode_sub(struct scope s, const char *name)
{
	return (struct scope){ map_of(s.own, name), map_of(s.base, name) };
}

const struct conf_table *decode_sub_table(const struct conf_table *t, const char *name)
{
	return conf_find(t, slice_str(name))->table;
}

/* --- what is wrong with the keys of one mapping --------------------------------------------- */

static void check_exclusive(struct decode *d, const struct conf_table *t, const struct node *map,
	const struct conf_key *k, struct node *n)
{
	const struct node *first = NULL;

	if (k->group == 0 || usable(d, k, map) == NULL)
		return;
	for (const struct node *m = map->child; m != n && first == NULL; m = m->next) {
		const struct conf_key *other = conf_find(t, m->key);

		if (other != NULL && other != k && other->group == k->group &&
			usable(d, other, map) != NULL)
			first = m;
	}
	if (first == NULL)
		return;
	n->bad = true; /* the first is taken */
	fault_at(d->faults, n->key_line, n->key_column,
		"%s.%s cannot stand beside %s of line %u: keep one of the two", d->path, k->name,
		first->key.ptr, first->key_line);
}

static void fault_unknown(struct decode *d, const struct conf_table *t, const struct node *n)
{
	struct slice shown = shown_key(n->key);
	struct buf hint = { 0 };
	size_t mark = decode_push(d, shown);

	if (shown.len < n->key.len && n->key.ptr[shown.len] == ':')
		buf_adds(&hint, "put a blank after its colon");
	else if (shown.len < n->key.len)
		buf_adds(&hint, "keys are words of letters and _, then a colon and a blank");
	else
		hint_unknown(&hint, t, n->key);
	fault_at(d->faults, n->key_line, n->key_column, "%s%s is not a known key: %s", d->path,
		shown.len < n->key.len ? "..." : "",
		hint.failed ? "see outboxd.yaml(5)" : hint.data);
	decode_pop(d, mark);
	buf_fini(&hint);
}

static void check_keys(struct decode *d, const struct conf_table *t, struct node *map)
{
	for (struct node *n = map->child; n != NULL; n = n->next) {
		const struct conf_key *k = conf_find(t, n->key);
		size_t mark;

		if (k == NULL) {
			fault_unknown(d, t, n);
			continue;
		}
		mark = decode_push(d, n->key);
		if (n->earlier != NULL)
			fault_at(d->faults, n->key_line, n->key_column,
				"%s is given twice, first on line %u: keep one of the two", d->path,
				n->earlier->key_line);
		else if (d->partial && k->flags & KEY_OWN)
			fault_at(d->faults, n->key_line, n->key_column,
				"%s cannot be inherited: give every source one of its own",
				d->path);
		decode_pop(d, mark);
		if (n->earlier == NULL)
			check_exclusive(d, t, map, k, n);
	}
}

/* --- values --------------------------------------------------------------------------------- */

static bool wants_plain(enum conf_type t)
{
	return t == CONF_UINT || t == CONF_PORT || t == CONF_SHARE || t == CONF_BOOL;
}

static void set_value(struct decode *d, const struct conf_key *k, struct node *n, void *out)
{
	struct buf problem = { 0 };
	const char *bad;

	if (n->bad)
		return;
	if (n->type != NODE_SCALAR) {
		buf_addf(&problem, "is %s: give one value, %s", node_type_name(n), conf_a_type(k));
		bad = problem.data;
	} else if (wants_plain(k->type) && !n->plain && !n->substituted) {
		buf_addf(&problem, "is quoted, so it is text: give %s without quotes",
			conf_a_type(k));
		bad = problem.data;
	} else {
		bad = scalar_parse(k, n->text, (char *)out + k->offset, &problem);
	}
	if (problem.failed)
		d->nomem = true;
	else if (bad != NULL)
		fault_value(d, k, n, bad);
	buf_fini(&problem);
}

static void set_default(struct decode *d, const struct conf_key *k, void *out)
{
	struct buf problem = { 0 };

	if (scalar_parse(k, slice_str(k->def), (char *)out + k->offset, &problem) != NULL)
		d->nomem = true; /* the tables' own defaults are sound: a test walks them */
	buf_fini(&problem);
}

static void fault_missing(struct decode *d, const struct conf_table *t, const struct conf_key *k,
	const struct node *at)
{
	struct buf others = { 0 };

	for (const struct conf_key *o = t->keys; k->group != 0 && o->name != NULL; o++)
		if (o->group == k->group && o != k)
			buf_addf(&others, " or %s", o->name);
	fault_at(d->faults, at->line, at->column, "%s%s is missing: give %s", d->path,
		others.data != NULL ? others.data : "", conf_a_type(k));
	buf_fini(&others);
}

static void set_absent(struct decode *d, const struct conf_table *t, const struct conf_key *k,
	struct scope s, const struct node *at, void *out)
{
	if (d->partial)
		return;
	if (k->group != 0 &&
		(group_given(d, t, k->group, s.own) || group_given(d, t, k->group, s.base)))
		return;
	if (k->flags & KEY_REQUIRED && !d->tree->cut)
		fault_missing(d, t, k, at);
	if (k->def != NULL && !(k->flags & KEY_LATE_DEFAULT))
		set_default(d, k, out);
}

static void set_hosts(struct decode *d, const struct conf_key *k, struct node *list, void *out)
{
	void *field = (char *)out + k->offset;
	struct endpoint *hosts;
	size_t count = 0;
	unsigned i = 0;

	if (list->bad)
		return;
	if (list->type != NODE_LIST) {
		fault_value(d, k, list, "is not a list: write [\"HOST:PORT\"]");
		return;
	}
	if (list->count < k->lo || list->count > k->hi) {
		fault_value(d, k, list,
			list->count == 0 ? "is an empty list: name at least one HOST:PORT"
					 : "has too many entries: name at most 32");
		return;
	}
	hosts = calloc(list->count, sizeof(*hosts));
	if (hosts == NULL) {
		d->nomem = true;
		return;
	}
	for (struct node *n = list->child; n != NULL; n = n->next, i++) {
		size_t mark = push_index(d, i);
		struct hostport at;
		const char *bad = NULL;

		resolve(d, k, n);
		if (n->type != NODE_SCALAR)
			bad = "is not text: write \"HOST:PORT\"";
		else if (!n->bad && node_empty(n))
			bad = "is empty: write \"HOST:PORT\", or leave it out";
		else if (!n->bad)
			bad = hostport_parse(n->text, &at);
		if (bad != NULL && !n->bad)
			fault_value(d, k, n, bad);
		if (n->bad) {
			list->bad = true;
		} else {
			hosts[count].port = at.port;
			hosts[count].host = conf_dup(slice_str(at.host));
			if (hosts[count].host == NULL)
				d->nomem = true;
			else
				count++;
		}
		decode_pop(d, mark);
	}
	*(struct endpoint **)field = hosts;
	memcpy((char *)out + k->count_offset, &count, sizeof(count));
}

/* --- headers -------------------------------------------------------------------------------- */

static const char *check_header_name(const char *name, struct buf *problem)
{
	static const char *const taken[] = { "aggregate_version", "trace_id", "traceparent",
		"tracestate" };
	static const char cloudevents[] = "cloudEvents_";
	bool own = strncmp(name, cloudevents, sizeof(cloudevents) - 1) == 0;
	struct err e;

	for (size_t i = 0; i < ARRAY_LEN(taken); i++)
		own = own || strcmp(name, taken[i]) == 0;
	if (own)
		return "is a header the relay sets itself: choose another name";
	if (route_check_header_name(name, BODY_CLOUDEVENTS, &e) == 0)
		return NULL;
	buf_addf(problem, "cannot be a header, %s: choose another name", e.text);
	return problem->data;
}

static void fault_header_name(struct decode *d, struct node *n, const char *bad)
{
	n->bad = true;
	fault_at(d->faults, n->key_line, n->key_column, "%s %s", d->path, bad);
}

static void add_header(struct decode *d, struct node *n, struct publish_conf *p)
{
	static const struct conf_key value = {
		.name = "headers", .type = CONF_TEMPLATE, .lo = 1, .hi = 1024
	};
	struct buf problem = { 0 };
	char *template = NULL;
	const char *bad = NULL;

	if (n->earlier != NULL) {
		if (!n->bad)
			fault_at(d->faults, n->key_line, n->key_column,
				"%s is given twice, first on line %u: keep one of the two", d->path,
				n->earlier->key_line);
		n->bad = true;
		return;
	}
	resolve(d, &value, n);
	if (n->bad || node_empty(n))
		return;
	if (memchr(n->key.ptr, '\0', n->key.len) != NULL)
		bad = "holds a NUL character: leave it out";
	else
		bad = check_header_name(n->key.ptr, &problem);
	if (bad != NULL) {
		fault_header_name(d, n, bad);
	} else {
		set_value(d, &value, n, &template);
		if (template != NULL) {
			p->headers[p->header_count].name = conf_dup(n->key);
			p->headers[p->header_count].template = template;
			if (p->headers[p->header_count].name == NULL)
				d->nomem = true;
			p->header_count++;
		}
	}
	if (problem.failed)
		d->nomem = true;
	buf_fini(&problem);
}

static void add_headers(
	struct decode *d, const struct node *map, const struct node *but, struct publish_conf *p)
{
	for (struct node *n = map != NULL ? map->child : NULL; n != NULL; n = n->next) {
		const struct node *own = node_get(but, n->key.ptr);
		size_t mark;

		if (own != NULL && !node_empty(own))
			continue;
		mark = decode_push(d, n->key);
		add_header(d, n, p);
		decode_pop(d, mark);
	}
}

static void set_headers(struct decode *d, struct scope s, struct publish_conf *p)
{
	size_t most = (s.own != NULL ? s.own->count : 0) + (s.base != NULL ? s.base->count : 0);

	if (most == 0)
		return;
	p->headers = calloc(most, sizeof(*p->headers));
	if (p->headers == NULL) {
		d->nomem = true;
		return;
	}
	add_headers(d, s.own, NULL, p);
	add_headers(d, s.base, s.own, p);
}

/* --- mappings and lists --------------------------------------------------------------------- */

static void fault_not_map(struct decode *d, struct node *n)
{
	if (n == NULL || n->bad || n->type == NODE_MAP || node_empty(n))
		return;
	n->bad = true;
	fault_at(d->faults, n->line, n->column, "%s is %s: write a mapping, KEY: VALUE", d->path,
		node_type_name(n));
}

static void finish(struct decode *d, const struct conf_table *t, struct scope s,
	const struct node *at, void *out)
{
	if (t == &conf_broker)
		finish_broker(d, s, at, out);
	else if (t == &conf_source)
		finish_source(d, s, at, out);
	else if (t == &conf_inbox)
		finish_inbox(d, s, at, out);
	else if (t == decode_sub_table(&conf_source, "database"))
		finish_database(d, s, at, out);
}

static void decode_item(struct decode *d, const struct conf_key *k, struct scope s, unsigned i,
	struct node *n, void *out)
{
	size_t mark = strlen(d->path);
	struct node *name = node_get(n, "name");
	static const struct conf_key plain = { .name = "name", .type = CONF_NAME, .hi = 64 };

	push_index(d, i);
	if (name != NULL) {
		decode_push(d, slice_str("name"));
		resolve(d, &plain, name);
	}
	decode_pop(d, mark);
	if (name != NULL && name->type == NODE_SCALAR && !name->bad && !node_empty(name) &&
		shown_key(name->text).len == name->text.len)
		decode_push(d, name->text);
	else
		push_index(d, i);
	fault_not_map(d, n);
	if (n->type == NODE_SCALAR && !n->bad)
		fault_at(d->faults, n->line, n->column, "%s is empty: fill it in, or leave it out",
			d->path);
	if (n->type == NODE_MAP && !n->bad)
		decode_map(d, k->table, s, n, out);
	decode_pop(d, mark);
}

static void decode_list(struct decode *d, const struct conf_key *k, struct node *list, void *out)
{
	char *items;
	size_t count = 0;
	struct node **nodes, ***into = k->table == &conf_broker   ? &d->broker_nodes
				       : k->table == &conf_source ? &d->source_nodes
								  : &d->inbox_nodes;

	if (list->bad)
		return;
	if (list->type != NODE_LIST || list->count < k->lo || list->count > k->hi) {
		fault_value(d, k, list,
			list->type != NODE_LIST
				? "is not a list: start each entry with - name: NAME"
			: list->count == 0 ? "is an empty list: give at least one entry"
					   : "has too many entries: give at most 1000");
		return;
	}
	items = calloc(list->count, k->table->size);
	nodes = tree_alloc(d->tree, list->count * sizeof(struct node *));
	if (items == NULL || nodes == NULL) {
		free(items);
		d->nomem = true;
		return;
	}
	for (struct node *n = list->child; n != NULL; n = n->next, count++) {
		struct scope s = { n, k->table == &conf_source ? d->defaults : NULL };

		nodes[count] = n;
		decode_item(d, k, s, (unsigned)count, n, items + count * k->table->size);
	}
	memcpy((char *)out + k->offset, &items, sizeof(items));
	memcpy((char *)out + k->count_offset, &count, sizeof(count));
	*into = nodes;
}

/* Into a source that is thrown away: so that each fault is reported here, once, and not again by
 * every source that inherits it. */
static void decode_defaults(struct decode *d, struct node *n)
{
	struct source_conf *scratch;

	if (n == NULL || n->type != NODE_MAP || n->bad)
		return;
	scratch = calloc(1, sizeof(*scratch));
	if (scratch == NULL) {
		d->nomem = true;
		return;
	}
	d->partial = true;
	decode_map(d, &conf_source, (struct scope){ n, NULL }, n, scratch);
	d->partial = false;
	d->defaults = n;
	conf_free_fields(&conf_source, scratch);
	free(scratch);
}

static void decode_key(struct decode *d, const struct conf_table *t, const struct conf_key *k,
	struct scope s, const struct node *at, void *out)
{
	struct scope sub = decode_sub(s, k->name);
	bool inherited;
	struct node *n = NULL;
	size_t mark;

	if (k->table == NULL)
		n = decode_pick(d, t, k, s, &inherited);
	mark = decode_push(d, slice_str(k->name));
	switch (k->type) {
	case CONF_MAP:
		fault_not_map(d, node_get(s.own, k->name));
		decode_map(
			d, k->table, sub, sub.own != NULL ? sub.own : at, (char *)out + k->offset);
		break;
	case CONF_HEADERS:
		fault_not_map(d, node_get(s.own, k->name));
		set_headers(d, sub, out);
		break;
	case CONF_DEFAULTS:
		fault_not_map(d, node_get(s.own, k->name));
		decode_defaults(d, sub.own);
		break;
	case CONF_LIST:
		n = usable(d, k, s.own);
		if (n != NULL)
			decode_list(d, k, n, out);
		else
			set_absent(d, t, k, s, at, out);
		break;
	case CONF_HOSTS:
		if (n != NULL)
			set_hosts(d, k, n, out);
		else
			set_absent(d, t, k, s, at, out);
		break;
	default:
		if (n != NULL)
			set_value(d, k, n, out);
		else
			set_absent(d, t, k, s, at, out);
	}
	decode_pop(d, mark);
}

void decode_map(struct decode *d, const struct conf_table *t, struct scope s, const struct node *at,
	void *out)
{
	if (s.own != NULL)
		check_keys(d, t, s.own);
	for (const struct conf_key *k = t->keys; k->name != NULL; k++)
		decode_key(d, t, k, s, at, out);
	finish(d, t, s, at, out);
}

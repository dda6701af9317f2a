#include "message/route.h"

#include "base/str.h"
#include "message/route_priv.h"

#include <stdlib.h>

static bool starts_with(struct slice s, struct slice prefix)
{
	return s.len >= prefix.len && memcmp(s.ptr, prefix.ptr, prefix.len) == 0;
}

static bool set_always(struct slice name)
{
	return slice_eq(name, SLICE_LIT("aggregate_type")) ||
	       slice_eq(name, SLICE_LIT("aggregate_id")) || slice_eq(name, SLICE_LIT("source")) ||
	       starts_with(name, SLICE_LIT("x-outboxd-"));
}

bool route_name_reserved(struct slice name)
{
	return set_always(name) || starts_with(name, SLICE_LIT("cloudEvents_"));
}

int route_check_header_name(const char *name, enum body_format body, struct err *e)
{
	/* Others, cloudEvents_dataschema say, are the operator's to set. */
	static const char *const attributes[] = { "specversion", "id", "source", "type", "subject",
		"time", "traceparent", "tracestate" };
	const struct slice prefix = SLICE_LIT("cloudEvents_");
	struct slice s = slice_str(name);
	bool taken = set_always(s);

	if (s.len == 0 || s.len > ROUTE_SHORTSTR_MAX)
		return err_set(e, ERR_CONFIG, 0, "a header's name is %zu bytes; allowed: 1 to %d",
			s.len, ROUTE_SHORTSTR_MAX);
	if (has_control(s) || !utf8_valid(s))
		return err_set(e, ERR_CONFIG, 0,
			"a header's name must be UTF-8 without control characters");
	if (body == BODY_CLOUDEVENTS && starts_with(s, prefix)) {
		for (size_t i = 0; i < ARRAY_LEN(attributes); i++)
			taken |= strcmp(name + prefix.len, attributes[i]) == 0;
	}
	if (taken)
		return err_set(e, ERR_CONFIG, 0, "header %s is set by the relay itself", name);
	/* A template gives a string, over which the broker would close the channel each time. */
	if (strcmp(name, "CC") == 0 || strcmp(name, "BCC") == 0)
		return err_set(e, ERR_CONFIG, 0,
			"header %s means more routing keys to RabbitMQ, and has to be a list",
			name);
	return 0;
}

/* The parts that every row shares are checked once, here. */
static int compile_address(struct template *t, struct template_columns *columns, const char *text,
	struct slice source, struct err *e)
{
	size_t len = 0;

	if (template_compile(t, columns, text, source, e) < 0)
		return -1;
	for (size_t i = 0; i < t->count; i++) {
		struct slice literal = t->parts[i].literal;

		if (t->parts[i].column == NULL && has_control(literal))
			return err_set(e, ERR_CONFIG, 0, "control characters are not allowed");
		len += literal.len;
	}
	if (!utf8_valid(template_literal(t)))
		return err_set(e, ERR_CONFIG, 0, "not UTF-8");
	if (len > ROUTE_SHORTSTR_MAX)
		return err_set(e, ERR_CONFIG, 0, "%zu bytes without any column, limit %d", len,
			ROUTE_SHORTSTR_MAX);
	return 0;
}

static int compile_headers(struct route *r, const struct route_conf *conf, struct err *e)
{
	struct slice source = slice_str(r->source);

	r->headers = calloc(conf->header_count > 0 ? conf->header_count : 1, sizeof(*r->headers));
	if (r->headers == NULL)
		return err_set(e, ERR_NOMEM, 0, "headers: no memory");
	for (size_t i = 0; i < conf->header_count; i++) {
		const struct route_header *h = &conf->headers[i];
		struct configured_header *to = &r->headers[i];

		if (route_check_header_name(h->name, conf->body, e) < 0)
			return -1;
		for (size_t j = 0; j < i; j++) {
			if (strcmp(h->name, conf->headers[j].name) == 0)
				return err_set(
					e, ERR_CONFIG, 0, "header %s is there twice", h->name);
		}
		r->header_count = i + 1;
		to->name = strdup(h->name);
		if (to->name == NULL)
			return err_set(e, ERR_NOMEM, 0, "headers: no memory");
		if (template_compile(&to->value, &r->columns, h->template, source, e) < 0)
			return err_wrap(e, "header %s", h->name);
	}
	return 0;
}

/* A URI reference: all but RFC 3986's unreserved characters is percent-encoded. */
static char *source_uri(const char *source)
{
	struct buf b = { 0 };

	buf_adds(&b, "/outboxd/");
	for (const char *p = source; *p != '\0'; p++) {
		bool plain = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') ||
			     (*p >= '0' && *p <= '9') || strchr("-._~", *p) != NULL;

		if (plain)
			buf_addc(&b, *p);
		else
			buf_addf(&b, "%%%02X", (unsigned)(unsigned char)*p);
	}
	if (b.failed)
		buf_fini(&b);
	return b.data;
}

int route_new(struct route **out, const struct route_conf *conf, struct err *e)
{
	struct route *r = calloc(1, sizeof(*r));
	struct slice source = slice_str(conf->source);

	if (r == NULL)
		return err_set(e, ERR_NOMEM, 0, "route: no memory");
	r->body = conf->body;
	r->mandatory = conf->mandatory;
	r->delivery_mode = conf->persistent ? 2 : 1;
	r->max_message_size = conf->max_message_size;
	r->max_header_bytes = conf->max_header_bytes;
	r->source = strdup(conf->source);
	r->source_uri = source_uri(conf->source);
	if (conf->marker != NULL)
		r->marker = strdup(conf->marker);
	if (r->source == NULL || r->source_uri == NULL ||
		(conf->marker != NULL && r->marker == NULL)) {
		err_set(e, ERR_NOMEM, 0, "route: no memory");
		goto fail;
	}
	if (compile_address(&r->exchange, &r->columns, conf->exchange, source, e) < 0) {
		err_wrap(e, "exchange");
		goto fail;
	}
	if (r->exchange.count == 0) {
		err_set(e, ERR_CONFIG, 0,
			"exchange: empty, which is the broker's default exchange; name one");
		goto fail;
	}
	if (compile_address(&r->routing_key, &r->columns, conf->routing_key, source, e) < 0) {
		err_wrap(e, "routing_key");
		goto fail;
	}
	if (compile_headers(r, conf, e) < 0)
		goto fail;
	*out = r;
	return 0;
fail:
	route_free(r);
	return -1;
}

void route_free(struct route *r)
{
	if (r == NULL)
		return;
	template_fini(&r->exchange);
	template_fini(&r->routing_key);
	for (size_t i = 0; i < r->header_count; i++) {
		free(r->headers[i].name);
		template_fini(&r->headers[i].value);
	}
	free(r->headers);
	template_columns_fini(&r->columns);
	free(r->source);
	free(r->source_uri);
	free(r->marker);
	free(r);
}

size_t route_extra_columns(const struct route *r, const char *const **names)
{
	*names = (const char *const *)r->columns.names;
	return r->columns.count;
}

bool route_exchange_fixed(const struct route *r)
{
	return template_fixed(&r->exchange);
}

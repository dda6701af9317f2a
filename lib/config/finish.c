/* What a mapping's keys mean together: URIs, ports, TLS, secrets. */
#include "config/decode.h"
#include "config/uri.h"

#include <stdlib.h>

#define AMQP_PORT 5672
#define AMQPS_PORT 5671

static void fault_key(struct decode *d, struct node *n, const char *key, const char *text)
{
	n->bad = true;
	fault_at(d->faults, n->line, n->column, "%s.%s %s", d->path, key, text);
}

/* Secrets are read once at load, so that a missing one is found now and not by the first reconnect
 * after a reload. An inherited one was read with the defaults. */
static void check_secret(struct decode *d, const struct conf_table *t, struct scope s,
	const struct secret_conf *secret)
{
	struct buf value = { 0 };
	struct err e;

	for (const struct conf_key *k = t->keys; k->name != NULL; k++) {
		bool inherited;
		struct node *n;

		if (k->type != CONF_SECRET || k->lo != (uint64_t)secret->kind)
			continue;
		n = decode_pick(d, t, k, s, &inherited);
		if (n == NULL || n->bad || inherited || secret_read(secret, &value, &e) == 0)
			continue;
		fault_key(d, n, k->name, e.text);
	}
	secret_wipe(&value);
}

static bool all_loopback(const struct endpoint *hosts, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (!host_is_loopback(hosts[i].host))
			return false;
	return true;
}

static struct node *tls_key(
	struct decode *d, const struct conf_table *t, struct scope s, const char *name)
{
	return decode_find(d, decode_sub_table(t, "tls"), decode_sub(s, "tls"), name);
}

static void check_certificate(struct decode *d, const struct conf_table *t, struct scope s)
{
	struct node *cert = tls_key(d, t, s, "cert_file"), *key = tls_key(d, t, s, "key_file");

	if (cert != NULL && key == NULL && !cert->bad)
		fault_key(d, cert, "tls.cert_file", "has no key: give tls.key_file too");
	if (key != NULL && cert == NULL && !key->bad)
		fault_key(d, key, "tls.key_file", "has no certificate: give tls.cert_file too");
}

void finish_database(
	struct decode *d, struct scope s, const struct node *at, struct database_conf *db)
{
	const struct conf_table *t = decode_sub_table(&conf_source, "database");

	(void)at;
	check_secret(d, t, s, &db->password);
	if (d->partial)
		return;
	check_certificate(d, t, s);
	for (size_t i = 0; i < db->host_count; i++)
		if (db->hosts[i].port == 0)
			db->hosts[i].port = db->port;
	if (tls_key(d, t, s, "mode") == NULL)
		db->tls.mode = all_loopback(db->hosts, db->host_count) ? TLS_DISABLED
								       : TLS_VERIFY_IDENTITY;
}

static char *dup_or_note(struct decode *d, struct slice s)
{
	char *p = conf_dup(s);

	if (p == NULL)
		d->nomem = true;
	return p;
}

/* A part of the URI that another key gives as well. */
static void fault_both(struct decode *d, struct node *n, const char *key)
{
	fault_at(d->faults, n->key_line, n->key_column,
		"%s.%s is in the uri too: keep one of the two", d->path, key);
}

static void take_uri_secret(
	struct decode *d, struct scope s, struct slice password, struct broker_conf *b)
{
	static const char *const keys[] = { "password", "password_file", "password_credential" };

	for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
		struct node *n = decode_find(d, &conf_broker, s, keys[i]);

		if (n != NULL) {
			fault_both(d, n, keys[i]);
			return;
		}
	}
	if (password.len == 0 || b->password.kind != SECRET_NONE)
		return;
	b->password.value = dup_or_note(d, password);
	b->password.kind = SECRET_LITERAL;
}

static void take_uri_text(struct decode *d, struct scope s, const char *key, struct slice value,
	size_t max, struct node *uri, char **field)
{
	struct node *n = decode_find(d, &conf_broker, s, key);

	if (value.ptr == NULL)
		return;
	if (n != NULL) {
		fault_both(d, n, key);
		return;
	}
	if (value.len > max) {
		fault_at(d->faults, uri->line, uri->column,
			"%s.uri has too long a %s: shorten it to %zu bytes at most", d->path, key,
			max);
		uri->bad = true;
		return;
	}
	for (size_t i = 0; i < value.len; i++) {
		if ((unsigned char)value.ptr[i] >= 0x20 && value.ptr[i] != 0x7F)
			continue;
		fault_at(d->faults, uri->line, uri->column,
			"%s.uri has a control character in its %s: leave it out", d->path, key);
		uri->bad = true;
		return;
	}
	*field = dup_or_note(d, value);
}

static void take_uri(
	struct decode *d, struct scope s, struct node *n, struct broker_conf *b, bool *tls)
{
	struct slice copy = tree_copy(d->tree, n->text); /* decoded in place, wiped with the tree */
	struct amqp_uri uri;
	const char *bad;

	if (copy.ptr == NULL) {
		d->nomem = true;
		return;
	}
	bad = amqp_uri_parse((char *)(uintptr_t)copy.ptr, copy.len, &uri);
	if (bad != NULL) {
		fault_key(d, n, "uri", bad);
		return;
	}
	*tls = uri.tls;
	take_uri_text(d, s, "vhost", uri.vhost, 255, n, &b->vhost);
	take_uri_text(d, s, "username", uri.username, 255, n, &b->username);
	if (uri.password.ptr != NULL)
		take_uri_secret(d, s, uri.password, b);
	b->hosts = calloc(1, sizeof(*b->hosts));
	if (b->hosts == NULL) {
		d->nomem = true;
		return;
	}
	b->hosts[0].host = dup_or_note(d, slice_str(uri.at.host));
	b->hosts[0].port = uri.at.port;
	b->host_count = b->hosts[0].host != NULL ? 1 : 0;
}

/* A port left out follows from what TLS has become, so that the default is one that can work. */
static void decide_tls(struct decode *d, struct scope s, bool amqps, struct broker_conf *b)
{
	struct node *mode = tls_key(d, &conf_broker, s, "mode");

	if (mode == NULL)
		b->tls.mode = !amqps && all_loopback(b->hosts, b->host_count) ? TLS_DISABLED
									      : TLS_VERIFY_IDENTITY;
	else if (amqps && !mode->bad && b->tls.mode == TLS_DISABLED)
		fault_key(d, mode, "tls.mode", "is disabled, yet the uri is amqps: settle on one");
	for (size_t i = 0; i < b->host_count; i++)
		if (b->hosts[i].port == 0)
			b->hosts[i].port = b->tls.mode == TLS_DISABLED ? AMQP_PORT : AMQPS_PORT;
}

void finish_broker(struct decode *d, struct scope s, const struct node *at, struct broker_conf *b)
{
	struct node *uri = decode_find(d, &conf_broker, s, "uri");
	struct node *username = decode_find(d, &conf_broker, s, "username");
	bool amqps = false;

	b->line = at->line;
	check_secret(d, &conf_broker, s, &b->password);
	check_certificate(d, &conf_broker, s);
	/* Two of one group are a fault already; take the hosts then. */
	if (uri != NULL && !uri->bad && b->hosts == NULL)
		take_uri(d, s, uri, b, &amqps);
	if (b->username == NULL && username == NULL && (uri == NULL || !uri->bad) && !d->tree->cut)
		fault_at(d->faults, at->line, at->column,
			"%s.username is missing: give the user to log in as", d->path);
	if (b->vhost == NULL)
		b->vhost = dup_or_note(d, slice_str("/"));
	decide_tls(d, s, amqps, b);
}

void finish_source(struct decode *d, struct scope s, const struct node *at, struct source_conf *src)
{
	(void)d;
	(void)s;
	src->line = at->line;
}

void finish_inbox(struct decode *d, struct scope s, const struct node *at, struct inbox_conf *in)
{
	(void)d;
	(void)s;
	in->line = at->line;
}

#include "config/keys.h"

#include "base/str.h"

#include <stdlib.h>

#define DAYS_US(n) ((n)*UINT64_C(86400000000))
#define HOURS_US(n) ((n)*UINT64_C(3600000000))
#define SECS_US(n) ((n)*UINT64_C(1000000))
#define MS_US(n) ((n)*UINT64_C(1000))
#define KIB(n) ((n)*UINT64_C(1024))
#define MIB(n) ((n)*UINT64_C(1048576))
#define GIB(n) ((n)*UINT64_C(1073741824))

#define PATH_LEN 4095
#define SOCKET_LEN 107 /* sun_path less its NUL */

static const char *const words_level[] = { "debug", "info", "warn", "error", NULL };
static const char *const words_format[] = { "logfmt", "json", NULL };
static const char *const words_events[] = { "none", "failures", "all", NULL };
static const char *const words_tls[] = { "disabled", "required", "verify_ca", "verify_identity",
	NULL };
static const char *const words_image[] = { "server", "minimal", NULL };
static const char *const words_body[] = { "payload", "envelope", "cloudevents", NULL };
static const char *const words_ordering[] = { "aggregate", "none", NULL };
static const char *const words_on_dead[] = { "block", "pass", NULL };

#define KEY(k, t, s, f, d, l, h, ...)                                                              \
	{                                                                                          \
		.name = (k), .type = (t), .offset = offsetof(struct s, f), .def = (d), .lo = (l),  \
		.hi = (h), __VA_ARGS__                                                             \
	}
#define SUB(k, s, f, t)                                                                            \
	{                                                                                          \
		.name = (k), .type = CONF_MAP, .offset = offsetof(struct s, f), .table = (t)       \
	}
#define MANY(k, s, f, n, t)                                                                        \
	{                                                                                          \
		.name = (k), .type = CONF_LIST, .offset = offsetof(struct s, f), .lo = 1,          \
		.hi = 1000, .table = (t), .count_offset = offsetof(struct s, n),                   \
		.flags = KEY_REQUIRED                                                              \
	}
#define SOME(k, s, f, n, t, text)                                                                  \
	{                                                                                          \
		.name = (k), .type = CONF_LIST, .offset = offsetof(struct s, f), .lo = 1,          \
		.hi = 1000, .table = (t), .count_offset = offsetof(struct s, n), .absent = (text)  \
	}
#define TABLE(s, k)                                                                                \
	{                                                                                          \
		.size = sizeof(struct s), .keys = (k)                                              \
	}
#define NEEDED .flags = KEY_REQUIRED
#define ABSENT(text) .absent = (text)
#define WORDS(w) .words = (w)
#define GROUP(n) .group = (n)

/* clang-format off */
static const struct conf_key tls_keys[] = {
	KEY("mode",      CONF_WORD, tls_conf, mode,      NULL, 0, 0, WORDS(words_tls), .flags = KEY_LATE_DEFAULT,
		ABSENT("verify_identity off loopback, disabled on loopback and sockets")),
	KEY("ca_file",   CONF_PATH, tls_conf, ca_file,   NULL, 1, PATH_LEN, ABSENT("the system's certificates")),
	KEY("cert_file", CONF_PATH, tls_conf, cert_file, NULL, 1, PATH_LEN, ABSENT("no client certificate")),
	KEY("key_file",  CONF_PATH, tls_conf, key_file,  NULL, 1, PATH_LEN, ABSENT("no client certificate")),
	{ 0 },
};
static const struct conf_table tls_table = TABLE(tls_conf, tls_keys);

enum { GROUP_HOSTS = 1, GROUP_SECRET };
#define SECRET_KEYS(s) \
	KEY("password",            CONF_SECRET, s, password, NULL, SECRET_LITERAL,    4096, GROUP(GROUP_SECRET), ABSENT("no password")), \
	KEY("password_file",       CONF_SECRET, s, password, NULL, SECRET_FILE,       PATH_LEN, GROUP(GROUP_SECRET), ABSENT("no password")), \
	KEY("password_credential", CONF_SECRET, s, password, NULL, SECRET_CREDENTIAL, 255, GROUP(GROUP_SECRET), ABSENT("no password"))

static const struct conf_key broker_keys[] = {
	KEY("name",     CONF_NAME,   broker_conf, name,     NULL, 1, 64, NEEDED),
	KEY("hosts",    CONF_HOSTS,  broker_conf, hosts,    NULL, 1, 32, NEEDED, GROUP(GROUP_HOSTS),
		.count_offset = offsetof(struct broker_conf, host_count)),
	{ .name = "uri", .type = CONF_URI, .lo = 1, .hi = 2048, .group = GROUP_HOSTS, .absent = "hosts are given" },
	KEY("vhost",    CONF_STRING, broker_conf, vhost,    "/",  1, 255, .flags = KEY_LATE_DEFAULT),
	KEY("username", CONF_STRING, broker_conf, username, NULL, 1, 255, .flags = KEY_REQUIRED_LATE),
	SECRET_KEYS(broker_conf),
	SUB("tls", broker_conf, tls, &tls_table),
	KEY("heartbeat",        CONF_SECONDS,  broker_conf, heartbeat_us,       "30s",   SECS_US(1),  HOURS_US(1)),
	KEY("connect_timeout",  CONF_DURATION, broker_conf, connect_timeout_us, "5s",    MS_US(100),  SECS_US(300)),
	KEY("confirm_timeout",  CONF_DURATION, broker_conf, confirm_timeout_us, "15s",   MS_US(100),  SECS_US(600)),
	KEY("max_message_size", CONF_SIZE,     broker_conf, max_message_size,   "16MiB", KIB(1),      MIB(512)),
	{ 0 },
};
const struct conf_table conf_broker = TABLE(broker_conf, broker_keys);

static const struct conf_key database_keys[] = {
	KEY("host",     CONF_HOST,   database_conf, hosts,    "127.0.0.1", 1, 253, GROUP(GROUP_HOSTS),
		.count_offset = offsetof(struct database_conf, host_count)),
	KEY("hosts",    CONF_HOSTS,  database_conf, hosts,    NULL, 1, 32, GROUP(GROUP_HOSTS), ABSENT("host is used"),
		.count_offset = offsetof(struct database_conf, host_count)),
	KEY("socket",   CONF_PATH,   database_conf, socket,   NULL, 1, SOCKET_LEN, GROUP(GROUP_HOSTS), ABSENT("host is used")),
	KEY("port",     CONF_PORT,   database_conf, port,     "3306", 1, 65535),
	KEY("name",     CONF_IDENT,  database_conf, name,     NULL, 1, 64, NEEDED),
	KEY("username", CONF_STRING, database_conf, username, NULL, 1, 128, NEEDED),
	SECRET_KEYS(database_conf),
	SUB("tls", database_conf, tls, &tls_table),
	KEY("server_public_key_file", CONF_PATH, database_conf, server_public_key_file, NULL, 1, PATH_LEN,
		ABSENT("fetched from the server, on loopback only")),
	KEY("connect_timeout",  CONF_DURATION, database_conf, connect_timeout_us, "5s",     MS_US(100), SECS_US(300)),
	KEY("query_timeout",    CONF_DURATION, database_conf, query_timeout_us,   "10s",    MS_US(100), SECS_US(600)),
	KEY("binlog_row_image", CONF_WORD,     database_conf, binlog_row_image,   "server", 0, 0, WORDS(words_image)),
	{ 0 },
};
static const struct conf_table database_table = TABLE(database_conf, database_keys);

static const struct conf_key publish_keys[] = {
	KEY("exchange",    CONF_TEMPLATE, publish_conf, exchange,    NULL,      1, 1024, NEEDED),
	KEY("routing_key", CONF_TEMPLATE, publish_conf, routing_key, NULL,      1, 1024, NEEDED),
	KEY("body",        CONF_WORD,     publish_conf, body,        "payload", 0, 0, WORDS(words_body)),
	KEY("mandatory",   CONF_BOOL,     publish_conf, mandatory,   "true",    0, 0),
	KEY("persistent",  CONF_BOOL,     publish_conf, persistent,  "true",    0, 0),
	KEY("headers",     CONF_HEADERS,  publish_conf, headers,     NULL,      1, 1024, ABSENT("none"),
		.count_offset = offsetof(struct publish_conf, header_count)),
	{ 0 },
};
static const struct conf_table publish_table = TABLE(publish_conf, publish_keys);

static const struct conf_key retry_keys[] = {
	KEY("max_attempts", CONF_UINT,     retry_conf, max_attempts, "10",  1, 100000),
	KEY("base",         CONF_DURATION, retry_conf, base_us,      "2s",  MS_US(1), DAYS_US(365)),
	KEY("cap",          CONF_DURATION, retry_conf, cap_us,       "300s",  MS_US(1), DAYS_US(365)),
	KEY("jitter",       CONF_SHARE,    retry_conf, jitter,       "0.2", 0, 1),
	{ 0 },
};
static const struct conf_table retry_table = TABLE(retry_conf, retry_keys);

static const struct conf_key retention_keys[] = {
	KEY("sent",          CONF_AGE,      retention_conf, sent_us,       "7d",    0, DAYS_US(3650)),
	KEY("dead",          CONF_AGE,      retention_conf, dead_us,       "never", SECS_US(1), DAYS_US(3650)),
	KEY("interval",      CONF_DURATION, retention_conf, interval_us,   "1m",    SECS_US(1), DAYS_US(1)),
	KEY("batch",         CONF_UINT,     retention_conf, batch,         "5000",  1, 50000),
	KEY("archive_table", CONF_IDENT,    retention_conf, archive_table, NULL,    1, 64, ABSENT("rows are deleted")),
	KEY("window",        CONF_WINDOW,   retention_conf, window,        NULL,    0, 0, ABSENT("at any time")),
	KEY("max_rate",      CONF_UINT,     retention_conf, max_rate,      NULL,    1, 1000000, ABSENT("no limit")),
	{ 0 },
};
static const struct conf_table retention_table = TABLE(retention_conf, retention_keys);

static const struct conf_key source_keys[] = {
	KEY("name",   CONF_NAME,  source_conf, name,        NULL,           1, 64, .flags = KEY_REQUIRED | KEY_OWN),
	SUB("database", source_conf, database, &database_table),
	KEY("table",  CONF_IDENT, source_conf, table,       "outbox_event", 1, 64),
	KEY("broker", CONF_NAME,  source_conf, broker_name, NULL,           1, 64, NEEDED),
	SUB("publish", source_conf, publish, &publish_table),
	KEY("ordering",            CONF_WORD,     source_conf, ordering,            "aggregate", 0, 0, WORDS(words_ordering)),
	KEY("on_dead",             CONF_WORD,     source_conf, on_dead,             "block",     0, 0, WORDS(words_on_dead)),
	KEY("workers",             CONF_UINT,     source_conf, workers,             "1",         1, 64),
	KEY("batch",               CONF_UINT,     source_conf, batch,               "500",       1, 5000),
	KEY("max_in_flight",       CONF_UINT,     source_conf, max_in_flight,       "2000",      1, 65535),
	KEY("max_in_flight_bytes", CONF_SIZE,     source_conf, max_in_flight_bytes, "64MiB",     KIB(1), GIB(4)),
	KEY("poll_interval",       CONF_DURATION, source_conf, poll_interval_us,    "1s",        MS_US(10), SECS_US(300)),
	KEY("lease",               CONF_DURATION, source_conf, lease_us,            "60s",       SECS_US(1), HOURS_US(1)),
	SUB("retry", source_conf, retry, &retry_table),
	SUB("retention", source_conf, retention, &retention_table),
	{ 0 },
};
const struct conf_table conf_source = TABLE(source_conf, source_keys);

static const struct conf_key inbox_retention_keys[] = {
	KEY("processed", CONF_AGE,  inbox_retention_conf, processed_us, "14d",  SECS_US(1), DAYS_US(3650)),
	KEY("batch",     CONF_UINT, inbox_retention_conf, batch,        "5000", 1, 50000),
	{ 0 },
};
static const struct conf_table inbox_retention_table = TABLE(inbox_retention_conf, inbox_retention_keys);

static const struct conf_key redelivery_keys[] = {
	KEY("message_ttl",    CONF_DURATION, redelivery_conf, message_ttl_us,    "3d", 0, DAYS_US(3650)),
	KEY("max_retry_wait", CONF_DURATION, redelivery_conf, max_retry_wait_us, "1d", 0, DAYS_US(3650)),
	KEY("manual_window",  CONF_DURATION, redelivery_conf, manual_window_us,  "2d", 0, DAYS_US(3650)),
	KEY("queue",          CONF_STRING,   redelivery_conf, queue,             NULL, 1, 255, ABSENT("message_ttl is believed")),
	KEY("broker",         CONF_NAME,     redelivery_conf, broker_name,       NULL, 1, 64, ABSENT("the only one there is")),
	{ 0 },
};
static const struct conf_table redelivery_table = TABLE(redelivery_conf, redelivery_keys);

static const struct conf_key inbox_keys[] = {
	KEY("name",             CONF_NAME,   inbox_conf, name,             NULL,          1, 64, NEEDED),
	SUB("database", inbox_conf, database, &database_table),
	KEY("table",            CONF_IDENT,  inbox_conf, table,            "inbox_event", 1, 64),
	KEY("processed_status", CONF_STRING, inbox_conf, processed_status, "PROCESSED",   1, 64),
	SUB("retention", inbox_conf, retention, &inbox_retention_table),
	SUB("redelivery", inbox_conf, redelivery, &redelivery_table),
	{ 0 },
};
const struct conf_table conf_inbox = TABLE(inbox_conf, inbox_keys);

static const struct conf_key log_keys[] = {
	KEY("file",   CONF_PATH,   log_conf, file,   NULL,       1, PATH_LEN, ABSENT("standard error")),
	KEY("level",  CONF_WORD,   log_conf, level,  "info",     0, 0, WORDS(words_level)),
	KEY("format", CONF_EITHER, log_conf, json,   "logfmt",   0, 0, WORDS(words_format)),
	KEY("events", CONF_WORD,   log_conf, events, "failures", 0, 0, WORDS(words_events)),
	{ 0 },
};
static const struct conf_table log_table = TABLE(log_conf, log_keys);

static const struct conf_key http_keys[] = {
	KEY("listen", CONF_LISTEN, http_conf, host, NULL, 1, 300, ABSENT("no HTTP")),
	{ 0 },
};
static const struct conf_table http_table = TABLE(http_conf, http_keys);

static const struct conf_key wakeup_keys[] = {
	KEY("socket", CONF_PATH,   wakeup_conf, socket, NULL,   1, SOCKET_LEN, ABSENT("no wake-up socket")),
	KEY("mode",   CONF_MODE,   wakeup_conf, mode,   "0660", 0, 0777),
	KEY("group",  CONF_STRING, wakeup_conf, group,  NULL,   1, 32, ABSENT("the daemon's own")),
	{ 0 },
};
static const struct conf_table wakeup_table = TABLE(wakeup_conf, wakeup_keys);

static const struct conf_key top_keys[] = {
	KEY("instance",         CONF_NAME,     config, instance,            NULL,  1, 64, .flags = KEY_LATE_DEFAULT, ABSENT("the host's name")),
	KEY("shutdown_timeout", CONF_DURATION, config, shutdown_timeout_us, "20s", 0, HOURS_US(1)),
	SUB("log",    config, log,    &log_table),
	SUB("http",   config, http,   &http_table),
	SUB("wakeup", config, wakeup, &wakeup_table),
	MANY("brokers", config, brokers, broker_count, &conf_broker),
	{ .name = "defaults", .type = CONF_DEFAULTS, .absent = "nothing is inherited" },
	MANY("sources", config, sources, source_count, &conf_source),
	SOME("inboxes", config, inboxes, inbox_count, &conf_inbox, "none"),
	{ 0 },
};
const struct conf_table conf_top = TABLE(config, top_keys);
/* clang-format on */

const struct conf_key *conf_find(const struct conf_table *t, struct slice name)
{
	for (const struct conf_key *k = t->keys; k->name != NULL; k++)
		if (slice_eq(slice_str(k->name), name))
			return k;
	return NULL;
}

/* clang-format off */
static const char *const type_names[] = {
	[CONF_STRING]   = "text",
	[CONF_NAME]     = "a name",
	[CONF_IDENT]    = "an identifier",
	[CONF_PATH]     = "a path",
	[CONF_TEMPLATE] = "a template",
	[CONF_UINT]     = "a whole number",
	[CONF_PORT]     = "a whole number",
	[CONF_SIZE]     = "a size",
	[CONF_DURATION] = "a duration",
	[CONF_SECONDS]  = "a duration in whole seconds",
	[CONF_AGE]      = "an age",
	[CONF_SHARE]    = "a number",
	[CONF_MODE]     = "an octal mode",
	[CONF_BOOL]     = "a boolean",
	[CONF_WORD]     = "a word",
	[CONF_EITHER]   = "a word",
	[CONF_LISTEN]   = "an address and port",
	[CONF_WINDOW]   = "a window of the day",
	[CONF_HOST]     = "a host",
	[CONF_HOSTS]    = "a list of hosts",
	[CONF_URI]      = "a URI",
	[CONF_HEADERS]  = "a mapping of names to templates",
	[CONF_MAP]      = "a mapping",
	[CONF_LIST]     = "a list of mappings",
	[CONF_DEFAULTS] = "a mapping",
};
/* clang-format on */

const char *conf_a_type(const struct conf_key *k)
{
	if (k->type != CONF_SECRET)
		return type_names[k->type];
	return k->lo == SECRET_LITERAL ? "a secret"
	       : k->lo == SECRET_FILE  ? "a path"
				       : "a credential's name";
}

const char *conf_type_name(const struct conf_key *k)
{
	const char *name = conf_a_type(k), *blank = strchr(name, ' ');

	return blank != NULL ? blank + 1 : name;
}

static void add_size(struct buf *out, uint64_t bytes)
{
	if (bytes % GIB(1) == 0)
		buf_addf(out, "%uGiB", (unsigned)(bytes / GIB(1)));
	else if (bytes % MIB(1) == 0)
		buf_addf(out, "%uMiB", (unsigned)(bytes / MIB(1)));
	else if (bytes % KIB(1) == 0)
		buf_addf(out, "%uKiB", (unsigned)(bytes / KIB(1)));
	else
		buf_addf(out, "%lluB", (unsigned long long)bytes);
}

void conf_range(const struct conf_key *k, struct buf *out)
{
	char lo[STR_DURATION_MAX], hi[STR_DURATION_MAX];

	switch (k->type) {
	case CONF_STRING:
	case CONF_NAME:
	case CONF_IDENT:
	case CONF_PATH:
	case CONF_TEMPLATE:
	case CONF_URI:
	case CONF_HOST:
	case CONF_SECRET:
		buf_addf(out, "up to %u bytes", (unsigned)k->hi);
		return;
	case CONF_UINT:
	case CONF_PORT:
	case CONF_SHARE:
		buf_addf(out, "%u to %u", (unsigned)k->lo, (unsigned)k->hi);
		return;
	case CONF_LIST:
	case CONF_HOSTS:
		buf_addf(out, "%u to %u entries", (unsigned)k->lo, (unsigned)k->hi);
		return;
	case CONF_SIZE:
		add_size(out, k->lo);
		buf_adds(out, " to ");
		add_size(out, k->hi);
		return;
	case CONF_DURATION:
	case CONF_SECONDS:
		str_duration((int64_t)k->lo, lo);
		str_duration((int64_t)k->hi, hi);
		buf_addf(out, "%s to %s", lo, hi);
		return;
	case CONF_AGE:
		str_duration((int64_t)k->hi, hi);
		buf_addf(out, "never, %s1s to %s", k->lo == 0 ? "0s, " : "", hi);
		return;
	case CONF_MODE:
		buf_adds(out, "0000 to 0777");
		return;
	case CONF_BOOL:
		buf_adds(out, "true | false");
		return;
	case CONF_WORD:
	case CONF_EITHER:
		for (size_t i = 0; k->words[i] != NULL; i++)
			buf_addf(out, "%s%s", i > 0 ? " | " : "", k->words[i]);
		return;
	case CONF_WINDOW:
		buf_adds(out, "HH:MM-HH:MM");
		return;
	case CONF_LISTEN:
	case CONF_HEADERS:
	case CONF_MAP:
	case CONF_DEFAULTS:
		return;
	}
}

static void free_endpoints(struct endpoint **hosts, size_t *count)
{
	for (size_t i = 0; i < *count; i++)
		free((*hosts)[i].host);
	free(*hosts);
	*hosts = NULL;
	*count = 0;
}

static void free_headers(struct route_header **headers, size_t *count)
{
	for (size_t i = 0; i < *count; i++) {
		free((void *)(uintptr_t)(*headers)[i].name);
		free((void *)(uintptr_t)(*headers)[i].template);
	}
	free(*headers);
	*headers = NULL;
	*count = 0;
}

static void free_secret(struct secret_conf *s)
{
	if (s->value != NULL)
		explicit_bzero(s->value, strlen(s->value));
	free(s->value);
	*s = (struct secret_conf){ 0 };
}

/* `field` is a pointer to structs of whatever kind: read as bytes, for a char * is not that type.
 */
static void free_list(const struct conf_table *t, void *field, size_t *count)
{
	char *items;

	memcpy(&items, field, sizeof(items));
	for (size_t i = 0; i < *count; i++)
		conf_free_fields(t, items + i * t->size);
	free(items);
	memset(field, 0, sizeof(items));
	*count = 0;
}

void conf_free_fields(const struct conf_table *t, void *base)
{
	for (const struct conf_key *k = t->keys; k->name != NULL; k++) {
		void *field = (char *)base + k->offset;
		size_t *count = (size_t *)(void *)((char *)base + k->count_offset);

		switch (k->type) {
		case CONF_STRING:
		case CONF_NAME:
		case CONF_IDENT:
		case CONF_PATH:
		case CONF_TEMPLATE:
		case CONF_LISTEN:
			free(*(char **)field);
			*(char **)field = NULL;
			break;
		case CONF_HOST:
		case CONF_HOSTS:
			free_endpoints(field, count);
			break;
		case CONF_SECRET:
			free_secret(field);
			break;
		case CONF_HEADERS:
			free_headers(field, count);
			break;
		case CONF_MAP:
			conf_free_fields(k->table, field);
			break;
		case CONF_LIST:
			free_list(k->table, field, count);
			break;
		default:
			break;
		}
	}
}

/* config.h: the configuration as an immutable snapshot. Loaded whole or not at all; every fault of
 * a file is reported in one go. Times are microseconds, sizes bytes. */
#ifndef OUTBOXD_CONFIG_H
#define OUTBOXD_CONFIG_H

#include "base/buf.h"
#include "base/err.h"
#include "message/route.h"

#include <stdbool.h>
#include <stdio.h>

enum tls_mode { TLS_DISABLED, TLS_REQUIRED, TLS_VERIFY_CA, TLS_VERIFY_IDENTITY };

/* Where the mode was left out it has been decided when the snapshot is made: verify_identity for
 * TCP off loopback, disabled on loopback and sockets. */
struct tls_conf {
	enum tls_mode mode;
	char *ca_file;   /* NULL: the system's store */
	char *cert_file; /* NULL: no client certificate */
	char *key_file;
};

enum secret_kind { SECRET_NONE, SECRET_LITERAL, SECRET_FILE, SECRET_CREDENTIAL };

struct secret_conf {
	enum secret_kind kind;
	char *value; /* the secret itself, the file's path, or the credential's name */
};

struct endpoint {
	char *host; /* name or address, IPv6 without brackets */
	uint16_t port;
};

struct broker_conf {
	char *name;
	struct endpoint *hosts; /* tried in turn */
	size_t host_count;
	char *vhost;
	char *username;
	struct secret_conf password;
	struct tls_conf tls;
	int64_t heartbeat_us;
	int64_t connect_timeout_us;
	int64_t confirm_timeout_us;
	uint64_t max_message_size;
	unsigned line; /* where it stands in the file, from 1 */
};

enum row_image { ROW_IMAGE_SERVER, ROW_IMAGE_MINIMAL };

struct database_conf {
	struct endpoint *hosts; /* none when socket is set */
	size_t host_count;
	uint16_t port; /* of host, and of each of hosts that names none; the endpoints have it */
	char *socket;
	char *name;
	char *username;
	struct secret_conf password;
	struct tls_conf tls;
	char *server_public_key_file; /* NULL: fetched from the server, on loopback only */
	int64_t connect_timeout_us;
	int64_t query_timeout_us;
	enum row_image binlog_row_image;
};

enum ordering { ORDERING_AGGREGATE, ORDERING_NONE };
enum on_dead { ON_DEAD_BLOCK, ON_DEAD_PASS };

struct publish_conf {
	char *exchange;
	char *routing_key;
	enum body_format body;
	bool mandatory;
	bool persistent;
	struct route_header *headers;
	size_t header_count;
};

struct retry_conf {
	unsigned max_attempts;
	int64_t base_us;
	int64_t cap_us;
	double jitter; /* 0 to 1: share of the delay that may be added or taken away */
};

/* Instead of a length of time. */
#define AGE_NEVER INT64_C(-1)

/* Minutes of the day in UTC, `from` included, `to` not; from > to goes over midnight. */
struct window_conf {
	bool limited; /* false: any time */
	unsigned from, to;
};

struct retention_conf {
	int64_t sent_us; /* AGE_NEVER; 0: deleted in the place of becoming SENT */
	int64_t dead_us; /* AGE_NEVER */
	int64_t interval_us;
	unsigned batch;
	char *archive_table; /* in the same schema; NULL: rows are deleted, not moved */
	struct window_conf window;
	unsigned max_rate; /* rows a second; 0: no limit */
};

struct source_conf {
	char *name;
	struct database_conf database;
	char *table;
	const struct broker_conf *broker; /* in the same snapshot */
	char *broker_name;
	struct publish_conf publish;
	enum ordering ordering;
	enum on_dead on_dead;
	unsigned workers;
	unsigned batch;
	unsigned max_in_flight;
	uint64_t max_in_flight_bytes;
	int64_t poll_interval_us;
	int64_t lease_us;
	struct retry_conf retry;
	struct retention_conf retention;
	unsigned line;
};

struct inbox_retention_conf {
	int64_t processed_us; /* AGE_NEVER */
	unsigned batch;
};

/* For how long a message may come again. */
struct redelivery_conf {
	int64_t message_ttl_us;
	int64_t max_retry_wait_us;
	int64_t manual_window_us;
	char *queue; /* the consumer's, whose TTL `check` compares; NULL: none given */
	char *broker_name;
	const struct broker_conf *broker; /* which has the queue; NULL: neither was given */
};

/* A consumer's inbox table. */
struct inbox_conf {
	char *name;
	struct database_conf database;
	char *table;
	char *processed_status;
	struct inbox_retention_conf retention;
	struct redelivery_conf redelivery;
	unsigned line;
};

enum log_events { LOG_EVENTS_NONE, LOG_EVENTS_FAILURES, LOG_EVENTS_ALL };

struct log_conf {
	char *file; /* NULL: stderr */
	int level;  /* enum log_level */
	bool json;
	enum log_events events;
};

struct http_conf {
	char *host; /* NULL: no HTTP */
	uint16_t port;
};

struct wakeup_conf {
	char *socket; /* NULL: none */
	unsigned mode;
	char *group; /* NULL: left as it is */
};

struct config {
	char *path;
	char *instance;
	int64_t shutdown_timeout_us;
	struct log_conf log;
	struct http_conf http;
	struct wakeup_conf wakeup;
	struct broker_conf *brokers;
	size_t broker_count;
	struct source_conf *sources;
	size_t source_count;
	struct inbox_conf *inboxes;
	size_t inbox_count;
};

/* Reads, checks and cross-checks the file. On success *out is the caller's. On -1 *faults
 * (initialised by the caller) holds every fault, one a line: "FILE:LINE:COLUMN: WHAT: WHAT TO
 * DO\n", a fault of the whole file as "FILE: WHAT: WHAT TO DO\n". Never holds a secret or the value
 * of a key that may hold one. */
int config_load(struct config **out, const char *path, struct buf *faults) MUST_CHECK;
void config_free(struct config *c);

const struct source_conf *config_source(const struct config *c, const char *name);
const struct broker_conf *config_broker(const struct config *c, const char *name);
const struct inbox_conf *config_inbox(const struct config *c, const char *name);

/* For how long a message may come again, in all; appends "message_ttl 3d + ... = 6d". */
int64_t redelivery_sum(const struct redelivery_conf *r, struct buf *text);

/* Is the window open at that time of the wall clock? */
bool config_window_open(const struct window_conf *w, int64_t wall_us);

/* Compiles how rows of this source become messages. max_header_bytes: what the connection allows,
 * SIZE_MAX where it is not known yet; marker: as in struct route_conf. *source only lends its
 * strings for the call. */
int source_make_route(struct route **out, const struct source_conf *source, size_t max_header_bytes,
	const char *marker, struct err *e) MUST_CHECK;

/* Reads the secret now, into *out (reset first; wipe it with secret_wipe()). One trailing newline
 * of a file is not part of it. -1: the file cannot be read, is empty, holds a NUL or is larger than
 * 4 KiB. */
int secret_read(const struct secret_conf *s, struct buf *out, struct err *e) MUST_CHECK;
void secret_wipe(struct buf *secret);

/* True when the secret's file can be read by every user of the machine; says so in `why`. Loading
 * such a file is no fault: `outboxd check` warns. */
bool secret_file_exposed(const struct secret_conf *s, char *why, size_t size);

/* The same for the configuration itself, when it holds a secret in so many words. */
bool config_file_exposed(const struct config *c, char *why, size_t size);

/* A reference of every key, one a line, tab-separated: path ("sources[].retry.cap"), type, range,
 * "default" | "required" | "absent", then the default or what leaving it out means. Tests compare
 * the full sample and the man page with it. */
void config_describe(FILE *out);

#endif

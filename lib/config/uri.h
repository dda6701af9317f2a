/* uri.h: host lists and AMQP URIs taken apart. Problems are fixed words "WHAT: WHAT TO DO" without
 * any part of the text, for a URI may hold a password. */
#ifndef OUTBOXD_CONFIG_URI_H
#define OUTBOXD_CONFIG_URI_H

#include "base/slice.h"

#include <stdint.h>

#define HOST_MAX 253

struct hostport {
	char host[HOST_MAX + 1]; /* IPv6 without brackets */
	uint16_t port;           /* 0: none given */
};

/* "host", "host:port", "[::1]", "[::1]:port". NULL on success. */
const char *hostport_parse(struct slice text, struct hostport *out) MUST_CHECK;

/* A host without a port: a bare IPv6 address is fine too. */
const char *host_parse(struct slice text, char out[HOST_MAX + 1]) MUST_CHECK;

/* 127.0.0.0/8, ::1, localhost. */
bool host_is_loopback(const char *host);

struct amqp_uri {
	bool tls;
	struct hostport at;
	/* Each decoded; ptr NULL: not in the URI. They point into `text`. */
	struct slice username, password, vhost;
};

/* https://www.rabbitmq.com/docs/uri-spec, strictly: one host, one path segment, no query. Decodes
 * in place: `text` is overwritten. */
const char *amqp_uri_parse(char *text, size_t len, struct amqp_uri *out) MUST_CHECK;

#endif

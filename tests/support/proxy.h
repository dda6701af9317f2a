/* proxy.h: a TCP proxy on a loopback port and a thread of its own, that breaks what passes through
 * it as a test wants. All functions may be called from any thread while it runs. */
#ifndef OUTBOXD_TESTS_PROXY_H
#define OUTBOXD_TESTS_PROXY_H

#include "support/env.h"

struct proxy;

struct proxy *proxy_start(const char *host, unsigned port);
void proxy_stop(struct proxy *p);
unsigned proxy_port(const struct proxy *p);

/* Added to each piece, each way. */
void proxy_latency(struct proxy *p, int64_t ms);
/* Nothing passes in one piece but so many bytes at a time; 0: as they come. */
void proxy_split(struct proxy *p, unsigned bytes);
/* Connections stand, new ones are accepted, nothing passes; off: what was held back goes on. */
void proxy_black_hole(struct proxy *p, bool on);
/* New connections are reset at once. */
void proxy_refuse(struct proxy *p, bool on);
/* Nothing more is read from clients: their sends fill up. */
void proxy_pause(struct proxy *p, bool on);
/* Resets all connections. */
void proxy_cut(struct proxy *p);
/* Resets the connection on which this many more bytes from clients have passed; once. */
void proxy_cut_after(struct proxy *p, uint64_t bytes);

enum proxy_action {
	PROXY_ERROR,       /* the server does not see it; the client gets `error` */
	PROXY_DROP_BEFORE, /* reset, the server does not see it */
	PROXY_DROP_AFTER,  /* the server does it; its answer is not passed on, reset */
	PROXY_SWALLOW,     /* neither passed on nor answered */
	PROXY_INJECT,      /* `inject` is run on that session first, its answer kept */
};

/* For MySQL: what happens to a client's statement that contains `text`, if the statement before it
 * on this connection contained `after` (NULL: whatever). */
struct proxy_rule {
	const char *text, *after;
	enum proxy_action action;
	unsigned error;
	const char *inject; /* a statement whose answer is a lone OK */
	unsigned skip;      /* so many matches pass first */
	unsigned times;     /* then so many are hit; 0: all */
};

/* NULL: none any more. Strings must outlive the rule. Counts start anew. */
void proxy_rule(struct proxy *p, const struct proxy_rule *rule);
unsigned proxy_hits(struct proxy *p);        /* of the present rule */
unsigned proxy_connections(struct proxy *p); /* accepted so far */
unsigned proxy_open_connections(struct proxy *p);

#endif

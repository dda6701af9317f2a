/* http.h: the pages for monitoring, read-only; <microhttpd.h> stays in lib/http.
 *
 *	accept thread --MHD_add_connection--> libmicrohttpd's thread --pages--> callbacks
 *
 * Slow or hostile clients hold up those two threads' connections and nothing else: idle connections
 * end after ten seconds, requests have a size limit, and when too many connections are open the one
 * that has gone longest without a whole request makes room for the next. Out of descriptors: new
 * clients are turned away at once, without spinning. */
#ifndef OUTBOXD_HTTP_H
#define OUTBOXD_HTTP_H

#include "base/buf.h"
#include "base/err.h"

struct http;

/* Adds the page to the empty *out and returns the status code (200, 503, ...). On HTTP's thread:
 * from memory, without waiting for anybody; the next page waits for this one. A page for which
 * memory ran out (out->failed) becomes a 500 by itself. */
typedef unsigned http_page_cb(void *arg, struct buf *out);

struct http_pages {
	http_page_cb *metrics; /* GET /metrics: Prometheus text */
	http_page_cb *livez;   /* GET /livez: one line of text */
	http_page_cb *readyz;  /* GET /readyz: likewise, with the reason */
	http_page_cb *status;  /* GET /status: JSON */
};

/* Listens on an IP address ("127.0.0.1", "::1", "[::1]"), "localhost", or "*" for all; port 0: any
 * free one. Copies *pages. -1 when the port is taken and the like: *e says which, nothing is left
 * behind, and the caller may try again later. */
int http_start(struct http **out, const char *host, uint16_t port, const struct http_pages *pages,
	void *arg, struct err *e) MUST_CHECK;

/* Ends all connections; no callback runs afterwards. Waits for one that runs: hold no lock that a
 * callback takes. Takes NULL. */
void http_stop(struct http *h);

uint16_t http_port(const struct http *h);

#endif

#include "config/uri.h"

#include "base/str.h"

#include <arpa/inet.h>
#include <strings.h>

static bool is_ipv6(const char *host)
{
	struct in6_addr a;

	return inet_pton(AF_INET6, host, &a) == 1;
}

bool host_is_loopback(const char *host)
{
	struct in6_addr six;
	struct in_addr four;

	if (strcasecmp(host, "localhost") == 0)
		return true;
	if (inet_pton(AF_INET, host, &four) == 1)
		return ntohl(four.s_addr) >> 24 == 127;
	return inet_pton(AF_INET6, host, &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
}

static const char *take_host(struct slice text, char out[HOST_MAX + 1])
{
	if (text.len == 0)
		return "has no host: write a name or an address";
	if (text.len > HOST_MAX)
		return "has too long a host: a name has at most 253 bytes";
	for (size_t i = 0; i < text.len; i++) {
		unsigned char c = (unsigned char)text.ptr[i];

		if (c <= ' ' || c >= 0x7F || strchr("/@?#[]\\,;\"'", c) != NULL)
			return "is not a host's name or address: letters, digits, dots and hyphens "
			       "only";
	}
	memcpy(out, text.ptr, text.len);
	out[text.len] = '\0';
	return NULL;
}

static const char *take_ipv6(struct slice text, char out[HOST_MAX + 1])
{
	const char *problem = take_host(text, out);

	if (problem == NULL && !is_ipv6(out))
		return "has no IPv6 address between its brackets: write it like [::1]:PORT";
	return problem;
}

const char *host_parse(struct slice text, char out[HOST_MAX + 1])
{
	const char *problem;

	if (text.len > 2 && text.ptr[0] == '[' && text.ptr[text.len - 1] == ']')
		return take_ipv6((struct slice){ text.ptr + 1, text.len - 2 }, out);
	problem = take_host(text, out);
	if (problem == NULL && strchr(out, ':') != NULL && !is_ipv6(out))
		return "is more than a host: give the port with port, or use hosts";
	return problem;
}

static const char *take_port(struct slice text, uint16_t *out)
{
	uint64_t port;

	if (!str_to_u64(text, &port) || port < 1 || port > 65535)
		return "has no valid port: a port is 1 to 65535 in digits, after the colon";
	*out = (uint16_t)port;
	return NULL;
}

const char *hostport_parse(struct slice text, struct hostport *out)
{
	const char *colon, *close, *problem;

	out->port = 0;
	if (text.len > 0 && text.ptr[0] == '[') {
		close = memchr(text.ptr, ']', text.len);
		if (close == NULL)
			return "has [ without ]: write an IPv6 address like [::1]:PORT";
		problem = take_ipv6(
			(struct slice){ text.ptr + 1, (size_t)(close - text.ptr) - 1 }, out->host);
		colon = close + 1;
		if (problem != NULL || colon == text.ptr + text.len)
			return problem;
		if (*colon != ':')
			return "has text after its ]: write an IPv6 address like [::1]:PORT";
	} else {
		colon = memchr(text.ptr, ':', text.len);
		if (colon == NULL)
			return take_host(text, out->host);
		if (memchr(colon + 1, ':', text.len - (size_t)(colon - text.ptr) - 1) != NULL)
			return "has more than one colon: write an IPv6 address like [::1]:PORT";
		problem = take_host(
			(struct slice){ text.ptr, (size_t)(colon - text.ptr) }, out->host);
		if (problem != NULL)
			return problem;
	}
	return take_port(
		(struct slice){ colon + 1, text.len - (size_t)(colon - text.ptr) - 1 }, &out->port);
}

static int hex(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static const char *percent_decode(char *p, size_t len, struct slice *out)
{
	size_t n = 0;

	for (size_t i = 0; i < len; i++) {
		int hi, lo;

		if (p[i] != '%') {
			p[n++] = p[i];
			continue;
		}
		hi = i + 2 < len ? hex(p[i + 1]) : -1;
		lo = i + 2 < len ? hex(p[i + 2]) : -1;
		if (hi < 0 || lo < 0)
			return "has % without two hexadecimal digits: write %25 for a percent sign";
		if (hi == 0 && lo == 0)
			return "has %00: no name or password can hold a NUL";
		p[n++] = (char)(hi << 4 | lo);
		i += 2;
	}
	*out = (struct slice){ p, n };
	if (!utf8_valid(*out))
		return "decodes to bytes that are not UTF-8: percent-encode UTF-8";
	return NULL;
}

static const char *take_scheme(char **p, char *end, bool *tls)
{
	size_t left = (size_t)(end - *p);

	if (left >= 8 && strncasecmp(*p, "amqps://", 8) == 0)
		*tls = true, *p += 8;
	else if (left >= 7 && strncasecmp(*p, "amqp://", 7) == 0)
		*tls = false, *p += 7;
	else
		return "is not an AMQP URI: start it with amqp:// or amqps://";
	return NULL;
}

static const char *take_userinfo(char *p, char *end, struct amqp_uri *out)
{
	char *colon = memchr(p, ':', (size_t)(end - p));
	char *user_end = colon != NULL ? colon : end;
	const char *problem;

	if (user_end == p)
		return "has @ without a user before it: write amqp://USER@HOST";
	problem = percent_decode(p, (size_t)(user_end - p), &out->username);
	if (problem != NULL || colon == NULL)
		return problem;
	if (memchr(colon + 1, ':', (size_t)(end - colon) - 1) != NULL)
		return "has a second colon before its @: write %3A for a colon in a name or "
		       "password";
	return percent_decode(colon + 1, (size_t)(end - colon) - 1, &out->password);
}

static const char *take_vhost(char *p, char *end, struct slice *out)
{
	if (p == end)
		return "ends in /, which names the vhost without a name: leave the / out for "
		       "vhost /, which is %2F when written out";
	if (memchr(p, '/', (size_t)(end - p)) != NULL)
		return "has more than one / after its host: write %2F for a slash in a vhost's "
		       "name";
	return percent_decode(p, (size_t)(end - p), out);
}

const char *amqp_uri_parse(char *text, size_t len, struct amqp_uri *out)
{
	char *p = text, *end = text + len, *slash, *at;
	const char *problem;

	*out = (struct amqp_uri){ 0 };
	problem = take_scheme(&p, end, &out->tls);
	if (problem != NULL)
		return problem;
	for (const char *c = p; c < end; c++) {
		if ((unsigned char)*c <= ' ' || (unsigned char)*c >= 0x7F)
			return "has blanks or characters beyond ASCII: percent-encode them";
		if (*c == '?')
			return "has a query: give heartbeat, timeouts and certificates under keys "
			       "of "
			       "their own; write %3F for a question mark";
		if (*c == '#')
			return "has a fragment: write %23 for a number sign";
	}
	slash = memchr(p, '/', (size_t)(end - p));
	if (slash != NULL)
		problem = take_vhost(slash + 1, end, &out->vhost);
	if (problem != NULL)
		return problem;
	if (slash != NULL)
		end = slash;
	at = memchr(p, '@', (size_t)(end - p));
	if (at != NULL) {
		if (memchr(at + 1, '@', (size_t)(end - at) - 1) != NULL)
			return "has more than one @: write %40 for one in a name or password";
		problem = take_userinfo(p, at, out);
		if (problem != NULL)
			return problem;
		p = at + 1;
	}
	return hostport_parse((struct slice){ p, (size_t)(end - p) }, &out->at);
}

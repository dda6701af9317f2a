/* keys.h: every key of the configuration as data. The loader, config_free(), config_describe(), the
 * full sample and the man page are all read from, or checked against, these tables. */
#ifndef OUTBOXD_CONFIG_KEYS_H
#define OUTBOXD_CONFIG_KEYS_H

#include "config/config.h"

enum conf_type {
	/* text, into a char * of its own; lo and hi are its length in bytes */
	CONF_STRING,
	CONF_NAME,     /* letters, digits, _ . - */
	CONF_IDENT,    /* a table or schema name */
	CONF_PATH,     /* a file's path */
	CONF_TEMPLATE, /* see message/route.h */
	/* numbers */
	CONF_UINT,     /* unsigned */
	CONF_PORT,     /* uint16_t */
	CONF_SIZE,     /* uint64_t, bytes */
	CONF_DURATION, /* int64_t, microseconds; lo and hi too */
	CONF_SECONDS,  /* the same, whole seconds only */
	CONF_AGE,      /* the same or AGE_NEVER; a second at least, or nothing where lo is 0 */
	CONF_SHARE,    /* double, 0 to 1 */
	CONF_MODE,     /* unsigned, octal */
	/* one of a few */
	CONF_BOOL,
	CONF_WORD,   /* an enum: the index in `words` */
	CONF_EITHER, /* a bool: the index in `words` */
	/* compound */
	CONF_LISTEN,   /* struct http_conf */
	CONF_WINDOW,   /* struct window_conf */
	CONF_HOST,     /* one into the endpoints at offset, their count at count_offset */
	CONF_HOSTS,    /* a list of HOST:PORT into the same */
	CONF_URI,      /* amqp(s)://, taken apart once its mapping is complete */
	CONF_SECRET,   /* struct secret_conf; lo is the enum secret_kind */
	CONF_HEADERS,  /* names to templates */
	CONF_MAP,      /* an embedded struct with a table of its own */
	CONF_LIST,     /* of such structs: pointer at offset, count at count_offset */
	CONF_DEFAULTS, /* a partial source */
};

enum {
	KEY_REQUIRED = 1,      /* left out, it is a fault */
	KEY_REQUIRED_LATE = 2, /* the same, but another key may stand for it: checked afterwards */
	KEY_LATE_DEFAULT = 4,  /* the default is filled in afterwards */
	KEY_OWN = 8,           /* not to be inherited from defaults */
};

struct conf_key {
	const char *name; /* NULL ends a table */
	enum conf_type type;
	size_t offset;
	const char *def; /* as it would be written; NULL: none */
	uint64_t lo, hi;
	unsigned flags;
	unsigned group; /* keys of one table with the same one, not 0, exclude each other */
	const char *const *words;
	const struct conf_table *table;
	size_t count_offset;
	const char *absent; /* what leaving it out means, where there is no default */
};

struct conf_table {
	size_t size;
	const struct conf_key *keys;
};

extern const struct conf_table conf_top, conf_broker, conf_source, conf_inbox;

const struct conf_key *conf_find(const struct conf_table *t, struct slice name);

/* "whole number", "duration", ...: what config_describe() and the man page call it. */
const char *conf_type_name(const struct conf_key *k);
/* The same in a sentence: "a duration", "an identifier", "text". */
const char *conf_a_type(const struct conf_key *k);
/* "1 to 5000", "100ms to 10m", "logfmt | json"; empty where there is nothing to say. */
void conf_range(const struct conf_key *k, struct buf *out);

/* Frees what the fields of a struct described by `t` own, not the struct. */
void conf_free_fields(const struct conf_table *t, void *base);

#endif

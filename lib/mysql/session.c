#include "mysql/session.h"

#include "mysql/errors.h"
#include "mysql/values.h"
#include "sys/clock.h"

#include <mysql.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef MARIADB_PACKAGE_VERSION_ID
#define ORACLE_CLIENT 1
#endif

#ifdef ORACLE_CLIENT
typedef bool option_bool;
#else
typedef my_bool option_bool;
#endif

/* More values than any statement of ours has. */
#define VALUES_MAX 64
#define MEANWHILE_MS 10
/* The largest row: what a server can be told to allow. Memory follows the rows that come. */
#define PACKET_MAX (1024UL * 1024 * 1024)

struct session {
	MYSQL *db; /* NULL: not open */
	const struct database_conf *conf;
	struct session_options options;
	struct guard *guard;
	size_t host; /* of conf->hosts, to begin with */
	int64_t deadline_us;
	void (*meanwhile)(void *arg);
	void *meanwhile_arg;
	struct server server;
	char address[300];
};

int mysql_global_init(struct err *e)
{
	if (mysql_library_init(0, NULL, NULL) != 0)
		return err_set(e, ERR_NOMEM, 0, "cannot start the MySQL client library");
	return 0;
}

void mysql_global_fini(void)
{
	mysql_library_end();
}

void mysql_thread_enter(void)
{
	mysql_thread_init();
}

void mysql_thread_leave(void)
{
	mysql_thread_end();
}

const char *mysql_library_name(void)
{
	static char name[64];

#ifdef ORACLE_CLIENT
	snprintf(name, sizeof(name), "libmysqlclient %s", mysql_get_client_info());
#else
	snprintf(name, sizeof(name), "MariaDB Connector/C %s", mysql_get_client_info());
#endif
	return name;
}

int session_new(struct session **out, const struct database_conf *conf,
	const struct session_options *options, struct guard *guard, struct err *e)
{
	struct session *c = calloc(1, sizeof(*c));

	if (c == NULL)
		return err_set(e, ERR_NOMEM, errno, "database connection");
	c->conf = conf;
	c->options = *options;
	c->guard = guard;
	*out = c;
	return 0;
}

void session_set_guard(struct session *c, struct guard *guard)
{
	c->guard = guard;
}

void session_free(struct session *c)
{
	if (c == NULL)
		return;
	session_close(c);
	free(c);
}

bool session_is_open(const struct session *c)
{
	return c->db != NULL;
}

const struct server *session_server(const struct session *c)
{
	return &c->server;
}

const char *session_address(const struct session *c)
{
	return c->address;
}

void session_begin(struct session *c)
{
	c->deadline_us = clock_mono_us() + c->conf->query_timeout_us;
}

static int socket_of(MYSQL *db)
{
#ifdef ORACLE_CLIENT
	return db->net.vio != NULL ? (int)db->net.fd : -1;
#else
	return (int)mysql_get_socket(db);
#endif
}

int session_fd(const struct session *c)
{
	return c->db != NULL ? socket_of(c->db) : -1;
}

static void watch(struct session *c, int fd)
{
	if (c->guard != NULL)
		guard_enter(c->guard, fd, c->deadline_us);
}

/* True: the deadline came first. */
static bool unwatch(struct session *c)
{
	return c->guard != NULL && guard_leave(c->guard);
}

/* Ends the connection without a word: the peer is gone, or its answer does not matter. */
static void drop(struct session *c)
{
	int fd;

	if (c->db == NULL)
		return;
	fd = socket_of(c->db);
	if (fd >= 0)
		shutdown(fd, SHUT_RDWR); /* so that mysql_close() cannot wait for anything */
	mysql_close(c->db);
	c->db = NULL;
}

void session_close(struct session *c)
{
	int fd, unsent = 0;

	if (c->db == NULL)
		return;
	/* a farewell that would have to wait behind other bytes is left out */
	fd = socket_of(c->db);
	if (fd < 0 || ioctl(fd, SIOCOUTQ, &unsent) < 0 || unsent > 0) {
		drop(c);
		return;
	}
	session_begin(c);
	watch(c, fd);
	mysql_close(c->db);
	unwatch(c);
	c->db = NULL;
}

void session_avoid(struct session *c)
{
	drop(c);
	if (c->conf->host_count > 0)
		c->host = (c->host + 1) % c->conf->host_count;
}

/* Fills *e from the library's last error, closes what cannot be used any more. */
static int fail(struct session *c, bool cut, struct err *e)
{
	unsigned code = mysql_errno(c->db);
	enum err_kind kind = mysql_error_kind(code, mysql_sqlstate(c->db));

	if (cut) {
		err_set(e, ERR_LINK, code, "cut off: no answer in time");
		drop(c);
		return -1;
	}
	if (code == 0) /* cannot be, but must not pass for success */
		kind = ERR_LINK;
	err_set(e, kind, code, "%s (%u)", mysql_error(c->db), code);
	if (mysql_error_read_only(code))
		session_avoid(c);
	else if (kind == ERR_LINK)
		drop(c);
	return -1;
}

static int64_t seconds_up(int64_t us)
{
	return us <= 0 ? 1 : (us + US_PER_SEC - 1) / US_PER_SEC;
}

/* One result set, row by row. */
static int read_rows(struct session *c, struct reply *r, bool *stopped, struct err *e)
{
	MYSQL_RES *result = mysql_use_result(c->db);
	unsigned count;
	MYSQL_ROW row;

	if (result == NULL)
		return -1;
	count = mysql_num_fields(result);
	if (count > VALUES_MAX)
		count = VALUES_MAX;
	while ((row = mysql_fetch_row(result)) != NULL) {
		struct slice values[VALUES_MAX];
		const unsigned long *lengths;

		if (r->row == NULL || *stopped)
			continue;
		lengths = mysql_fetch_lengths(result);
		for (unsigned i = 0; i < count; i++)
			values[i] = (struct slice){ row[i], row[i] != NULL ? lengths[i] : 0 };
		if (r->row(r->arg, r->statements, values, count, e) < 0)
			*stopped = true;
	}
	mysql_free_result(result);
	return mysql_errno(c->db) != 0 ? -1 : 0;
}

static int read_answers(struct session *c, struct reply *r, bool *stopped, struct err *e)
{
	for (;;) {
		int more;

		if (mysql_field_count(c->db) > 0) {
			if (read_rows(c, r, stopped, e) < 0)
				return -1;
		} else {
			r->matched += mysql_affected_rows(c->db);
		}
		r->statements++;
		more = mysql_next_result(c->db);
		if (more != 0)
			return more < 0 ? 0 : -1;
	}
}

static int in_time(struct session *c, struct err *e)
{
	if (c->db == NULL)
		return err_set(e, ERR_LINK, 0, "not connected");
	if (clock_mono_us() < c->deadline_us)
		return 0;
	drop(c);
	return err_set(e, ERR_LINK, 0, "not done within query_timeout");
}

/* The second half of a call that is being watched; `rc` is what the library said to the first. */
static int finish(struct session *c, int rc, struct reply *r, struct err *e)
{
	struct reply nothing = { 0 };
	bool stopped = false, cut;

	if (r == NULL)
		r = &nothing;
	r->matched = 0;
	r->statements = 0;
	if (rc == 0)
		rc = read_answers(c, r, &stopped, e);
	cut = unwatch(c);
	if (rc != 0 || cut)
		return fail(c, cut, e);
	return stopped ? -1 : 0;
}

void session_meanwhile(struct session *c, void (*meanwhile)(void *arg), void *arg)
{
	c->meanwhile = meanwhile;
	c->meanwhile_arg = arg;
}

/* What the caller has to do in between has guards of its own. */
static int run_meanwhile(struct session *c, struct slice text, struct reply *r, struct err *e)
{
	struct pollfd p = { .fd = session_fd(c), .events = POLLIN };
	int rc;

	watch(c, p.fd);
	rc = mysql_send_query(c->db, text.ptr, (unsigned long)text.len);
	while (rc == 0 && poll(&p, 1, MEANWHILE_MS) == 0) {
		if (unwatch(c))
			return fail(c, true, e);
		if (in_time(c, e) < 0)
			return -1;
		c->meanwhile(c->meanwhile_arg);
		watch(c, p.fd);
	}
	return finish(c, rc == 0 ? mysql_read_query_result(c->db) : rc, r, e);
}

int session_run(struct session *c, struct slice text, struct reply *r, struct err *e)
{
	if (in_time(c, e) < 0)
		return -1;
	if (c->meanwhile != NULL)
		return run_meanwhile(c, text, r, e);
	watch(c, socket_of(c->db));
	return finish(c, mysql_real_query(c->db, text.ptr, (unsigned long)text.len), r, e);
}

int session_send(struct session *c, struct slice text, struct err *e)
{
	bool cut;
	int rc;

	if (in_time(c, e) < 0)
		return -1;
	watch(c, socket_of(c->db));
	rc = mysql_send_query(c->db, text.ptr, (unsigned long)text.len);
	cut = unwatch(c);
	return rc != 0 || cut ? fail(c, cut, e) : 0;
}

int session_answer(struct session *c, struct reply *r, struct err *e)
{
	struct pollfd p = { .fd = session_fd(c), .events = POLLIN };

	if (in_time(c, e) < 0)
		return -1;
	if (poll(&p, 1, 0) == 0)
		return 1;
	watch(c, p.fd);
	return finish(c, mysql_read_query_result(c->db), r, e);
}

int session_run_text(struct session *c, const char *text, struct err *e)
{
	return session_run(c, slice_str(text), NULL, e);
}

int session_rollback(struct session *c, struct err *e)
{
	struct err again;

	if (c->db == NULL)
		return -1;
	if (session_run_text(c, "ROLLBACK", &again) < 0) {
		drop(c);
		if (e != NULL)
			e->kind = ERR_LINK;
	}
	return -1;
}

int session_commit(struct session *c, bool *unknown, struct err *e)
{
	struct err why;

	*unknown = false;
	if (session_run_text(c, "COMMIT", &why) == 0)
		return 0;
	*unknown = !mysql_error_rolled_back((unsigned)why.code);
	err_set(e, why.kind, why.code, "COMMIT: %s", why.text);
	return session_rollback(c, e);
}

/* --- opening ------------------------------------------------------------------------------ */

static bool is_loopback(const char *host)
{
	return strcasecmp(host, "localhost") == 0 || strncmp(host, "127.", 4) == 0 ||
	       strcmp(host, "::1") == 0;
}

/* Where distributions keep the certificates of public authorities; neither library looks there
 * by itself on every system. */
static const char *system_ca_file(void)
{
	static const char *const places[] = {
		"/etc/ssl/certs/ca-certificates.crt",
		"/etc/pki/tls/certs/ca-bundle.crt",
		"/etc/ssl/ca-bundle.pem",
		"/etc/ssl/cert.pem",
	};

	for (size_t i = 0; i < ARRAY_LEN(places); i++)
		if (access(places[i], R_OK) == 0)
			return places[i];
	return NULL;
}

static int set_tls(struct session *c, MYSQL *db, struct err *e)
{
	const struct tls_conf *tls = &c->conf->tls;
	const char *ca = tls->ca_file;

	if (tls->mode >= TLS_VERIFY_CA && ca == NULL) {
		ca = system_ca_file();
		if (ca == NULL)
			return err_set(e, ERR_CONFIG, 0,
				"tls: no ca_file is set and this system has no certificate bundle "
				"where one is expected: set ca_file");
	}
	if (tls->mode != TLS_DISABLED) {
		const char *files[] = { ca, tls->cert_file, tls->key_file };

		for (size_t i = 0; i < ARRAY_LEN(files); i++)
			if (files[i] != NULL && access(files[i], R_OK) != 0)
				return err_set(e, ERR_CONFIG, errno, "tls: cannot read %s: %s",
					files[i], strerror(errno));
	}
#ifdef ORACLE_CLIENT
	{
		static const unsigned modes[] = {
			[TLS_DISABLED] = SSL_MODE_DISABLED,
			[TLS_REQUIRED] = SSL_MODE_REQUIRED,
			[TLS_VERIFY_CA] = SSL_MODE_VERIFY_CA,
			[TLS_VERIFY_IDENTITY] = SSL_MODE_VERIFY_IDENTITY,
		};

		if (mysql_options(db, MYSQL_OPT_SSL_MODE, &modes[tls->mode]) != 0)
			return err_set(
				e, ERR_CONFIG, 0, "tls: the client library has no such mode");
	}
#else
	{
		option_bool enforce = tls->mode != TLS_DISABLED;
		option_bool verify = tls->mode == TLS_VERIFY_IDENTITY;

		if (tls->mode == TLS_VERIFY_CA)
			return err_set(e, ERR_CONFIG, 0,
				"tls: mode verify_ca cannot be had from %s, which checks the name "
				"as "
				"well or nothing: use verify_identity",
				mysql_library_name());
		mysql_options(db, MYSQL_OPT_SSL_ENFORCE, &enforce);
		mysql_options(db, MYSQL_OPT_SSL_VERIFY_SERVER_CERT, &verify);
	}
#endif
	if (tls->mode == TLS_DISABLED)
		return 0;
	/* an authority that is not verified against would only make the library verify */
	if (ca != NULL && tls->mode >= TLS_VERIFY_CA)
		mysql_options(db, MYSQL_OPT_SSL_CA, ca);
	if (tls->cert_file != NULL)
		mysql_options(db, MYSQL_OPT_SSL_CERT, tls->cert_file);
	if (tls->key_file != NULL)
		mysql_options(db, MYSQL_OPT_SSL_KEY, tls->key_file);
	return 0;
}

/* How a password may travel. caching_sha2_password without TLS encrypts it with the server's RSA
 * key: whoever can put another key in between reads the password, so the key is fetched only where
 * nobody can be in between. Passwords in the clear are for nobody. */
static int set_authentication(struct session *c, MYSQL *db, bool local, struct err *e)
{
	const char *key_file = c->conf->server_public_key_file;
	bool plain = c->conf->tls.mode == TLS_DISABLED && !local;

	if (key_file != NULL) {
		if (access(key_file, R_OK) != 0)
			return err_set(e, ERR_CONFIG, errno,
				"server_public_key_file: cannot read %s: %s", key_file,
				strerror(errno));
		mysql_options(db, MYSQL_SERVER_PUBLIC_KEY, key_file);
	}
#ifdef ORACLE_CLIENT
	{
		option_bool fetch = local && key_file == NULL;

		(void)plain;
		mysql_options(db, MYSQL_OPT_GET_SERVER_PUBLIC_KEY, &fetch);
	}
#else
	/* this library would ask any server for its key: then the method as such is off */
	mysql_options(db, MARIADB_OPT_RESTRICTED_AUTH,
		plain && key_file == NULL
			? "mysql_native_password,client_ed25519,unix_socket,auth_socket"
			: "mysql_native_password,client_ed25519,unix_socket,auth_socket,"
			  "caching_sha2_password,sha256_password");
#endif
	return 0;
}

static int set_options(struct session *c, MYSQL *db, bool local, struct err *e)
{
	/* Both libraries give each read and write this long. A whole operation may make several of
	 * them; its own deadline is the guard's. */
	unsigned io = (unsigned)seconds_up(c->conf->query_timeout_us);
	unsigned connect = (unsigned)seconds_up(c->conf->connect_timeout_us);
	unsigned long packet = PACKET_MAX;
	unsigned off = 0;
	unsigned protocol = c->conf->socket != NULL ? MYSQL_PROTOCOL_SOCKET : MYSQL_PROTOCOL_TCP;

	mysql_options(db, MYSQL_OPT_CONNECT_TIMEOUT, &connect);
	mysql_options(db, MYSQL_OPT_READ_TIMEOUT, &io);
	mysql_options(db, MYSQL_OPT_WRITE_TIMEOUT, &io);
	mysql_options(db, MYSQL_OPT_PROTOCOL, &protocol);
	mysql_options(db, MYSQL_OPT_LOCAL_INFILE, &off);
	mysql_options(db, MYSQL_OPT_MAX_ALLOWED_PACKET, &packet);
	mysql_options(db, MYSQL_SET_CHARSET_NAME, "utf8mb4");
	if (c->options.program != NULL)
		mysql_options4(db, MYSQL_OPT_CONNECT_ATTR_ADD, "program_name", c->options.program);
	if (c->options.owner != NULL)
		mysql_options4(
			db, MYSQL_OPT_CONNECT_ATTR_ADD, SESSION_OWNER_ATTR, c->options.owner);
	if (set_tls(c, db, e) < 0)
		return -1;
	return set_authentication(c, db, local, e);
}

static int row_identity(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	struct server *s = arg;
	char text[64];
	const char *number = text;
	unsigned part[3] = { 0 }; /* 10.11.6 */
	uint64_t id = 0;

	(void)e;
	if (statement != 0 || count < 2 || v[0].ptr == NULL)
		return 0;
	snprintf(text, sizeof(text), "%.*s", (int)(v[0].len > 60 ? 60 : v[0].len), v[0].ptr);
	s->mariadb = strcasestr(text, "mariadb") != NULL;
	if (s->mariadb && strncmp(text, "5.5.5-", 6) == 0)
		number += 6; /* once told to old replicas */
	for (unsigned i = 0; i < ARRAY_LEN(part); i++) {
		char *end;

		part[i] = (unsigned)strtoul(number, &end, 10);
		if (*end != '.')
			break;
		number = end + 1;
	}
	s->version = part[0] * 10000 + part[1] * 100 + part[2];
	snprintf(s->name, sizeof(s->name), "%s%u.%u.%u", s->mariadb ? "MariaDB " : "", part[0],
		part[1], part[2]);
	s->isolation = s->mariadb && s->version < 110101 ? "tx_isolation" : "transaction_isolation";
	value_id(v[1], &id);
	s->session = id;
	return 0;
}

/* What SHOW VARIABLES said; names differ between servers and versions, what is absent does not
 * apply. */
struct session_check {
	struct server *server;
	char wrong[120];
};

static int row_variable(
	void *arg, unsigned statement, const struct slice *v, unsigned count, struct err *e)
{
	static const struct {
		const char *name, *value;
	} promised[] = {
		{ "character_set_client", "utf8mb4" },
		{ "character_set_connection", "utf8mb4" },
		{ "character_set_results", "utf8mb4" },
		{ "time_zone", "+00:00" },
		{ "transaction_isolation", "READ-COMMITTED" },
		{ "tx_isolation", "READ-COMMITTED" },
		{ "autocommit", "ON" },
		{ "sql_mode", "STRICT_ALL_TABLES" },
	};
	struct session_check *check = arg;
	struct server *s = check->server;

	(void)e, (void)statement;
	if (count < 2)
		return 0;
	for (size_t i = 0; i < ARRAY_LEN(promised); i++)
		if (value_is(v[0], promised[i].name) && !value_is(v[1], promised[i].value))
			snprintf(check->wrong, sizeof(check->wrong), "%s is %.*s, not %s",
				promised[i].name, (int)(v[1].len > 40 ? 40 : v[1].len),
				v[1].ptr != NULL ? v[1].ptr : "", promised[i].value);
	if (value_is(v[0], "log_bin"))
		s->log_bin = value_true(v[1]);
	else if (value_is(v[0], "binlog_format"))
		snprintf(s->binlog_format, sizeof(s->binlog_format), "%.*s",
			(int)(v[1].len > 15 ? 15 : v[1].len), v[1].ptr != NULL ? v[1].ptr : "");
	else if (value_is(v[0], "read_only") || value_is(v[0], "super_read_only") ||
		 value_is(v[0], "innodb_read_only"))
		/* newer MariaDB has words for degrees of it */
		s->read_only |= !value_is(v[1], "OFF") && !value_is(v[1], "0");
	else if (value_is(v[0], "lower_case_table_names"))
		s->name_case = value_count(v[1]);
	return 0;
}

static int setup_session(struct session *c, struct err *e)
{
	/* Rows are waited for a moment only: whoever holds them longer is another relay, or hung.
	 * The server waits for the client as long as the client for the server. */
	int64_t io = seconds_up(c->conf->query_timeout_us);
	int64_t lock_wait = io > 9 ? 3 : io > 3 ? io / 3 : 1;
	struct session_check check = { .server = &c->server };
	struct reply identity = { .row = row_identity, .arg = &c->server };
	struct reply variables = { .row = row_variable, .arg = &check };
	char text[1400];

	snprintf(text, sizeof(text),
		"SELECT VERSION(),CONNECTION_ID();"
		"SET NAMES utf8mb4;"
		"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;"
		"SET SESSION TRANSACTION READ WRITE;"
		"SET autocommit=1,time_zone='+00:00',sql_mode='STRICT_ALL_TABLES',"
		"completion_type=0,sql_safe_updates=0,sql_select_limit=18446744073709551615,max_"
		"sort_length=1024,sql_big_selects=1,"
		"sql_auto_is_null=0,innodb_lock_wait_timeout=%" PRId64 ",lock_wait_timeout=%" PRId64
		",wait_timeout=%u,net_read_timeout=%" PRId64 ",net_write_timeout=%" PRId64,
		lock_wait, lock_wait, c->options.wait_timeout_s, io + 1, io + 1);
	if (session_run(c, slice_str(text), &identity, e) < 0)
		return -1;

	/* A statement that nobody waits for any more ends in the server too. */
	if (c->server.mariadb)
		snprintf(text, sizeof(text), "SET SESSION max_statement_time=%" PRId64, io);
	else
		snprintf(text, sizeof(text), "SET SESSION max_execution_time=%" PRId64, io * 1000);
	snprintf(text + strlen(text), sizeof(text) - strlen(text),
		";SHOW SESSION VARIABLES WHERE Variable_name IN ('character_set_client',"
		"'character_set_connection','character_set_results','time_zone',"
		"'transaction_isolation','tx_isolation','autocommit','sql_mode','log_bin',"
		"'binlog_format','read_only','super_read_only','innodb_read_only',"
		"'lower_case_table_names')");
	if (session_run(c, slice_str(text), &variables, e) < 0)
		return -1;
	if (check.wrong[0] != '\0')
		return err_set(e, ERR_CONFIG, 0, "the session does not keep its settings: %s",
			check.wrong);
	return 0;
}

static int judge_server(struct session *c, struct err *e)
{
	const struct server *s = &c->server;

	if (s->version < (s->mariadb ? 100600U : 80001U))
		return err_set(e, ERR_CONFIG, 0,
			"%s%s has no SKIP LOCKED: MySQL 8.0.1, MariaDB 10.6 or newer is needed",
			s->mariadb ? "" : "MySQL ", s->name);
	if (c->options.examine)
		return 0;
	if (s->log_bin && strcasecmp(s->binlog_format, "STATEMENT") == 0)
		return err_set(e, ERR_CONFIG, 0,
			"binlog_format is STATEMENT, which refuses READ COMMITTED: SET GLOBAL "
			"binlog_format = 'ROW', and in the server's option file");
	if (s->read_only)
		return err_set(e, ERR_LINK, 1290, "the server is read-only");
	if (c->conf->binlog_row_image == ROW_IMAGE_MINIMAL) {
		if (session_run_text(c, "SET SESSION binlog_row_image='MINIMAL'", e) < 0) {
			if (e->code == 1227)
				return err_set(e, ERR_CONFIG, 1227,
					"binlog_row_image: minimal needs a privilege that %s lacks "
					"(SESSION_VARIABLES_ADMIN; MariaDB: BINLOG ADMIN)",
					c->conf->username);
			return err_wrap(e, "binlog_row_image: minimal");
		}
	}
	return 0;
}

static enum err_kind connect_kind(MYSQL *db)
{
	unsigned code = mysql_errno(db);
	const char *text = mysql_error(db);

	/* a certificate that does not do is no outage */
	if (code == 2026 &&
		(strcasestr(text, "certificate") != NULL || strcasestr(text, "verif") != NULL ||
			strcasestr(text, "does not support") != NULL ||
			strcasestr(text, "hostname") != NULL))
		return ERR_CONFIG;
	return mysql_error_kind(code, mysql_sqlstate(db));
}

static int login(struct session *c, const char *host, unsigned port, struct err *e)
{
	const unsigned long flags = CLIENT_FOUND_ROWS | CLIENT_MULTI_STATEMENTS;
	struct buf password = { 0 };
	MYSQL *db, *ok;

	if (c->conf->password.kind != SECRET_NONE &&
		secret_read(&c->conf->password, &password, e) < 0) {
		secret_wipe(&password);
		buf_fini(&password);
		return err_wrap(e, "password");
	}
	db = mysql_init(NULL);
	if (db == NULL) {
		err_set(e, ERR_NOMEM, 0, "database connection");
		goto fail;
	}
	if (set_options(c, db, host == NULL || is_loopback(host), e) < 0)
		goto fail;
	c->deadline_us = clock_mono_us() + c->conf->connect_timeout_us + c->conf->query_timeout_us;
	watch(c, -1);
	ok = mysql_real_connect(db, host, c->conf->username,
		password.data != NULL ? password.data : "", c->conf->name, port, c->conf->socket,
		flags);
	unwatch(c);
	if (ok == NULL) {
		unsigned code = mysql_errno(db);

		err_set(e, connect_kind(db), code, "%s (%u)", mysql_error(db), code);
		goto fail;
	}
	/* the library keeps a copy for a reconnect that must not happen */
	if (db->passwd != NULL)
		explicit_bzero(db->passwd, strlen(db->passwd));
	c->server.encrypted = mysql_get_ssl_cipher(db) != NULL;
	if (c->conf->tls.mode != TLS_DISABLED && !c->server.encrypted) {
		err_set(e, ERR_CONFIG, 0, "tls: the server does not offer it");
		goto fail;
	}
	secret_wipe(&password);
	buf_fini(&password);
	c->db = db;
	return 0;
fail:
	secret_wipe(&password);
	buf_fini(&password);
	if (db != NULL)
		mysql_close(db);
	return -1;
}

static int open_host(struct session *c, const char *host, unsigned port, struct err *e)
{
	c->server = (struct server){ .isolation = "transaction_isolation" };
	if (host == NULL)
		snprintf(c->address, sizeof(c->address), "%s", c->conf->socket);
	else
		snprintf(c->address, sizeof(c->address), strchr(host, ':') ? "[%s]:%u" : "%s:%u",
			host, port);
	if (login(c, host, port, e) < 0)
		goto fail;
	session_begin(c);
	if (setup_session(c, e) < 0 || judge_server(c, e) < 0)
		goto fail;
	return 0;
fail:
	drop(c);
	return err_wrap(e, "%s", c->address);
}

int session_open(struct session *c, struct err *e)
{
	const struct database_conf *conf = c->conf;
	int64_t enough_us = clock_mono_us() + conf->connect_timeout_us;
	struct err first = { 0 };

	session_close(c);
	if (conf->socket != NULL)
		return open_host(c, NULL, 0, e);
	for (size_t i = 0; i < conf->host_count; i++) {
		struct err why;

		if (i > 0 && clock_mono_us() >= enough_us)
			break;
		if (open_host(c, conf->hosts[c->host].host, conf->hosts[c->host].port, &why) == 0)
			return 0;
		c->host = (c->host + 1) % conf->host_count;
		/* of several reasons the one that an operator can mend says most */
		if (first.kind == ERR_NONE || (first.kind == ERR_LINK && why.kind != ERR_LINK))
			first = why;
	}
	if (first.kind == ERR_NONE)
		return err_set(e, ERR_CONFIG, 0, "no database host is configured");
	if (e != NULL)
		*e = first;
	return -1;
}

#include "mysql/errors.h"

#include <string.h>

/* Server codes are the same in MySQL and MariaDB as far as they are listed here. What is not listed
 * goes by its SQLSTATE class. */
static const struct {
	unsigned code;
	enum err_kind kind;
} known[] = {
	/* The connection is over, or this server is not the one to talk to. */
	{ 1040, ERR_LINK }, /* too many connections */
	{ 1042, ERR_LINK }, /* cannot get hostname */
	{ 1043, ERR_LINK }, /* bad handshake */
	{ 1047, ERR_LINK }, /* Galera: node not ready */
	{ 1053, ERR_LINK }, /* shutdown in progress */
	{ 1077, ERR_LINK },
	{ 1079, ERR_LINK },
	{ 1080, ERR_LINK }, /* forced close */
	{ 1152, ERR_LINK },
	{ 1153, ERR_LINK }, /* packet larger than max_allowed_packet: the server hangs up */
	{ 1154, ERR_LINK },
	{ 1155, ERR_LINK },
	{ 1156, ERR_LINK },
	{ 1157, ERR_LINK },
	{ 1158, ERR_LINK },
	{ 1159, ERR_LINK },
	{ 1160, ERR_LINK },
	{ 1161, ERR_LINK },
	{ 1184, ERR_LINK }, /* aborted connection */
	{ 1203, ERR_LINK }, /* too many connections of this user */
	{ 1290, ERR_LINK }, /* --read-only, --super-read-only */
	{ 1792, ERR_LINK }, /* read-only transaction */
	{ 1836, ERR_LINK }, /* read-only mode */
	{ 1874, ERR_LINK }, /* InnoDB is read-only */
	{ 1927, ERR_LINK }, /* MariaDB: connection was killed */
	{ 3032, ERR_LINK }, /* offline mode */
	{ 3169, ERR_LINK }, /* session was killed */
	{ 4031, ERR_LINK }, /* closed for inactivity */

	/* Passing; the connection is good. */
	{ 1015, ERR_RETRY }, /* cannot lock file */
	{ 1020, ERR_RETRY }, /* record has changed since last read */
	{ 1021, ERR_RETRY }, /* disk full */
	{ 1030, ERR_RETRY }, /* storage engine error */
	{ 1037, ERR_RETRY }, /* out of memory, in the server */
	{ 1038, ERR_RETRY },
	{ 1041, ERR_RETRY },
	{ 1105, ERR_RETRY },
	{ 1114, ERR_RETRY }, /* table full */
	{ 1180, ERR_RETRY }, /* error during COMMIT */
	{ 1205, ERR_RETRY }, /* lock wait timeout, of rows or of the table's definition */
	{ 1206, ERR_RETRY },
	{ 1213, ERR_RETRY }, /* deadlock */
	{ 1223, ERR_RETRY },
	{ 1226, ERR_RETRY }, /* resource limit of the account */
	{ 1317, ERR_RETRY }, /* interrupted: KILL QUERY */
	{ 1412, ERR_RETRY }, /* table definition changed */
	{ 1613, ERR_RETRY },
	{ 1614, ERR_RETRY },
	{ 1637, ERR_RETRY },
	{ 1969, ERR_RETRY }, /* MariaDB: max_statement_time */
	{ 3024, ERR_RETRY }, /* max_execution_time */
	{ 3058, ERR_RETRY }, /* deadlock of user-level locks */
	{ 3101, ERR_RETRY }, /* rolled back by group replication */
	{ 3572, ERR_RETRY }, /* NOWAIT */

	/* Somebody has to change something. */
	{ 1044, ERR_CONFIG },
	{ 1045, ERR_CONFIG },
	{ 1049, ERR_CONFIG },
	{ 1129, ERR_CONFIG }, /* host blocked */
	{ 1130, ERR_CONFIG }, /* host not allowed */
	{ 1176, ERR_CONFIG }, /* no such key */
	{ 1193, ERR_CONFIG }, /* no such variable */
	{ 1227, ERR_CONFIG },
	{ 1231, ERR_CONFIG },
	{ 1235, ERR_CONFIG }, /* not supported by this version */
	{ 1251, ERR_CONFIG },
	{ 1265, ERR_CONFIG }, /* data truncated: an ENUM without the state */
	{ 1275, ERR_CONFIG },
	{ 1298, ERR_CONFIG }, /* unknown time zone */
	{ 1347, ERR_CONFIG }, /* not a base table */
	{ 1356, ERR_CONFIG }, /* broken view */
	{ 1366, ERR_CONFIG },
	{ 1524, ERR_CONFIG }, /* plugin not loaded */
	{ 1665, ERR_CONFIG }, /* binlog_format=STATEMENT and READ COMMITTED */
	{ 1698, ERR_CONFIG },
	{ 1820, ERR_CONFIG }, /* password must be changed */
	{ 1862, ERR_CONFIG }, /* password expired */
	{ 3118, ERR_CONFIG }, /* account locked */
	{ 3159, ERR_CONFIG }, /* TLS required */
	{ 3955, ERR_CONFIG },
	{ 4151, ERR_CONFIG }, /* MariaDB: account locked */

	/* Of the client library, where it is not just a lost connection. */
	{ 2008, ERR_NOMEM },
	{ 2019, ERR_CONFIG }, /* character set */
	{ 2049, ERR_CONFIG }, /* old authentication protocol */
	{ 2054, ERR_CONFIG },
	{ 2058, ERR_CONFIG }, /* authentication plugin */
	{ 2059, ERR_CONFIG },
	{ 2061, ERR_CONFIG },
};

enum err_kind mysql_error_kind(unsigned code, const char *state)
{
	for (size_t i = 0; i < ARRAY_LEN(known); i++)
		if (known[i].code == code)
			return known[i].kind;
	if (code >= 2000 && code < 3000)
		return ERR_LINK;
	/* MariaDB Connector/C numbers its own errors from 5000 on */
	if (code >= 5000 && code < 6000)
		return ERR_LINK;
	if (state == NULL || strlen(state) < 2)
		return ERR_RETRY;
	if (strncmp(state, "08", 2) == 0)
		return ERR_LINK;
	/* constraint, data, authorization, syntax or access */
	if (strncmp(state, "22", 2) == 0 || strncmp(state, "23", 2) == 0 ||
		strncmp(state, "28", 2) == 0 || strncmp(state, "42", 2) == 0 ||
		strncmp(state, "45", 2) == 0)
		return ERR_CONFIG;
	return ERR_RETRY;
}

bool mysql_error_read_only(unsigned code)
{
	return code == 1290 || code == 1792 || code == 1836 || code == 1874;
}

bool mysql_error_row(unsigned code)
{
	static const unsigned codes[] = {
		1048,                               /* NULL in a column without */
		1062,                               /* duplicate key */
		1216, 1217, 1451, 1452, 1761, 1762, /* foreign keys */
		1264, 1265, 1292, 1366, 1406, 3140, /* a value that the column does not take */
		1526, 1748,                         /* no partition for it */
		1644,                               /* a trigger's SIGNAL */
		1690, 3819, 4025, /* out of range in an expression; CHECK; CHECK of MariaDB */
	};

	for (size_t i = 0; i < ARRAY_LEN(codes); i++)
		if (codes[i] == code)
			return true;
	return false;
}

bool mysql_error_locked(unsigned code)
{
	return code == 1205 || code == 3572;
}

bool mysql_error_rolled_back(unsigned code)
{
	return code == 1205 || code == 1213 || code == 3101 || mysql_error_read_only(code);
}

/* demo_producer.c: a service that changes its data and leaves events about it in an outbox; example
 * code for whoever writes one.
 *
 *	demo_producer HOST PORT USER PASSWORD_FILE DATABASE THING COUNT PER_SECOND
 *
 * COUNT transactions on the table THINGs ("order": orders), each of which commits, or rolls back,
 * the change and its event together. There is no call to the message broker here, and none to
 * outboxd: it finds committed rows by itself. Last line: "events=N rolled_back=N". */
#include <mysql.h>

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void die(const char *what, const char *why)
{
	fprintf(stderr, "demo_producer: %s: %s\n", what, why);
	exit(1);
}

static void read_password(const char *path, char *out, size_t size)
{
	FILE *f = fopen(path, "r");

	if (f == NULL || fgets(out, (int)size, f) == NULL)
		die(path, f == NULL ? strerror(errno) : "empty");
	out[strcspn(out, "\n")] = '\0';
	fclose(f);
}

/* Whatever goes wrong ends the program, and so the transaction: nothing half done stays. */
static void __attribute__((format(printf, 2, 3))) run(MYSQL *db, const char *fmt, ...)
{
	char sql[1024];
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(sql, sizeof(sql), fmt, ap);
	va_end(ap);
	if (n < 0 || (size_t)n >= sizeof(sql))
		die("statement", "too long");
	if (mysql_real_query(db, sql, (unsigned long)n) != 0)
		die(sql, mysql_error(db));
}

static unsigned long long read_number(MYSQL *db)
{
	MYSQL_RES *result = mysql_store_result(db);
	MYSQL_ROW row = result != NULL ? mysql_fetch_row(result) : NULL;
	unsigned long long value = row != NULL && row[0] != NULL ? strtoull(row[0], NULL, 10) : 0;

	mysql_free_result(result);
	return value;
}

/* The event, in the transaction that is open. Its id is made here, once: whoever repeats the
 * transaction repeats the id. A real service would take a UUID or ULID library. */
static void add_event(MYSQL *db, const char *thing, unsigned long long id,
	unsigned long long version, const char *type, unsigned cents)
{
	run(db,
		"INSERT INTO outbox_event"
		" (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, payload)"
		" VALUES (UUID(), '%s', %llu, %llu, '%s',"
		" JSON_OBJECT('id', %llu, 'version', %llu, 'totalCents', %u))",
		thing, id, version, type, id, version, cents);
}

static unsigned long long create(MYSQL *db, const char *thing, unsigned number)
{
	unsigned long long id;
	unsigned cents = 100 + number * 7 % 5000;

	run(db, "INSERT INTO %ss (customer, total_cents) VALUES ('customer %u', %u)", thing,
		number % 40, cents);
	id = mysql_insert_id(db);
	add_event(db, thing, id, 1, "created", cents);
	return id;
}

/* Locks the thing first: so its events are written, and go out, in the order of its versions. */
static void change(MYSQL *db, const char *thing, unsigned long long id, unsigned cents)
{
	unsigned long long version;

	run(db, "SELECT version FROM %ss WHERE id = %llu FOR UPDATE", thing, id);
	version = read_number(db) + 1;
	run(db, "UPDATE %ss SET total_cents = %u, version = %llu WHERE id = %llu", thing, cents,
		version, id);
	add_event(db, thing, id, version, "changed", cents);
}

static void pause_for(unsigned per_second)
{
	struct timespec t = { .tv_nsec = per_second > 1 ? 1000000000L / per_second : 999999999L };

	nanosleep(&t, NULL);
}

int main(int argc, char **argv)
{
	unsigned count, per_second, events = 0, rolled_back = 0;
	unsigned long long last = 0;
	char password[256];
	const char *thing;
	MYSQL *db;

	if (argc != 9) {
		fprintf(stderr, "usage: demo_producer HOST PORT USER PASSWORD_FILE DATABASE THING "
				"COUNT PER_SECOND\n");
		return 2;
	}
	thing = argv[6];
	count = (unsigned)strtoul(argv[7], NULL, 10);
	per_second = (unsigned)strtoul(argv[8], NULL, 10);
	read_password(argv[4], password, sizeof(password));
	db = mysql_init(NULL);
	if (db == NULL || mysql_real_connect(db, argv[1], argv[3], password, argv[5],
				  (unsigned)strtoul(argv[2], NULL, 10), NULL, 0) == NULL)
		die("connect", db != NULL ? mysql_error(db) : "out of memory");

	for (unsigned i = 0; i < count; i++) {
		bool fails = i % 20 == 13;

		run(db, "START TRANSACTION");
		if (i % 3 == 2 && last != 0)
			change(db, thing, last, 100 + i);
		else if (fails)
			(void)create(db, thing, i);
		else
			last = create(db, thing, i);
		/* As when a later check of the service says no: no row, and no event either. */
		run(db, fails ? "ROLLBACK" : "COMMIT");
		if (fails)
			rolled_back++;
		else
			events++;
		pause_for(per_second);
	}
	printf("events=%u rolled_back=%u\n", events, rolled_back);
	mysql_close(db);
	mysql_library_end();
	return 0;
}

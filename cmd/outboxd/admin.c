#include "admin.h"

#include "base/str.h"
#include "log/log.h"
#include "mysql/session.h"
#include "sys/wakeup.h"

#include <errno.h>
#include <getopt.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>
#include <unistd.h>

#define NUMBER_MAX 1000000

/* --- options -------------------------------------------------------------------------------- */

static int take(const char *command, const struct option_spec *spec, const char *value)
{
	uint64_t n;

	switch (spec->kind) {
	case OPTION_FLAG:
		*(bool *)spec->into = true;
		break;
	case OPTION_TEXT:
		*(const char **)spec->into = value;
		break;
	case OPTION_NUMBER:
		if (!str_to_u64(slice_str(value), &n) || n < 1 || n > NUMBER_MAX)
			return usage_error(command, "--%s wants a number from 1 to %d, not '%s'",
				spec->name, NUMBER_MAX, value);
		*(unsigned *)spec->into = (unsigned)n;
		break;
	}
	return -1;
}

int parse_options(const char *command, const char *help, int argc, char **argv,
	struct common *common, const struct option_spec *own, int *rest)
{
	enum { OWN = 256 };
	const struct option_spec shared[] = {
		{ "config", OPTION_TEXT, (void *)&common->path },
		{ "source", OPTION_TEXT, (void *)&common->source },
		{ "json", OPTION_FLAG, &common->json },
	};
	const struct option_spec *specs[32];
	struct option known[34] = { { "help", no_argument, NULL, 'h' } };
	int count = 0, c;

	common->path = DEFAULT_CONFIG;
	for (size_t i = 0; i < ARRAY_LEN(shared); i++)
		specs[count++] = &shared[i];
	for (; own->name != NULL && count < (int)ARRAY_LEN(specs); own++)
		specs[count++] = own;
	for (int i = 0; i < count; i++)
		known[i + 1] = (struct option){ specs[i]->name,
			specs[i]->kind == OPTION_FLAG ? no_argument : required_argument, NULL,
			OWN + i };
	opterr = 0;
	while ((c = getopt_long(argc, argv, "c:h", known, NULL)) != -1) {
		int done;

		if (c == 'h') {
			fputs(help, stdout);
			return EXIT_DONE;
		}
		if (c == 'c') {
			common->path = optarg;
			continue;
		}
		if (c < OWN || c >= OWN + count)
			return usage_error(command, "unknown option, or one without its value: %s",
				argv[optind - 1]);
		done = take(command, specs[c - OWN], optarg);
		if (done >= 0)
			return done;
	}
	if (rest != NULL)
		*rest = optind;
	else if (optind < argc)
		return usage_error(command, "unexpected argument: %s", argv[optind]);
	return -1;
}

/* --- life ----------------------------------------------------------------------------------- */

int admin_begin(const char *command, const struct common *common, struct config **conf)
{
	struct err e = { 0 };

	*conf = load_or_complain(common->path);
	if (*conf == NULL)
		return EXIT_USAGE;
	if (common->source != NULL && config_source(*conf, common->source) == NULL) {
		int rc =
			usage_error(command, "%s has no source '%s'", common->path, common->source);

		config_free(*conf);
		return rc;
	}
	if (log_open(NULL, LOG_LEVEL_ERROR, false, &e) < 0 || mysql_global_init(&e) < 0) {
		config_free(*conf);
		return admin_failed(command, &e);
	}
	mysql_thread_enter();
	return -1;
}

void admin_end(struct config *conf)
{
	config_free(conf);
	mysql_thread_leave();
	mysql_global_fini();
}

const struct source_conf *admin_source(
	const char *command, const struct config *conf, const struct common *common)
{
	if (common->source != NULL)
		return config_source(conf, common->source);
	if (conf->source_count == 1)
		return &conf->sources[0];
	usage_error(command, "%s has %zu sources: say which with --source", conf->path,
		conf->source_count);
	return NULL;
}

int admin_failed(const char *command, const struct err *e)
{
	fprintf(stderr, "outboxd %s: %s\n", command, e->text);
	return EXIT_FAILED;
}

void admin_wake(const struct config *conf, const struct source_conf *source)
{
	static bool said;
	struct err e;

	if (conf->wakeup.socket == NULL)
		return;
	if (wakeup_send(conf->wakeup.socket, slice_str(source->name), &e) < 0 &&
		e.kind != ERR_AGAIN && !said) {
		said = true;
		fprintf(stderr,
			"outboxd: no daemon was told (%s): a running one sees the change with its "
			"next poll\n",
			e.text);
	}
}

/* The user who is logged in, also behind sudo or su; not spoofed by the environment where the
 * kernel knows better. */
static void who(char *out, size_t size)
{
	const char *sudo = getenv("SUDO_USER");
	unsigned long login = (unsigned long)getuid();
	struct passwd *pw;
	FILE *f = fopen("/proc/self/loginuid", "re");
	unsigned long id;

	if (f != NULL) {
		if (fscanf(f, "%lu", &id) == 1 && id != 4294967295UL)
			login = id;
		fclose(f);
	}
	pw = getpwuid((uid_t)login);
	snprintf(out, size, "%.60s(%lu)%s%.60s", pw != NULL ? pw->pw_name : "?", login,
		sudo != NULL ? " sudo_user=" : "", sudo != NULL ? sudo : "");
}

void admin_audit(const char *command, const char *source, uint64_t changed, const char *reason,
	const char *detail)
{
	struct buf line = { 0 };
	char user[200];

	who(user, sizeof(user));
	buf_adds(&line, "user=");
	add_clean(&line, slice_str(user));
	buf_addf(&line, " uid=%lu command=%s source=%s changed=%llu reason=\"",
		(unsigned long)getuid(), command, source, (unsigned long long)changed);
	add_clean(&line, slice_str(reason != NULL ? reason : ""));
	buf_addc(&line, '"');
	if (detail != NULL) {
		buf_addc(&line, ' ');
		add_clean(&line, slice_str(detail));
	}
	openlog("outboxd", LOG_PID, LOG_DAEMON);
	syslog(LOG_DAEMON | LOG_NOTICE, "%s", line.data != NULL ? line.data : command);
	closelog();
	buf_fini(&line);
}

/* --- JSON ----------------------------------------------------------------------------------- */

void out_next(struct buf *b)
{
	if (b->len > 0 && b->data[b->len - 1] != '{' && b->data[b->len - 1] != '[' &&
		b->data[b->len - 1] != ':')
		buf_addc(b, ',');
}

void out_name(struct buf *b, const char *name)
{
	out_next(b);
	buf_addf(b, "\"%s\":", name);
}

void out_text(struct buf *b, struct slice s)
{
	if (s.ptr == NULL) {
		buf_adds(b, "null");
		return;
	}
	buf_addc(b, '"');
	buf_add_json(b, s);
	buf_addc(b, '"');
}

void out_pair(struct buf *b, const char *name, const char *value)
{
	out_name(b, name);
	out_text(b, slice_str(value));
}

void out_count(struct buf *b, const char *name, uint64_t value)
{
	out_name(b, name);
	buf_addf(b, "%llu", (unsigned long long)value);
}

void out_time(struct buf *b, struct slice s)
{
	if (s.ptr == NULL || s.len < 19 || s.ptr[10] != ' ') {
		out_text(b, s.len > 0 ? s : (struct slice){ 0 });
		return;
	}
	buf_addc(b, '"');
	buf_add_json(b, (struct slice){ s.ptr, 10 });
	buf_addc(b, 'T');
	buf_add_json(b, (struct slice){ s.ptr + 11, s.len - 11 });
	buf_adds(b, "Z\"");
}

bool out_print(struct buf *b)
{
	bool ok = !b->failed;

	if (ok)
		printf("%s\n", b->data != NULL ? b->data : "");
	else
		fputs("outboxd: out of memory\n", stderr);
	buf_fini(b);
	return ok;
}

/* --- tables --------------------------------------------------------------------------------- */

static void add_cell(struct table *t, char *text)
{
	if (t->count == t->cap) {
		size_t cap = t->cap * 2 + 64;
		char **more = realloc((void *)t->cells, cap * sizeof(*more));

		if (more == NULL) {
			free(text);
			t->failed = true;
			return;
		}
		t->cells = more;
		t->cap = cap;
	}
	t->failed |= text == NULL;
	t->cells[t->count++] = text;
}

void table_init(struct table *t, const char *const *headings)
{
	*t = (struct table){ 0 };
	for (; headings[t->columns] != NULL && t->columns < TABLE_COLUMNS_MAX; t->columns++) {
		const char *h = headings[t->columns];

		t->right[t->columns] = h[0] == '>';
		add_cell(t, strdup(h[0] == '>' ? h + 1 : h));
	}
}

void table_cell(struct table *t, const char *fmt, ...)
{
	char *text = NULL;
	va_list ap;

	va_start(ap, fmt);
	if (vasprintf(&text, fmt, ap) < 0)
		text = NULL;
	va_end(ap);
	add_cell(t, text);
}

void add_clean(struct buf *b, struct slice s)
{
	for (size_t i = 0; i < s.len;) {
		size_t n = utf8_sequence(s.ptr + i, s.len - i);
		unsigned char c = (unsigned char)s.ptr[i];

		/* C1 controls too: some terminals obey them */
		if (n == 0 || c < 0x20 || c == 0x7F ||
			(n == 2 && c == 0xC2 && (unsigned char)s.ptr[i + 1] < 0xA0))
			buf_addc(b, '?');
		else
			buf_add(b, s.ptr + i, n);
		i += n > 0 ? n : 1;
	}
}

static size_t characters(const char *s)
{
	size_t n = 0;

	for (; *s != '\0'; s++)
		n += ((unsigned char)*s & 0xC0) != 0x80;
	return n;
}

void table_text(struct table *t, struct slice s, size_t max)
{
	struct buf clean = { 0 };

	if (s.ptr == NULL) {
		table_cell(t, "-");
		return;
	}
	add_clean(&clean, s);
	buf_addc(&clean, '\0');
	if (!clean.failed && max > 3 && characters(clean.data) > max) {
		size_t at = 0;

		for (size_t n = 0; n < max - 3; n++)
			at += utf8_sequence(clean.data + at, clean.len - at);
		memcpy(clean.data + at, "...", 4);
	}
	add_cell(t, clean.failed ? NULL : strdup(clean.data));
	buf_fini(&clean);
}

size_t table_rows(const struct table *t)
{
	return t->columns > 0 ? t->count / t->columns - 1 : 0;
}

void table_fini(struct table *t)
{
	for (size_t i = 0; i < t->count; i++)
		free(t->cells[i]);
	free((void *)t->cells);
	*t = (struct table){ 0 };
}

void table_print(struct table *t, const char *indent)
{
	size_t width[TABLE_COLUMNS_MAX] = { 0 };

	if (t->failed) {
		fputs("outboxd: out of memory\n", stderr);
		table_fini(t);
		return;
	}
	for (size_t i = 0; i < t->count; i++) {
		size_t n = characters(t->cells[i]);

		if (n > width[i % t->columns])
			width[i % t->columns] = n;
	}
	for (size_t i = 0; i < t->count; i++) {
		unsigned column = (unsigned)(i % t->columns);
		int pad = (int)(width[column] - characters(t->cells[i]));
		bool last = column + 1 == t->columns;

		printf("%s", column == 0 ? indent : "  ");
		if (t->right[column])
			printf("%*s%s", pad, "", t->cells[i]);
		else
			printf("%s%*s", t->cells[i], last ? 0 : pad, "");
		if (last)
			putchar('\n');
	}
	table_fini(t);
}

/* --- words ---------------------------------------------------------------------------------- */

void age_text(int64_t us, char out[AGE_MAX])
{
	long long s = us / US_PER_SEC;

	if (us < 0)
		snprintf(out, AGE_MAX, "-");
	else if (s < 60)
		snprintf(out, AGE_MAX, "%llds", s);
	else if (s < 3600)
		snprintf(out, AGE_MAX, "%lldm%02llds", s / 60, s % 60);
	else if (s < 86400)
		snprintf(out, AGE_MAX, "%lldh%02lldm", s / 3600, s % 3600 / 60);
	else
		snprintf(out, AGE_MAX, "%lldd%lldh", s / 86400, s % 86400 / 3600);
}

void add_shell_word(struct buf *b, const char *word)
{
	static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
				    "0123456789._:/@+-";

	if (word[0] != '\0' && strspn(word, plain) == strlen(word)) {
		buf_adds(b, word);
		return;
	}
	buf_addc(b, '\'');
	for (const char *p = word; *p != '\0'; p++) {
		if (*p == '\'')
			buf_adds(b, "'\\''");
		else
			buf_addc(b, *p);
	}
	buf_addc(b, '\'');
}

void add_command(struct buf *b, const char *command, const struct config *conf,
	const struct source_conf *source, const char *event_id)
{
	buf_addf(b, "outboxd %s", command);
	if (strcmp(conf->path, DEFAULT_CONFIG) != 0) {
		buf_adds(b, " -c ");
		add_shell_word(b, conf->path);
	}
	buf_adds(b, " --source ");
	add_shell_word(b, source->name);
	buf_adds(b, event_id[0] == '-' ? " -- " : " ");
	add_shell_word(b, event_id);
}

void error_class(const char *last_error, char out[CLASS_MAX])
{
	size_t n = last_error != NULL ? strspn(last_error, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_") : 0;

	if (n >= CLASS_MAX || n == 0 || (last_error[n] != ':' && last_error[n] != '\0'))
		n = 0;
	if (n > 0)
		memcpy(out, last_error, n);
	out[n] = '\0';
}

/* The samples and the manual page against the tables. Run at the top of the project. */
#include "config/config.h"
#include "config/tree.h"
#include "test_config.h"

#define FULL "conf/outboxd.full.yaml"
#define SAMPLE "conf/outboxd.yaml"
#define MANUAL "conf/outboxd.yaml.5"

/* One line of config_describe(). */
struct described {
	char *path, *type, *range, *what, *detail;
};

static char *description(void)
{
	char *text = NULL;
	size_t len = 0;
	FILE *out = open_memstream(&text, &len);

	ck_assert_ptr_nonnull(out);
	config_describe(out);
	fclose(out);
	ck_assert_ptr_nonnull(text);
	return text;
}

/* Takes the next line off *text; false at its end. */
static bool next_row(char **text, struct described *r)
{
	char *line = strsep(text, "\n");
	char **fields[] = { &r->path, &r->type, &r->range, &r->what, &r->detail };

	if (line == NULL || *line == '\0')
		return false;
	for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
		*fields[i] = strsep(&line, "\t");
		ck_assert_ptr_nonnull(*fields[i]);
	}
	ck_assert_ptr_null(line);
	return true;
}

/* "sources[].retry.cap" in the tree, the first entry of a list standing for all. */
static struct node *walk(struct node *n, const char *path)
{
	char *copy = strdup(path), *rest = copy, *part;

	while (n != NULL && (part = strsep(&rest, ".")) != NULL) {
		char *brackets = strstr(part, "[]");

		if (brackets != NULL)
			*brackets = '\0';
		n = node_get(n, part);
		if (n != NULL && brackets != NULL)
			n = n->type == NODE_LIST ? n->child : NULL;
	}
	free(copy);
	return n;
}

START_TEST(the_full_sample_has_every_key_with_its_default)
{
	char *text = slurp(FULL), *all = description(), *at = all;
	struct faults f;
	struct tree t;
	struct described r;
	unsigned keys = 0;

	faults_init(&f, FULL);
	tree_read(&t, slice_str(text), &f);
	ck_assert(!faults_any(&f));
	for (; next_row(&at, &r); keys++) {
		struct node *n = walk(t.root, r.path);

		ck_assert_msg(n != NULL, "%s lacks %s", FULL, r.path);
		if (strcmp(r.what, "default") == 0)
			ck_assert_msg(n->type == NODE_SCALAR && strcmp(n->text.ptr, r.detail) == 0,
				"%s: %s is not %s", FULL, r.path, r.detail);
		else if (strncmp(r.type, "list of mappings", 16) == 0)
			ck_assert_msg(n->type == NODE_LIST, "%s: %s is no list", FULL, r.path);
		else if (strcmp(r.what, "required") == 0)
			ck_assert_msg(!node_empty(n), "%s: %s has no example", FULL, r.path);
		else if (strstr(r.path, "password_file") == NULL) /* an example, to be usable */
			ck_assert_msg(node_empty(n), "%s: %s is not left out", FULL, r.path);
	}
	ck_assert_uint_gt(keys, 60);
	tree_fini(&t);
	faults_fini(&f);
	free(all);
	free(text);
}
END_TEST

START_TEST(the_full_sample_explains_every_key_on_its_line)
{
	char *text = slurp(FULL), *rest = text, *line;

	while ((line = strsep(&rest, "\n")) != NULL) {
		size_t n = strlen(line);
		const char *colon = strchr(line, ':');

		ck_assert_msg(
			n <= 100 || strstr(line, "tls") != NULL || strstr(line, "mode:") != NULL,
			"too long: %s", line);
		if (colon == NULL || line[strspn(line, " ")] == '#' || n == 0)
			continue;
		ck_assert_msg(
			strchr(line, '#') != NULL || colon[1] == '\0', "not explained: %s", line);
	}
	free(text);
}
END_TEST

/* Everything the full sample says equals what leaving it out means. */
START_TEST(the_samples_load_and_the_full_one_changes_nothing)
{
	char *full_text = sample_here(FULL), *text = sample_here(SAMPLE);
	struct config *full = load_path(put_text("full.yaml", full_text));
	struct config *least = load_path(put_text("least.yaml", text));
	const struct source_conf *a = &full->sources[0], *b = &least->sources[0];
	struct buf secret = { 0 };
	struct err e;

	ck_assert_str_eq(full->instance, least->instance);
	ck_assert_int_eq(full->shutdown_timeout_us, least->shutdown_timeout_us);
	ck_assert_int_eq(full->brokers[0].heartbeat_us, least->brokers[0].heartbeat_us);
	ck_assert_int_eq(full->brokers[0].tls.mode, least->brokers[0].tls.mode);
	ck_assert_uint_eq(full->brokers[0].hosts[0].port, least->brokers[0].hosts[0].port);
	ck_assert_str_eq(a->name, b->name);
	ck_assert_str_eq(a->publish.routing_key, b->publish.routing_key);
	ck_assert_uint_eq(a->batch, b->batch);
	ck_assert_int_eq(a->lease_us, b->lease_us);
	ck_assert_int_eq(a->retry.cap_us, b->retry.cap_us);
	ck_assert_int_eq(secret_read(&a->database.password, &secret, &e), 0);
	ck_assert_str_eq(secret.data, "hunter2");
	secret_wipe(&secret);
	config_free(full);
	config_free(least);
	free(full_text);
	free(text);
}
END_TEST

/* Blanks and line ends alike, for the page wraps its lines. */
static void one_line(char *text)
{
	for (char *p = text; *p != '\0'; p++)
		if (*p == '\n')
			*p = ' ';
}

START_TEST(the_manual_page_has_every_key_with_type_range_and_default)
{
	char *page = slurp(MANUAL), *all = description(), *at = all;
	struct described r;
	size_t keys = 0, items = 0;

	for (const char *p = page; (p = strstr(p, "\n.It Ic ")) != NULL; p++)
		items++;
	one_line(page);
	for (; next_row(&at, &r); keys++) {
		char want[512];
		const char *found;
		const char *end = strcmp(r.what, "required") == 0  ? "required"
				  : strcmp(r.what, "default") == 0 ? "default "
								   : "left out: ";

		snprintf(want, sizeof(want), " .It Ic %s %s%s%s; %s%s. ", r.path, r.type,
			r.range[0] != '\0' ? ", " : "", r.range, end, r.detail);
		found = strstr(page, want);
		ck_assert_msg(found != NULL, "%s lacks \"%s\"", MANUAL, want);
		found += strlen(want);
		ck_assert_msg(strncmp(found, ".It", 3) != 0 && strncmp(found, ".El", 3) != 0,
			"%s: %s is not explained", MANUAL, r.path);
	}
	ck_assert_uint_eq(items, keys); /* and none that there is not */
	free(all);
	free(page);
}
END_TEST

START_TEST(the_examples_of_the_manual_page_load)
{
	static const char begin[] = ".Bd -literal -offset indent\nbrokers:";
	char *page = sample_here(MANUAL), *at = page;
	unsigned examples = 0;

	put_text("rabbit", "x");
	put_text("mysql", "x");
	setenv("CREDENTIALS_DIRECTORY", test_dir, 1);
	for (; (at = strstr(at, begin)) != NULL; examples++) {
		char *end = strstr(at, "\n.Ed\n");

		ck_assert_ptr_nonnull(end);
		*end = '\0';
		config_free(load_text(at + sizeof(begin) - sizeof("brokers:")));
		at = end + 1;
	}
	ck_assert_uint_eq(examples, 2);
	free(page);
}
END_TEST

UNIT_MAIN("config_docs", the_full_sample_has_every_key_with_its_default,
	the_full_sample_explains_every_key_on_its_line,
	the_samples_load_and_the_full_one_changes_nothing,
	the_manual_page_has_every_key_with_type_range_and_default,
	the_examples_of_the_manual_page_load)

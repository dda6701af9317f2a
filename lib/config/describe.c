#include "config/keys.h"

static void describe(FILE *out, const struct conf_table *t, const char *prefix);

static void describe_key(FILE *out, const struct conf_key *k, const char *prefix)
{
	struct buf range = { 0 }, path = { 0 };
	const char *what = "absent", *detail = k->absent;

	buf_addf(&path, "%s%s%s", prefix, prefix[0] != '\0' ? "." : "", k->name);
	conf_range(k, &range);
	if (k->flags & (KEY_REQUIRED | KEY_REQUIRED_LATE))
		what = "required";
	else if (k->def != NULL)
		what = "default", detail = k->def;
	if (!path.failed && !range.failed && k->type != CONF_MAP)
		fprintf(out, "%s\t%s\t%s\t%s\t%s\n", path.data, conf_type_name(k),
			range.data != NULL ? range.data : "", what, detail != NULL ? detail : "");
	if (k->type == CONF_LIST)
		buf_adds(&path, "[]");
	if (k->table != NULL && !path.failed)
		describe(out, k->table, path.data);
	buf_fini(&range);
	buf_fini(&path);
}

static void describe(FILE *out, const struct conf_table *t, const char *prefix)
{
	for (const struct conf_key *k = t->keys; k->name != NULL; k++)
		describe_key(out, k, prefix);
}

void config_describe(FILE *out)
{
	describe(out, &conf_top, "");
}

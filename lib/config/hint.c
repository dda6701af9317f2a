/* What an unknown key was meant to be. */
#include "config/decode.h"

#define NAME_MAX_COMPARED 40

static char fold(char c)
{
	if (c >= 'A' && c <= 'Z')
		return (char)(c | 0x20);
	return c == '-' ? '_' : c;
}

/* Edits between two names, a swap of neighbours counting as one; case and - for _ cost nothing. */
static unsigned distance(struct slice a, struct slice b)
{
	unsigned rows[3][NAME_MAX_COMPARED + 1];
	unsigned *before = rows[0], *last = rows[1], *row = rows[2];

	if (a.len > NAME_MAX_COMPARED || b.len > NAME_MAX_COMPARED)
		return NAME_MAX_COMPARED;
	for (unsigned j = 0; j <= b.len; j++)
		before[j] = last[j] = j;
	for (unsigned i = 1; i <= a.len; i++) {
		unsigned *spare = before;

		row[0] = i;
		for (unsigned j = 1; j <= b.len; j++) {
			char x = fold(a.ptr[i - 1]), y = fold(b.ptr[j - 1]);
			unsigned best = last[j - 1] + (x != y);

			if (last[j] + 1 < best)
				best = last[j] + 1;
			if (row[j - 1] + 1 < best)
				best = row[j - 1] + 1;
			if (i > 1 && j > 1 && x == fold(b.ptr[j - 2]) && y == fold(a.ptr[i - 2]) &&
				before[j - 2] + 1 < best)
				best = before[j - 2] + 1;
			row[j] = best;
		}
		before = last;
		last = row;
		row = spare;
	}
	return last[b.len];
}

static const struct conf_key *nearest(
	const struct conf_table *t, struct slice name, unsigned *edits)
{
	const struct conf_key *best = NULL;

	*edits = NAME_MAX_COMPARED;
	for (const struct conf_key *k = t->keys; k->name != NULL; k++) {
		unsigned d = distance(name, slice_str(k->name));

		if (d < *edits) {
			*edits = d;
			best = k;
		}
	}
	return best;
}

/* Where else the key is known: "publish", "sources[].database"; false: nowhere. */
static bool elsewhere(const struct conf_table *t, const struct conf_table *but, struct slice name,
	struct buf *path)
{
	size_t mark = path->len;

	if (t != but && conf_find(t, name) != NULL)
		return true;
	for (const struct conf_key *k = t->keys; k->name != NULL; k++) {
		if (k->table == NULL)
			continue;
		buf_addf(path, "%s%s%s", mark > 0 ? "." : "", k->name,
			k->type == CONF_LIST ? "[]" : "");
		if (path->failed)
			return false;
		if (elsewhere(k->table, but, name, path))
			return true;
		path->len = mark;
		path->data[mark] = '\0';
	}
	return false;
}

static void list_known(struct buf *out, const struct conf_table *t)
{
	buf_adds(out, "known here are");
	for (const struct conf_key *k = t->keys; k->name != NULL; k++)
		buf_addf(out, "%s %s", k == t->keys ? "" : ",", k->name);
}

void hint_unknown(struct buf *out, const struct conf_table *here, struct slice name)
{
	unsigned edits;
	const struct conf_key *k = nearest(here, name, &edits);
	unsigned allowed = name.len < 4 ? 1 : name.len < 8 ? 2 : 3;
	struct buf path = { 0 };

	/* One edit beats the same word elsewhere, which beats several edits. */
	if (edits > 1 &&
		(elsewhere(here, here, name, &path) || elsewhere(&conf_top, here, name, &path)))
		buf_addf(out, "it belongs %s %s", path.len > 0 ? "under" : "at the top of",
			path.len > 0 ? path.data : "the file");
	else if (k != NULL && edits <= allowed && edits < name.len)
		buf_addf(out, "did you mean %s?", k->name);
	else
		list_known(out, here);
	buf_fini(&path);
}

/* picture.c: throughput beside the limit, and the cost of a claim against the size of the table. */
#include "bench.h"

#include <inttypes.h>

static void draw_passes(const struct report *r, FILE *f)
{
	fprintf(f, "$passes << END\n");
	for (unsigned i = 0; i < r->passes; i++)
		fprintf(f, "\"%s\" %.1f\n", r->pass[i].name,
			(double)r->pass[i].events / r->pass[i].seconds);
	fprintf(f,
		"END\n"
		"set title 'events a second'\n"
		"set style fill solid 0.6\n"
		"set boxwidth 0.7\n"
		"set xtics rotate by -25\n"
		"set yrange [0:*]\n"
		"set grid ytics\n"
		"plot $passes using 0:2:xtic(1) with boxes lc rgb '#4477aa' notitle, "
		"%.1f with lines lw 2 lc rgb '#cc3311' title 'limit'\n",
		r->limit);
}

static void draw_points(const struct report *r, const char *name, bool pending, FILE *f)
{
	fprintf(f, "$%s << END\n", name);
	for (unsigned i = 0; i < r->claims; i++)
		if (r->claim[i].pending == pending)
			fprintf(f, "%" PRIu64 " %.3f %.3f \"%s\"\n", r->claim[i].rows,
				r->claim[i].fresh.took.p50_ms, r->claim[i].stale.took.p50_ms,
				r->claim[i].name);
	fprintf(f, "END\n");
}

static void draw_claims(const struct report *r, FILE *f)
{
	draw_points(r, "pending", true, f);
	draw_points(r, "behind", false, f);
	fprintf(f,
		"set title 'a claim of %d rows, p50 in ms'\n"
		"set xlabel 'rows in the table'\n"
		"set logscale x\n"
		"set format x '10^{%%T}'\n"
		"set xtics norotate autofreq\n"
		"set yrange [0:*]\n"
		"set key bottom right\n"
		"plot $pending using 1:2 with linespoints lw 2 pt 7 lc rgb '#4477aa' title "
		"'backlog', "
		"$pending using 1:3 with linespoints pt 6 lc rgb '#ee7733' "
		"title 'backlog, stale statistics', "
		"$behind using 1:2 with points pt 2 ps 1.5 lc rgb '#009988' "
		"title '1,000 behind SENT, RETRY, DEAD'\n",
		BATCH);
}

void report_picture(const struct report *r, const char *path)
{
	FILE *f;

	if (r->passes == 0 && r->claims == 0)
		return;
	f = popen("gnuplot 2>/dev/null", "w");
	if (f == NULL)
		return;
	fprintf(f,
		"set terminal pngcairo size 1100,420\n"
		"set output '%s'\n"
		"set multiplot layout 1,2\n",
		path);
	if (r->passes > 0)
		draw_passes(r, f);
	if (r->claims > 0)
		draw_claims(r, f);
	fprintf(f, "unset multiplot\n");
	if (pclose(f) != 0)
		fprintf(stderr, "bench: no picture: no gnuplot, or it failed\n");
}

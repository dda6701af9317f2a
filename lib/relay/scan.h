/* scan.h: where a scan of FRESH rows begins. Pure.
 *
 * A snapshot that somebody holds keeps index entries of rows long sent from being purged, and a
 * scan from the start walks over all of them. Scans then begin at the row claimed last, less
 * SCAN_OVERLAP_US for those that commit late; whole ones go as seldom as the SCAN_SHARE-th part of
 * the time asks for, but at least every SCAN_WHOLE_US, so that no late row is missed for longer.
 *
 * Whether that is worth while is measured: where whole scans have become slower than they were by
 * more than there is to gain, one from the last row on is tried. */
#ifndef OUTBOXD_SCAN_H
#define OUTBOXD_SCAN_H

#include "base/base.h"

#include <stdbool.h>

#define SCAN_OVERLAP_US (250 * US_PER_MS)
#define SCAN_SHARE 50
#define SCAN_WHOLE_US (10 * US_PER_SEC)
#define SCAN_TRY_US (2 * US_PER_SEC)

enum scan_kind { SCAN_WHOLE, SCAN_PART };

struct scan {
	int64_t gain_us;     /* less is not worth while */
	int64_t from_us;     /* created_at of the row claimed last; 0: none, begin at the start */
	enum scan_kind kind; /* of the one under way, or the last */
	double mean_us[2];   /* until the first row, running mean; 0: not known */
	double usual_us;     /* what whole ones took when a part was no better, or less since */
	int64_t next_whole_us, next_try_us;
};

void scan_init(struct scan *s, int64_t gain_us);
/* Back to the start: who has claimed rows meanwhile is not known. */
void scan_restart(struct scan *s);
/* The created_at the next scan begins at; 0: the start. `whole`: it is to be one. */
int64_t scan_begin(struct scan *s, int64_t now_us, bool whole);
void scan_claimed(struct scan *s, int64_t created_us);
/* A row from before may be FRESH again. */
void scan_released(struct scan *s, int64_t created_us);
/* The scan has found as many rows as it was to, the first of them after so long. */
void scan_took(struct scan *s, int64_t now_us, int64_t took_us);

#endif

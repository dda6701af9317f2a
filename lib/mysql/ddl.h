/* ddl.h: what `outboxd schema` prints, byte for byte the files in sql/ (a unit test compares them).
 */
#ifndef OUTBOXD_MYSQL_DDL_H
#define OUTBOXD_MYSQL_DDL_H

extern const char ddl_outbox[];         /* outbox_event.sql */
extern const char ddl_outbox_minimal[]; /* outbox_event_minimal.sql */
extern const char ddl_archive[];        /* outbox_event_archive.sql */
extern const char ddl_inbox[];          /* inbox_event.sql */
extern const char ddl_grants[];         /* grants.sql */

#endif

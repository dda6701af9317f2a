-- grants: the least that each account needs. Replace `shop` by your database; the table is
-- `outbox_event`. Run as an administrator; may be run again.
--
-- The accounts are made locked and without a password. Give them one and open them:
--   ALTER USER 'outboxd'@'%' IDENTIFIED BY '...' ACCOUNT UNLOCK;
--
-- Where an account has MAX_USER_CONNECTIONS: a running outboxd has up to two for each worker of a source
-- and one more for each source and each inbox, so three for a source as it is by default. Each process,
-- and each command under the same account, counts by itself.
CREATE USER IF NOT EXISTS 'outboxd'@'%' ACCOUNT LOCK;
CREATE USER IF NOT EXISTS 'outboxd_admin'@'%' ACCOUNT LOCK;
CREATE USER IF NOT EXISTS 'outboxd_monitor'@'%' ACCOUNT LOCK;

-- `outboxd run` and `outboxd check`: reads the table, writes only what is the relay's, and deletes for
-- retention; with `sent: never` and `dead: never` leave DELETE out. It can neither add nor alter an event. A
-- created_at with ON UPDATE CURRENT_TIMESTAMP, which `outboxd check` warns of, needs UPDATE on that
-- column too.
GRANT SELECT, DELETE,
  UPDATE (`status`, `retry_count`, `next_retry_at`, `locked_by`, `locked_until`, `sent_at`, `last_error`)
  ON `shop`.`outbox_event` TO 'outboxd'@'%';

-- `outboxd requeue`, `skip` and `purge`, by hand.
GRANT SELECT, DELETE,
  UPDATE (`status`, `retry_count`, `next_retry_at`, `locked_by`, `locked_until`, `sent_at`, `last_error`)
  ON `shop`.`outbox_event` TO 'outboxd_admin'@'%';

-- `outboxd status`, `events`, `explain`, `preview`, `replay`, and monitoring systems.
GRANT SELECT ON `shop`.`outbox_event` TO 'outboxd_monitor'@'%';

-- With `archive_table: outbox_event_archive`, once the table is there:
--   GRANT INSERT ON `shop`.`outbox_event_archive` TO 'outboxd'@'%', 'outboxd_admin'@'%';
--   GRANT SELECT ON `shop`.`outbox_event_archive` TO 'outboxd_monitor'@'%';

-- With `inboxes`, for each, in the consumer's own database (here `inventory`):
--   GRANT SELECT, DELETE ON `inventory`.`inbox_event` TO 'outboxd'@'%', 'outboxd_admin'@'%';

-- The producer is the application's own account: INSERT is all it needs on the table.

-- grants: the least that each account needs. Replace `shop` by your database; the table is
-- `outbox_event`. Run as an administrator; may be run again.
--
-- The accounts are made locked and without a password. Give them one and open them:
--   ALTER USER 'outboxd'@'%' IDENTIFIED BY '...' ACCOUNT UNLOCK;
CREATE USER IF NOT EXISTS 'outboxd'@'%' ACCOUNT LOCK;
CREATE USER IF NOT EXISTS 'outboxd_admin'@'%' ACCOUNT LOCK;
CREATE USER IF NOT EXISTS 'outboxd_monitor'@'%' ACCOUNT LOCK;

-- `outboxd run` and `outboxd check`: reads the table, and writes only what is the relay's. It can
-- neither add, delete nor alter an event. A created_at with ON UPDATE CURRENT_TIMESTAMP, which
-- `outboxd check` warns of, needs UPDATE on that column too.
GRANT SELECT,
  UPDATE (`status`, `retry_count`, `next_retry_at`, `locked_by`, `locked_until`, `sent_at`, `last_error`)
  ON `shop`.`outbox_event` TO 'outboxd'@'%';

-- `outboxd requeue` and `skip`, by hand.
GRANT SELECT,
  UPDATE (`status`, `retry_count`, `next_retry_at`, `locked_by`, `locked_until`, `sent_at`, `last_error`)
  ON `shop`.`outbox_event` TO 'outboxd_admin'@'%';

-- `outboxd status`, `events`, `explain`, `preview`, `replay`, and monitoring systems.
GRANT SELECT ON `shop`.`outbox_event` TO 'outboxd_monitor'@'%';

-- The producer is the application's own account: INSERT is all it needs on the table.

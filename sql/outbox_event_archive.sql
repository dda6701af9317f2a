-- outbox_event_archive: where retention moves events that were sent long ago, for
-- `archive_table: outbox_event_archive`. Create it in the same database as the outbox table.
--
-- It must have every column of the outbox table; others may be added, if they have a default. For an outbox
-- table that was altered, CREATE TABLE `outbox_event_archive` LIKE `outbox_event` makes one that fits. outboxd
-- only adds rows: dropping old ones is yours. May be run again: it changes nothing that exists.
CREATE TABLE IF NOT EXISTS `outbox_event_archive` (
  `id` BIGINT UNSIGNED NOT NULL COMMENT 'as it was in the outbox table',
  `event_id` VARCHAR(64) NOT NULL,
  `aggregate_type` VARCHAR(64) NOT NULL,
  `aggregate_id` VARCHAR(128) NOT NULL,
  `aggregate_version` BIGINT UNSIGNED NULL DEFAULT NULL,
  `event_type` VARCHAR(128) NOT NULL,
  `trace_id` VARCHAR(64) NULL DEFAULT NULL,
  `headers` JSON NULL DEFAULT NULL,
  `payload` JSON NOT NULL,
  `status` VARCHAR(32) NOT NULL COMMENT 'SENT; DEAD where dead events go too',
  `retry_count` INT NOT NULL DEFAULT 0,
  `next_retry_at` TIMESTAMP(6) NULL DEFAULT NULL,
  `locked_by` VARCHAR(128) NULL DEFAULT NULL,
  `locked_until` TIMESTAMP(6) NULL DEFAULT NULL,
  `created_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  `sent_at` TIMESTAMP(6) NULL DEFAULT NULL,
  `last_error` VARCHAR(1024) NULL DEFAULT NULL,
  PRIMARY KEY (`id`),
  UNIQUE KEY `uq_outbox_archive_event_id` (`event_id`),
  -- outboxd replay --archive reads this one in its order
  KEY `idx_outbox_archive_replay` (`status`, `next_retry_at`, `created_at`),
  KEY `idx_outbox_archive_aggregate` (`aggregate_type`, `aggregate_id`, `created_at`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin
  COMMENT='outboxd: events that were sent long ago';

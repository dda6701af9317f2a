-- outbox_event: events that a transaction of the application leaves behind, one row each, for
-- outboxd to publish. Create it in the application's own database, beside its tables: the event is
-- then committed with the change it tells of, or not at all.
--
-- MySQL 8.0.1 or newer, MariaDB 10.6 or newer. May be run again: it changes nothing that exists.
--
-- The producer fills event_id to payload and leaves the rest to the defaults and to the relay.
CREATE TABLE IF NOT EXISTS `outbox_event` (
  `id` BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
  `event_id` VARCHAR(64) NOT NULL COMMENT 'message_id; a UUID or ULID',
  `aggregate_type` VARCHAR(64) NOT NULL COMMENT 'order, customer, ...',
  `aggregate_id` VARCHAR(128) NOT NULL COMMENT 'events of one aggregate keep their order',
  `aggregate_version` BIGINT UNSIGNED NULL DEFAULT NULL COMMENT 'optional',
  `event_type` VARCHAR(128) NOT NULL COMMENT 'created, cancelled, ...',
  `trace_id` VARCHAR(64) NULL DEFAULT NULL COMMENT 'optional',
  `headers` JSON NULL DEFAULT NULL COMMENT 'optional: an object, more headers of the message',
  `payload` JSON NOT NULL,
  `status` VARCHAR(32) NOT NULL DEFAULT 'PENDING' COMMENT 'PENDING PROCESSING SENT RETRY DEAD',
  `retry_count` INT NOT NULL DEFAULT 0 COMMENT 'failures charged to this event',
  `next_retry_at` TIMESTAMP(6) NULL DEFAULT NULL COMMENT 'not before',
  `locked_by` VARCHAR(128) NULL DEFAULT NULL COMMENT 'the relay that has it, while PROCESSING',
  `locked_until` TIMESTAMP(6) NULL DEFAULT NULL COMMENT 'end of its lease',
  `created_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'the order, with id',
  `sent_at` TIMESTAMP(6) NULL DEFAULT NULL COMMENT 'when the broker had confirmed it',
  `last_error` VARCHAR(1024) NULL DEFAULT NULL COMMENT 'CLASS: words',
  PRIMARY KEY (`id`),
  UNIQUE KEY `uq_outbox_event_id` (`event_id`),
  -- claims, and retention, read this one in its order
  KEY `idx_outbox_claim` (`status`, `next_retry_at`, `created_at`),
  -- the order of one aggregate
  KEY `idx_outbox_aggregate` (`aggregate_type`, `aggregate_id`, `created_at`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin
  COMMENT='outboxd: events to be published';

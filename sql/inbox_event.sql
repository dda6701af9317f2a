-- inbox_event: which events a consumer has had, so that a message delivered twice has its effect
-- once. Create it in the consumer's own database; example_consumer.sql shows its use.
--
-- The key tells 'aB' from 'Ab': a case-insensitive one would swallow the second. Ids that differ in
-- nothing but spaces at the end are one key, as in the outbox.
-- MySQL 8.0.1 or newer, MariaDB 10.6 or newer. May be run again: it changes nothing that exists.
CREATE TABLE IF NOT EXISTS `inbox_event` (
  `event_id` VARCHAR(64) NOT NULL COMMENT 'message_id of the message',
  `consumer_name` VARCHAR(128) NOT NULL COMMENT 'each consumer has its own effects',
  `event_type` VARCHAR(128) NOT NULL,
  `status` VARCHAR(32) NOT NULL DEFAULT 'RECEIVED' COMMENT 'RECEIVED PROCESSED FAILED',
  `received_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  `processed_at` TIMESTAMP(6) NULL DEFAULT NULL,
  `retry_count` INT NOT NULL DEFAULT 0,
  `error_message` VARCHAR(1024) NULL DEFAULT NULL,
  PRIMARY KEY (`event_id`, `consumer_name`),
  KEY `idx_inbox_consumer` (`consumer_name`, `status`, `received_at`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin
  COMMENT='outboxd: events a consumer has had';

-- outbox_event with no more than outboxd needs. Times are whole seconds here, so events of one second
-- are ordered by id, and delays are rounded up. Prefer outbox_event.sql for a new table.
--
-- Optional columns, used where the table has them: aggregate_version, trace_id, headers (JSON),
-- traceparent, tracestate. May be run again: it changes nothing that exists.
CREATE TABLE IF NOT EXISTS `outbox_event` (
  `id` bigint NOT NULL AUTO_INCREMENT,
  `event_id` varchar(64) NOT NULL,
  `aggregate_type` varchar(64) NOT NULL,
  `aggregate_id` varchar(128) NOT NULL,
  `event_type` varchar(128) NOT NULL,
  `payload` json NOT NULL,
  `status` varchar(32) NOT NULL DEFAULT 'PENDING',
  `retry_count` int NOT NULL DEFAULT 0,
  `next_retry_at` timestamp NULL DEFAULT NULL,
  `locked_by` varchar(128) NULL DEFAULT NULL,
  `locked_until` timestamp NULL DEFAULT NULL,
  `created_at` timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP,
  `sent_at` timestamp NULL DEFAULT NULL,
  `last_error` varchar(1024) NULL DEFAULT NULL,
  PRIMARY KEY (`id`),
  UNIQUE KEY `uk_event_id` (`event_id`),
  KEY `idx_status_next_retry_created` (`status`, `next_retry_at`, `created_at`),
  KEY `idx_aggregate` (`aggregate_type`, `aggregate_id`, `created_at`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;

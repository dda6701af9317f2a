-- The consumer's own tables, beside the inbox: what tests/tools/demo_consumer.c keeps.
CREATE TABLE `effect` (
  `source` VARCHAR(64) NOT NULL,
  `aggregate_type` VARCHAR(64) NOT NULL,
  `aggregate_id` VARCHAR(128) NOT NULL,
  `events` INT NOT NULL,
  `last_version` BIGINT NOT NULL,
  PRIMARY KEY (`source`, `aggregate_type`, `aggregate_id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

CREATE TABLE `reconciliation` (
  `event_id` VARCHAR(64) NOT NULL,
  `consumer_name` VARCHAR(128) NOT NULL,
  `source` VARCHAR(64) NOT NULL,
  `aggregate_type` VARCHAR(64) NOT NULL,
  `aggregate_id` VARCHAR(128) NOT NULL,
  `event_type` VARCHAR(128) NOT NULL,
  `version` BIGINT NOT NULL,
  `last_version` BIGINT NOT NULL COMMENT '-1: there was no such thing',
  `noted_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  PRIMARY KEY (`event_id`, `consumer_name`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

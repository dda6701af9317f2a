-- A consumer: the note that an event was had, and its effect, in one transaction. A message may come again,
-- late, or under another id; four defences, each for what the ones before cannot see:
--
--   inbox key      the same event again: its id is noted already
--   business key   the same fact under another id: one row for one order
--   row version    an older event after a newer one: the row knows better
--   state check    an event that cannot be: not applied, kept for people to reconcile
--
-- Acknowledge the message after COMMIT. The tables: inbox_event.sql and the consumer's own, here:
CREATE TABLE IF NOT EXISTS `order_view` (
  `order_id` VARCHAR(128) NOT NULL COMMENT 'the business key',
  `state` VARCHAR(32) NOT NULL,
  `version` BIGINT UNSIGNED NOT NULL COMMENT 'aggregate_version of the last event applied',
  PRIMARY KEY (`order_id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

CREATE TABLE IF NOT EXISTS `reconciliation` (
  `event_id` VARCHAR(64) NOT NULL,
  `consumer_name` VARCHAR(128) NOT NULL,
  `order_id` VARCHAR(128) NOT NULL,
  `event_type` VARCHAR(128) NOT NULL,
  `version` BIGINT UNSIGNED NOT NULL,
  `found_state` VARCHAR(32) NULL COMMENT 'NULL: there was no such order',
  `noted_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  PRIMARY KEY (`event_id`, `consumer_name`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- From the message: properties message_id and type, headers aggregate_id and aggregate_version. Set them
-- before running this, or it takes these.
SET @event_id = COALESCE(@event_id, '018f3f2e-7a3c-7c1e-9f5e-0d2b8a4c6e10');
SET @event_type = COALESCE(@event_type, 'created');
SET @order_id = COALESCE(@order_id, '4711');
SET @version = COALESCE(@version, 1);

START TRANSACTION;

-- The inbox key. INSERT IGNORE would cut a longer id to 64 characters, and take two ids for one: a longer
-- one matches no row here, is not noted, and has no effect. Reject such a message.
-- @is_new is 1: an event not had before; 0: had already, or not acceptable.
INSERT IGNORE INTO `inbox_event` (`event_id`, `consumer_name`, `event_type`)
SELECT @event_id, 'inventory', @event_type FROM DUAL
WHERE CHAR_LENGTH(@event_id) BETWEEN 1 AND 64 AND CHAR_LENGTH(@event_type) <= 128;
SET @is_new = ROW_COUNT();

-- The effect, only if it is new. In a program this is an if around the statements.
-- The business key: a second `created` for an order changes nothing.
INSERT INTO `order_view` (`order_id`, `state`, `version`)
SELECT @order_id, 'created', @version FROM DUAL WHERE @is_new = 1 AND @event_type = 'created'
ON DUPLICATE KEY UPDATE `order_id` = `order_view`.`order_id`;

-- The row version, and the state check: what may follow what.
UPDATE `order_view` SET `state` = @event_type, `version` = @version
WHERE @is_new = 1 AND `order_id` = CONVERT(@order_id USING utf8mb4) COLLATE utf8mb4_bin AND `version` < @version
  AND CONCAT(`state`, '>', @event_type) IN
      ('created>paid', 'paid>shipped', 'created>cancelled', 'paid>cancelled');

-- Applied, or old news: then the row has this version or a newer one. Otherwise the event cannot be, and
-- nobody but people can tell why. (Ask the row, not ROW_COUNT(): with CLIENT_FOUND_ROWS, the default of
-- JDBC among others, rows count for it that were found and not changed.)
INSERT INTO `reconciliation` (`event_id`, `consumer_name`, `order_id`, `event_type`, `version`, `found_state`)
SELECT @event_id, 'inventory', @order_id, @event_type, @version,
  (SELECT `state` FROM `order_view` WHERE `order_id` = CONVERT(@order_id USING utf8mb4) COLLATE utf8mb4_bin)
FROM DUAL
WHERE @is_new = 1 AND NOT EXISTS (
  SELECT 1 FROM `order_view`
  WHERE `order_id` = CONVERT(@order_id USING utf8mb4) COLLATE utf8mb4_bin AND `version` >= @version);

UPDATE `inbox_event` SET `status` = 'PROCESSED', `processed_at` = CURRENT_TIMESTAMP(6)
WHERE `event_id` = CONVERT(@event_id USING utf8mb4) COLLATE utf8mb4_bin AND `consumer_name` = 'inventory'
  AND @is_new = 1;

COMMIT;

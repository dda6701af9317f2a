-- A consumer: the note that an event was had, and its effect, in one transaction. A message that is
-- delivered twice finds the note and changes nothing; acknowledge the message after COMMIT.
--
-- The tables: inbox_event.sql and the consumer's own, here:
CREATE TABLE IF NOT EXISTS `order_count` (
  `consumer_name` VARCHAR(128) NOT NULL PRIMARY KEY,
  `orders` BIGINT NOT NULL DEFAULT 0
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;

INSERT IGNORE INTO `order_count` (`consumer_name`) VALUES ('inventory');

-- From the message: properties message_id and type. Set them before running this, or it takes these.
SET @event_id = COALESCE(@event_id, '018f3f2e-7a3c-7c1e-9f5e-0d2b8a4c6e10');
SET @event_type = COALESCE(@event_type, 'created');

START TRANSACTION;

-- INSERT IGNORE would cut a longer id to 64 characters, and take two ids for one: a longer one
-- matches no row here, is not noted, and has no effect. Reject such a message.
-- @is_new is 1: an event not had before; 0: had already, or not acceptable.
INSERT IGNORE INTO `inbox_event` (`event_id`, `consumer_name`, `event_type`)
SELECT @event_id, 'inventory', @event_type FROM DUAL
WHERE CHAR_LENGTH(@event_id) BETWEEN 1 AND 64 AND CHAR_LENGTH(@event_type) <= 128;
SET @is_new = ROW_COUNT();

-- The effect, only if it is new. In a program this is an if around the statements.
UPDATE `order_count` SET `orders` = `orders` + 1
WHERE `consumer_name` = 'inventory' AND @is_new = 1;

UPDATE `inbox_event` SET `status` = 'PROCESSED', `processed_at` = CURRENT_TIMESTAMP(6)
WHERE `event_id` = @event_id AND `consumer_name` = 'inventory' AND @is_new = 1;

COMMIT;

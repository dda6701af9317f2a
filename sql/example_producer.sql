-- A producer: the change and the event that tells of it, in one transaction. Either both are
-- committed or none is; outboxd sees the event only once it is.
--
-- The tables: outbox_event.sql and the application's own, here:
CREATE TABLE IF NOT EXISTS `orders` (
  `id` BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
  `customer` VARCHAR(100) NOT NULL,
  `total_cents` BIGINT NOT NULL,
  `version` BIGINT UNSIGNED NOT NULL DEFAULT 1
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;

START TRANSACTION;

INSERT INTO `orders` (`customer`, `total_cents`) VALUES ('Ada', 4200);
SET @order_id = LAST_INSERT_ID();

-- event_id: a UUID made by the application, once an event, kept when the transaction is repeated.
-- created_at, status and the rest come from the defaults.
INSERT INTO `outbox_event`
  (`event_id`, `aggregate_type`, `aggregate_id`, `aggregate_version`, `event_type`, `payload`)
VALUES
  (UUID(), 'order', @order_id, 1, 'created',
   JSON_OBJECT('orderId', @order_id, 'customer', 'Ada', 'totalCents', 4200));

COMMIT;

-- A second change of the same order locks the order's row first. So its event is written after the
-- first one was committed, and the two go out in this order.
START TRANSACTION;

SELECT `version` INTO @version FROM `orders` WHERE `id` = @order_id FOR UPDATE;
UPDATE `orders` SET `total_cents` = 3900, `version` = @version + 1 WHERE `id` = @order_id;

INSERT INTO `outbox_event`
  (`event_id`, `aggregate_type`, `aggregate_id`, `aggregate_version`, `event_type`, `payload`)
VALUES
  (UUID(), 'order', @order_id, @version + 1, 'changed',
   JSON_OBJECT('orderId', @order_id, 'totalCents', 3900));

COMMIT;

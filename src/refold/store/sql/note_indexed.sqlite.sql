-- Note that the index has taken up a branch, whoever its owner is, up to a message.
UPDATE waiting SET seq = (:id & 4294967295) + 1 WHERE branch = :id >> 32;
DELETE FROM waiting
WHERE branch = :id >> 32
    AND NOT EXISTS (SELECT 1 FROM message WHERE message.id > :id AND message.id < ((:id >> 32) + 1) << 32)

-- Are there more messages than so many, whoever their owner is, that the index has not taken up?
SELECT 1
FROM waiting
CROSS JOIN branch ON branch.ordinal = waiting.branch
CROSS JOIN message ON message.id >= (waiting.branch << 32) + waiting.seq AND message.id < (waiting.branch + 1) << 32
LIMIT 1 OFFSET :more_than

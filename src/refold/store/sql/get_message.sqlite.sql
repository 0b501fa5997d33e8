-- One message that a branch holds itself.
SELECT message.seq, role, message.format, body, shown, tokens, key, at
FROM branch
CROSS JOIN message ON message.id = (branch.ordinal << 32) + :seq AND :seq < 1 << 32
WHERE branch.owner = :owner AND branch.id = :branch

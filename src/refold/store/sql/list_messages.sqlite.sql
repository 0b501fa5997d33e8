-- A range of the messages that a branch holds itself.
SELECT message.seq, role, message.format, body, shown, tokens, key, at
FROM branch
CROSS JOIN message ON message.id >= (branch.ordinal << 32) + :first
    AND message.id < (branch.ordinal << 32) + min(:last, 1 << 32)
WHERE branch.owner = :owner AND branch.id = :branch
ORDER BY message.id
LIMIT :limit

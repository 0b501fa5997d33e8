-- Messages that a branch holds itself, with what their bytes were when they came.
SELECT message.seq, body, digest
FROM branch
CROSS JOIN message ON message.id >= (branch.ordinal << 32) + :first AND message.id < (branch.ordinal + 1) << 32
WHERE branch.owner = :owner AND branch.id = :branch
ORDER BY message.id
LIMIT :limit

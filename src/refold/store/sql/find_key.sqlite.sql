-- The number of the message that came with a key, among those that a branch holds itself.
SELECT message.seq
FROM branch
CROSS JOIN message ON message.branch = branch.ordinal AND message.key = :key AND message.key <> ''
WHERE branch.owner = :owner AND branch.id = :branch AND message.seq < :last

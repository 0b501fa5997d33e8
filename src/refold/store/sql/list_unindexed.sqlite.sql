-- Some of the messages, whoever their owner is, that the index has not taken up: no more than so many or so many bytes.
SELECT branch.owner, branch.conversation, message.id, message.format, CASE WHEN is_findable THEN body ELSE x'' END
FROM (
    SELECT id, sum(size) OVER (ORDER BY id) - size AS before
    FROM (
        SELECT message.id, length(message.body) AS size
        FROM waiting
        CROSS JOIN message ON message.id >= (waiting.branch << 32) + waiting.seq
            AND message.id < (waiting.branch + 1) << 32
        ORDER BY waiting.branch, message.id
        LIMIT :limit
    )
) AS found
CROSS JOIN message ON message.id = found.id
CROSS JOIN branch ON branch.ordinal = message.branch
WHERE found.before < :bytes
ORDER BY found.id

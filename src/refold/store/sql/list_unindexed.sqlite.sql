-- Some of the messages, whoever their owner is, that the index has not taken up: no more than so many or so many bytes.
SELECT
    found.owner, found.conversation, message.id, message.format,
    CASE
        WHEN is_findable AND NOT EXISTS (SELECT 1 FROM indexed WHERE indexed.message = message.id) THEN body
        ELSE x''
    END
FROM (
    SELECT owner, conversation, id, sum(size) OVER (ORDER BY id) - size AS before
    FROM (
        SELECT branch.owner, branch.conversation, message.id, length(message.body) AS size
        FROM waiting
        CROSS JOIN branch ON branch.ordinal = waiting.branch
        CROSS JOIN message ON message.id >= (waiting.branch << 32) + waiting.seq
            AND message.id < (waiting.branch + 1) << 32
        ORDER BY waiting.branch, message.id
        LIMIT :limit
    )
) AS found
CROSS JOIN message ON message.id = found.id
WHERE found.before < :bytes
ORDER BY found.id

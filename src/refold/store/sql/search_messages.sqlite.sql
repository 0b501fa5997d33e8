-- Messages that match, best first, of the newest that do; the mark in the query keeps it away from what is another's.
-- In SQLite a CROSS JOIN keeps its order: from the few that match to their rows. Without a line every branch will do.
WITH line AS MATERIALIZED (
    SELECT value ->> 0 AS branch, value ->> 1 AS stop FROM json_each(:line) AS link
)
SELECT branch.conversation, found.branch, found.seq, found.score
FROM (
    SELECT message.id, message.owner, message.branch, message.seq, worth(words, :weights) AS score
    FROM words
    CROSS JOIN message ON message.id = words.rowid
    WHERE words MATCH :match AND (
        :line = '[]' OR EXISTS (SELECT 1 FROM line WHERE line.branch = message.branch AND message.seq < line.stop)
    )
    ORDER BY words.rowid DESC
    LIMIT :considered
) AS found
CROSS JOIN branch ON branch.owner = found.owner AND branch.id = found.branch
WHERE found.owner = :owner AND :conversation IN ('', branch.conversation)
ORDER BY found.score DESC, found.id DESC
LIMIT :limit

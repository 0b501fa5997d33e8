-- Messages that match, best first, of the newest that do; the mark in the query keeps it away from what is another's.
-- In SQLite a CROSS JOIN keeps its order: from the few that match to their places. Without a line every branch will do.
WITH line AS MATERIALIZED (
    SELECT branch.ordinal AS branch, link.value ->> 1 AS stop
    FROM json_each(:line) AS link
    CROSS JOIN branch ON branch.owner = :owner AND branch.id = link.value ->> 0
)
SELECT branch.conversation, branch.id, found.message & 4294967295, found.score
FROM (
    SELECT indexed.id, indexed.message, worth(words, :weights) AS score
    FROM words
    CROSS JOIN indexed ON indexed.id = words.rowid
    WHERE words MATCH :match AND (
        :line = '[]' OR EXISTS (
            SELECT 1 FROM line
            WHERE line.branch = indexed.message >> 32 AND indexed.message & 4294967295 < line.stop
        )
    )
    ORDER BY words.rowid DESC
    LIMIT :considered
) AS found
CROSS JOIN branch ON branch.ordinal = found.message >> 32
WHERE branch.owner = :owner AND :conversation IN ('', branch.conversation)
ORDER BY found.score DESC, found.id DESC
LIMIT :limit

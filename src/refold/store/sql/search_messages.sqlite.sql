-- Messages that match, best first, of the last ones in what was begun last; the mark in the query keeps it to the owner's.
-- In SQLite a CROSS JOIN keeps its order: from the few that match to their branches. Without a line every branch will do.
WITH line AS MATERIALIZED (
    SELECT branch.ordinal AS branch, link.value ->> 1 AS stop
    FROM json_each(:line) AS link
    CROSS JOIN branch ON branch.owner = :owner AND branch.id = link.value ->> 0
)
SELECT branch.conversation, branch.id, found.id & 4294967295, found.score
FROM (
    SELECT words.rowid AS id, worth(words, :weights) AS score
    FROM words
    WHERE words MATCH :match AND (
        :line = '[]' OR EXISTS (
            SELECT 1 FROM line WHERE line.branch = words.rowid >> 32 AND words.rowid & 4294967295 < line.stop
        )
    )
    ORDER BY words.rowid DESC
    LIMIT :considered
) AS found
CROSS JOIN branch ON branch.ordinal = found.id >> 32
WHERE branch.owner = :owner AND :conversation IN ('', branch.conversation)
ORDER BY found.score DESC, found.id DESC
LIMIT :limit

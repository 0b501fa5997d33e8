-- Messages that match, best first, of the newest that do; the mark in the query keeps it away from what is another's.
-- In SQLite a CROSS JOIN keeps its order: from the few that match to their rows.
SELECT branch.conversation, message.branch, message.seq, found.score
FROM (
    SELECT rowid AS id, worth(words, :weights) AS score
    FROM words
    WHERE words MATCH :match
    ORDER BY rowid DESC
    LIMIT :considered
) AS found
CROSS JOIN message ON message.id = found.id
CROSS JOIN branch ON branch.owner = message.owner AND branch.id = message.branch
WHERE message.owner = :owner AND :conversation IN ('', branch.conversation)
ORDER BY found.score DESC, message.id DESC
LIMIT :limit

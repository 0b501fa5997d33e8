-- How many messages match, counted no further than it matters. Without a line every branch will do.
WITH line AS MATERIALIZED (
    SELECT value ->> 0 AS branch, value ->> 1 AS stop FROM json_each(:line) AS link
)
SELECT count(*)
FROM (
    SELECT :owner AS owner
    FROM words
    WHERE words MATCH :match AND (
        :line = '[]' OR EXISTS (
            SELECT 1
            FROM message
            CROSS JOIN line ON line.branch = message.branch AND message.seq < line.stop
            WHERE message.id = words.rowid
        )
    )
    LIMIT :considered
) AS found

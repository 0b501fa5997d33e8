-- How many messages match, counted no further than it matters. Without a line every branch will do.
WITH line AS MATERIALIZED (
    SELECT branch.ordinal AS branch, link.value ->> 1 AS stop
    FROM json_each(:line) AS link
    CROSS JOIN branch ON branch.owner = :owner AND branch.id = link.value ->> 0
)
SELECT count(*)
FROM (
    SELECT :owner AS owner
    FROM words
    WHERE words MATCH :match AND (
        :line = '[]' OR EXISTS (
            SELECT 1
            FROM indexed
            CROSS JOIN line ON line.branch = indexed.message >> 32 AND indexed.message & 4294967295 < line.stop
            WHERE indexed.id = words.rowid
        )
    )
    LIMIT :considered
) AS found

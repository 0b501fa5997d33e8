-- How many messages match, counted no further than it matters; no index knows `owner || ''`, so the one of the words is used.
-- Without a line every branch will do.
WITH line AS MATERIALIZED (
    SELECT value ->> 0 AS branch, CAST(value ->> 1 AS bigint) AS stop FROM json_array_elements(CAST(:line AS json))
)
SELECT count(*)
FROM (
    SELECT 1
    FROM words
    WHERE words @@ CAST(:match AS tsquery) AND owner || '' = :owner AND (
        CAST(:line AS text) = '[]'
        OR EXISTS (SELECT 1 FROM line WHERE line.branch = words.branch AND words.seq < line.stop)
    )
    LIMIT :considered
) AS found

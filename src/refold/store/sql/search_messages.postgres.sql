-- Messages that match, best first, of the newest that do; the mark in the query keeps it away from what is another's.
-- The steps are kept apart, for what a planner knows of a table that grows all the time is never quite true.
-- Without a line every branch will do.
WITH line AS MATERIALIZED (
    SELECT value ->> 0 AS branch, CAST(value ->> 1 AS bigint) AS stop FROM json_array_elements(CAST(:line AS json))
), asked AS MATERIALIZED (
    SELECT CAST(phrase.value AS tsquery) AS phrase, CAST(weight.value AS double precision) AS weight
    FROM json_array_elements_text(CAST(:phrases AS json)) WITH ORDINALITY AS phrase (value, place)
    JOIN json_array_elements_text(CAST(:weights AS json)) WITH ORDINALITY AS weight (value, place) USING (place)
), newest AS MATERIALIZED (
    SELECT ordinal
    FROM words
    WHERE words @@ CAST(:match AS tsquery) AND (
        CAST(:line AS text) = '[]'
        OR EXISTS (SELECT 1 FROM line WHERE line.branch = words.branch AND words.seq < line.stop)
    )
    ORDER BY ordinal DESC
    LIMIT :considered
), found AS MATERIALIZED (
    SELECT held.owner, held.branch, held.seq, held.ordinal, held.score
    FROM newest
    CROSS JOIN LATERAL (
        SELECT
            owner, branch, seq, ordinal,
            (SELECT sum(weight * ts_rank('{1, 1, 1, 0}', words, phrase, 1)) FROM asked WHERE words @@ phrase) AS score
        FROM words
        WHERE words.ordinal = newest.ordinal
        OFFSET 0
    ) AS held
)
SELECT branch.conversation, found.branch, found.seq, max(found.score) AS score
FROM found
JOIN branch ON branch.owner = found.owner AND branch.id = found.branch
WHERE found.owner = :owner AND :conversation IN ('', branch.conversation)
GROUP BY branch.conversation, found.branch, found.seq
ORDER BY score DESC, max(found.ordinal) DESC
LIMIT :limit

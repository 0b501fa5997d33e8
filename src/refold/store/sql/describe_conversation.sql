-- A conversation with its latest branch and what it adds up to.
SELECT
    conversation.id, branch.id, conversation.title, branch.model, branch.format,
    (SELECT CAST(sum(next_seq - base_seq) AS bigint) FROM head WHERE owner = :owner AND conversation = :id),
    (
        SELECT count(*) FROM compaction
        WHERE owner = :owner AND state = 'installed' AND kind <> 'arrival' AND kind = 'summarise'
            AND branch IN (SELECT id FROM branch WHERE owner = :owner AND conversation = :id)
    ),
    (SELECT count(*) FROM session WHERE owner = :owner AND conversation = :id AND state = 'live'),
    (SELECT count(*) FROM branch WHERE owner = :owner AND conversation = :id),
    spent.input, spent.cache_read, spent.cache_write, spent.output, spent.reasoning, spent.dollars,
    conversation.at, conversation.updated_at
FROM conversation
JOIN branch ON branch.ordinal = (SELECT max(ordinal) FROM branch WHERE owner = :owner AND conversation = :id)
CROSS JOIN (
    SELECT
        CAST(coalesce(sum(input), 0) AS bigint) AS input,
        CAST(coalesce(sum(cache_read), 0) AS bigint) AS cache_read,
        CAST(coalesce(sum(cache_write), 0) AS bigint) AS cache_write,
        CAST(coalesce(sum(output), 0) AS bigint) AS output,
        CAST(coalesce(sum(reasoning), 0) AS bigint) AS reasoning,
        coalesce(sum(dollars), 0.0) AS dollars
    FROM call WHERE owner = :owner AND conversation = :id
) AS spent
WHERE conversation.owner = :owner AND conversation.id = :id

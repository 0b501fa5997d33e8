-- Delete conversations of an owner in which nothing happened since, the oldest first, apart from those to keep.
-- Their time is compared again where they are deleted: somebody may have gone on with one meanwhile.
DELETE FROM conversation
WHERE owner = :owner AND updated_at < :before
    AND ordinal IN (
        SELECT ordinal FROM conversation
        WHERE owner = :owner AND updated_at < :before
            AND id NOT IN (SELECT value FROM json_array_elements_text(CAST(:keep AS json)) AS kept (value))
        ORDER BY updated_at, ordinal
        LIMIT :limit
    )
RETURNING id

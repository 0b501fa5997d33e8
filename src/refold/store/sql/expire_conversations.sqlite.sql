-- Delete conversations of an owner in which nothing happened since, the oldest first, apart from those to keep.
DELETE FROM conversation
WHERE ordinal IN (
    SELECT ordinal FROM conversation
    WHERE owner = :owner AND updated_at < :before AND id NOT IN (SELECT value FROM json_each(:keep) AS kept)
    ORDER BY updated_at, ordinal
    LIMIT :limit
)
RETURNING id

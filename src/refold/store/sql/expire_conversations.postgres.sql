-- Delete the conversations of an owner in which nothing happened since, apart from those to keep.
DELETE FROM conversation
WHERE owner = :owner AND updated_at < :before
    AND id NOT IN (SELECT value FROM json_array_elements_text(CAST(:keep AS json)) AS kept (value))
RETURNING id

-- Delete the conversations of an owner in which nothing happened since.
DELETE FROM conversation WHERE owner = :owner AND updated_at < :before RETURNING id

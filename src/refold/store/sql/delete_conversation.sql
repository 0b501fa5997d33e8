-- Delete a conversation; all that belongs to it goes with it.
DELETE FROM conversation WHERE owner = :owner AND id = :id RETURNING id

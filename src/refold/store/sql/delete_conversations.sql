-- Delete all conversations of an owner.
DELETE FROM conversation WHERE owner = :owner RETURNING id

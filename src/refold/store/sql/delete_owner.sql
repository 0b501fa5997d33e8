-- Delete an owner with all that was learnt and cached.
DELETE FROM owner WHERE owner = :owner

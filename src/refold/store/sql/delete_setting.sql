-- Forget what an owner has set.
DELETE FROM setting WHERE owner = :owner AND key = :key

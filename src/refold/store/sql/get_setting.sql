-- What an owner has set.
SELECT value FROM setting WHERE owner = :owner AND key = :key

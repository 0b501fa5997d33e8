-- All that an owner has set, by name.
SELECT key, value FROM setting WHERE owner = :owner ORDER BY key

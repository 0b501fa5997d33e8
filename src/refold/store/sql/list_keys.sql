-- The keys of an owner, revoked ones too, oldest first.
SELECT owner, id, digest, name, at, revoked_at, admin FROM api_key WHERE owner = :owner ORDER BY ordinal

-- Whose key is this? Asked without an owner, since the answer is the owner.
SELECT owner, id, digest, name, at, revoked_at, admin FROM api_key WHERE id = :id

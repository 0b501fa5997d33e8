-- Revoke a key of an owner, once.
UPDATE api_key SET revoked_at = :at WHERE owner = :owner AND id = :id AND revoked_at IS NULL RETURNING id

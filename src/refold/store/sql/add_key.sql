-- Keep a key of a client, as its digest.
INSERT INTO api_key (owner, id, digest, name, at, revoked_at, admin)
VALUES (:owner, :id, :digest, :name, :at, :revoked_at, :admin)

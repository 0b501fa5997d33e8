-- Keep a summary under the hash of all it was made with.
INSERT INTO cache (owner, key, body, at) VALUES (:owner, :key, :body, :at)
ON CONFLICT (owner, key) DO UPDATE SET body = excluded.body, at = excluded.at

-- Make room for a summary that is being written; it is gone when something of the owner's is deleted meanwhile.
INSERT INTO cache (owner, key, body, at) VALUES (:owner, :key, :body, :at) ON CONFLICT (owner, key) DO NOTHING

-- Keep what was learnt, unless something is known already.
INSERT INTO learnt (owner, topic, key, value, at) VALUES (:owner, :topic, :key, :value, :at)
ON CONFLICT (owner, topic, key) DO NOTHING
RETURNING key

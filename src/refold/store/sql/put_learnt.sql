-- Keep what was learnt about a model, in place of what was known before.
INSERT INTO learnt (owner, topic, key, value, at) VALUES (:owner, :topic, :key, :value, :at)
ON CONFLICT (owner, topic, key) DO UPDATE SET value = excluded.value, at = excluded.at

-- Set something for an owner, in place of what was set before.
INSERT INTO setting (owner, key, value, at) VALUES (:owner, :key, :value, :at)
ON CONFLICT (owner, key) DO UPDATE SET value = excluded.value, at = excluded.at

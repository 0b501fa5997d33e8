-- Note an owner, once.
INSERT INTO owner (owner, at) VALUES (:owner, :at) ON CONFLICT (owner) DO NOTHING

-- Note that a migration was applied.
INSERT INTO migration (name) VALUES (:name)

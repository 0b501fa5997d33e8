-- Make the list of migrations, where there is none; the writer's lock keeps others away.
CREATE TABLE IF NOT EXISTS migration (name TEXT PRIMARY KEY) STRICT

-- Append a message, and note that the index has not taken it up.
INSERT INTO message (id, role, format, tokens, is_findable, body, digest, shown, key, at)
VALUES (
    coalesce((SELECT (ordinal << 32) + :seq FROM branch WHERE owner = :owner AND id = :branch), -1),
    :role, :format, :tokens, :is_findable, :body, :digest, :shown, :key, :at
);
INSERT INTO waiting (branch, seq) SELECT last_insert_rowid() >> 32, :seq WHERE :is_findable ON CONFLICT DO NOTHING

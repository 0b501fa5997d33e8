-- Append a message, and put what it says where the index takes it up, many at a time.
INSERT INTO message (owner, branch, seq, role, format, body, digest, shown, tokens, key, at)
VALUES (:owner, :branch, :seq, :role, :format, :body, :digest, :shown, :tokens, :key, :at);
INSERT INTO unindexed (id, scope, text) SELECT last_insert_rowid(), :scope, :words WHERE length(:words) > 0

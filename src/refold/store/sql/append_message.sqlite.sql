-- Append a message with what it says, provided that the branch is still where the writer saw it: a whole commit.
-- The branch's row is only looked at. A message of the same number is refused by its index.
INSERT INTO message (owner, branch, seq, role, format, body, digest, shown, tokens, key, at)
SELECT :owner, :branch, :seq, :role, :format, :body, :digest, :shown, :tokens, :key, :at
FROM branch
WHERE owner = :owner AND id = :branch AND conversation = :conversation AND epoch = :seen_epoch
    AND revision = :seen_revision AND session = :seen_session
RETURNING seq;
INSERT INTO unindexed (id, scope, text)
SELECT last_insert_rowid(), :scope, :words WHERE changes() = 1 AND length(:words) > 0;
UPDATE conversation SET updated_at = :committed_at
WHERE owner = :owner AND id = :conversation AND :committed_at >= updated_at + 1

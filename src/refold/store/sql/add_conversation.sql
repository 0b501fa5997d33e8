-- Begin a conversation, unless it is there.
INSERT INTO conversation (owner, id, title, folded, at, updated_at)
VALUES (:owner, :id, :title, :folded, :at, :at)
ON CONFLICT (owner, id) DO NOTHING

-- The newest sessions of a conversation, newest first.
SELECT id, branch, first, last, kind, parent, carries, state, summary, target, tokens, at, closed_at
FROM session
WHERE owner = :owner AND conversation = :conversation
ORDER BY ordinal DESC
LIMIT :limit

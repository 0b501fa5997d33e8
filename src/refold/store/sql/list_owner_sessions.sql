-- The newest sessions of an owner, newest first.
SELECT id, branch, first, last, kind, parent, carries, state, summary, target, tokens, at, closed_at
FROM session
WHERE owner = :owner
ORDER BY ordinal DESC
LIMIT :limit

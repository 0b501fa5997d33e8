-- One session by name.
SELECT id, branch, first, last, kind, parent, carries, state, summary, target, tokens, at, closed_at
FROM session
WHERE owner = :owner AND id = :id

-- Sessions whose name begins in one way, each with its conversation.
SELECT conversation, id, branch, first, last, kind, parent, carries, state, summary, target, tokens, at, closed_at
FROM session
WHERE owner = :owner AND id >= :least AND id < :after AND state = 'live'
ORDER BY id
LIMIT :limit

-- The session that holds a message.
SELECT id, branch, first, last, kind, parent, carries, state, summary, target, tokens, at, closed_at
FROM session
WHERE owner = :owner AND branch = :branch AND state = 'live' AND first <= :seq AND (last IS NULL OR last > :seq)
ORDER BY first DESC
LIMIT 1

-- The newest change in effect that was made in a session or opened it, of some kinds.
SELECT id, branch, number, kind, state, base, session, cut, size, reason, moment, recipe,
    before, after, edits, holder, until, attempts, error, at, shown
FROM compaction
WHERE owner = :owner AND CASE WHEN session = '' THEN base ELSE session END = :session AND state = 'installed'
    AND :kinds LIKE '%' || kind || '%'
ORDER BY number DESC
LIMIT 1

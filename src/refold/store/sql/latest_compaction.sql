-- The newest change in effect, up to a number, that was made when the branch had no more than so many messages.
SELECT id, branch, number, kind, state, base, session, cut, size, reason, moment, recipe,
    before, after, edits, holder, until, attempts, error, at, shown
FROM compaction
WHERE owner = :owner AND branch = :branch AND state = 'installed' AND kind <> 'arrival'
    AND number <= :number AND size <= :size
ORDER BY number DESC
LIMIT 1

-- Compactions of a branch that have not come to an end, oldest first.
SELECT id, branch, number, kind, state, base, session, cut, size, reason, moment, recipe,
    before, after, edits, holder, until, attempts, error, at, shown
FROM compaction
WHERE owner = :owner AND branch = :branch AND state IN ('planned', 'running', 'summarised')
ORDER BY ordinal

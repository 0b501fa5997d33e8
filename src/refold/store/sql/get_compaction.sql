-- One compaction by name.
SELECT id, branch, number, kind, state, base, session, cut, size, reason, moment, recipe,
    before, after, edits, holder, until, attempts, error, at, shown
FROM compaction
WHERE owner = :owner AND id = :id

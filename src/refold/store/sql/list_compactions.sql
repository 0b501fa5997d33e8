-- The newest changes of a branch, newest first, without how the branch was shown.
SELECT id, branch, number, kind, state, base, session, cut, size, reason, moment, recipe,
    before, after, edits, holder, until, attempts, error, at
FROM compaction
WHERE owner = :owner AND branch = :branch
ORDER BY ordinal DESC
LIMIT :limit

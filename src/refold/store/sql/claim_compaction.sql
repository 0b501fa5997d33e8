-- Begin work on a compaction that nobody is at work on; one whose summary was written keeps that state.
UPDATE compaction
SET state = CASE WHEN state = 'summarised' THEN state ELSE 'running' END,
    holder = :holder, until = :until, attempts = attempts + 1
WHERE owner = :owner AND id = :id AND state IN ('planned', 'running', 'summarised') AND (holder = '' OR until <= :now)
RETURNING id, branch, number, kind, state, base, session, cut, size, reason, moment, recipe,
    before, after, edits, holder, until, attempts, error, at, shown

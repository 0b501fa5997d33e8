-- Forget what was planned some time ago, and nobody is at work on.
DELETE FROM compaction
WHERE owner = :owner AND state IN ('planned', 'running', 'summarised') AND state = 'planned'
    AND holder = '' AND at < :before
    AND NOT EXISTS (SELECT 1 FROM summary WHERE summary.owner = :owner AND summary.id = compaction.id)
RETURNING id

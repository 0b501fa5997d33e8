-- The newest summaries of the changes in effect on a branch, newest first, without what the next one may choose from.
SELECT summary.id, summary.body, summary.at
FROM compaction
JOIN summary ON summary.owner = compaction.owner AND summary.id = compaction.id
WHERE compaction.owner = :owner AND compaction.branch = :branch AND compaction.state = 'installed'
ORDER BY compaction.number DESC
LIMIT :limit

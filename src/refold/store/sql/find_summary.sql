-- The summary that a branch calls by a number: one in effect before one that was taken back, then the newest.
SELECT summary.id, summary.body, summary.at, summary.carry
FROM summary
JOIN compaction ON compaction.owner = summary.owner AND compaction.id = summary.id
WHERE summary.owner = :owner AND summary.branch = :branch AND summary.number = :handle
    AND compaction.number BETWEEN 1 AND :number AND compaction.size <= :size
ORDER BY CASE WHEN compaction.state = 'installed' THEN 0 ELSE 1 END, compaction.number DESC
LIMIT 1

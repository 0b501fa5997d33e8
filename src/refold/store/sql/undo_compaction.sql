-- Take a compaction back that is in effect.
UPDATE compaction SET state = 'undone'
WHERE owner = :owner AND id = :id AND branch = :branch AND state = 'installed'
RETURNING session

-- Keep a claim for longer.
UPDATE compaction SET until = :until
WHERE owner = :owner AND id = :id AND holder = :holder AND state IN ('planned', 'running', 'summarised')
RETURNING id

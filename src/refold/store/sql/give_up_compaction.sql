-- End a compaction that comes to nothing, or put it back.
UPDATE compaction SET state = :state, error = :error, holder = '', until = 0
WHERE owner = :owner AND id = :id AND holder = :holder AND state IN ('planned', 'running', 'summarised')
RETURNING id

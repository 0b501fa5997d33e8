-- Note that the reply of a model is kept, where none was.
UPDATE compaction SET state = 'summarised'
WHERE owner = :owner AND id = :id AND state IN ('planned', 'running')
RETURNING branch

-- Note that a model has written for a branch again: what failed before it is past.
UPDATE compaction SET state = 'superseded' WHERE owner = :owner AND branch = :branch AND state = 'failed'

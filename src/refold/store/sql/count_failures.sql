-- How many compactions of a branch have failed since a model last wrote one, and when the newest of them was planned.
SELECT count(*), coalesce(max(at), 0.0) FROM compaction WHERE owner = :owner AND branch = :branch AND state = 'failed'

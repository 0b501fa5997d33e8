-- How often a branch was summarised, apart from what was taken back.
SELECT count(*) FROM compaction
WHERE owner = :owner AND branch = :branch AND state = 'installed' AND kind <> 'arrival' AND kind = 'summarise'

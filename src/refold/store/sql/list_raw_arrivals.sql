-- Messages whose shortening on arrival was taken back.
SELECT cut
FROM compaction
WHERE owner = :owner AND branch = :branch AND kind = 'arrival' AND state = 'undone' AND cut >= :first
ORDER BY cut

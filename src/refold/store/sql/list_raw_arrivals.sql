-- Messages in a range whose shortening on arrival was taken back.
SELECT cut
FROM compaction
WHERE owner = :owner AND branch = :branch AND kind = 'arrival' AND state = 'undone' AND cut >= :first AND cut < :last
ORDER BY cut

-- Messages that a branch holds itself, with what their bytes were when they came.
SELECT seq, body, digest
FROM message
WHERE owner = :owner AND branch = :branch AND seq >= :first
ORDER BY seq
LIMIT :limit

-- How many messages match, counted no further than it matters; no index knows `owner || ''`, so the one of the words is used.
SELECT count(*)
FROM (SELECT 1 FROM words WHERE words @@ CAST(:match AS tsquery) AND owner || '' = :owner LIMIT :considered) AS found

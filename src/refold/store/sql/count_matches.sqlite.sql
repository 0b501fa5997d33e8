-- How many messages match, counted no further than it matters.
SELECT count(*) FROM (SELECT :owner AS owner FROM words WHERE words MATCH :match LIMIT :considered) AS found

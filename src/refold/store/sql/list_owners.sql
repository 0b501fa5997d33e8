-- Everybody who has something here.
SELECT owner FROM owner ORDER BY owner

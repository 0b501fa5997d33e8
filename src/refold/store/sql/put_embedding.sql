-- Keep what a closed session was about, if its summary is still the one that was embedded.
INSERT INTO embedding (owner, session, name, vector, at)
SELECT owner, id, :name, :vector, :at
FROM session
WHERE owner = :owner AND id = :session AND summary = :summary AND last IS NOT NULL
ON CONFLICT (owner, session, name) DO UPDATE SET vector = excluded.vector, at = excluded.at
RETURNING session

-- What a session was about, by every embedder.
SELECT embedding.session, session.summary, embedding.name, embedding.vector, embedding.at
FROM embedding
JOIN session ON session.owner = embedding.owner AND session.id = embedding.session
WHERE embedding.owner = :owner AND embedding.session = :session
ORDER BY embedding.name

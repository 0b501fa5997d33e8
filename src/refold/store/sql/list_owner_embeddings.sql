-- A page of what an owner's sessions were about, by one embedder, oldest first.
SELECT session.ordinal, session.conversation, session.id, embedding.vector
FROM session
CROSS JOIN embedding
WHERE session.owner = :owner AND session.ordinal > :after
    AND embedding.owner = session.owner AND embedding.session = session.id AND embedding.name = :name
ORDER BY session.ordinal
LIMIT :limit

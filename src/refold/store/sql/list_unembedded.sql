-- Closed sessions with a summary that an embedder has not seen, newest first.
SELECT id, branch, first, last, kind, parent, carries, state, summary, target, tokens, at, closed_at
FROM session
WHERE owner = :owner AND state = 'live' AND last IS NOT NULL AND summary <> ''
    AND NOT EXISTS (
        SELECT 1 FROM embedding
        WHERE embedding.owner = session.owner AND embedding.session = session.id AND embedding.name = :name
    )
ORDER BY ordinal DESC
LIMIT :limit

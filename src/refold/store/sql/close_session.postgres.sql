-- Close the open session before a message, with its summary where there is one and what its messages took.
UPDATE session
SET last = :last, closed_at = :at, summary = CASE WHEN :summary <> '' THEN :summary ELSE summary END,
    tokens = (
        SELECT CAST(coalesce(sum(message.tokens), 0) AS bigint) FROM message
        WHERE message.owner = :owner AND message.branch = session.branch
            AND message.seq >= session.first AND message.seq < :last
    )
WHERE owner = :owner AND id = :id AND first <= :last
RETURNING id

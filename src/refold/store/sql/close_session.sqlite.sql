-- Close the open session before a message, with its summary where there is one and what its messages took.
UPDATE session
SET last = :last, closed_at = :at, summary = CASE WHEN :summary <> '' THEN :summary ELSE summary END,
    tokens = (
        SELECT coalesce(sum(message.tokens), 0)
        FROM branch
        CROSS JOIN message ON message.id >= (branch.ordinal << 32) + session.first
            AND message.id < (branch.ordinal << 32) + :last
        WHERE branch.owner = :owner AND branch.id = session.branch
    )
WHERE owner = :owner AND id = :id AND first <= :last
RETURNING id

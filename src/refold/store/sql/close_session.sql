-- Close the open session before a message, with its summary where there is one.
UPDATE session
SET last = :last, closed_at = :at, summary = CASE WHEN :summary <> '' THEN :summary ELSE summary END
WHERE owner = :owner AND id = :id AND first <= :last
RETURNING id

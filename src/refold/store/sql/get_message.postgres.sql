-- One message that a branch holds itself.
SELECT seq, role, format, body, shown, tokens, key, at
FROM message
WHERE owner = :owner AND branch = :branch AND seq = :seq

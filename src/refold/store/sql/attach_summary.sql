-- Give a closed session the summary that was written for it later, unless it has one.
UPDATE session SET summary = :summary
WHERE owner = :owner AND id = :id AND summary = '' AND last IS NOT NULL
RETURNING branch

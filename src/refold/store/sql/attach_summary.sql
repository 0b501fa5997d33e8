-- Give a closed session the summary that was written for it later, unless it has another than the one that it replaces.
UPDATE session SET summary = :summary
WHERE owner = :owner AND id = :id AND summary = :replaces AND last IS NOT NULL
RETURNING branch

-- Open a range again whose continuation was undone.
UPDATE session SET last = NULL, closed_at = NULL, summary = '', tokens = 0
WHERE owner = :owner AND id = :id AND branch = :branch
RETURNING id

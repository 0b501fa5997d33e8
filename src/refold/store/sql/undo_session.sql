-- Take a session out of the line.
UPDATE session SET state = 'undone', last = :last WHERE owner = :owner AND id = :id
RETURNING parent

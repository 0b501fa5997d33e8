-- One summary by name.
SELECT id, body, at, carry FROM summary WHERE owner = :owner AND id = :id

-- Point a branch at the session that is open now.
UPDATE branch SET session = :session WHERE owner = :owner AND id = :branch

-- Forget what a session was about: it is open again.
DELETE FROM embedding WHERE owner = :owner AND session = :session

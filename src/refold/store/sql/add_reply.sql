-- Keep what was answered to a call.
INSERT INTO reply (owner, call, body) VALUES (:owner, :call, :body) ON CONFLICT DO NOTHING

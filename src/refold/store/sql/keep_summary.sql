-- Keep a summary, unless there is one of this name.
INSERT INTO summary (owner, id, branch, number, body, carry, at)
VALUES (:owner, :id, :branch, :number, :body, :carry, :at)
ON CONFLICT (owner, id) DO NOTHING

-- Pin a message.
INSERT INTO pin (owner, branch, seq) VALUES (:owner, :branch, :seq) ON CONFLICT (owner, branch, seq) DO NOTHING

-- Keep what a conversation comes in with, once.
INSERT INTO blob (owner, conversation, digest, body) VALUES (:owner, :conversation, :digest, :body)
ON CONFLICT (owner, conversation, digest) DO NOTHING

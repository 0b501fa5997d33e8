-- Note the hash of a branch up to a message.
INSERT INTO chain (owner, branch, size, hash) VALUES (:owner, :branch, :size, :hash)

-- Append a message, and its words to the index.
WITH added AS (
    INSERT INTO message (owner, branch, seq, role, format, body, digest, shown, tokens, key, at)
    VALUES (:owner, :branch, :seq, :role, :format, :body, :digest, :shown, :tokens, :key, :at)
)
INSERT INTO words (owner, branch, seq, words)
SELECT :owner, :branch, :seq, part FROM spell_words(:words, :scope) AS part

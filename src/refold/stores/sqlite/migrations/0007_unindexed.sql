-- Texts wait for the index as they came, and are taken up by the program, never by whoever appends.
DROP TRIGGER words_are_enough;
INSERT INTO words (rowid, scope, text) SELECT id, scope, text FROM unindexed;
DROP TABLE unindexed;
CREATE TABLE unindexed (
    id INTEGER PRIMARY KEY,
    scope TEXT NOT NULL,
    text BLOB NOT NULL -- bytes: half of a surrogate pair is no text to a database
) STRICT;

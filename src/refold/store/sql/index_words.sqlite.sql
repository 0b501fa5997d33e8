-- Take the words of a message, whoever its owner is, into the index.
INSERT INTO indexed (message) VALUES (:id);
INSERT INTO words (rowid, scope, text) VALUES (last_insert_rowid(), :scope, :words)

-- Take the words of a message, whoever its owner is, into the index.
INSERT INTO words (rowid, scope, text) VALUES (:id, :scope, :words)

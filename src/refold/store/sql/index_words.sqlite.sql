-- Have the index take up the words of all owners that wait for it.
INSERT INTO words (rowid, scope, text) SELECT id, scope, text FROM unindexed;
DELETE FROM unindexed

-- Have the index take up some of the texts, whoever their owner is, that wait for it.
INSERT INTO words (rowid, scope, text) SELECT id, scope, spaced(text) FROM unindexed ORDER BY id LIMIT :limit;
DELETE FROM unindexed WHERE id IN (SELECT id FROM unindexed ORDER BY id LIMIT :limit)

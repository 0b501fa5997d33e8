-- Have the index take up some of the texts, whoever their owner is, that wait for it: the oldest, and at least one.
INSERT INTO words (rowid, scope, text)
SELECT id, scope, spaced(text) FROM unindexed
WHERE id IN (
    SELECT id
    FROM (SELECT id, sum(length(text)) OVER (ORDER BY id) - length(text) AS before FROM unindexed ORDER BY id LIMIT :limit)
    WHERE before < :bytes
);
DELETE FROM unindexed
WHERE id IN (
    SELECT id
    FROM (SELECT id, sum(length(text)) OVER (ORDER BY id) - length(text) AS before FROM unindexed ORDER BY id LIMIT :limit)
    WHERE before < :bytes
)

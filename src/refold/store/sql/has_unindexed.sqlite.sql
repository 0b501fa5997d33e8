-- Are there more texts than so many, whoever their owner is, that the index has not taken up?
SELECT 1 FROM unindexed LIMIT 1 OFFSET :more_than

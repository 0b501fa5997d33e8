-- Are there texts, whoever their owner is, that the index has not taken up?
SELECT 1 FROM unindexed LIMIT 1

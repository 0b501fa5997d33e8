-- Compactions that failed, so that they are counted without looking at all that did not.
CREATE INDEX compaction_failed ON compaction (owner, branch) WHERE state = 'failed';

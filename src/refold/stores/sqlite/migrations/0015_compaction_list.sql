-- Compactions are listed without `shown`, which may be hundreds of kilobytes. The columns behind it are in the index, because
-- SQLite reads all pages of a row up to the column that it needs.
CREATE INDEX compaction_list ON compaction (owner, branch, ordinal, holder, until, attempts, error, at);
DROP INDEX compaction_of_branch;

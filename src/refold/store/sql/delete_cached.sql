-- Delete the cached summaries of an owner: they do not say which conversation they were made for.
DELETE FROM cache WHERE owner = :owner

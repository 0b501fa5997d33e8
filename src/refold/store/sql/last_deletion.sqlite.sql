-- The last deletion of which something may still be in the file.
SELECT max(number) FROM deletion

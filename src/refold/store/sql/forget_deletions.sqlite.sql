-- Note that the file is clear of what was deleted up to then.
DELETE FROM deletion WHERE number <= :number

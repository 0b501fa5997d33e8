-- The sha256 of what is stored besides messages, so that changed bytes are found. NULL: not known.
--
-- Programs of an earlier version that are still running write these values without their digest. So before the digest of a value
-- that may be written again stands, in eight bytes, a number that every writer changes with it. If it is not that of the row, the
-- digest is of an earlier value.
ALTER TABLE message ADD COLUMN shown_digest BLOB;
ALTER TABLE branch ADD COLUMN notes_digest BLOB; -- after the revision
ALTER TABLE reply ADD COLUMN digest BLOB;
ALTER TABLE summary ADD COLUMN digest BLOB; -- of body and carry, after the number
ALTER TABLE compaction ADD COLUMN digest BLOB; -- of edits and shown, from the time when it takes effect

-- The sha256 of what is stored besides messages, so that changed bytes are found. NULL: not known.
--
-- Programs of an earlier version that are still running write these values without their digest. So before the digest of a value
-- that may be written again stands, in eight bytes, a number that every writer changes with it. If it is not that of the row, the
-- digest is of an earlier value.
ALTER TABLE message ADD COLUMN shown_digest bytea;
ALTER TABLE branch ADD COLUMN notes_digest bytea; -- after the revision
ALTER TABLE reply ADD COLUMN digest bytea;
ALTER TABLE summary ADD COLUMN digest bytea; -- of body and carry, after the number
ALTER TABLE compaction ADD COLUMN digest bytea; -- of edits and shown, from the time when it takes effect

-- The order in which system prompts came: only the newest are kept besides those in use.
ALTER TABLE blob ADD COLUMN ordinal bigint GENERATED ALWAYS AS IDENTITY;

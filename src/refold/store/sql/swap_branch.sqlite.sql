-- Move a branch on, provided that it is still where the writer saw it: the compare-and-swap of every commit.
-- When the conversation was last used is noted to the second: a row and an index less to write for most messages.
UPDATE conversation SET updated_at = :at WHERE owner = :owner AND id = :conversation AND abs(updated_at - :at) >= 1;
UPDATE branch
SET next_seq = :to_seq, epoch = :to_epoch, revision = :to_revision, notes = coalesce(:notes, notes), model = coalesce(:model, model)
WHERE owner = :owner AND id = :branch AND conversation = :conversation AND next_seq = :seen_seq AND epoch = :seen_epoch
    AND revision = :seen_revision AND session = :seen_session
RETURNING owner, conversation, id, base, base_seq, base_number, next_seq, epoch, revision, session, format, model, notes

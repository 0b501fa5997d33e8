-- Move a branch on, provided that it is still where the writer saw it: the compare-and-swap of every commit.
-- When the conversation was last used is noted to the second, so that most messages write a row and an index less, and it is
-- never taken back: a clock that is wrong for a while makes nothing old.
UPDATE conversation SET updated_at = :at WHERE owner = :owner AND id = :conversation AND :at >= updated_at + 1;
UPDATE branch
SET epoch = :to_epoch, revision = :to_revision, notes = coalesce(:notes, notes), model = coalesce(:model, model)
WHERE owner = :owner AND id = :branch AND conversation = :conversation AND epoch = :seen_epoch
    AND revision = :seen_revision AND session = :seen_session
    AND :seen_seq = (SELECT next_seq FROM head WHERE owner = :owner AND id = :branch)
RETURNING owner, conversation, id, base, base_seq, base_number, :to_seq, epoch, revision, session, format, model, notes

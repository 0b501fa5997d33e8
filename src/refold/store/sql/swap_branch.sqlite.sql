-- Move a branch on, provided that it is still where the writer saw it: the compare-and-swap of every commit.
UPDATE conversation SET updated_at = :at WHERE owner = :owner AND id = :conversation;
UPDATE branch
SET next_seq = :to_seq, epoch = :to_epoch, notes = coalesce(:notes, notes), model = coalesce(:model, model)
WHERE owner = :owner AND id = :branch AND conversation = :conversation AND next_seq = :seen_seq AND epoch = :seen_epoch
RETURNING owner, conversation, id, base, base_seq, next_seq, epoch, session, format, model, notes

-- Move a branch on, provided that it is still where the writer saw it: the compare-and-swap of every commit, and its row lock.
-- The conversation's row comes first, as it does for a purge, so that the two never wait for each other.
-- When it was last used is noted to the second, and never taken back: a clock that is wrong for a while makes nothing old.
WITH held AS (
    SELECT id FROM conversation WHERE owner = :owner AND id = :conversation FOR NO KEY UPDATE
), touched AS (
    UPDATE conversation SET updated_at = :at
    FROM held
    WHERE conversation.owner = :owner AND conversation.id = held.id AND :at >= updated_at + 1
)
UPDATE branch
SET next_seq = :to_seq, epoch = :to_epoch, revision = :to_revision, notes = coalesce(:notes, notes), model = coalesce(:model, model)
FROM held
WHERE branch.owner = :owner AND branch.conversation = :conversation AND branch.id = :branch
    AND branch.next_seq = :seen_seq AND branch.epoch = :seen_epoch
    AND branch.revision = :seen_revision AND branch.session = :seen_session
RETURNING
    branch.owner, branch.conversation, branch.id, base, base_seq, base_number, next_seq, epoch, revision, session, format,
    model, notes

-- Move a branch on and append a message with its words, provided that it is still where the writer saw it: a whole commit.
-- The conversation's row is locked first, as it is for a purge, so that the two never wait for each other.
WITH held AS (
    SELECT id FROM conversation WHERE owner = :owner AND id = :conversation FOR NO KEY UPDATE
), moved AS (
    UPDATE branch
    SET next_seq = :to_seq, revision = :to_revision, notes = coalesce(:notes, notes), model = coalesce(:model, model)
    FROM held
    WHERE branch.owner = :owner AND branch.conversation = :conversation AND branch.id = :branch
        AND branch.next_seq = :seen_seq AND branch.epoch = :seen_epoch
        AND branch.revision = :seen_revision AND branch.session = :seen_session
    RETURNING
        branch.owner, branch.conversation, branch.id, base, base_seq, base_number, next_seq, epoch, revision, session, format,
        model, notes
), touched AS (
    UPDATE conversation SET updated_at = :committed_at
    FROM moved
    WHERE conversation.owner = :owner AND conversation.id = :conversation AND :committed_at >= updated_at + 1
), appended AS (
    INSERT INTO message (owner, branch, seq, role, format, body, digest, shown, tokens, key, at)
    SELECT owner, id, :seq, :role, :format, :body, :digest, :shown, :tokens, :key, :at FROM moved
), indexed AS (
    INSERT INTO words (owner, branch, seq, words)
    SELECT owner, id, :seq, CAST(:spelt AS tsvector) FROM moved WHERE :spelt <> ''
)
SELECT owner, conversation, id, base, base_seq, base_number, next_seq, epoch, revision, session, format, model, notes
FROM moved

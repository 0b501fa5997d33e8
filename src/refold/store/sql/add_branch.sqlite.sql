-- Begin a branch: a root, or one that shares the first messages of another and the changes made to it so far.
INSERT INTO branch (
    owner, id, conversation, base, base_seq, base_number, epoch, revision, session, format, model, notes
) VALUES (
    :owner, :id, :conversation, :base, :base_seq,
    (SELECT coalesce(max(number), 0) FROM compaction WHERE owner = :owner AND branch = :base),
    0, 0, :session, :format, :model, :notes
)
RETURNING base_number

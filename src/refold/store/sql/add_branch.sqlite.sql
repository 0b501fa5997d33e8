-- Begin a branch: a root, or one that shares the first messages of another and the changes made to it so far.
-- Its messages lie where its ordinal says: it is given one under which nothing lies, whatever a damaged file holds.
INSERT INTO branch (
    ordinal, owner, id, conversation, base, base_seq, base_number, epoch, revision, session, format, model, notes
) VALUES (
    1 + max(coalesce((SELECT max(ordinal) FROM branch), 0), coalesce((SELECT max(id) >> 32 FROM message), 0)),
    :owner, :id, :conversation, :base, :base_seq,
    (SELECT coalesce(max(number), 0) FROM compaction WHERE owner = :owner AND branch = :base),
    0, 0, :session, :format, :model, :notes
)
RETURNING base_number

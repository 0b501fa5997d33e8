-- Append a message, provided that the branch is still where the writer saw it: a whole commit.
-- Nothing but the message is written, as a rule. Where the branch has moved on, there is no place for it, and it is refused.
INSERT INTO message (id, role, format, tokens, is_findable, body, digest, shown, key, at)
VALUES (
    coalesce(
        (
            SELECT (ordinal << 32) + :seq
            FROM branch
            WHERE owner = :owner AND id = :branch AND conversation = :conversation AND epoch = :seen_epoch
                AND revision = :seen_revision AND session = :seen_session
        ),
        -1
    ),
    :role, :format, :tokens, :is_findable, :body, :digest, :shown, :key, :at
);
INSERT INTO waiting (branch, seq) SELECT last_insert_rowid() >> 32, :seq WHERE :is_findable ON CONFLICT DO NOTHING

-- A branch is as long as the number of its last message says: a row less to write for every message, and no second truth.
CREATE VIEW head AS
SELECT
    ordinal, owner, id, conversation, base, base_seq, base_number,
    coalesce(
        (
            SELECT seq + 1 FROM message
            WHERE message.owner = branch.owner AND message.branch = branch.id
            ORDER BY seq DESC
            LIMIT 1
        ),
        base_seq
    ) AS next_seq,
    epoch, revision, session, format, model, notes
FROM branch;
ALTER TABLE branch DROP COLUMN next_seq;

CREATE TRIGGER message_follows BEFORE INSERT ON message
WHEN NEW.seq > (SELECT next_seq FROM head WHERE owner = NEW.owner AND id = NEW.branch)
BEGIN
    SELECT RAISE (ABORT, 'a message follows the one before it');
END;

-- A message lies where its branch and its number say, so that one tree is written to for each instead of two, and what is read
-- together lies together. What it says is read from its own bytes when the index takes it up: nothing waits a second time.
DROP VIEW head;
DROP TRIGGER message_follows;
DROP TRIGGER message_never_changes;
DROP TRIGGER message_is_kept;
DROP TRIGGER message_words_go;

CREATE TABLE placed (
    id INTEGER PRIMARY KEY, -- the ordinal of the branch, and in the last 32 bits the number of the message
    branch INTEGER GENERATED ALWAYS AS (id >> 32) VIRTUAL,
    seq INTEGER GENERATED ALWAYS AS (id & 4294967295) VIRTUAL,
    role TEXT NOT NULL,
    format TEXT NOT NULL,
    tokens INTEGER NOT NULL, -- before what may be long: they are added up without reading that
    is_findable INTEGER NOT NULL,
    body BLOB NOT NULL,
    digest BLOB NOT NULL, -- sha256 of the body as it came
    shown BLOB,
    key TEXT NOT NULL,
    at REAL NOT NULL
) STRICT;
INSERT INTO placed (id, role, format, tokens, is_findable, body, digest, shown, key, at)
SELECT
    (branch.ordinal << 32) + message.seq, message.role, message.format, message.tokens,
    EXISTS (SELECT 1 FROM words_docsize WHERE words_docsize.id = message.id)
    OR EXISTS (SELECT 1 FROM unindexed WHERE unindexed.id = message.id),
    message.body, message.digest, message.shown, message.key, message.at
FROM branch
JOIN message ON message.owner = branch.owner AND message.branch = branch.id
ORDER BY branch.ordinal, message.seq;
-- Which message a row of the index is about, in the order in which they were taken up: the newest come last.
CREATE TABLE indexed (
    id INTEGER PRIMARY KEY,
    message INTEGER NOT NULL UNIQUE
) STRICT;
INSERT INTO indexed (id, message)
SELECT words_docsize.id, (branch.ordinal << 32) + message.seq
FROM words_docsize
CROSS JOIN message ON message.id = words_docsize.id
CROSS JOIN branch ON branch.owner = message.owner AND branch.id = message.branch;
DROP TABLE message;
ALTER TABLE placed RENAME TO message;
CREATE UNIQUE INDEX message_key ON message (branch, key) WHERE key <> '';

-- Branches with messages that the index is to take up, and the first of these.
CREATE TABLE waiting (
    branch INTEGER PRIMARY KEY,
    seq INTEGER NOT NULL
) STRICT;
INSERT INTO waiting (branch, seq)
SELECT branch, min(seq) FROM message
WHERE is_findable AND NOT EXISTS (SELECT 1 FROM indexed WHERE indexed.message = message.id)
GROUP BY branch;
DROP TABLE unindexed;

-- Deletions of which something may still be in the file.
CREATE TABLE deletion (
    number INTEGER PRIMARY KEY
) STRICT;

-- A branch is as long as the number of its last message says: a row less to write for every message, and no second truth.
CREATE VIEW head AS
SELECT
    ordinal, owner, id, conversation, base, base_seq, base_number,
    coalesce(
        (
            SELECT message.seq + 1 FROM message
            WHERE message.id >= branch.ordinal << 32 AND message.id < (branch.ordinal + 1) << 32
            ORDER BY message.id DESC
            LIMIT 1
        ),
        base_seq
    ) AS next_seq,
    epoch, revision, session, format, model, notes
FROM branch;

-- The first of a branch stands where the branch begins, and every other one after another.
CREATE TRIGGER message_follows BEFORE INSERT ON message
WHEN NOT EXISTS (SELECT 1 FROM message WHERE id = NEW.id - 1 AND NEW.id & 4294967295 > 0)
    AND NOT EXISTS (SELECT 1 FROM branch WHERE ordinal = NEW.id >> 32 AND base_seq = NEW.id & 4294967295)
BEGIN
    SELECT RAISE (ABORT, 'a message follows the one before it');
END;
CREATE TRIGGER message_never_changes BEFORE UPDATE ON message
BEGIN
    SELECT RAISE (ABORT, 'a message never changes');
END;
CREATE TRIGGER message_is_kept BEFORE DELETE ON message
WHEN EXISTS (SELECT 1 FROM branch WHERE ordinal = OLD.id >> 32)
BEGIN
    SELECT RAISE (ABORT, 'a message is deleted with its conversation only');
END;
CREATE TRIGGER message_words_go AFTER DELETE ON message
BEGIN
    DELETE FROM words WHERE rowid = (SELECT id FROM indexed WHERE message = OLD.id);
    DELETE FROM indexed WHERE message = OLD.id;
END;
CREATE TRIGGER branch_takes_its_messages AFTER DELETE ON branch
BEGIN
    DELETE FROM message WHERE id >= OLD.ordinal << 32 AND id < (OLD.ordinal + 1) << 32;
    DELETE FROM waiting WHERE branch = OLD.ordinal;
END;

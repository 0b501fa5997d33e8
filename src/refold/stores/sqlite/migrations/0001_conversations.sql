-- Owners, conversations, branches, sessions and messages, and what was done about them.
--
-- `ordinal` is the order in which rows came, whatever the clock said. Only a conversation or an owner can be deleted by
-- name: a branch goes when its conversation is gone, and a message when its branch is.

PRAGMA application_id = 1382368879; -- "ReFo": so that no other program's file is taken for ours

CREATE TABLE owner (
    owner TEXT PRIMARY KEY,
    at REAL NOT NULL
) STRICT;

CREATE TABLE conversation (
    ordinal INTEGER PRIMARY KEY,
    owner TEXT NOT NULL REFERENCES owner ON DELETE CASCADE,
    id TEXT NOT NULL,
    title TEXT NOT NULL,
    folded TEXT NOT NULL, -- id and title as they are searched: without a difference between large and small letters
    at REAL NOT NULL,
    updated_at REAL NOT NULL,
    UNIQUE (owner, id)
) STRICT;
CREATE INDEX conversation_latest ON conversation (owner, updated_at);

CREATE TABLE branch (
    ordinal INTEGER PRIMARY KEY,
    owner TEXT NOT NULL,
    id TEXT NOT NULL,
    conversation TEXT NOT NULL,
    base TEXT NOT NULL,
    base_seq INTEGER NOT NULL,
    base_number INTEGER NOT NULL, -- the newest change of the base when it was forked
    next_seq INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    revision INTEGER NOT NULL, -- of notes and model
    session TEXT NOT NULL,
    format TEXT NOT NULL,
    model TEXT NOT NULL,
    notes BLOB NOT NULL,
    UNIQUE (owner, id),
    FOREIGN KEY (owner, conversation) REFERENCES conversation (owner, id) ON DELETE CASCADE
) STRICT;
CREATE INDEX branch_of_conversation ON branch (owner, conversation);

CREATE TABLE session (
    ordinal INTEGER PRIMARY KEY,
    owner TEXT NOT NULL,
    id TEXT NOT NULL,
    conversation TEXT NOT NULL,
    branch TEXT NOT NULL,
    first INTEGER NOT NULL,
    last INTEGER,
    kind TEXT NOT NULL,
    parent TEXT NOT NULL,
    carries TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT 'live',
    summary TEXT NOT NULL,
    target TEXT NOT NULL,
    tokens INTEGER NOT NULL,
    at REAL NOT NULL,
    closed_at REAL,
    UNIQUE (owner, id),
    CHECK (last >= first),
    FOREIGN KEY (owner, conversation) REFERENCES conversation (owner, id) ON DELETE CASCADE
) STRICT;
CREATE INDEX session_of_conversation ON session (owner, conversation);
CREATE INDEX session_of_owner ON session (owner);
CREATE INDEX session_range ON session (owner, branch, first) WHERE state = 'live';
-- Two compactions of one session cannot both have a future.
CREATE UNIQUE INDEX session_one_continuation ON session (owner, parent) WHERE kind = 'compaction' AND state = 'live';

CREATE TABLE message (
    id INTEGER PRIMARY KEY,
    owner TEXT NOT NULL,
    branch TEXT NOT NULL,
    seq INTEGER NOT NULL,
    role TEXT NOT NULL,
    format TEXT NOT NULL,
    tokens INTEGER NOT NULL, -- before what may be long: they are added up without reading that
    body BLOB NOT NULL,
    digest BLOB NOT NULL, -- sha256 of the body as it came
    shown BLOB,
    key TEXT NOT NULL,
    at REAL NOT NULL,
    UNIQUE (owner, branch, seq),
    FOREIGN KEY (owner, branch) REFERENCES branch (owner, id) ON DELETE CASCADE
) STRICT;
CREATE UNIQUE INDEX message_key ON message (owner, branch, key) WHERE key <> '';

-- Words of messages, without the text: `scope` holds a mark of the owner and one of the conversation.
CREATE VIRTUAL TABLE words USING fts5 (
    scope, text, content = '', contentless_delete = 1, tokenize = "unicode61 remove_diacritics 0 categories 'L* N* M* Co'"
);
-- An index costs as much for one message as for some dozens, so words wait here, until they are enough or somebody searches.
CREATE TABLE unindexed (
    id INTEGER PRIMARY KEY,
    scope TEXT NOT NULL,
    text TEXT NOT NULL
) STRICT;
CREATE TRIGGER words_are_enough AFTER INSERT ON unindexed
WHEN (SELECT count(*) FROM unindexed) >= 64
BEGIN
    INSERT INTO words (rowid, scope, text) SELECT id, scope, text FROM unindexed;
    DELETE FROM unindexed;
END;

CREATE TRIGGER message_never_changes BEFORE UPDATE ON message
BEGIN
    SELECT RAISE (ABORT, 'a message never changes');
END;
CREATE TRIGGER message_is_kept BEFORE DELETE ON message
WHEN EXISTS (SELECT 1 FROM branch WHERE owner = OLD.owner AND id = OLD.branch)
BEGIN
    SELECT RAISE (ABORT, 'a message is deleted with its conversation only');
END;
CREATE TRIGGER branch_is_kept BEFORE DELETE ON branch
WHEN EXISTS (SELECT 1 FROM conversation WHERE owner = OLD.owner AND id = OLD.conversation)
BEGIN
    SELECT RAISE (ABORT, 'a branch is deleted with its conversation only');
END;
CREATE TRIGGER message_words_go AFTER DELETE ON message
BEGIN
    DELETE FROM words WHERE rowid = OLD.id;
    DELETE FROM unindexed WHERE id = OLD.id;
END;

CREATE TABLE compaction (
    ordinal INTEGER PRIMARY KEY,
    owner TEXT NOT NULL,
    id TEXT NOT NULL,
    branch TEXT NOT NULL,
    number INTEGER NOT NULL,
    kind TEXT NOT NULL,
    state TEXT NOT NULL,
    base TEXT NOT NULL,
    session TEXT NOT NULL,
    cut INTEGER NOT NULL,
    size INTEGER NOT NULL,
    reason TEXT NOT NULL,
    moment TEXT NOT NULL,
    recipe TEXT NOT NULL,
    before INTEGER NOT NULL,
    after INTEGER NOT NULL,
    edits BLOB NOT NULL,
    shown BLOB NOT NULL,
    holder TEXT NOT NULL,
    until REAL NOT NULL,
    attempts INTEGER NOT NULL,
    error TEXT NOT NULL,
    at REAL NOT NULL,
    UNIQUE (owner, id),
    FOREIGN KEY (owner, branch) REFERENCES branch (owner, id) ON DELETE CASCADE
) STRICT;
CREATE INDEX compaction_of_branch ON compaction (owner, branch);
CREATE INDEX compaction_number ON compaction (owner, branch, number);
CREATE INDEX compaction_in_effect ON compaction (owner, branch, number)
WHERE state = 'installed' AND kind <> 'arrival';
CREATE INDEX compaction_of_session ON compaction (owner, (CASE WHEN session = '' THEN base ELSE session END), number)
WHERE state = 'installed';
CREATE INDEX compaction_raw ON compaction (owner, branch, cut) WHERE kind = 'arrival' AND state = 'undone';
CREATE INDEX compaction_unfinished ON compaction (owner) WHERE state IN ('planned', 'running', 'summarised');
CREATE INDEX compaction_unfinished_of_branch ON compaction (owner, branch)
WHERE state IN ('planned', 'running', 'summarised');

CREATE TABLE summary (
    owner TEXT NOT NULL,
    id TEXT NOT NULL,
    branch TEXT NOT NULL,
    number INTEGER NOT NULL, -- its handle
    body BLOB NOT NULL,
    carry BLOB NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (owner, id),
    FOREIGN KEY (owner, branch) REFERENCES branch (owner, id) ON DELETE CASCADE
) STRICT;
CREATE INDEX summary_of_branch ON summary (owner, branch, number);

CREATE TABLE call (
    ordinal INTEGER PRIMARY KEY,
    owner TEXT NOT NULL,
    id TEXT NOT NULL,
    conversation TEXT NOT NULL,
    branch TEXT NOT NULL,
    session TEXT NOT NULL,
    kind TEXT NOT NULL,
    size INTEGER NOT NULL,
    model TEXT NOT NULL,
    input INTEGER NOT NULL,
    cache_read INTEGER NOT NULL,
    cache_write INTEGER NOT NULL,
    output INTEGER NOT NULL,
    reasoning INTEGER NOT NULL,
    last_prompt INTEGER NOT NULL,
    receipt BLOB NOT NULL,
    dollars REAL NOT NULL,
    at REAL NOT NULL,
    UNIQUE (owner, id),
    FOREIGN KEY (owner, conversation) REFERENCES conversation (owner, id) ON DELETE CASCADE
) STRICT;
CREATE INDEX call_of_conversation ON call (owner, conversation);
CREATE INDEX call_spent ON call (owner, conversation, kind, dollars);

CREATE TABLE pin (
    owner TEXT NOT NULL,
    branch TEXT NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (owner, branch, seq),
    FOREIGN KEY (owner, branch) REFERENCES branch (owner, id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

CREATE TABLE cache (
    owner TEXT NOT NULL REFERENCES owner ON DELETE CASCADE,
    key TEXT NOT NULL,
    body BLOB NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (owner, key)
) STRICT;

CREATE TABLE learnt (
    owner TEXT NOT NULL REFERENCES owner ON DELETE CASCADE,
    topic TEXT NOT NULL,
    key TEXT NOT NULL,
    value BLOB NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (owner, topic, key)
) STRICT, WITHOUT ROWID;

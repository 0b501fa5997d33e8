-- Input that waits for the end of a reply, the commands that were run, and which program answers.

CREATE TABLE pending (
    ordinal INTEGER PRIMARY KEY, -- the order of arrival
    owner TEXT NOT NULL,
    id TEXT NOT NULL,
    branch TEXT NOT NULL,
    kind TEXT NOT NULL,
    body BLOB NOT NULL,
    is_begun INTEGER NOT NULL DEFAULT 0, -- a command that may have run
    at REAL NOT NULL,
    UNIQUE (owner, id),
    FOREIGN KEY (owner, branch) REFERENCES branch (owner, id) ON DELETE CASCADE
) STRICT;
CREATE INDEX pending_of_branch ON pending (owner, branch, ordinal);

CREATE TABLE command (
    ordinal INTEGER PRIMARY KEY,
    owner TEXT NOT NULL,
    id TEXT NOT NULL,
    branch TEXT NOT NULL,
    session TEXT NOT NULL,
    size INTEGER NOT NULL, -- messages in the branch before it
    text TEXT NOT NULL,
    reply TEXT NOT NULL,
    at REAL NOT NULL,
    UNIQUE (owner, id),
    FOREIGN KEY (owner, branch) REFERENCES branch (owner, id) ON DELETE CASCADE
) STRICT;
CREATE INDEX command_of_branch ON command (owner, branch, ordinal);

-- The program that answers on a branch. A row that is still there after its time is over was left by a crash.
CREATE TABLE lease (
    owner TEXT NOT NULL,
    branch TEXT NOT NULL,
    holder TEXT NOT NULL,
    until REAL NOT NULL,
    PRIMARY KEY (owner, branch),
    FOREIGN KEY (owner, branch) REFERENCES branch (owner, id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

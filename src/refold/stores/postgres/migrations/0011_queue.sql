-- Input that waits for the end of a reply, the commands that were run, and which program answers.

CREATE TABLE pending (
    ordinal bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- the order of arrival
    owner text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    branch text COLLATE "C" NOT NULL,
    kind text NOT NULL,
    body bytea NOT NULL,
    is_begun boolean NOT NULL DEFAULT false, -- a command that may have run
    at double precision NOT NULL,
    UNIQUE (owner, id),
    FOREIGN KEY (owner, branch) REFERENCES branch (owner, id) ON DELETE CASCADE
);
CREATE INDEX pending_of_branch ON pending (owner, branch, ordinal);

CREATE TABLE command (
    ordinal bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    owner text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    branch text COLLATE "C" NOT NULL,
    session text COLLATE "C" NOT NULL,
    size bigint NOT NULL, -- messages in the branch before it
    text text NOT NULL,
    reply text NOT NULL,
    at double precision NOT NULL,
    UNIQUE (owner, id),
    FOREIGN KEY (owner, branch) REFERENCES branch (owner, id) ON DELETE CASCADE
);
CREATE INDEX command_of_branch ON command (owner, branch, ordinal);

-- The program that answers on a branch. A row that is still there after its time is over was left by a crash.
CREATE TABLE lease (
    owner text COLLATE "C" NOT NULL,
    branch text COLLATE "C" NOT NULL,
    holder text NOT NULL,
    until double precision NOT NULL,
    PRIMARY KEY (owner, branch),
    FOREIGN KEY (owner, branch) REFERENCES branch (owner, id) ON DELETE CASCADE
);

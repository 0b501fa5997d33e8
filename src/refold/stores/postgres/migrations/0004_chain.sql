-- How a history that comes in anew with every request is recognised, and what was answered to it.

-- The keyed hash of a branch's first `size` messages.
CREATE TABLE chain (
    owner text COLLATE "C" NOT NULL,
    branch text COLLATE "C" NOT NULL,
    size bigint NOT NULL,
    hash bytea NOT NULL,
    PRIMARY KEY (owner, branch, size),
    FOREIGN KEY (owner, branch) REFERENCES branch (owner, id) ON DELETE CASCADE
);
CREATE INDEX chain_hash ON chain (owner, hash);

-- A reply as it came: the client sends it back with its next request, or something else in its place.
CREATE TABLE reply (
    owner text COLLATE "C" NOT NULL,
    call text COLLATE "C" NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (owner, call),
    FOREIGN KEY (owner, call) REFERENCES call (owner, id) ON DELETE CASCADE
);

-- Who may use the gateway, and what an owner has set there.

-- A key of a client. Only its digest is kept: nobody can read the key from here.
CREATE TABLE api_key (
    ordinal INTEGER PRIMARY KEY,
    owner TEXT NOT NULL REFERENCES owner ON DELETE CASCADE,
    id TEXT NOT NULL UNIQUE, -- the public part of the key: it finds the owner, so no two owners have the same
    digest BLOB NOT NULL,
    name TEXT NOT NULL,
    at REAL NOT NULL,
    revoked_at REAL
) STRICT;
CREATE INDEX api_key_of_owner ON api_key (owner);

CREATE TABLE setting (
    owner TEXT NOT NULL REFERENCES owner ON DELETE CASCADE,
    key TEXT NOT NULL,
    value BLOB NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (owner, key)
) STRICT, WITHOUT ROWID;

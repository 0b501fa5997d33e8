-- What closed sessions were about, as vectors, for search by meaning.

CREATE TABLE embedding (
    owner TEXT NOT NULL,
    session TEXT NOT NULL,
    name TEXT NOT NULL, -- the embedder's
    vector BLOB NOT NULL, -- 32-bit floats, little-endian
    at REAL NOT NULL,
    PRIMARY KEY (owner, session, name),
    FOREIGN KEY (owner, session) REFERENCES session (owner, id) ON DELETE CASCADE
) STRICT;

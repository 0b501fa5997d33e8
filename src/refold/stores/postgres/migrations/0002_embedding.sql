-- What closed sessions were about, as vectors, for search by meaning.

CREATE TABLE embedding (
    owner text COLLATE "C" NOT NULL,
    session text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL, -- the embedder's
    vector bytea NOT NULL, -- 32-bit floats, little-endian
    at double precision NOT NULL,
    PRIMARY KEY (owner, session, name),
    FOREIGN KEY (owner, session) REFERENCES session (owner, id) ON DELETE CASCADE
);

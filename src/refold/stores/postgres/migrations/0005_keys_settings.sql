-- Who may use the gateway, and what an owner has set there.

-- A key of a client. Only its digest is kept: nobody can read the key from here.
CREATE TABLE api_key (
    ordinal bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    owner text COLLATE "C" NOT NULL REFERENCES owner ON DELETE CASCADE,
    id text COLLATE "C" NOT NULL UNIQUE, -- the public part of the key: it finds the owner, so no two owners have the same
    digest bytea NOT NULL,
    name text NOT NULL,
    at double precision NOT NULL,
    revoked_at double precision
);
CREATE INDEX api_key_of_owner ON api_key (owner, ordinal);

CREATE TABLE setting (
    owner text COLLATE "C" NOT NULL REFERENCES owner ON DELETE CASCADE,
    key text COLLATE "C" NOT NULL,
    value bytea NOT NULL,
    at double precision NOT NULL,
    PRIMARY KEY (owner, key)
);

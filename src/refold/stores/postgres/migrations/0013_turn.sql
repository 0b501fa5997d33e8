-- Vectors of messages, for search by meaning: a row has those of a run of messages of one branch, by one embedder. Messages are
-- deleted with their branch only, and so are the rows.
CREATE TABLE turn (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    owner text COLLATE "C" NOT NULL,
    conversation text COLLATE "C" NOT NULL,
    branch text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL, -- the embedder's
    first bigint NOT NULL,
    last bigint NOT NULL, -- the run ends before it
    seqs text NOT NULL, -- numbers of the messages that have a vector, JSON; the others of the run must not be found
    codes bytea NOT NULL, -- a bit for each number of each vector: its sign
    vectors bytea NOT NULL, -- bytes with a sign
    UNIQUE (owner, branch, name, first),
    FOREIGN KEY (owner, branch) REFERENCES branch (owner, id) ON DELETE CASCADE
);
CREATE INDEX turn_of_owner ON turn (owner, name, id);
CREATE INDEX turn_of_conversation ON turn (owner, conversation, name, id);
-- Parts of them are read: uncompressed, a part is found without the rest.
ALTER TABLE turn ALTER COLUMN vectors SET STORAGE EXTERNAL;

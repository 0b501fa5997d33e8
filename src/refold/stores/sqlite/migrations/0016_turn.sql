-- Vectors of messages, for search by meaning: a row has those of a run of messages of one branch, by one embedder. Messages are
-- deleted with their branch only, and so are the rows.
CREATE TABLE turn (
    id INTEGER PRIMARY KEY AUTOINCREMENT, -- never used again: a program that has read up to a row reads only what comes after it
    owner TEXT NOT NULL,
    conversation TEXT NOT NULL,
    branch INTEGER NOT NULL REFERENCES branch (ordinal) ON DELETE CASCADE,
    name TEXT NOT NULL, -- the embedder's
    first INTEGER NOT NULL,
    last INTEGER NOT NULL, -- the run ends before it
    seqs TEXT NOT NULL, -- numbers of the messages that have a vector, JSON; the others of the run must not be found
    codes BLOB NOT NULL, -- a bit for each number of each vector: its sign
    vectors BLOB NOT NULL, -- bytes with a sign; after the codes, which are read without them
    UNIQUE (branch, name, first)
) STRICT;
CREATE INDEX turn_of_owner ON turn (owner, name, id);
CREATE INDEX turn_of_conversation ON turn (owner, conversation, name, id);

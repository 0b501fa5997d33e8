-- What conversations come in with besides their messages: each system prompt with its tools once, named by its own hash.
-- A row belongs to a conversation: its forks share it, and it goes with it.

CREATE TABLE blob (
    owner TEXT NOT NULL,
    conversation TEXT NOT NULL,
    digest BLOB NOT NULL, -- sha256 of the body
    body BLOB NOT NULL,
    PRIMARY KEY (owner, conversation, digest),
    FOREIGN KEY (owner, conversation) REFERENCES conversation (owner, id) ON DELETE CASCADE
) STRICT;

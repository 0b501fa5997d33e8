-- What conversations come in with besides their messages: each system prompt with its tools once, named by its own hash.
-- A row belongs to a conversation: its forks share it, and it goes with it.

CREATE TABLE blob (
    owner text COLLATE "C" NOT NULL,
    conversation text COLLATE "C" NOT NULL,
    digest bytea NOT NULL, -- sha256 of the body
    body bytea NOT NULL,
    PRIMARY KEY (owner, conversation, digest),
    FOREIGN KEY (owner, conversation) REFERENCES conversation (owner, id) ON DELETE CASCADE
);

-- The words of a message mostly fill one part. Told of a thousand, the planner makes a new plan for every single append.
ALTER FUNCTION spell_words (text, text) ROWS 1;

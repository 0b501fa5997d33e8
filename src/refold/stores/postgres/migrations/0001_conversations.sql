-- Owners, conversations, branches, sessions and messages, and what was done about them.
--
-- `ordinal` is the order in which rows came, whatever the clock said. Only a conversation or an owner can be deleted by
-- name: a branch goes when its conversation is gone, and a message when its branch is. Names are compared
-- byte by byte (COLLATE "C"), which is quick, and means the same on every server.

CREATE TABLE owner (
    owner text COLLATE "C" PRIMARY KEY,
    at double precision NOT NULL
);

CREATE TABLE conversation (
    ordinal bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    owner text COLLATE "C" NOT NULL REFERENCES owner ON DELETE CASCADE,
    id text COLLATE "C" NOT NULL,
    title text NOT NULL,
    folded text NOT NULL, -- id and title as they are searched: without a difference between large and small letters
    at double precision NOT NULL,
    updated_at double precision NOT NULL,
    UNIQUE (owner, id)
);
CREATE INDEX conversation_latest ON conversation (owner, updated_at, ordinal);

CREATE TABLE branch (
    ordinal bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    owner text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    conversation text COLLATE "C" NOT NULL,
    base text COLLATE "C" NOT NULL,
    base_seq bigint NOT NULL,
    base_number bigint NOT NULL, -- the newest change of the base when it was forked
    next_seq bigint NOT NULL,
    epoch bigint NOT NULL,
    revision bigint NOT NULL, -- of notes and model
    session text COLLATE "C" NOT NULL,
    format text NOT NULL,
    model text NOT NULL,
    notes bytea NOT NULL,
    UNIQUE (owner, id),
    FOREIGN KEY (owner, conversation) REFERENCES conversation (owner, id) ON DELETE CASCADE
) WITH (fillfactor = 50); -- every commit writes the row again: with room beside it that needs no index
CREATE INDEX branch_of_conversation ON branch (owner, conversation, ordinal);

CREATE TABLE session (
    ordinal bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    owner text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    conversation text COLLATE "C" NOT NULL,
    branch text COLLATE "C" NOT NULL,
    first bigint NOT NULL,
    last bigint,
    kind text NOT NULL,
    parent text COLLATE "C" NOT NULL,
    carries text NOT NULL,
    state text NOT NULL DEFAULT 'live',
    summary text COLLATE "C" NOT NULL,
    target text COLLATE "C" NOT NULL,
    tokens bigint NOT NULL,
    at double precision NOT NULL,
    closed_at double precision,
    UNIQUE (owner, id),
    CHECK (last >= first),
    FOREIGN KEY (owner, conversation) REFERENCES conversation (owner, id) ON DELETE CASCADE
);
CREATE INDEX session_of_conversation ON session (owner, conversation, ordinal);
CREATE INDEX session_of_owner ON session (owner, ordinal);
CREATE INDEX session_range ON session (owner, branch, first) WHERE state = 'live';
-- Two compactions of one session cannot both have a future.
CREATE UNIQUE INDEX session_one_continuation ON session (owner, parent) WHERE kind = 'compaction' AND state = 'live';

CREATE TABLE message (
    owner text COLLATE "C" NOT NULL,
    branch text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    role text NOT NULL,
    format text NOT NULL,
    body bytea NOT NULL,
    digest bytea NOT NULL, -- sha256 of the body as it came
    shown bytea,
    tokens bigint NOT NULL,
    key text COLLATE "C" NOT NULL,
    at double precision NOT NULL,
    PRIMARY KEY (owner, branch, seq),
    FOREIGN KEY (owner, branch) REFERENCES branch (owner, id) ON DELETE CASCADE
);
CREATE UNIQUE INDEX message_key ON message (owner, branch, key) WHERE key <> '';

-- Words of messages, without the text, in parts: a vector holds a megabyte and no more than 256 places of one word.
CREATE TABLE words (
    ordinal bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    owner text COLLATE "C" NOT NULL,
    branch text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    words tsvector NOT NULL,
    FOREIGN KEY (owner, branch) REFERENCES branch (owner, id) ON DELETE CASCADE
);
CREATE INDEX words_of_branch ON words (owner, branch);
-- A search reads all that waits to be indexed: half a megabyte is read in a moment, and written in one as well.
CREATE INDEX words_found ON words USING gin (words) WITH (gin_pending_list_limit = 512);

-- The words of a text with their places, 2,000 to a part; a part ends in the beginning of the next, so that no phrase is cut.
-- The marks of whose it is are there as well, with a weight by which they do not count.
CREATE FUNCTION spell_words (text, text) RETURNS SETOF tsvector
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    held text[] := string_to_array($1, ' ');
    marks text := ' ' || replace($2, ' ', ':1A ') || ':1A';
BEGIN
    FOR start IN 1 .. cardinality(held) BY 2000 LOOP
        RETURN NEXT CAST(
            (
                SELECT string_agg(word || ':' || place, ' ')
                FROM unnest(held[start : start + 2031]) WITH ORDINALITY AS one (word, place)
            ) || marks AS tsvector
        );
    END LOOP;
END
$$;

CREATE FUNCTION refuse () RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'a message never changes, and is deleted with its conversation only' USING ERRCODE = 'RF001';
END
$$;
CREATE FUNCTION refuse_while_branch_is_there () RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM branch WHERE owner = OLD.owner AND id = OLD.branch) THEN
        RAISE EXCEPTION 'a message is deleted with its conversation only' USING ERRCODE = 'RF001';
    END IF;
    RETURN OLD;
END
$$;
CREATE FUNCTION refuse_while_conversation_is_there () RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM conversation WHERE owner = OLD.owner AND id = OLD.conversation) THEN
        RAISE EXCEPTION 'a branch is deleted with its conversation only' USING ERRCODE = 'RF001';
    END IF;
    RETURN OLD;
END
$$;
CREATE TRIGGER message_never_changes BEFORE UPDATE ON message FOR EACH ROW EXECUTE FUNCTION refuse ();
CREATE TRIGGER message_is_not_cut_off BEFORE TRUNCATE ON message FOR EACH STATEMENT EXECUTE FUNCTION refuse ();
CREATE TRIGGER message_is_kept BEFORE DELETE ON message
FOR EACH ROW EXECUTE FUNCTION refuse_while_branch_is_there ();
CREATE TRIGGER branch_is_kept BEFORE DELETE ON branch
FOR EACH ROW EXECUTE FUNCTION refuse_while_conversation_is_there ();

CREATE TABLE compaction (
    ordinal bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    owner text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    branch text COLLATE "C" NOT NULL,
    number bigint NOT NULL,
    kind text NOT NULL,
    state text NOT NULL,
    base text COLLATE "C" NOT NULL,
    session text COLLATE "C" NOT NULL,
    cut bigint NOT NULL,
    size bigint NOT NULL,
    reason text NOT NULL,
    moment text NOT NULL,
    recipe text NOT NULL,
    before bigint NOT NULL,
    after bigint NOT NULL,
    edits bytea NOT NULL,
    shown bytea NOT NULL,
    holder text COLLATE "C" NOT NULL,
    until double precision NOT NULL,
    attempts bigint NOT NULL,
    error text NOT NULL,
    at double precision NOT NULL,
    UNIQUE (owner, id),
    FOREIGN KEY (owner, branch) REFERENCES branch (owner, id) ON DELETE CASCADE
);
CREATE INDEX compaction_of_branch ON compaction (owner, branch, ordinal);
CREATE INDEX compaction_number ON compaction (owner, branch, number);
CREATE INDEX compaction_in_effect ON compaction (owner, branch, number)
WHERE state = 'installed' AND kind <> 'arrival';
CREATE INDEX compaction_of_session ON compaction (owner, (CASE WHEN session = '' THEN base ELSE session END), number)
WHERE state = 'installed';
CREATE INDEX compaction_raw ON compaction (owner, branch, cut) WHERE kind = 'arrival' AND state = 'undone';
CREATE INDEX compaction_unfinished ON compaction (owner, ordinal) WHERE state IN ('planned', 'running', 'summarised');
CREATE INDEX compaction_unfinished_of_branch ON compaction (owner, branch, ordinal)
WHERE state IN ('planned', 'running', 'summarised');

CREATE TABLE summary (
    owner text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    branch text COLLATE "C" NOT NULL,
    number bigint NOT NULL, -- its handle
    body bytea NOT NULL,
    carry bytea NOT NULL,
    at double precision NOT NULL,
    PRIMARY KEY (owner, id),
    FOREIGN KEY (owner, branch) REFERENCES branch (owner, id) ON DELETE CASCADE
);
CREATE INDEX summary_of_branch ON summary (owner, branch, number);

CREATE TABLE call (
    ordinal bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    owner text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    conversation text COLLATE "C" NOT NULL,
    branch text COLLATE "C" NOT NULL,
    session text COLLATE "C" NOT NULL,
    kind text NOT NULL,
    size bigint NOT NULL,
    model text NOT NULL,
    input bigint NOT NULL,
    cache_read bigint NOT NULL,
    cache_write bigint NOT NULL,
    output bigint NOT NULL,
    reasoning bigint NOT NULL,
    last_prompt bigint NOT NULL,
    receipt bytea NOT NULL,
    dollars double precision NOT NULL,
    at double precision NOT NULL,
    UNIQUE (owner, id),
    FOREIGN KEY (owner, conversation) REFERENCES conversation (owner, id) ON DELETE CASCADE
);
CREATE INDEX call_of_conversation ON call (owner, conversation, ordinal);
CREATE INDEX call_spent ON call (owner, conversation, kind, dollars);

CREATE TABLE pin (
    owner text COLLATE "C" NOT NULL,
    branch text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    PRIMARY KEY (owner, branch, seq),
    FOREIGN KEY (owner, branch) REFERENCES branch (owner, id) ON DELETE CASCADE
);

CREATE TABLE cache (
    owner text COLLATE "C" NOT NULL REFERENCES owner ON DELETE CASCADE,
    key text COLLATE "C" NOT NULL,
    body bytea NOT NULL,
    at double precision NOT NULL,
    PRIMARY KEY (owner, key)
);

CREATE TABLE learnt (
    owner text COLLATE "C" NOT NULL REFERENCES owner ON DELETE CASCADE,
    topic text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    value bytea NOT NULL,
    at double precision NOT NULL,
    PRIMARY KEY (owner, topic, key)
);

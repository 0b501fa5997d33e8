-- Queries for PostgreSQL alone, by name; those it shares with SQLite are in ../sql/shared.sql.

-- name: advance_branch
-- Move a branch on by its messages alone, provided that it is still where the writer saw it; see swap_branch.
WITH held AS (
    SELECT id FROM conversation WHERE owner = :owner AND id = :conversation FOR NO KEY UPDATE
), touched AS (
    UPDATE conversation SET updated_at = :at
    FROM held
    WHERE conversation.owner = :owner AND conversation.id = held.id AND :at >= updated_at + 1
)
UPDATE branch
SET next_seq = :to_seq
FROM held
WHERE branch.owner = :owner AND branch.conversation = :conversation AND branch.id = :branch
    AND branch.next_seq = :seen_seq AND branch.epoch = :seen_epoch
    AND branch.revision = :seen_revision AND branch.session = :seen_session
RETURNING branch.id

-- name: add_branch
-- Begin a branch: a root, or one that shares the first messages of another and the changes made to it so far.
INSERT INTO branch (
    owner, id, conversation, base, base_seq, base_number, next_seq, epoch, revision, session, format, model, notes,
    notes_digest
) VALUES (
    :owner, :id, :conversation, :base, :base_seq,
    (SELECT coalesce(max(number), 0) FROM compaction WHERE owner = :owner AND branch = :base),
    :base_seq, 0, 0, :session, :format, :model, :notes, :notes_digest
)
RETURNING base_number

-- name: add_message
-- Append a message, and its words to the index.
WITH added AS (
    INSERT INTO message (owner, branch, seq, role, format, body, digest, shown, shown_digest, tokens, key, at)
    VALUES (:owner, :branch, :seq, :role, :format, :body, :digest, :shown, :shown_digest, :tokens, :key, :at)
)
INSERT INTO words (owner, branch, seq, words)
SELECT :owner, :branch, :seq, part FROM spell_words(:words, :scope) AS part

-- name: add_words
-- Add some words of a message to the index.
INSERT INTO words (owner, branch, seq, words) VALUES (:owner, :branch, :seq, CAST(:spelt AS tsvector))

-- name: append_message
-- Move a branch on and append a message with its words, provided that it is still where the writer saw it: a whole commit.
-- The conversation's row is locked first, as it is for a purge, so that the two never wait for each other.
WITH held AS (
    SELECT id FROM conversation WHERE owner = :owner AND id = :conversation FOR NO KEY UPDATE
), moved AS (
    UPDATE branch
    SET next_seq = :to_seq, revision = :to_revision, notes = coalesce(:notes, notes),
        notes_digest = coalesce(:notes_digest, notes_digest), model = coalesce(:model, model)
    FROM held
    WHERE branch.owner = :owner AND branch.conversation = :conversation AND branch.id = :branch
        AND branch.next_seq = :seen_seq AND branch.epoch = :seen_epoch
        AND branch.revision = :seen_revision AND branch.session = :seen_session
    RETURNING
        branch.owner, branch.conversation, branch.id, base, base_seq, base_number, next_seq, epoch, revision, session, format,
        model, notes
), touched AS (
    UPDATE conversation SET updated_at = :committed_at
    FROM moved
    WHERE conversation.owner = :owner AND conversation.id = :conversation AND :committed_at >= updated_at + 1
), appended AS (
    INSERT INTO message (owner, branch, seq, role, format, body, digest, shown, shown_digest, tokens, key, at)
    SELECT owner, id, :seq, :role, :format, :body, :digest, :shown, :shown_digest, :tokens, :key, :at FROM moved
), indexed AS (
    INSERT INTO words (owner, branch, seq, words)
    SELECT owner, id, :seq, CAST(:spelt AS tsvector) FROM moved WHERE :spelt <> ''
)
SELECT owner, conversation, id, base, base_seq, base_number, next_seq, epoch, revision, session, format, model, notes
FROM moved

-- name: begin_migrating
-- Make the list of migrations, where there is none, and keep others away until the transaction ends.
SELECT pg_advisory_xact_lock(7235419);
CREATE SCHEMA IF NOT EXISTS refold;
CREATE TABLE IF NOT EXISTS migration (name text PRIMARY KEY)

-- name: close_session
-- Close the open session before a message, with its summary where there is one and what its messages took.
UPDATE session
SET last = :last, closed_at = :at, summary = CASE WHEN :summary <> '' THEN :summary ELSE summary END,
    tokens = (
        SELECT CAST(coalesce(sum(message.tokens), 0) AS bigint) FROM message
        WHERE message.owner = :owner AND message.branch = session.branch
            AND message.seq >= session.first AND message.seq < :last
    )
WHERE owner = :owner AND id = :id AND first <= :last
RETURNING id

-- name: count_idle
-- How many conversations an owner has and when one was last used; how many of them nothing happened in since, and when in these.
SELECT
    (SELECT count(*) FROM conversation WHERE owner = :owner),
    coalesce((SELECT max(updated_at) FROM conversation WHERE owner = :owner), 0.0),
    count(*), coalesce(min(updated_at), 0.0), coalesce(max(updated_at), 0.0)
FROM conversation
WHERE owner = :owner AND updated_at < :before
    AND id NOT IN (SELECT value FROM json_array_elements_text(CAST(:keep AS json)) AS kept (value))

-- name: count_matches
-- How many messages match, counted no further than so many, and how far in the index that is. Without a line every branch will do.
-- No index knows `owner || ''`, so the one of the words is used.
WITH line AS MATERIALIZED (
    SELECT value ->> 0 AS branch, CAST(value ->> 1 AS bigint) AS stop FROM json_array_elements(CAST(:line AS json))
)
SELECT count(*), max(ordinal), (SELECT max(ordinal) FROM words)
FROM (
    SELECT ordinal
    FROM words
    WHERE words @@ CAST(:match AS tsquery) AND owner || '' = :owner AND (
        CAST(:line AS text) = '[]'
        OR EXISTS (SELECT 1 FROM line WHERE line.branch = words.branch AND words.seq < line.stop)
    )
    LIMIT :considered
) AS found

-- name: count_searched
-- How many messages an owner or a conversation has: branches know it here, so that no limit is needed.
SELECT CAST(coalesce(sum(next_seq - base_seq), 0) AS bigint)
FROM branch
WHERE owner = :owner AND :conversation IN ('', conversation) AND :limit > 0

-- name: delete_blob
-- Forget what a conversation came in with, unless the notes of one of its branches name it.
DELETE FROM blob
WHERE owner = :owner AND conversation = :conversation AND digest = :digest
    AND NOT EXISTS (
        SELECT 1 FROM branch
        WHERE owner = :owner AND conversation = :conversation AND position(CAST(:digest AS bytea) IN notes) > 0
    )

-- name: expire_conversations
-- Delete conversations of an owner in which nothing happened since, the oldest first, apart from those to keep.
-- Their time is compared again where they are deleted: somebody may have gone on with one meanwhile.
DELETE FROM conversation
WHERE owner = :owner AND updated_at < :before
    AND ordinal IN (
        SELECT ordinal FROM conversation
        WHERE owner = :owner AND updated_at < :before
            AND id NOT IN (SELECT value FROM json_array_elements_text(CAST(:keep AS json)) AS kept (value))
        ORDER BY updated_at, ordinal
        LIMIT :limit
    )
RETURNING id

-- name: find_chains
-- Places of an owner's branches with one of these hashes: where a branch ends first, then in the newest branch, then the last.
SELECT chain.hash, branch.conversation, chain.branch, chain.size, branch.next_seq, branch.format
FROM json_array_elements_text(CAST(:hashes AS json)) AS asked (value)
JOIN chain ON chain.owner = :owner AND chain.hash = decode(asked.value, 'hex')
JOIN branch ON branch.owner = chain.owner AND branch.id = chain.branch
ORDER BY branch.next_seq = chain.size DESC, branch.ordinal DESC, chain.size DESC
LIMIT :limit

-- name: find_conversations
-- Conversations whose id or title holds all of the words, the latest first.
SELECT id
FROM conversation
WHERE owner = :owner
    AND NOT EXISTS (
        SELECT 1 FROM json_array_elements_text(CAST(:words AS json)) AS word (value)
        WHERE strpos(conversation.folded, word.value) = 0
    )
ORDER BY updated_at DESC, ordinal DESC
LIMIT :limit

-- name: find_key
-- The number of the message that came with a key, among those that a branch holds itself.
SELECT seq FROM message WHERE owner = :owner AND branch = :branch AND key = :key AND key <> '' AND seq < :last

-- name: get_latest_head
-- The branch of a conversation that was used last: that has the newest message, or was forked after it.
SELECT owner, conversation, id, base, base_seq, base_number, next_seq, epoch, revision, session, format, model, notes
FROM head
WHERE owner = :owner AND conversation = :conversation
ORDER BY
    coalesce(
        (
            SELECT message.at FROM message
            WHERE message.owner = head.owner AND message.branch = head.id
            ORDER BY message.seq DESC
            LIMIT 1
        ),
        (SELECT session.at FROM session WHERE session.owner = head.owner AND session.id = head.session)
    ) DESC,
    ordinal DESC
LIMIT 1

-- name: list_latest_heads
-- A page of conversations, the latest first, each with the branch that was used last.
WITH page AS MATERIALIZED (
    SELECT ordinal, id, title, at, updated_at
    FROM conversation
    WHERE owner = :owner AND (updated_at, ordinal) < (:at, CAST(:ordinal AS bigint))
        AND NOT EXISTS (
            SELECT 1 FROM json_array_elements_text(CAST(:words AS json)) AS word (value)
            WHERE strpos(conversation.folded, word.value) = 0
        )
    ORDER BY updated_at DESC, ordinal DESC
    LIMIT :limit
)
SELECT
    page.ordinal, page.title, page.at, page.updated_at,
    (SELECT count(*) FROM branch WHERE owner = :owner AND conversation = page.id),
    (
        SELECT count(*) FROM compaction
        WHERE owner = :owner AND branch IN (SELECT id FROM branch WHERE owner = :owner AND conversation = page.id)
            AND state = 'installed' AND kind <> 'arrival' AND kind = 'summarise'
    ),
    head.owner, head.conversation, head.id, base, base_seq, base_number, next_seq, epoch, revision, session, format, model, notes
FROM page
JOIN head ON head.owner = :owner AND head.ordinal = (
    SELECT branch.ordinal
    FROM branch
    WHERE branch.owner = :owner AND branch.conversation = page.id
    ORDER BY
        coalesce(
            (
                SELECT message.at FROM message
                WHERE message.owner = branch.owner AND message.branch = branch.id
                ORDER BY message.seq DESC
                LIMIT 1
            ),
            (SELECT session.at FROM session WHERE session.owner = branch.owner AND session.id = branch.session)
        ) DESC,
        branch.ordinal DESC
    LIMIT 1
)
ORDER BY page.updated_at DESC, page.ordinal DESC

-- name: list_older_blobs
-- What a conversation came in with, apart from the newest.
SELECT digest FROM blob WHERE owner = :owner AND conversation = :conversation ORDER BY ordinal DESC LIMIT :limit OFFSET :newest

-- name: list_owner_turn_codes
-- A page of the signs of an owner's message vectors by one embedder, oldest first.
SELECT turn.id, turn.conversation, turn.branch, turn.seqs, turn.codes
FROM turn
WHERE turn.owner = :owner AND turn.name = :name AND turn.id > :after
ORDER BY turn.id
LIMIT :limit

-- name: list_turn_codes
-- A page of the signs of a conversation's message vectors by one embedder, oldest first.
SELECT turn.id, turn.conversation, turn.branch, turn.seqs, turn.codes
FROM turn
WHERE turn.owner = :owner AND turn.conversation = :conversation AND turn.name = :name AND turn.id > :after
ORDER BY turn.id
LIMIT :limit

-- name: list_turn_gaps
-- Branches of an owner with messages that an embedder has not seen, and the numbers of these.
-- Runs follow one another, so the last one that begins is the last that ends, and the unique key finds it.
SELECT conversation, id, done, next_seq
FROM (
    SELECT
        conversation, id, next_seq,
        coalesce(
            (
                SELECT turn.last FROM turn
                WHERE turn.owner = branch.owner AND turn.branch = branch.id AND turn.name = :name
                ORDER BY turn.first DESC LIMIT 1
            ),
            base_seq
        ) AS done
    FROM branch
    WHERE owner = :owner
) AS known
WHERE next_seq > done
LIMIT :limit

-- name: list_shown_digests
-- A page of messages that a branch shows shortened from their arrival on, with the digest of these bytes.
SELECT seq, seq, shown_digest, NULL, shown
FROM message
WHERE owner = :owner AND branch = :branch AND shown_digest IS NOT NULL AND seq > :after
ORDER BY seq
LIMIT :limit

-- name: list_turn_messages
-- Messages of people and models in a range of a branch that a search may find: their words are in the index.
SELECT seq, role, format, body
FROM message
WHERE owner = :owner AND branch = :branch AND seq >= :first AND seq < :last AND role IN ('user', 'assistant')
    AND EXISTS (
        SELECT 1 FROM words
        WHERE words.owner = message.owner AND words.branch = message.branch AND words.seq = message.seq
    )
ORDER BY seq

-- name: list_turn_vectors
-- Vectors of messages by row and place in it; a row that is not there any more, or is another owner's, gives none.
SELECT turn.id, place.at, substring(turn.vectors FROM 1 + place.at * :size FOR :size)
FROM (
    SELECT CAST(value ->> 0 AS bigint) AS id, CAST(value ->> 1 AS integer) AS at
    FROM json_array_elements(CAST(:places AS json))
) AS place
JOIN turn ON turn.id = place.id AND turn.owner = :owner

-- name: put_turns
-- Keep the vectors of a run of messages that begins where the last run ends; otherwise another program was first.
INSERT INTO turn (owner, conversation, branch, name, first, last, seqs, codes, vectors)
SELECT owner, conversation, id, :name, :first, :last, :seqs, :codes, :vectors
FROM branch
WHERE owner = :owner AND id = :branch
    AND :first = coalesce(
        (
            SELECT turn.last FROM turn
            WHERE turn.owner = branch.owner AND turn.branch = branch.id AND turn.name = :name
            ORDER BY turn.first DESC LIMIT 1
        ),
        base_seq
    )
ON CONFLICT DO NOTHING
RETURNING id

-- name: sum_tokens_since
-- The tokens of the messages of some branches, each from a number on.
SELECT message.branch, CAST(sum(message.tokens) AS bigint)
FROM json_array_elements(CAST(:places AS json)) AS place (value)
JOIN message ON message.owner = :owner AND message.branch = place.value ->> 0 AND message.seq >= CAST(place.value ->> 1 AS bigint)
GROUP BY message.branch

-- name: list_newest_replies
-- The replies to the newest calls of some branches, with so many messages each.
SELECT place.value ->> 1, reply.body
FROM json_array_elements(CAST(:places AS json)) AS place (value)
JOIN reply ON reply.owner = :owner AND reply.call = (
    SELECT found.id
    FROM (
        SELECT call.ordinal, call.id, call.branch, call.kind, call.size
        FROM call
        WHERE call.owner = :owner AND call.conversation = place.value ->> 0
        ORDER BY call.ordinal DESC
        LIMIT 100
    ) AS found
    WHERE found.branch = place.value ->> 1 AND found.kind = 'reply' AND found.size = CAST(place.value ->> 2 AS bigint)
    ORDER BY found.ordinal DESC
    LIMIT 1
)

-- name: sum_spent_each
-- The cost of all calls of a kind, for some conversations.
SELECT call.conversation, sum(call.dollars)
FROM json_array_elements_text(CAST(:names AS json)) AS name (value)
JOIN call ON call.owner = :owner AND call.conversation = name.value AND call.kind = :kind
GROUP BY call.conversation

-- name: get_news
-- A branch with the messages since a writer saw it, as long as its session and epoch are the same.
SELECT
    branch.owner, branch.conversation, branch.id, base, base_seq, base_number, next_seq, epoch, revision, session, branch.format,
    model, notes,
    EXISTS (SELECT 1 FROM pin WHERE pin.owner = branch.owner AND pin.branch = branch.id),
    EXISTS (
        SELECT 1 FROM compaction
        WHERE compaction.owner = branch.owner AND compaction.branch = branch.id
            AND compaction.state IN ('planned', 'running', 'summarised')
    ),
    message.seq, role, message.format, body, digest, shown, tokens, key, at
FROM branch
LEFT JOIN message ON message.owner = branch.owner AND message.branch = branch.id AND message.seq >= :first
    AND branch.session = :session AND branch.epoch = :epoch
WHERE branch.owner = :owner AND branch.id = :branch
ORDER BY message.seq

-- name: get_message
-- One message that a branch holds itself.
SELECT seq, role, format, body, digest, shown, tokens, key, at
FROM message
WHERE owner = :owner AND branch = :branch AND seq = :seq

-- name: has_migrations
-- Whether there is a list of migrations.
SELECT to_regclass('refold.migration') IS NOT NULL

-- name: list_digests
-- Messages that a branch holds itself, with what their bytes were when they came.
SELECT seq, body, digest
FROM message
WHERE owner = :owner AND branch = :branch AND seq >= :first
ORDER BY seq
LIMIT :limit

-- name: list_messages
-- A range of the messages that a branch holds itself.
SELECT seq, role, format, body, digest, shown, tokens, key, at
FROM message
WHERE owner = :owner AND branch = :branch AND seq >= :first AND seq < :last
ORDER BY seq
LIMIT :limit

-- name: list_findable
-- A message of a person or a model that a search may find, where it is one: its words are in the index.
SELECT message.branch, message.seq
FROM message
WHERE owner = :owner AND branch = :branch AND seq = :seq AND role IN ('user', 'assistant')
    AND (NOT :is_filtered OR (at >= :after AND at < :before AND :role IN ('', role)))
    AND EXISTS (
        SELECT 1 FROM words
        WHERE words.owner = message.owner AND words.branch = message.branch AND words.seq = message.seq
    )

-- name: list_newest
-- The newest messages of a time that a search may find: their words are in the index. Without a line every branch will do.
WITH line AS MATERIALIZED (
    SELECT value ->> 0 AS branch, CAST(value ->> 1 AS bigint) AS stop FROM json_array_elements(CAST(:line AS json))
)
SELECT message.at, message.seq, branch.conversation, branch.id
FROM branch
JOIN message ON message.owner = branch.owner AND message.branch = branch.id
WHERE branch.owner = :owner AND :conversation IN ('', branch.conversation)
    AND message.at >= :after AND message.at < :before AND :role IN ('', message.role)
    AND (
        CAST(:line AS text) = '[]'
        OR EXISTS (SELECT 1 FROM line WHERE line.branch = message.branch AND message.seq < line.stop)
    )
    AND EXISTS (
        SELECT 1 FROM words
        WHERE words.owner = message.owner AND words.branch = message.branch AND words.seq = message.seq
    )
    AND (
        CAST(:excluded AS text) = ''
        OR NOT EXISTS (
            SELECT 1 FROM words
            WHERE words.owner = message.owner AND words.branch = message.branch AND words.seq = message.seq
                AND words.words @@ CAST(:excluded AS tsquery)
        )
    )
ORDER BY message.at DESC, message.seq DESC, branch.conversation DESC, branch.id DESC
LIMIT :limit

-- name: lock_lease
-- The program that has or had the lease of a branch, locked: one that gives it back now is not taken for one that crashed.
SELECT holder FROM lease WHERE owner = :owner AND branch = :branch FOR UPDATE

-- name: search_messages
-- The newest messages that match, with the positions of their words; the mark in the query keeps it away from what is another's.
-- The steps are kept apart, for what a planner knows of a table that grows all the time is never quite true.
-- Without a line every branch will do.
WITH line AS MATERIALIZED (
    SELECT value ->> 0 AS branch, CAST(value ->> 1 AS bigint) AS stop FROM json_array_elements(CAST(:line AS json))
), asked AS MATERIALIZED (
    SELECT word FROM json_array_elements_text(CAST(:words AS json)) AS one (word)
), newest AS MATERIALIZED (
    SELECT ordinal
    FROM words
    WHERE words @@ CAST(:match AS tsquery) AND (
        CAST(:line AS text) = '[]'
        OR EXISTS (SELECT 1 FROM line WHERE line.branch = words.branch AND words.seq < line.stop)
    ) AND (
        NOT :is_filtered OR EXISTS (
            SELECT 1 FROM message
            WHERE message.owner = words.owner AND message.branch = words.branch AND message.seq = words.seq
                AND message.at >= :after AND message.at < :before AND :role IN ('', message.role)
        )
    )
    ORDER BY ordinal DESC
    LIMIT :considered
), found AS MATERIALIZED (
    SELECT held.owner, held.branch, held.seq, held.ordinal, held.length, held.positions
    FROM newest
    CROSS JOIN LATERAL (
        SELECT
            owner, branch, seq, ordinal,
            (
                SELECT max(one.positions[cardinality(one.positions)]) FROM unnest(words.words) AS one
            ) AS length,
            (
                SELECT json_object_agg(one.lexeme, one.positions)
                FROM unnest(words.words) AS one
                WHERE one.lexeme IN (SELECT word FROM asked)
            ) AS positions
        FROM words
        WHERE words.ordinal = newest.ordinal
        OFFSET 0
    ) AS held
)
SELECT
    branch.conversation, found.branch, found.seq, found.length, CAST(found.positions AS text),
    CASE WHEN :names_date THEN (
        SELECT at FROM message
        WHERE message.owner = found.owner AND message.branch = found.branch AND message.seq = found.seq
    ) ELSE 0 END
FROM found
JOIN branch ON branch.owner = found.owner AND branch.id = found.branch
WHERE found.owner = :owner AND :conversation IN ('', branch.conversation)
ORDER BY found.ordinal DESC

-- name: settle_connection
-- Make the settings of a new connection on which the promises rest.
SELECT
    set_config('search_path', 'refold, public', false),
    set_config('default_transaction_isolation', 'read committed', false),
    set_config(
        'synchronous_commit',
        CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END,
        false
    ),
    set_config('statement_timeout', :statement_timeout, false),
    set_config('lock_timeout', :lock_timeout, false),
    set_config('idle_in_transaction_session_timeout', :idle_timeout, false)

-- name: swap_branch
-- Move a branch on, provided that it is still where the writer saw it: the compare-and-swap of every commit, and its row lock.
-- The conversation's row comes first, as it does for a purge, so that the two never wait for each other.
-- When it was last used is noted to the second, and never taken back: a clock that is wrong for a while makes nothing old.
WITH held AS (
    SELECT id FROM conversation WHERE owner = :owner AND id = :conversation FOR NO KEY UPDATE
), touched AS (
    UPDATE conversation SET updated_at = :at
    FROM held
    WHERE conversation.owner = :owner AND conversation.id = held.id AND :at >= updated_at + 1
)
UPDATE branch
SET next_seq = :to_seq, epoch = :to_epoch, revision = :to_revision, notes = coalesce(:notes, notes),
    notes_digest = coalesce(:notes_digest, notes_digest), model = coalesce(:model, model)
FROM held
WHERE branch.owner = :owner AND branch.conversation = :conversation AND branch.id = :branch
    AND branch.next_seq = :seen_seq AND branch.epoch = :seen_epoch
    AND branch.revision = :seen_revision AND branch.session = :seen_session
RETURNING
    branch.owner, branch.conversation, branch.id, base, base_seq, base_number, next_seq, epoch, revision, session, format,
    model, notes

-- Queries for SQLite alone, by name; those it shares with PostgreSQL are in ../sql/shared.sql.

-- name: add_branch
-- Begin a branch: a root, or one that shares the first messages of another and the changes made to it so far.
-- Its messages lie where its ordinal says: it is given one under which nothing lies, whatever a damaged file holds.
INSERT INTO branch (
    ordinal, owner, id, conversation, base, base_seq, base_number, epoch, revision, session, format, model, notes,
    notes_digest
) VALUES (
    1 + max(coalesce((SELECT max(ordinal) FROM branch), 0), coalesce((SELECT max(id) >> 32 FROM message), 0)),
    :owner, :id, :conversation, :base, :base_seq,
    (SELECT coalesce(max(number), 0) FROM compaction WHERE owner = :owner AND branch = :base),
    0, 0, :session, :format, :model, :notes, :notes_digest
)
RETURNING base_number

-- name: add_message
-- Append a message, and note that the index has not taken it up.
INSERT INTO message (id, role, format, tokens, is_findable, body, digest, shown, shown_digest, key, at)
VALUES (
    coalesce((SELECT (ordinal << 32) + :seq FROM branch WHERE owner = :owner AND id = :branch), -1),
    :role, :format, :tokens, :is_findable, :body, :digest, :shown, :shown_digest, :key, :at
);
INSERT INTO waiting (branch, seq) SELECT last_insert_rowid() >> 32, :seq WHERE :is_findable ON CONFLICT DO NOTHING

-- name: advance_branch
-- Check that a branch is still where the writer saw it, for a commit that only adds rows.
-- Nobody else writes to the file meanwhile, and where a branch ends follows from its messages: its row is not written.
UPDATE conversation SET updated_at = :at WHERE owner = :owner AND id = :conversation AND :at >= updated_at + 1;
SELECT 1
FROM branch
WHERE owner = :owner AND id = :branch AND conversation = :conversation AND epoch = :seen_epoch
    AND revision = :seen_revision AND session = :seen_session
    AND :seen_seq = (SELECT next_seq FROM head WHERE owner = :owner AND id = :branch)

-- name: append_message
-- Append a message, provided that the branch is still where the writer saw it: a whole commit.
-- Nothing but the message is written, as a rule. Where the branch has moved on, there is no place for it, and it is refused.
INSERT INTO message (id, role, format, tokens, is_findable, body, digest, shown, shown_digest, key, at)
VALUES (
    coalesce(
        (
            SELECT (ordinal << 32) + :seq
            FROM branch
            WHERE owner = :owner AND id = :branch AND conversation = :conversation AND epoch = :seen_epoch
                AND revision = :seen_revision AND session = :seen_session
        ),
        -1
    ),
    :role, :format, :tokens, :is_findable, :body, :digest, :shown, :shown_digest, :key, :at
);
INSERT INTO waiting (branch, seq) SELECT last_insert_rowid() >> 32, :seq WHERE :is_findable ON CONFLICT DO NOTHING

-- name: begin_migrating
-- Make the list of migrations, where there is none; the writer's lock keeps others away.
CREATE TABLE IF NOT EXISTS migration (name TEXT PRIMARY KEY) STRICT

-- name: close_session
-- Close the open session before a message, with its summary where there is one and what its messages took.
UPDATE session
SET last = :last, closed_at = :at, summary = CASE WHEN :summary <> '' THEN :summary ELSE summary END,
    tokens = (
        SELECT coalesce(sum(message.tokens), 0)
        FROM branch
        CROSS JOIN message ON message.id >= (branch.ordinal << 32) + session.first
            AND message.id < (branch.ordinal << 32) + :last
        WHERE branch.owner = :owner AND branch.id = session.branch
    )
WHERE owner = :owner AND id = :id AND first <= :last
RETURNING id

-- name: count_changes
-- How many rows this connection has changed, whoever their owner is.
SELECT total_changes()

-- name: count_idle
-- How many conversations an owner has and when one was last used; how many of them nothing happened in since, and when in these.
SELECT
    (SELECT count(*) FROM conversation WHERE owner = :owner),
    coalesce((SELECT max(updated_at) FROM conversation WHERE owner = :owner), 0.0),
    count(*), coalesce(min(updated_at), 0.0), coalesce(max(updated_at), 0.0)
FROM conversation
WHERE owner = :owner AND updated_at < :before AND id NOT IN (SELECT value FROM json_each(:keep) AS kept)

-- name: count_matches
-- How many messages match, counted no further than so many, and how far in the index that is.
-- Those with several rows of words are counted apart: each of the matches must be in one of the rows. Without a line every branch
-- will do.
WITH line AS MATERIALIZED (
    SELECT branch.ordinal AS branch, link.value ->> 1 AS stop
    FROM json_each(:line) AS link
    CROSS JOIN branch ON branch.owner = :owner AND branch.id = link.value ->> 0
)
SELECT
    count(*), max(id), (SELECT max(id) FROM indexed),
    (
        SELECT count(*)
        FROM (
            SELECT word_part.message
            FROM json_each(:matches) AS word
            CROSS JOIN words ON words.words MATCH word.value AND words.rowid < 0
            CROSS JOIN word_part ON word_part.id = words.rowid
            WHERE EXISTS (SELECT 1 FROM word_part)
            GROUP BY word_part.message
            HAVING count(DISTINCT word.key) = json_array_length(:matches)
        ) AS found
        WHERE EXISTS (SELECT 1 FROM word_part WHERE word_part.message = found.message AND word_part.is_last) AND (
            :excluded = '' OR found.message NOT IN (
                SELECT word_part.message
                FROM words
                CROSS JOIN word_part ON word_part.id = words.rowid
                WHERE words MATCH :excluded AND words.rowid < 0
            )
        ) AND (
            :line = '[]' OR EXISTS (
                SELECT 1 FROM line WHERE line.branch = found.message >> 32 AND found.message & 4294967295 < line.stop
            )
        )
    )
FROM (
    SELECT words.rowid AS id
    FROM words
    WHERE words MATCH :match AND words.rowid > 0 AND (
        :excluded = '' OR words.rowid NOT IN (SELECT rowid FROM words WHERE words MATCH :excluded)
    ) AND (
        :line = '[]' OR EXISTS (
            SELECT 1
            FROM indexed
            CROSS JOIN line ON line.branch = indexed.message >> 32 AND indexed.message & 4294967295 < line.stop
            WHERE indexed.id = words.rowid
        )
    )
    LIMIT :considered
) AS found

-- name: count_searched
-- About how many messages an owner or a conversation has: those of so many branches, and as many in each of the others.
SELECT CAST(
    total(size) / max(count(*), 1)
    * (SELECT count(*) FROM branch WHERE owner = :owner AND :conversation IN ('', conversation)) AS INTEGER
)
FROM (
    SELECT next_seq - base_seq AS size
    FROM head
    WHERE owner = :owner AND :conversation IN ('', conversation)
    LIMIT :limit
) AS found

-- name: delete_blob
-- Forget what a conversation came in with, unless the notes of one of its branches name it.
DELETE FROM blob
WHERE owner = :owner AND conversation = :conversation AND digest = :digest
    AND NOT EXISTS (
        SELECT 1 FROM branch WHERE owner = :owner AND conversation = :conversation AND instr(notes, :digest) > 0
    )

-- name: expire_conversations
-- Delete conversations of an owner in which nothing happened since, the oldest first, apart from those to keep.
DELETE FROM conversation
WHERE ordinal IN (
    SELECT ordinal FROM conversation
    WHERE owner = :owner AND updated_at < :before AND id NOT IN (SELECT value FROM json_each(:keep) AS kept)
    ORDER BY updated_at, ordinal
    LIMIT :limit
)
RETURNING id

-- name: find_chains
-- Places of an owner's branches with one of these hashes: where a branch ends first, then in the newest branch, then the last.
SELECT chain.hash, head.conversation, chain.branch, chain.size, head.next_seq, head.format
FROM json_each(:hashes) AS word
CROSS JOIN chain ON chain.owner = :owner AND chain.hash = unhex(word.value)
CROSS JOIN head ON head.owner = chain.owner AND head.id = chain.branch
ORDER BY head.next_seq = chain.size DESC, head.ordinal DESC, chain.size DESC
LIMIT :limit

-- name: find_conversations
-- Conversations whose id or title holds all of the words, the latest first.
SELECT id
FROM conversation
WHERE owner = :owner
    AND NOT EXISTS (SELECT 1 FROM json_each(:words) AS word WHERE instr(conversation.folded, word.value) = 0)
ORDER BY updated_at DESC, ordinal DESC
LIMIT :limit

-- name: find_key
-- The number of the message that came with a key, among those that a branch holds itself.
SELECT message.seq
FROM branch
CROSS JOIN message ON message.branch = branch.ordinal AND message.key = :key AND message.key <> ''
WHERE branch.owner = :owner AND branch.id = :branch AND message.seq < :last

-- name: forget_deletions
-- Note that the file is clear of what was deleted up to then.
DELETE FROM deletion WHERE number <= :number

-- name: get_latest_head
-- The branch of a conversation that was used last: that has the newest message, or was forked after it.
SELECT owner, conversation, id, base, base_seq, base_number, next_seq, epoch, revision, session, format, model, notes
FROM head
WHERE owner = :owner AND conversation = :conversation
ORDER BY
    coalesce(
        (
            SELECT message.at FROM message
            WHERE message.id >= head.ordinal << 32 AND message.id < (head.ordinal + 1) << 32
            ORDER BY message.id DESC
            LIMIT 1
        ),
        (SELECT session.at FROM session WHERE session.owner = head.owner AND session.id = head.session)
    ) DESC,
    ordinal DESC
LIMIT 1

-- name: list_latest_heads
-- A page of conversations, the latest first, each with the branch that was used last.
WITH found AS MATERIALIZED (
    SELECT ordinal, id, title, at, updated_at
    FROM conversation
    WHERE owner = :owner AND (updated_at, ordinal) < (:at, :ordinal)
        AND NOT EXISTS (SELECT 1 FROM json_each(:words) AS word WHERE instr(conversation.folded, word.value) = 0)
    ORDER BY updated_at DESC, ordinal DESC
    LIMIT :limit
)
SELECT
    found.ordinal, found.title, found.at, found.updated_at,
    (SELECT count(*) FROM branch WHERE owner = :owner AND conversation = found.id),
    (
        SELECT count(*) FROM compaction
        WHERE owner = :owner AND branch IN (SELECT id FROM branch WHERE owner = :owner AND conversation = found.id)
            AND state = 'installed' AND kind <> 'arrival' AND kind = 'summarise'
    ),
    head.owner, head.conversation, head.id, base, base_seq, base_number, next_seq, epoch, revision, session, format, model, notes
FROM found
CROSS JOIN head ON head.owner = :owner AND head.ordinal = (
    SELECT branch.ordinal
    FROM branch
    WHERE branch.owner = :owner AND branch.conversation = found.id
    ORDER BY
        coalesce(
            (
                SELECT message.at FROM message
                WHERE message.id >= branch.ordinal << 32 AND message.id < (branch.ordinal + 1) << 32
                ORDER BY message.id DESC
                LIMIT 1
            ),
            (SELECT session.at FROM session WHERE session.owner = branch.owner AND session.id = branch.session)
        ) DESC,
        branch.ordinal DESC
    LIMIT 1
)
ORDER BY found.updated_at DESC, found.ordinal DESC

-- name: list_older_blobs
-- What a conversation came in with, apart from the newest.
SELECT digest FROM blob WHERE owner = :owner AND conversation = :conversation ORDER BY rowid DESC LIMIT :limit OFFSET :newest

-- name: list_owner_turn_codes
-- A page of the signs of an owner's message vectors by one embedder, oldest first.
SELECT turn.id, turn.conversation, branch.id, turn.seqs, turn.codes
FROM turn
CROSS JOIN branch ON branch.ordinal = turn.branch
WHERE turn.owner = :owner AND turn.name = :name AND turn.id > :after
ORDER BY turn.id
LIMIT :limit

-- name: list_turn_codes
-- A page of the signs of a conversation's message vectors by one embedder, oldest first.
SELECT turn.id, turn.conversation, branch.id, turn.seqs, turn.codes
FROM turn
CROSS JOIN branch ON branch.ordinal = turn.branch
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
                WHERE turn.branch = head.ordinal AND turn.name = :name
                ORDER BY turn.first DESC LIMIT 1
            ),
            base_seq
        ) AS done
    FROM head
    WHERE owner = :owner
) AS known
WHERE next_seq > done
LIMIT :limit

-- name: list_shown_digests
-- A page of messages that a branch shows shortened from their arrival on, with the digest of these bytes.
SELECT message.seq, message.seq, message.shown_digest, NULL, message.shown
FROM branch
CROSS JOIN message ON message.id > (branch.ordinal << 32) + :after AND message.id < (branch.ordinal + 1) << 32
WHERE branch.owner = :owner AND branch.id = :branch AND message.shown_digest IS NOT NULL
ORDER BY message.id
LIMIT :limit

-- name: list_turn_messages
-- Messages of people and models in a range of a branch that a search may find.
SELECT message.seq, message.role, message.format, message.body
FROM branch
CROSS JOIN message ON message.id >= (branch.ordinal << 32) + :first AND message.id < (branch.ordinal << 32) + :last
WHERE branch.owner = :owner AND branch.id = :branch AND message.is_findable AND message.role IN ('user', 'assistant')
ORDER BY message.id

-- name: list_turn_vectors
-- Vectors of messages by row and place in it; a row that is not there any more, or is another owner's, gives none.
SELECT turn.id, kept.value ->> 1, substr(turn.vectors, 1 + (kept.value ->> 1) * :size, :size)
FROM json_each(:places) AS kept
CROSS JOIN turn ON turn.id = kept.value ->> 0 AND turn.owner = :owner

-- name: put_turns
-- Keep the vectors of a run of messages that begins where the last run ends; otherwise another program was first.
INSERT INTO turn (owner, conversation, branch, name, first, last, seqs, codes, vectors)
SELECT owner, conversation, ordinal, :name, :first, :last, :seqs, :codes, :vectors
FROM branch
WHERE owner = :owner AND id = :branch
    AND :first = coalesce(
        (
            SELECT turn.last FROM turn
            WHERE turn.branch = branch.ordinal AND turn.name = :name
            ORDER BY turn.first DESC LIMIT 1
        ),
        base_seq
    )
ON CONFLICT DO NOTHING
RETURNING id

-- name: sum_tokens_since
-- The tokens of the messages of some branches, each from a number on.
SELECT branch.id, sum(message.tokens)
FROM json_each(:places) AS link
CROSS JOIN branch ON branch.owner = :owner AND branch.id = link.value ->> 0
CROSS JOIN message ON message.id >= (branch.ordinal << 32) + (link.value ->> 1) AND message.id < (branch.ordinal + 1) << 32
GROUP BY branch.id

-- name: list_newest_replies
-- The replies to the newest calls of some branches, with so many messages each.
SELECT link.value ->> 1, reply.body
FROM json_each(:places) AS link
CROSS JOIN reply ON reply.owner = :owner AND reply.call = (
    SELECT found.id
    FROM (
        SELECT call.ordinal, call.id, call.branch, call.kind, call.size
        FROM call
        WHERE call.owner = :owner AND call.conversation = link.value ->> 0
        ORDER BY call.ordinal DESC
        LIMIT 100
    ) AS found
    WHERE found.branch = link.value ->> 1 AND found.kind = 'reply' AND found.size = link.value ->> 2
    ORDER BY found.ordinal DESC
    LIMIT 1
)

-- name: sum_spent_each
-- The cost of all calls of a kind, for some conversations.
SELECT call.conversation, sum(call.dollars)
FROM json_each(:names) AS word
CROSS JOIN call ON call.owner = :owner AND call.conversation = word.value AND call.kind = :kind
GROUP BY call.conversation

-- name: get_news
-- A branch with the messages since a writer saw it, as long as its session and epoch are the same.
SELECT
    head.owner, head.conversation, head.id, base, base_seq, base_number, next_seq, epoch, revision, session, head.format,
    model, notes,
    EXISTS (SELECT 1 FROM pin WHERE pin.owner = head.owner AND pin.branch = head.id),
    EXISTS (
        SELECT 1 FROM compaction
        WHERE compaction.owner = head.owner AND compaction.branch = head.id
            AND compaction.state IN ('planned', 'running', 'summarised')
    ),
    message.seq, role, message.format, body, digest, shown, tokens, key, at
FROM head
LEFT JOIN message ON message.id >= (head.ordinal << 32) + :first AND message.id < (head.ordinal + 1) << 32
    AND head.session = :session AND head.epoch = :epoch
WHERE head.owner = :owner AND head.id = :branch
ORDER BY message.id

-- name: get_message
-- One message that a branch holds itself.
SELECT message.seq, role, message.format, body, digest, shown, tokens, key, at
FROM branch
CROSS JOIN message ON message.id = (branch.ordinal << 32) + :seq AND :seq < 1 << 32
WHERE branch.owner = :owner AND branch.id = :branch

-- name: has_migrations
-- Whether there is a list of migrations.
SELECT count(*) > 0 FROM sqlite_schema WHERE name = 'migration'

-- name: get_unindexed_body
-- The bytes of a message, whoever its owner is, for the index.
SELECT body FROM message WHERE id = :id

-- name: get_word_end
-- How many words of a message the index has taken up, and whose it is, whoever that is.
-- No row if it has all of them, or the message is gone.
SELECT
    coalesce((SELECT sum(size) FROM word_part WHERE word_part.message = message.id), 0),
    branch.owner, branch.conversation
FROM message
CROSS JOIN branch ON branch.ordinal = message.id >> 32
WHERE message.id = :id AND digest = :digest
    AND NOT EXISTS (SELECT 1 FROM indexed WHERE indexed.message = message.id)

-- name: has_unindexed
-- Are there more messages than so many, whoever their owner is, that the index has not taken up?
SELECT 1
FROM waiting
CROSS JOIN branch ON branch.ordinal = waiting.branch
CROSS JOIN message ON message.id >= (waiting.branch << 32) + waiting.seq AND message.id < (waiting.branch + 1) << 32
LIMIT 1 OFFSET :more_than

-- name: index_words
-- Take the words of a message, whoever its owner is, into the index.
INSERT INTO indexed (message) VALUES (:id);
INSERT INTO words (rowid, scope, text) VALUES (last_insert_rowid(), :scope, :words)

-- name: index_part
-- Take some of the words of a long message, whoever its owner is, into the index.
INSERT INTO word_part (id, message, first, size, is_last)
VALUES (coalesce((SELECT min(id) FROM word_part), 0) - 1, :id, :first, :size, 0);
INSERT INTO words (rowid, scope, text) VALUES (last_insert_rowid(), :scope, :words)

-- name: last_deletion
-- The last deletion of which something may still be in the file.
SELECT max(number) FROM deletion

-- name: list_digests
-- Messages that a branch holds itself, with what their bytes were when they came.
SELECT message.seq, body, digest
FROM branch
CROSS JOIN message ON message.id >= (branch.ordinal << 32) + :first AND message.id < (branch.ordinal + 1) << 32
WHERE branch.owner = :owner AND branch.id = :branch
ORDER BY message.id
LIMIT :limit

-- name: list_findable
-- A message of a person or a model that a search may find, where it is one: its words are in the index.
SELECT branch.id, message.seq
FROM branch
CROSS JOIN message ON message.id = (branch.ordinal << 32) + :seq AND :seq < 1 << 32
WHERE branch.owner = :owner AND branch.id = :branch AND message.role IN ('user', 'assistant')
    AND EXISTS (SELECT 1 FROM indexed WHERE indexed.message = message.id)
    AND (NOT :is_filtered OR (message.at >= :after AND message.at < :before AND :role IN ('', message.role)))

-- name: list_messages
-- A range of the messages that a branch holds itself.
SELECT message.seq, role, message.format, body, digest, shown, tokens, key, at
FROM branch
CROSS JOIN message ON message.id >= (branch.ordinal << 32) + :first
    AND message.id < (branch.ordinal << 32) + min(:last, 1 << 32)
WHERE branch.owner = :owner AND branch.id = :branch
ORDER BY message.id
LIMIT :limit

-- name: list_newest
-- The newest messages of a time that a search may find. Without a line every branch will do.
WITH line AS MATERIALIZED (
    SELECT branch.ordinal AS branch, link.value ->> 1 AS stop
    FROM json_each(:line) AS link
    CROSS JOIN branch ON branch.owner = :owner AND branch.id = link.value ->> 0
)
SELECT message.at, message.seq, branch.conversation, branch.id
FROM branch
CROSS JOIN message ON message.id >= branch.ordinal << 32 AND message.id < (branch.ordinal + 1) << 32
CROSS JOIN indexed ON indexed.message = message.id
WHERE branch.owner = :owner AND :conversation IN ('', branch.conversation)
    AND message.at >= :after AND message.at < :before AND :role IN ('', message.role)
    AND (
        :line = '[]'
        OR EXISTS (SELECT 1 FROM line WHERE line.branch = message.id >> 32 AND message.id & 4294967295 < line.stop)
    ) AND (
        :excluded = '' OR (
            indexed.id NOT IN (SELECT rowid FROM words WHERE words MATCH :excluded)
            AND indexed.message NOT IN (
                SELECT word_part.message
                FROM words
                CROSS JOIN word_part ON word_part.id = words.rowid
                WHERE words MATCH :excluded AND words.rowid < 0
            )
        )
    )
ORDER BY message.at DESC, message.seq DESC, branch.conversation DESC, branch.id DESC
LIMIT :limit

-- name: list_unindexed
-- Some of the messages, whoever their owner is, that the index has not taken up: no more than so many or so many bytes.
SELECT
    found.owner, found.conversation, message.id, message.format, message.digest,
    is_findable AND NOT EXISTS (SELECT 1 FROM indexed WHERE indexed.message = message.id)
FROM (
    SELECT owner, conversation, id, sum(size) OVER (ORDER BY id) - size AS before
    FROM (
        SELECT branch.owner, branch.conversation, message.id, length(message.body) AS size
        FROM waiting
        CROSS JOIN branch ON branch.ordinal = waiting.branch
        CROSS JOIN message ON message.id >= (waiting.branch << 32) + waiting.seq
            AND message.id < (waiting.branch + 1) << 32
        ORDER BY waiting.branch, message.id
        LIMIT :limit
    )
) AS found
CROSS JOIN message ON message.id = found.id
WHERE found.before < :bytes
ORDER BY found.id

-- name: lock_lease
-- The program that has the lease of a branch, or had it when it crashed, until the end of this transaction.
SELECT holder FROM lease WHERE owner = :owner AND branch = :branch

-- name: merge_words
-- Write some pages of the index of all owners' words anew, without what was deleted.
INSERT INTO words (words, rank) VALUES ('merge', :pages)

-- name: note_deletion
-- Note that something was deleted, and that the file is still to be cleared of it.
INSERT INTO deletion DEFAULT VALUES

-- name: note_indexed
-- Note that the index has taken up a branch, whoever its owner is, up to a message.
UPDATE waiting SET seq = (:id & 4294967295) + 1 WHERE branch = :id >> 32;
DELETE FROM waiting
WHERE branch = :id >> 32
    AND NOT EXISTS (SELECT 1 FROM message WHERE message.id > :id AND message.id < ((:id >> 32) + 1) << 32)

-- name: note_parts
-- Note that the index has taken up all words of a long message, whoever its owner is.
UPDATE word_part SET is_last = 1
WHERE message = :id AND first = (SELECT max(other.first) FROM word_part AS other WHERE other.message = :id);
INSERT INTO indexed (message) VALUES (:id)

-- name: search_messages
-- The newest messages that match, with their words counted; the mark in the query keeps it away from what is another's.
-- A message with several rows of words is told once for each of them: its length, and the counts of the row. Each of the matches
-- must be in one of these rows. In SQLite a CROSS JOIN keeps its order: from the few that match to their places. Without a line
-- every branch will do.
WITH line AS MATERIALIZED (
    SELECT branch.ordinal AS branch, link.value ->> 1 AS stop
    FROM json_each(:line) AS link
    CROSS JOIN branch ON branch.owner = :owner AND branch.id = link.value ->> 0
), long AS MATERIALIZED (
    SELECT
        indexed.id, indexed.message,
        (SELECT sum(word_part.size) FROM word_part WHERE word_part.message = indexed.message) AS length
    FROM (
        SELECT word_part.message
        FROM json_each(:matches) AS word
        CROSS JOIN words ON words.words MATCH word.value AND words.rowid < 0
        CROSS JOIN word_part ON word_part.id = words.rowid
        WHERE EXISTS (SELECT 1 FROM word_part)
        GROUP BY word_part.message
        HAVING count(DISTINCT word.key) = json_array_length(:matches)
    ) AS found
    CROSS JOIN indexed ON indexed.message = found.message
    WHERE EXISTS (SELECT 1 FROM word_part WHERE word_part.message = found.message AND word_part.is_last) AND (
        :excluded = '' OR found.message NOT IN (
            SELECT word_part.message
            FROM words
            CROSS JOIN word_part ON word_part.id = words.rowid
            WHERE words MATCH :excluded AND words.rowid < 0
        )
    ) AND (
        :line = '[]' OR EXISTS (
            SELECT 1 FROM line WHERE line.branch = found.message >> 32 AND found.message & 4294967295 < line.stop
        )
    ) AND (
        NOT :is_filtered OR EXISTS (
            SELECT 1 FROM message
            WHERE message.id = found.message AND message.at >= :after AND message.at < :before
                AND :role IN ('', message.role)
        )
    )
    ORDER BY indexed.id DESC
    LIMIT :considered
)
SELECT
    branch.conversation, branch.id, found.message & 4294967295, found.held,
    CASE WHEN :names_date THEN (SELECT at FROM message WHERE message.id = found.message) ELSE 0 END,
    found.id
FROM (
    SELECT indexed.id, indexed.message, count_words(words, :groups) AS held
    FROM words
    CROSS JOIN indexed ON indexed.id = words.rowid
    WHERE words MATCH :match AND words.rowid > 0 AND (
        :excluded = '' OR words.rowid NOT IN (SELECT rowid FROM words WHERE words MATCH :excluded)
    ) AND (
        :line = '[]' OR EXISTS (
            SELECT 1 FROM line
            WHERE line.branch = indexed.message >> 32 AND indexed.message & 4294967295 < line.stop
        )
    ) AND (
        NOT :is_filtered OR EXISTS (
            SELECT 1 FROM message
            WHERE message.id = indexed.message AND message.at >= :after AND message.at < :before
                AND :role IN ('', message.role)
        )
    )
    ORDER BY words.rowid DESC
    LIMIT :considered
) AS found
CROSS JOIN branch ON branch.ordinal = found.message >> 32
WHERE branch.owner = :owner AND :conversation IN ('', branch.conversation)
UNION ALL
SELECT
    branch.conversation, branch.id, long.message & 4294967295,
    long.length || ' ' || count_part(words, :groups_in_part, word_part.size),
    CASE WHEN :names_date THEN (SELECT at FROM message WHERE message.id = long.message) ELSE 0 END,
    long.id
FROM words
CROSS JOIN word_part ON word_part.id = words.rowid
CROSS JOIN long ON long.message = word_part.message
CROSS JOIN branch ON branch.ordinal = long.message >> 32
WHERE EXISTS (SELECT 1 FROM word_part) AND words MATCH :match_any AND words.rowid < 0
    AND branch.owner = :owner AND :conversation IN ('', branch.conversation)

-- name: swap_branch
-- Move a branch on, provided that it is still where the writer saw it: the compare-and-swap of every commit.
-- When the conversation was last used is noted to the second, so that most messages write a row and an index less, and it is
-- never taken back: a clock that is wrong for a while makes nothing old.
UPDATE conversation SET updated_at = :at WHERE owner = :owner AND id = :conversation AND :at >= updated_at + 1;
UPDATE branch
SET epoch = :to_epoch, revision = :to_revision, notes = coalesce(:notes, notes),
    notes_digest = coalesce(:notes_digest, notes_digest), model = coalesce(:model, model)
WHERE owner = :owner AND id = :branch AND conversation = :conversation AND epoch = :seen_epoch
    AND revision = :seen_revision AND session = :seen_session
    AND :seen_seq = (SELECT next_seq FROM head WHERE owner = :owner AND id = :branch)
RETURNING owner, conversation, id, base, base_seq, base_number, :to_seq, epoch, revision, session, format, model, notes

-- name: touch_conversation
-- Note when a conversation was last used: to the second, and never back.
UPDATE conversation SET updated_at = :at WHERE owner = :owner AND id = :conversation AND :at >= updated_at + 1 RETURNING id

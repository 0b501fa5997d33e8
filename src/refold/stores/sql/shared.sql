-- Queries that SQLite and PostgreSQL share, by name. `refold.stores.sql.queries` loads them.

-- name: add_blob
-- Keep what a conversation comes in with, once. Bytes that have changed under the digest are replaced.
INSERT INTO blob (owner, conversation, digest, body) VALUES (:owner, :conversation, :digest, :body)
ON CONFLICT (owner, conversation, digest) DO UPDATE SET body = excluded.body WHERE blob.body <> excluded.body

-- name: add_call
-- Note a call, once, in the conversation that its branch belongs to. A trigger adds it to the sums of its day.
INSERT INTO call (
    owner, id, conversation, branch, session, kind, size, model,
    input, cache_read, cache_write, output, reasoning, last_prompt, receipt, dollars, at, unsent, saved, is_estimated,
    upstream, recoveries, added_ms, is_counted
)
SELECT
    owner, :id, conversation, id, :session, :kind, :size, :model,
    :input, :cache_read, :cache_write, :output, :reasoning, :last_prompt, :receipt, :dollars, :at, :unsent, :saved,
    :is_estimated, :upstream, :recoveries, :added_ms, :is_counted
FROM branch
WHERE owner = :owner AND id = :branch
ON CONFLICT (owner, id) DO NOTHING

-- name: add_chain
-- Note the hash of a branch up to a message.
INSERT INTO chain (owner, branch, size, hash) VALUES (:owner, :branch, :size, :hash)

-- name: add_compactions
-- Add compactions to the sums of their day.
INSERT INTO compaction_day (owner, day, kind, reason, author, outcome, count, before, after)
VALUES (:owner, :day, :kind, :reason, :author, :outcome, :count, :before, :after)
ON CONFLICT (owner, day, kind, reason, author, outcome) DO UPDATE SET
    count = compaction_day.count + excluded.count,
    before = compaction_day.before + excluded.before,
    after = compaction_day.after + excluded.after

-- name: add_conversation
-- Begin a conversation, unless it is there.
INSERT INTO conversation (owner, id, title, folded, at, updated_at)
VALUES (:owner, :id, :title, :folded, :at, :at)
ON CONFLICT (owner, id) DO NOTHING

-- name: add_key
-- Keep a key of a client, as its digest.
INSERT INTO api_key (owner, id, digest, name, at, revoked_at, admin)
VALUES (:owner, :id, :digest, :name, :at, :revoked_at, :admin)

-- name: add_learnt
-- Keep what was learnt, unless something is known already.
INSERT INTO learnt (owner, topic, key, value, at) VALUES (:owner, :topic, :key, :value, :at)
ON CONFLICT (owner, topic, key) DO NOTHING
RETURNING key

-- name: add_migration
-- Note that a migration was applied.
INSERT INTO migration (name) VALUES (:name)

-- name: add_owner
-- Note an owner, once.
INSERT INTO owner (owner, at) VALUES (:owner, :at) ON CONFLICT (owner) DO NOTHING

-- name: add_pin
-- Pin a message.
INSERT INTO pin (owner, branch, seq) VALUES (:owner, :branch, :seq) ON CONFLICT (owner, branch, seq) DO NOTHING

-- name: add_raw_arrival
-- Note that a message which a fork shares is shown there as it came.
INSERT INTO compaction (
    owner, id, branch, number, kind, state, base, session, cut, size, reason, moment, recipe,
    before, after, edits, holder, until, attempts, error, at, shown, is_counted, digest
) VALUES (
    :owner, :id, :branch, 0, 'arrival', 'undone', :base, :session, :cut, :size, :reason, :moment, :recipe,
    :before, :after, :edits, :holder, :until, :attempts, :error, :at, :shown, :is_counted, :digest
)

-- name: add_reply
-- Keep what was answered to a call.
INSERT INTO reply (owner, call, body, digest) VALUES (:owner, :call, :body, :digest) ON CONFLICT DO NOTHING

-- name: add_session
-- Open a session.
INSERT INTO session (
    owner, id, conversation, branch, first, kind, parent, carries, summary, target, tokens, at
) VALUES (
    :owner, :id, :conversation, :branch, :first, :kind, :parent, :carries, :summary, :target, :tokens, :at
)

-- name: attach_summary
-- Give a closed session the summary that was written for it later, unless it has another than the one that it replaces.
UPDATE session SET summary = :summary
WHERE owner = :owner AND id = :id AND summary = :replaces AND last IS NOT NULL
RETURNING branch

-- name: claim_compaction
-- Begin work on a compaction that nobody is at work on; one whose summary was written keeps that state.
UPDATE compaction
SET state = CASE WHEN state = 'summarised' THEN state ELSE 'running' END,
    holder = :holder, until = :until, attempts = attempts + 1
WHERE owner = :owner AND id = :id AND state IN ('planned', 'running', 'summarised') AND (holder = '' OR until <= :now)
RETURNING id, branch, number, kind, state, base, session, cut, size, reason, moment, recipe,
    before, after, edits, holder, until, attempts, error, at, shown

-- name: copy_pins
-- Give a fork the pins of the messages that it shares.
INSERT INTO pin (owner, branch, seq)
SELECT owner, :branch, seq FROM pin WHERE owner = :owner AND branch = :base AND seq < :base_seq

-- name: count_calls
-- Add some calls of an owner to the sums of their days: those that an earlier version has stored. A trigger does it.
UPDATE call SET is_counted = :is_counted
WHERE owner = :owner AND NOT is_counted AND ordinal IN (
    SELECT ordinal FROM call WHERE owner = :owner AND NOT is_counted ORDER BY ordinal LIMIT :limit
)
RETURNING id

-- name: count_calls_before
-- How many calls of a conversation were stored before one of them.
SELECT count(*) FROM call
WHERE owner = :owner AND conversation = :conversation
    AND ordinal < (SELECT one.ordinal FROM call AS one WHERE one.owner = :owner AND one.id = :id)

-- name: count_compactions
-- Mark some compactions of an owner as counted: those that an earlier version has stored, and that have ended.
UPDATE compaction SET is_counted = :is_counted
WHERE owner = :owner AND NOT is_counted AND ordinal IN (
    SELECT ordinal FROM compaction
    WHERE owner = :owner AND NOT is_counted AND (number > 0 OR state IN ('failed', 'superseded'))
    ORDER BY ordinal
    LIMIT :limit
)
RETURNING id, branch, number, kind, state, base, session, cut, size, reason, moment, recipe,
    before, after, edits, holder, until, attempts, error, at

-- name: count_failures
-- How many compactions of a branch have failed since a model last wrote one, and when the newest of them was planned.
SELECT count(*), coalesce(max(at), 0.0) FROM compaction WHERE owner = :owner AND branch = :branch AND state = 'failed'

-- name: list_failing
-- Branches with compactions that have failed since a model last wrote one, the latest failure first.
SELECT branch.conversation, branch.id, count(*), max(compaction.at)
FROM compaction
JOIN branch ON branch.owner = compaction.owner AND branch.id = compaction.branch
WHERE compaction.owner = :owner AND compaction.state = 'failed'
GROUP BY branch.conversation, branch.id
ORDER BY max(compaction.at) DESC, branch.conversation, branch.id

-- name: count_uncounted
-- How many calls and how many compactions of an owner are not in the sums of their days.
SELECT
    (SELECT count(*) FROM call WHERE owner = :owner AND NOT is_counted),
    (
        SELECT count(*) FROM compaction
        WHERE owner = :owner AND NOT is_counted AND (number > 0 OR state IN ('failed', 'superseded'))
    )

-- name: count_summarised
-- How often a branch was summarised, apart from what was taken back.
SELECT count(*) FROM compaction
WHERE owner = :owner AND branch = :branch AND state = 'installed' AND kind <> 'arrival' AND kind = 'summarise'

-- name: delete_cached
-- Delete the cached summaries of an owner: they do not say which conversation they were made for.
DELETE FROM cache WHERE owner = :owner

-- name: delete_conversation
-- Delete a conversation; all that belongs to it goes with it.
DELETE FROM conversation WHERE owner = :owner AND id = :id RETURNING id

-- name: delete_conversations
-- Delete all conversations of an owner.
DELETE FROM conversation WHERE owner = :owner RETURNING id

-- name: delete_embeddings
-- Forget what a session was about: it is open again.
DELETE FROM embedding WHERE owner = :owner AND session = :session

-- name: delete_orphans
-- Delete what was learnt about conversations that are gone. Its key is a hash of 32 digits, a space and the conversation's id.
DELETE FROM learnt
WHERE owner = :owner AND substr(topic, 1, 7) = 'recall_' AND length(key) > 33 AND NOT EXISTS (
    SELECT 1 FROM conversation WHERE conversation.owner = learnt.owner AND conversation.id = substr(learnt.key, 34)
)

-- name: delete_owner
-- Delete an owner with all that was learnt and cached.
DELETE FROM owner WHERE owner = :owner

-- name: delete_setting
-- Forget what an owner has set.
DELETE FROM setting WHERE owner = :owner AND key = :key

-- name: describe_conversation
-- A conversation with one of its branches and what it adds up to.
SELECT
    conversation.id, branch.id, conversation.title, branch.model, branch.format,
    (SELECT CAST(sum(next_seq - base_seq) AS bigint) FROM head WHERE owner = :owner AND conversation = :id),
    (
        SELECT count(*) FROM compaction
        WHERE owner = :owner AND state = 'installed' AND kind <> 'arrival' AND kind = 'summarise'
            AND branch IN (SELECT id FROM branch WHERE owner = :owner AND conversation = :id)
    ),
    (SELECT count(*) FROM session WHERE owner = :owner AND conversation = :id AND state = 'live'),
    (SELECT count(*) FROM branch WHERE owner = :owner AND conversation = :id),
    spent.input, spent.cache_read, spent.cache_write, spent.output, spent.reasoning, spent.dollars,
    spent.estimated,
    conversation.at, conversation.updated_at
FROM conversation
JOIN branch ON branch.owner = :owner AND branch.id = :branch
CROSS JOIN (
    SELECT
        CAST(coalesce(sum(input), 0) AS bigint) AS input,
        CAST(coalesce(sum(cache_read), 0) AS bigint) AS cache_read,
        CAST(coalesce(sum(cache_write), 0) AS bigint) AS cache_write,
        CAST(coalesce(sum(output), 0) AS bigint) AS output,
        CAST(coalesce(sum(reasoning), 0) AS bigint) AS reasoning,
        coalesce(sum(dollars), 0.0) AS dollars,
        CAST(coalesce(sum(CASE WHEN is_estimated THEN 1 ELSE 0 END), 0) AS bigint) AS estimated
    FROM call WHERE owner = :owner AND conversation = :id
) AS spent
WHERE conversation.owner = :owner AND conversation.id = :id

-- name: find_key_owner
-- Whose key is this? Asked without an owner, since the answer is the owner.
SELECT owner, id, digest, name, at, revoked_at, admin FROM api_key WHERE id = :id

-- name: find_other_holder
-- Whether another branch of the same format holds a history, message for message.
SELECT 1
FROM chain
JOIN branch ON branch.owner = chain.owner AND branch.id = chain.branch
WHERE chain.owner = :owner AND chain.hash = :hash AND chain.size = :size
AND chain.branch <> :branch AND branch.format = :format
LIMIT 1

-- name: find_sessions
-- Sessions whose name begins in one way, each with its conversation.
SELECT conversation, id, branch, first, last, kind, parent, carries, state, summary, target, tokens, at, closed_at
FROM session
WHERE owner = :owner AND id >= :least AND id < :after AND state = 'live'
ORDER BY id
LIMIT :limit

-- name: find_summary
-- The summary that a branch calls by a number: one in effect before one that was taken back, then the newest.
SELECT summary.id, summary.body, summary.at, summary.carry
FROM summary
JOIN compaction ON compaction.owner = summary.owner AND compaction.id = summary.id
WHERE summary.owner = :owner AND summary.branch = :branch AND summary.number = :handle
    AND compaction.number BETWEEN 1 AND :number AND compaction.size <= :size
ORDER BY CASE WHEN compaction.state = 'installed' THEN 0 ELSE 1 END, compaction.number DESC
LIMIT 1

-- name: forget_failures
-- Note that a model has written for a branch again: what failed before it is past.
UPDATE compaction SET state = 'superseded' WHERE owner = :owner AND branch = :branch AND state = 'failed'

-- name: forget_plans
-- Forget what was planned some time ago, and nobody is at work on.
DELETE FROM compaction
WHERE owner = :owner AND state IN ('planned', 'running', 'summarised') AND state = 'planned'
    AND holder = '' AND at < :before
    AND NOT EXISTS (SELECT 1 FROM summary WHERE summary.owner = :owner AND summary.id = compaction.id)
RETURNING id

-- name: get_base
-- What a branch was forked from, where, and which of the base's changes it knows.
SELECT base, base_seq, base_number FROM branch WHERE owner = :owner AND id = :branch

-- name: get_blob
-- What a conversation came in with, by its hash.
SELECT body FROM blob WHERE owner = :owner AND conversation = :conversation AND digest = :digest

-- name: get_cached
-- A summary that was paid for already.
SELECT body FROM cache WHERE owner = :owner AND key = :key AND length(body) > 0

-- name: get_compaction
-- One compaction by name.
SELECT id, branch, number, kind, state, base, session, cut, size, reason, moment, recipe,
    before, after, edits, holder, until, attempts, error, at, shown
FROM compaction
WHERE owner = :owner AND id = :id

-- name: get_embeddings
-- What a session was about, by every embedder.
SELECT embedding.session, session.summary, embedding.name, embedding.vector, embedding.at
FROM embedding
JOIN session ON session.owner = embedding.owner AND session.id = embedding.session
WHERE embedding.owner = :owner AND embedding.session = :session
ORDER BY embedding.name

-- name: get_head
-- One branch by name.
SELECT owner, conversation, id, base, base_seq, base_number, next_seq, epoch, revision, session, format, model, notes
FROM head
WHERE owner = :owner AND id = :branch

-- name: get_holding_session
-- The session that holds a message.
SELECT id, branch, first, last, kind, parent, carries, state, summary, target, tokens, at, closed_at
FROM session
WHERE owner = :owner AND branch = :branch AND state = 'live' AND first <= :seq AND (last IS NULL OR last > :seq)
ORDER BY first DESC
LIMIT 1

-- name: list_live_sessions
-- The live sessions of a branch.
SELECT id, branch, first, last, kind, parent, carries, state, summary, target, tokens, at, closed_at
FROM session
WHERE owner = :owner AND branch = :branch AND state = 'live'
ORDER BY first

-- name: get_next_seq
-- How many messages a branch has, with those that it shares.
SELECT next_seq FROM head WHERE owner = :owner AND id = :branch

-- name: begin_command
-- Note that a queued command is about to run.
UPDATE pending SET is_begun = :is_begun WHERE owner = :owner AND id = :id RETURNING id

-- name: add_command
-- Keep a command that was run, with its reply.
INSERT INTO command (owner, id, branch, session, size, text, reply, at)
VALUES (:owner, :id, :branch, :session, :size, :text, :reply, :at)
ON CONFLICT (owner, id) DO NOTHING

-- name: add_pending
-- Put an entry at the end of the queue of a branch.
INSERT INTO pending (owner, id, branch, kind, body, at) VALUES (:owner, :id, :branch, :kind, :body, :at)
ON CONFLICT (owner, id) DO NOTHING

-- name: get_lease
-- The program that has the lease of a branch, or had it when it crashed.
SELECT holder FROM lease WHERE owner = :owner AND branch = :branch

-- name: list_commands
-- The commands that were run on a branch, oldest first.
SELECT id, branch, session, size, text, reply, at FROM command WHERE owner = :owner AND branch = :branch ORDER BY ordinal

-- name: list_pending
-- The queue of a branch, in the order of arrival.
SELECT id, branch, kind, body, is_begun, at FROM pending WHERE owner = :owner AND branch = :branch ORDER BY ordinal

-- name: release_lease
-- Give the lease of a branch back.
DELETE FROM lease WHERE owner = :owner AND branch = :branch AND holder = :holder

-- name: take_lease
-- Take the lease of a branch that is free, or whose time is over, or whose holder has ended; extend one's own.
INSERT INTO lease (owner, branch, holder, until) VALUES (:owner, :branch, :holder, :until)
ON CONFLICT (owner, branch) DO UPDATE SET holder = excluded.holder, until = excluded.until
WHERE lease.holder IN (excluded.holder, :ended) OR lease.until <= :now
RETURNING holder

-- name: take_pending
-- Take an entry out of the queue.
DELETE FROM pending WHERE owner = :owner AND id = :id RETURNING id

-- name: all_learnt
-- All that was learnt about a topic.
SELECT key, value FROM learnt WHERE owner = :owner AND topic = :topic ORDER BY key

-- name: forget_learnt
-- Delete what was learnt.
DELETE FROM learnt WHERE owner = :owner AND topic = :topic AND key = :key RETURNING key

-- name: forget_oldest_learnt
-- Delete what was learnt about a topic, except the newest rows.
DELETE FROM learnt WHERE owner = :owner AND topic = :topic AND at < (
    SELECT at FROM learnt AS newest WHERE owner = :owner AND topic = :topic ORDER BY at DESC LIMIT 1 OFFSET :others
)
RETURNING key

-- name: get_learnt
-- What was learnt about a model.
SELECT value FROM learnt WHERE owner = :owner AND topic = :topic AND key = :key

-- name: get_reply
-- What was answered to a call.
SELECT body FROM reply WHERE owner = :owner AND call = :call

-- name: get_session
-- One session by name.
SELECT id, branch, first, last, kind, parent, carries, state, summary, target, tokens, at, closed_at
FROM session
WHERE owner = :owner AND id = :id

-- name: get_setting
-- What an owner has set.
SELECT value FROM setting WHERE owner = :owner AND key = :key

-- name: get_summary
-- One summary by name.
SELECT id, body, at, carry FROM summary WHERE owner = :owner AND id = :id

-- name: give_up_compaction
-- End a compaction that comes to nothing, or put it back.
UPDATE compaction SET state = :state, error = :error, holder = '', until = 0
WHERE owner = :owner AND id = :id AND holder = :holder AND state IN ('planned', 'running', 'summarised')
RETURNING is_counted, id, branch, number, kind, state, base, session, cut, size, reason, moment, recipe,
    before, after, edits, holder, until, attempts, error, at

-- name: has_keys
-- Was a key ever made, for any owner?
SELECT EXISTS (SELECT 1 FROM api_key)

-- name: install_compaction
-- Put a compaction into effect, once: one that was planned or given up before takes its row; one that was in effect never changes.
INSERT INTO compaction (
    owner, id, branch, number, kind, state, base, session, cut, size, reason, moment, recipe,
    before, after, edits, holder, until, attempts, error, at, shown, is_counted, digest
) VALUES (
    :owner, :id, :branch,
    (SELECT coalesce(max(number), 0) + 1 FROM compaction WHERE owner = :owner AND branch = :branch),
    :kind, 'installed', :base, :session, :cut, :size, :reason, :moment, :recipe,
    :before, :after, :edits, :holder, :until, :attempts, :error, :at, :shown, :is_counted, :digest
)
ON CONFLICT (owner, id) DO UPDATE SET
    number = excluded.number, kind = excluded.kind, state = excluded.state, base = excluded.base,
    session = excluded.session, cut = excluded.cut, size = excluded.size, reason = excluded.reason,
    moment = excluded.moment, recipe = excluded.recipe, before = excluded.before, after = excluded.after,
    edits = excluded.edits, holder = excluded.holder, until = excluded.until, attempts = excluded.attempts,
    error = excluded.error, at = excluded.at, shown = excluded.shown, is_counted = excluded.is_counted,
    digest = excluded.digest
WHERE compaction.number = 0 AND compaction.branch = excluded.branch
RETURNING number

-- name: keep_claim
-- Keep a claim for longer.
UPDATE compaction SET until = :until
WHERE owner = :owner AND id = :id AND holder = :holder AND state IN ('planned', 'running', 'summarised')
RETURNING id

-- name: keep_summary
-- Keep a summary, unless there is one of this name.
INSERT INTO summary (owner, id, branch, number, body, carry, at, digest)
VALUES (:owner, :id, :branch, :number, :body, :carry, :at, :digest)
ON CONFLICT (owner, id) DO NOTHING

-- name: last_change
-- The newest change in effect that was made in a session or opened it, of some kinds.
SELECT id, branch, number, kind, state, base, session, cut, size, reason, moment, recipe,
    before, after, edits, holder, until, attempts, error, at, shown
FROM compaction
WHERE owner = :owner AND CASE WHEN session = '' THEN base ELSE session END = :session AND state = 'installed'
    AND :kinds LIKE '%' || kind || '%'
ORDER BY number DESC
LIMIT 1

-- name: latest_compaction
-- The newest change in effect, up to a number, that was made when the branch had no more than so many messages.
SELECT id, branch, number, kind, state, base, session, cut, size, reason, moment, recipe,
    before, after, edits, holder, until, attempts, error, at, shown
FROM compaction
WHERE owner = :owner AND branch = :branch AND state = 'installed' AND kind <> 'arrival'
    AND number <= :number AND size <= :size
ORDER BY number DESC
LIMIT 1

-- name: list_blob_digests
-- A page of what a conversation came in with, each under the digest of its bytes.
SELECT digest, '', digest, NULL, body FROM blob
WHERE owner = :owner AND conversation = :conversation AND digest > :after
ORDER BY digest
LIMIT :limit

-- name: list_compaction_digests
-- A page of the changes of a branch, with the digest of their bytes.
SELECT ordinal, id, digest, NULL, edits, shown FROM compaction
WHERE owner = :owner AND branch = :branch AND digest IS NOT NULL AND ordinal > :after
ORDER BY ordinal
LIMIT :limit

-- name: list_notes_digests
-- The notes of a branch, with the digest of their bytes.
SELECT ordinal, id, notes_digest, revision, notes FROM branch
WHERE owner = :owner AND id = :branch AND notes_digest IS NOT NULL AND ordinal > :after
LIMIT :limit

-- name: list_reply_digests
-- A page of the replies to the calls of a branch, with the digest of their bytes.
SELECT call.ordinal, call.id, reply.digest, NULL, reply.body
FROM call
JOIN reply ON reply.owner = call.owner AND reply.call = call.id
WHERE call.owner = :owner AND call.conversation = :conversation AND call.branch = :branch
    AND reply.digest IS NOT NULL AND call.ordinal > :after
ORDER BY call.ordinal
LIMIT :limit

-- name: list_summary_digests
-- A page of the summaries of a branch, with the digest of their bytes.
SELECT id, id, digest, number, body, carry FROM summary
WHERE owner = :owner AND branch = :branch AND digest IS NOT NULL AND id > :after
ORDER BY id
LIMIT :limit

-- name: list_branch_unfinished
-- Compactions of a branch that have not come to an end, oldest first.
SELECT id, branch, number, kind, state, base, session, cut, size, reason, moment, recipe,
    before, after, edits, holder, until, attempts, error, at, shown
FROM compaction
WHERE owner = :owner AND branch = :branch AND state IN ('planned', 'running', 'summarised')
ORDER BY ordinal

-- name: list_calls
-- The newest calls of a conversation, newest first.
SELECT
    id, branch, session, kind, size, model,
    input, cache_read, cache_write, output, reasoning, last_prompt, receipt, dollars, at, unsent, saved, is_estimated,
    upstream, recoveries, added_ms
FROM call
WHERE owner = :owner AND conversation = :conversation
ORDER BY ordinal DESC
LIMIT :limit

-- name: list_compactions
-- The newest changes of a branch, newest first, without how the branch was shown.
SELECT id, branch, number, kind, state, base, session, cut, size, reason, moment, recipe,
    before, after, edits, holder, until, attempts, error, at
FROM compaction
WHERE owner = :owner AND branch = :branch
ORDER BY ordinal DESC
LIMIT :limit

-- name: list_compaction_days
-- The compactions of an owner from a day on, added up by day.
SELECT day, kind, reason, author, outcome, count, before, after
FROM compaction_day
WHERE owner = :owner AND day >= :first
ORDER BY day, kind, reason, author, outcome

-- name: list_embeddings
-- A page of what the sessions of a conversation were about, by one embedder, oldest first.
SELECT session.ordinal, session.conversation, session.id, embedding.vector
FROM session
CROSS JOIN embedding
WHERE session.owner = :owner AND session.conversation = :conversation AND session.ordinal > :after
    AND embedding.owner = session.owner AND embedding.session = session.id AND embedding.name = :name
ORDER BY session.ordinal
LIMIT :limit

-- name: list_heads
-- The branches of a conversation, in the order in which they were begun.
SELECT owner, conversation, id, base, base_seq, base_number, next_seq, epoch, revision, session, format, model, notes
FROM head
WHERE owner = :owner AND conversation = :conversation
ORDER BY ordinal

-- name: list_keys
-- The keys of an owner, revoked ones too, oldest first.
SELECT owner, id, digest, name, at, revoked_at, admin FROM api_key WHERE owner = :owner ORDER BY ordinal

-- name: list_migrations
-- The migrations that were applied, in their order.
SELECT name FROM migration ORDER BY name

-- name: list_owner_embeddings
-- A page of what an owner's sessions were about, by one embedder, oldest first.
SELECT session.ordinal, session.conversation, session.id, embedding.vector
FROM session
CROSS JOIN embedding
WHERE session.owner = :owner AND session.ordinal > :after
    AND embedding.owner = session.owner AND embedding.session = session.id AND embedding.name = :name
ORDER BY session.ordinal
LIMIT :limit

-- name: list_owner_sessions
-- The newest sessions of an owner, newest first.
SELECT id, branch, first, last, kind, parent, carries, state, summary, target, tokens, at, closed_at
FROM session
WHERE owner = :owner
ORDER BY ordinal DESC
LIMIT :limit

-- name: list_owners
-- Everybody who has something here.
SELECT owner FROM owner ORDER BY owner

-- name: list_pins
-- The pinned messages of a branch.
SELECT seq FROM pin WHERE owner = :owner AND branch = :branch ORDER BY seq

-- name: list_raw_arrivals
-- Messages whose shortening on arrival was taken back.
SELECT cut
FROM compaction
WHERE owner = :owner AND branch = :branch AND kind = 'arrival' AND state = 'undone' AND cut >= :first
ORDER BY cut

-- name: list_sessions
-- The newest sessions of a conversation, newest first.
SELECT id, branch, first, last, kind, parent, carries, state, summary, target, tokens, at, closed_at
FROM session
WHERE owner = :owner AND conversation = :conversation
ORDER BY ordinal DESC
LIMIT :limit

-- name: list_unembedded
-- Closed sessions with a summary that an embedder has not seen, newest first.
SELECT id, branch, first, last, kind, parent, carries, state, summary, target, tokens, at, closed_at
FROM session
WHERE owner = :owner AND state = 'live' AND last IS NOT NULL AND summary <> ''
    AND NOT EXISTS (
        SELECT 1 FROM embedding
        WHERE embedding.owner = session.owner AND embedding.session = session.id AND embedding.name = :name
    )
ORDER BY ordinal DESC
LIMIT :limit

-- name: list_unfinished
-- Compactions that have not come to an end, oldest first.
SELECT id, branch, number, kind, state, base, session, cut, size, reason, moment, recipe,
    before, after, edits, holder, until, attempts, error, at, shown
FROM compaction
WHERE owner = :owner AND state IN ('planned', 'running', 'summarised')
ORDER BY ordinal

-- name: mark_summarised
-- Note that the reply of a model is kept, where none was.
UPDATE compaction SET state = 'summarised'
WHERE owner = :owner AND id = :id AND state IN ('planned', 'running')
RETURNING branch

-- name: move_branch
-- Point a branch at the session that is open now.
UPDATE branch SET session = :session WHERE owner = :owner AND id = :branch

-- name: name_conversation
-- Give a conversation a title, where it has none.
UPDATE conversation SET title = :title, folded = :folded WHERE owner = :owner AND id = :id AND title = ''

-- name: plan_compaction
-- Write a compaction down before work on it begins, unless it is there.
INSERT INTO compaction (
    owner, id, branch, number, kind, state, base, session, cut, size, reason, moment, recipe,
    before, after, edits, holder, until, attempts, error, at, shown, is_counted
) VALUES (
    :owner, :id, :branch, 0, :kind, 'planned', :base, :session, :cut, :size, :reason, :moment, :recipe,
    :before, :after, :edits, :holder, :until, :attempts, :error, :at, :shown, :is_counted
)
ON CONFLICT (owner, id) DO NOTHING

-- name: put_cached
-- Keep a summary under the hash of all it was made with, where room was made for it.
UPDATE cache SET body = :body, at = :at WHERE owner = :owner AND key = :key

-- name: put_embedding
-- Keep what a closed session was about, if its summary is still the one that was embedded.
INSERT INTO embedding (owner, session, name, vector, at)
SELECT owner, id, :name, :vector, :at
FROM session
WHERE owner = :owner AND id = :session AND summary = :summary AND last IS NOT NULL
ON CONFLICT (owner, session, name) DO UPDATE SET vector = excluded.vector, at = excluded.at
RETURNING session

-- name: put_learnt
-- Keep what was learnt about a model, in place of what was known before.
INSERT INTO learnt (owner, topic, key, value, at) VALUES (:owner, :topic, :key, :value, :at)
ON CONFLICT (owner, topic, key) DO UPDATE SET value = excluded.value, at = excluded.at

-- name: put_setting
-- Set something for an owner, in place of what was set before.
INSERT INTO setting (owner, key, value, at) VALUES (:owner, :key, :value, :at)
ON CONFLICT (owner, key) DO UPDATE SET value = excluded.value, at = excluded.at

-- name: point_summary
-- Give a closed session another summary.
UPDATE session SET summary = :summary WHERE owner = :owner AND id = :id AND last IS NOT NULL

-- name: put_summary
-- Keep a summary: as the model wrote it, and once more with its number when it takes effect; from then on it never changes.
INSERT INTO summary (owner, id, branch, number, body, carry, at, digest)
VALUES (:owner, :id, :branch, :number, :body, :carry, :at, :digest)
ON CONFLICT (owner, id) DO UPDATE SET
    number = excluded.number, body = excluded.body, carry = excluded.carry, at = excluded.at, digest = excluded.digest
WHERE NOT EXISTS (
    SELECT 1 FROM compaction
    WHERE compaction.owner = excluded.owner AND compaction.id = excluded.id AND compaction.number > 0
)

-- name: remove_pin
-- Take a pin away.
DELETE FROM pin WHERE owner = :owner AND branch = :branch AND seq = :seq

-- name: reopen_session
-- Open a range again whose continuation was undone.
UPDATE session SET last = NULL, closed_at = NULL, summary = '', tokens = 0
WHERE owner = :owner AND id = :id AND branch = :branch
RETURNING id

-- name: reserve_cached
-- Make room for a summary that is being written; it is gone when something of the owner's is deleted meanwhile.
INSERT INTO cache (owner, key, body, at) VALUES (:owner, :key, :body, :at) ON CONFLICT (owner, key) DO NOTHING

-- name: revoke_key
-- Revoke a key of an owner, once.
UPDATE api_key SET revoked_at = :at WHERE owner = :owner AND id = :id AND revoked_at IS NULL RETURNING id

-- name: set_base_number
-- Say of a branch which changes its base had when it was forked, where that was before now.
UPDATE branch SET base_number = :base_number WHERE owner = :owner AND id = :id

-- name: sum_spent
-- What all calls of a kind in a conversation took, in dollars.
SELECT coalesce(sum(dollars), 0.0) FROM call WHERE owner = :owner AND conversation = :conversation AND kind = :kind

-- name: sum_conversation_calls
-- The calls of an owner since a time, added up by conversation.
SELECT conversation, kind, model, upstream, is_estimated,
    count(*), sum(input), sum(cache_read), sum(cache_write), sum(output), sum(reasoning),
    sum(dollars), sum(unsent), sum(saved), sum(recoveries), coalesce(sum(added_ms), 0.0), count(added_ms)
FROM call
WHERE owner = :owner AND at >= :since
GROUP BY conversation, kind, model, upstream, is_estimated
ORDER BY conversation, kind, model, upstream, is_estimated

-- name: sum_days
-- The calls of an owner from a day on, added up by day, with those that are not counted yet.
SELECT day, kind, model, upstream, is_estimated,
    sum(calls), sum(input), sum(cache_read), sum(cache_write), sum(output), sum(reasoning),
    sum(dollars), sum(unsent), sum(saved), sum(recoveries), sum(added_ms), sum(timed)
FROM (
    SELECT day, kind, model, upstream, is_estimated,
        calls, input, cache_read, cache_write, output, reasoning, dollars, unsent, saved, recoveries, added_ms, timed
    FROM call_day
    WHERE owner = :owner AND day >= :first
    UNION ALL
    SELECT day, kind, model, upstream, is_estimated,
        calls, input, cache_read, cache_write, output, reasoning, dollars, unsent, saved, recoveries, added_ms, timed
    FROM uncounted_call
    WHERE owner = :owner AND day >= :first
) AS found
GROUP BY day, kind, model, upstream, is_estimated
ORDER BY day, kind, model, upstream, is_estimated

-- name: swap_learnt
-- Keep what was learnt in place of what was seen, unless that is another by now.
UPDATE learnt SET value = :value, at = :at
WHERE owner = :owner AND topic = :topic AND key = :key AND value = :seen
RETURNING key

-- name: undo_changes
-- Take back the changes that were made in a session that is undone.
UPDATE compaction SET state = 'undone'
WHERE owner = :owner AND branch = :branch AND base = :session AND state = 'installed' AND kind <> 'arrival'
RETURNING is_counted, id, branch, number, kind, state, base, session, cut, size, reason, moment, recipe,
    before, after, edits, holder, until, attempts, error, at

-- name: undo_compaction
-- Take a compaction back that is in effect.
UPDATE compaction SET state = 'undone'
WHERE owner = :owner AND id = :id AND branch = :branch AND state = 'installed'
RETURNING is_counted, id, branch, number, kind, state, base, session, cut, size, reason, moment, recipe,
    before, after, edits, holder, until, attempts, error, at

-- name: undo_session
-- Take a session out of the line.
UPDATE session SET state = 'undone', last = :last WHERE owner = :owner AND id = :id
RETURNING parent

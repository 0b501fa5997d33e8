-- Calls and compactions added up by day, in UTC. The sums stay when a conversation is deleted, and go with their owner.
--
-- `is_counted` says that a row is in the sums. Rows of earlier versions are not; `refold db backfill` counts them.

ALTER TABLE call ADD COLUMN upstream TEXT NOT NULL DEFAULT '';
ALTER TABLE call ADD COLUMN recoveries INTEGER NOT NULL DEFAULT 0;
ALTER TABLE call ADD COLUMN added_ms REAL; -- NULL: not measured
ALTER TABLE call ADD COLUMN is_counted INTEGER NOT NULL DEFAULT 0;
ALTER TABLE compaction ADD COLUMN is_counted INTEGER NOT NULL DEFAULT 0;
CREATE INDEX call_uncounted ON call (owner, ordinal) WHERE NOT is_counted;
CREATE INDEX compaction_uncounted ON compaction (owner, ordinal) WHERE NOT is_counted;

CREATE TABLE call_day (
    owner TEXT NOT NULL REFERENCES owner ON DELETE CASCADE,
    day INTEGER NOT NULL, -- days since the epoch
    kind TEXT NOT NULL,
    model TEXT NOT NULL,
    upstream TEXT NOT NULL,
    is_estimated INTEGER NOT NULL, -- part of the key: measured and estimated figures are never mixed
    calls INTEGER NOT NULL,
    input INTEGER NOT NULL,
    cache_read INTEGER NOT NULL,
    cache_write INTEGER NOT NULL,
    output INTEGER NOT NULL,
    reasoning INTEGER NOT NULL,
    dollars REAL NOT NULL,
    unsent INTEGER NOT NULL,
    saved REAL NOT NULL,
    recoveries INTEGER NOT NULL,
    added_ms REAL NOT NULL,
    timed INTEGER NOT NULL, -- calls whose added time was measured
    PRIMARY KEY (owner, day, kind, model, upstream, is_estimated)
) STRICT, WITHOUT ROWID;

CREATE TABLE compaction_day (
    owner TEXT NOT NULL REFERENCES owner ON DELETE CASCADE,
    day INTEGER NOT NULL,
    kind TEXT NOT NULL,
    reason TEXT NOT NULL,
    author TEXT NOT NULL,
    outcome TEXT NOT NULL,
    count INTEGER NOT NULL,
    before INTEGER NOT NULL,
    after INTEGER NOT NULL,
    PRIMARY KEY (owner, day, kind, reason, author, outcome)
) STRICT, WITHOUT ROWID;

-- Triggers, so that a call is counted in the statement that stores it, and only if that stores it.
CREATE TRIGGER call_counts AFTER INSERT ON call WHEN NEW.is_counted
BEGIN
    INSERT INTO call_day (
        owner, day, kind, model, upstream, is_estimated,
        calls, input, cache_read, cache_write, output, reasoning, dollars, unsent, saved, recoveries, added_ms, timed
    ) VALUES (
        NEW.owner, CAST(NEW.at / 86400 AS INTEGER), NEW.kind, NEW.model, NEW.upstream, NEW.is_estimated,
        1, NEW.input, NEW.cache_read, NEW.cache_write, NEW.output, NEW.reasoning, NEW.dollars, NEW.unsent, NEW.saved,
        NEW.recoveries, coalesce(NEW.added_ms, 0.0), NEW.added_ms IS NOT NULL
    )
    ON CONFLICT (owner, day, kind, model, upstream, is_estimated) DO UPDATE SET
        calls = call_day.calls + excluded.calls,
        input = call_day.input + excluded.input,
        cache_read = call_day.cache_read + excluded.cache_read,
        cache_write = call_day.cache_write + excluded.cache_write,
        output = call_day.output + excluded.output,
        reasoning = call_day.reasoning + excluded.reasoning,
        dollars = call_day.dollars + excluded.dollars,
        unsent = call_day.unsent + excluded.unsent,
        saved = call_day.saved + excluded.saved,
        recoveries = call_day.recoveries + excluded.recoveries,
        added_ms = call_day.added_ms + excluded.added_ms,
        timed = call_day.timed + excluded.timed;
END;
CREATE TRIGGER call_counts_later AFTER UPDATE OF is_counted ON call WHEN NEW.is_counted AND NOT OLD.is_counted
BEGIN
    INSERT INTO call_day (
        owner, day, kind, model, upstream, is_estimated,
        calls, input, cache_read, cache_write, output, reasoning, dollars, unsent, saved, recoveries, added_ms, timed
    ) VALUES (
        NEW.owner, CAST(NEW.at / 86400 AS INTEGER), NEW.kind, NEW.model, NEW.upstream, NEW.is_estimated,
        1, NEW.input, NEW.cache_read, NEW.cache_write, NEW.output, NEW.reasoning, NEW.dollars, NEW.unsent, NEW.saved,
        NEW.recoveries, coalesce(NEW.added_ms, 0.0), NEW.added_ms IS NOT NULL
    )
    ON CONFLICT (owner, day, kind, model, upstream, is_estimated) DO UPDATE SET
        calls = call_day.calls + excluded.calls,
        input = call_day.input + excluded.input,
        cache_read = call_day.cache_read + excluded.cache_read,
        cache_write = call_day.cache_write + excluded.cache_write,
        output = call_day.output + excluded.output,
        reasoning = call_day.reasoning + excluded.reasoning,
        dollars = call_day.dollars + excluded.dollars,
        unsent = call_day.unsent + excluded.unsent,
        saved = call_day.saved + excluded.saved,
        recoveries = call_day.recoveries + excluded.recoveries,
        added_ms = call_day.added_ms + excluded.added_ms,
        timed = call_day.timed + excluded.timed;
END;

CREATE VIEW uncounted_call AS
SELECT
    owner, CAST(at / 86400 AS INTEGER) AS day, kind, model, upstream, is_estimated,
    1 AS calls, input, cache_read, cache_write, output, reasoning, dollars, unsent, saved,
    recoveries, coalesce(added_ms, 0.0) AS added_ms, added_ms IS NOT NULL AS timed
FROM call
WHERE NOT is_counted;

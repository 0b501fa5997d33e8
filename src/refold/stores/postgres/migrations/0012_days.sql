-- Calls and compactions added up by day, in UTC. The sums stay when a conversation is deleted, and go with their owner.
--
-- `is_counted` says that a row is in the sums. Rows of earlier versions are not; `refold db backfill` counts them.

ALTER TABLE call ADD COLUMN upstream text NOT NULL DEFAULT '';
ALTER TABLE call ADD COLUMN recoveries bigint NOT NULL DEFAULT 0;
ALTER TABLE call ADD COLUMN added_ms double precision; -- NULL: not measured
ALTER TABLE call ADD COLUMN is_counted boolean NOT NULL DEFAULT false;
ALTER TABLE compaction ADD COLUMN is_counted boolean NOT NULL DEFAULT false;
CREATE INDEX call_uncounted ON call (owner, ordinal) WHERE NOT is_counted;
CREATE INDEX compaction_uncounted ON compaction (owner, ordinal) WHERE NOT is_counted;

CREATE TABLE call_day (
    owner text COLLATE "C" NOT NULL REFERENCES owner ON DELETE CASCADE,
    day bigint NOT NULL, -- days since the epoch
    kind text COLLATE "C" NOT NULL,
    model text COLLATE "C" NOT NULL,
    upstream text COLLATE "C" NOT NULL,
    is_estimated boolean NOT NULL, -- part of the key: measured and estimated figures are never mixed
    shard integer NOT NULL, -- by connection, so that writers at the same time rarely wait for the same row
    calls bigint NOT NULL,
    input bigint NOT NULL,
    cache_read bigint NOT NULL,
    cache_write bigint NOT NULL,
    output bigint NOT NULL,
    reasoning bigint NOT NULL,
    dollars double precision NOT NULL,
    unsent bigint NOT NULL,
    saved double precision NOT NULL,
    recoveries bigint NOT NULL,
    added_ms double precision NOT NULL,
    timed bigint NOT NULL, -- calls whose added time was measured
    PRIMARY KEY (owner, day, kind, model, upstream, is_estimated, shard)
);

CREATE TABLE compaction_day (
    owner text COLLATE "C" NOT NULL REFERENCES owner ON DELETE CASCADE,
    day bigint NOT NULL,
    kind text COLLATE "C" NOT NULL,
    reason text COLLATE "C" NOT NULL,
    author text COLLATE "C" NOT NULL,
    outcome text COLLATE "C" NOT NULL,
    count bigint NOT NULL,
    before bigint NOT NULL,
    after bigint NOT NULL,
    PRIMARY KEY (owner, day, kind, reason, author, outcome)
);

-- A trigger, so that a call is counted in the statement that stores it, and only if that stores it.
CREATE FUNCTION count_call () RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO call_day (
        owner, day, kind, model, upstream, is_estimated, shard,
        calls, input, cache_read, cache_write, output, reasoning, dollars, unsent, saved, recoveries, added_ms, timed
    ) VALUES (
        NEW.owner, floor(NEW.at / 86400), NEW.kind, NEW.model, NEW.upstream, NEW.is_estimated, pg_backend_pid() % 16,
        1, NEW.input, NEW.cache_read, NEW.cache_write, NEW.output, NEW.reasoning, NEW.dollars, NEW.unsent, NEW.saved,
        NEW.recoveries, coalesce(NEW.added_ms, 0), CASE WHEN NEW.added_ms IS NULL THEN 0 ELSE 1 END
    )
    ON CONFLICT (owner, day, kind, model, upstream, is_estimated, shard) DO UPDATE SET
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
    RETURN NULL;
END
$$;
CREATE TRIGGER call_counts AFTER INSERT ON call
FOR EACH ROW WHEN (NEW.is_counted) EXECUTE FUNCTION count_call ();
CREATE TRIGGER call_counts_later AFTER UPDATE OF is_counted ON call
FOR EACH ROW WHEN (NEW.is_counted AND NOT OLD.is_counted) EXECUTE FUNCTION count_call ();

CREATE VIEW uncounted_call AS
SELECT
    owner, CAST(floor(at / 86400) AS bigint) AS day, kind, model, upstream, is_estimated,
    1 AS calls, input, cache_read, cache_write, output, reasoning, dollars, unsent, saved,
    recoveries, coalesce(added_ms, 0) AS added_ms, CASE WHEN added_ms IS NULL THEN 0 ELSE 1 END AS timed
FROM call
WHERE NOT is_counted;

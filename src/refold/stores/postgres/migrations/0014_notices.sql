-- Tell every process that listens on the channel `refold` of settings that were changed, and of summaries that have ended.

CREATE FUNCTION tell_setting () RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        PERFORM pg_notify('refold', CAST(json_build_object('kind', 'setting', 'owner', OLD.owner, 'id', OLD.key) AS text));
    ELSE
        PERFORM pg_notify('refold', CAST(json_build_object('kind', 'setting', 'owner', NEW.owner, 'id', NEW.key) AS text));
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER setting_told AFTER INSERT OR UPDATE OR DELETE ON setting
FOR EACH ROW EXECUTE FUNCTION tell_setting();

CREATE FUNCTION tell_compaction () RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM pg_notify('refold', CAST(json_build_object('kind', 'compaction', 'owner', NEW.owner, 'id', NEW.id) AS text));
    RETURN NULL;
END
$$;

CREATE TRIGGER compaction_told AFTER UPDATE OF state ON compaction
FOR EACH ROW WHEN (OLD.state IN ('planned', 'running') AND NEW.state IN ('summarised', 'failed', 'superseded'))
EXECUTE FUNCTION tell_compaction();

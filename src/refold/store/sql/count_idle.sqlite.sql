-- How many conversations an owner has and when one was last used; how many of them nothing happened in since, and when in these.
SELECT
    (SELECT count(*) FROM conversation WHERE owner = :owner),
    coalesce((SELECT max(updated_at) FROM conversation WHERE owner = :owner), 0.0),
    count(*), coalesce(min(updated_at), 0.0), coalesce(max(updated_at), 0.0)
FROM conversation
WHERE owner = :owner AND updated_at < :before AND id NOT IN (SELECT value FROM json_each(:keep) AS kept)

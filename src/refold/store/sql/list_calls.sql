-- The newest calls of a conversation, newest first.
SELECT
    id, branch, session, kind, size, model,
    input, cache_read, cache_write, output, reasoning, last_prompt, receipt, dollars, at
FROM call
WHERE owner = :owner AND conversation = :conversation
ORDER BY ordinal DESC
LIMIT :limit

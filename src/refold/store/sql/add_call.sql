-- Note a call, once, in the conversation that its branch belongs to.
INSERT INTO call (
    owner, id, conversation, branch, session, kind, size, model,
    input, cache_read, cache_write, output, reasoning, last_prompt, receipt, dollars, at
)
SELECT
    owner, :id, conversation, id, :session, :kind, :size, :model,
    :input, :cache_read, :cache_write, :output, :reasoning, :last_prompt, :receipt, :dollars, :at
FROM branch
WHERE owner = :owner AND id = :branch
ON CONFLICT (owner, id) DO NOTHING

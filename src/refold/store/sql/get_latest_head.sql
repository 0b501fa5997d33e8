-- The branch of a conversation that was begun or forked last.
SELECT owner, conversation, id, base, base_seq, next_seq, epoch, session, format, model, notes
FROM branch
WHERE owner = :owner AND conversation = :conversation
ORDER BY ordinal DESC
LIMIT 1

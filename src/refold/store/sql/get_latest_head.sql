-- The branch of a conversation that was begun or forked last.
SELECT owner, conversation, id, base, base_seq, base_number, next_seq, epoch, revision, session, format, model, notes
FROM head
WHERE owner = :owner AND conversation = :conversation
ORDER BY ordinal DESC
LIMIT 1

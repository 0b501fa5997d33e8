-- The branches of a conversation, in the order in which they were begun.
SELECT owner, conversation, id, base, base_seq, base_number, next_seq, epoch, revision, session, format, model, notes
FROM head
WHERE owner = :owner AND conversation = :conversation
ORDER BY ordinal

-- One branch by name.
SELECT owner, conversation, id, base, base_seq, base_number, next_seq, epoch, revision, session, format, model, notes
FROM head
WHERE owner = :owner AND id = :branch

-- One branch by name.
SELECT owner, conversation, id, base, base_seq, next_seq, epoch, session, format, model, notes
FROM branch
WHERE owner = :owner AND id = :branch

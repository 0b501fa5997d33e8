-- A branch and how long it is, under the name that both databases have for it.
CREATE VIEW head AS
SELECT
    ordinal, owner, id, conversation, base, base_seq, base_number, next_seq, epoch, revision, session, format, model, notes
FROM branch;

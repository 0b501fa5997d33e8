-- A long message has several rows of words, each taken up in a transaction of its own. Their ids are below zero, those of whole
-- messages above. The message is in `indexed` as soon as its last row is there.
CREATE TABLE word_part (
    id INTEGER PRIMARY KEY,
    message INTEGER NOT NULL,
    first INTEGER NOT NULL, -- how many words of the message are before this part
    size INTEGER NOT NULL, -- its own words; after them it repeats the first words of the next part, so that no phrase is cut
    is_last INTEGER NOT NULL,
    UNIQUE (message, first)
) STRICT;
DROP TRIGGER message_words_go;
CREATE TRIGGER message_words_go AFTER DELETE ON message
BEGIN
    DELETE FROM words WHERE rowid = (SELECT id FROM indexed WHERE message = OLD.id);
    DELETE FROM indexed WHERE message = OLD.id;
    DELETE FROM words WHERE rowid IN (SELECT id FROM word_part WHERE message = OLD.id);
    DELETE FROM word_part WHERE message = OLD.id;
END;

-- Note that something was deleted, and that the file is still to be cleared of it.
INSERT INTO deletion DEFAULT VALUES

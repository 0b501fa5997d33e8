-- Write some pages of the index of all owners' words anew, without what was deleted.
INSERT INTO words (words, rank) VALUES ('merge', :pages)

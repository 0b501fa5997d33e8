-- What a branch was forked from, where, and which of the base's changes it knows.
SELECT base, base_seq, base_number FROM branch WHERE owner = :owner AND id = :branch

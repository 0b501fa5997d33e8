-- Give a fork the pins of the messages that it shares.
INSERT INTO pin (owner, branch, seq)
SELECT owner, :branch, seq FROM pin WHERE owner = :owner AND branch = :base AND seq < :base_seq

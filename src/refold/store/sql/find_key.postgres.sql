-- The number of the message that came with a key, among those that a branch holds itself.
SELECT seq FROM message WHERE owner = :owner AND branch = :branch AND key = :key AND key <> '' AND seq < :last

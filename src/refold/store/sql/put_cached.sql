-- Keep a summary under the hash of all it was made with, where room was made for it.
UPDATE cache SET body = :body, at = :at WHERE owner = :owner AND key = :key

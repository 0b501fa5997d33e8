-- Keep what was learnt in place of what was seen, unless that is another by now.
UPDATE learnt SET value = :value, at = :at
WHERE owner = :owner AND topic = :topic AND key = :key AND value = :seen
RETURNING key

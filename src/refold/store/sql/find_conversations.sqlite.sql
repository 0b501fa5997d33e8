-- Conversations whose id or title holds all of the words, the latest first.
SELECT id
FROM conversation
WHERE owner = :owner
    AND NOT EXISTS (SELECT 1 FROM json_each(:words) AS word WHERE instr(conversation.folded, word.value) = 0)
ORDER BY updated_at DESC, ordinal DESC
LIMIT :limit

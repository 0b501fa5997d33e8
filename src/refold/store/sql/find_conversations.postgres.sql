-- Conversations whose id or title holds all of the words, the latest first.
SELECT id
FROM conversation
WHERE owner = :owner
    AND NOT EXISTS (
        SELECT 1 FROM json_array_elements_text(CAST(:words AS json)) AS word (value)
        WHERE strpos(conversation.folded, word.value) = 0
    )
ORDER BY updated_at DESC, ordinal DESC
LIMIT :limit

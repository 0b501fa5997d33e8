-- Keep a summary: as the model wrote it, and once more with its number when it takes effect; from then on it never changes.
INSERT INTO summary (owner, id, branch, number, body, carry, at)
VALUES (:owner, :id, :branch, :number, :body, :carry, :at)
ON CONFLICT (owner, id) DO UPDATE SET number = excluded.number, body = excluded.body, carry = excluded.carry, at = excluded.at
WHERE NOT EXISTS (
    SELECT 1 FROM compaction
    WHERE compaction.owner = excluded.owner AND compaction.id = excluded.id AND compaction.number > 0
)

-- Note when a conversation was last used: to the second, and never back.
UPDATE conversation SET updated_at = :at WHERE owner = :owner AND id = :conversation AND :at >= updated_at + 1 RETURNING id

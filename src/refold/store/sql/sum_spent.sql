-- What all calls of a kind in a conversation took, in dollars.
SELECT coalesce(sum(dollars), 0.0) FROM call WHERE owner = :owner AND conversation = :conversation AND kind = :kind

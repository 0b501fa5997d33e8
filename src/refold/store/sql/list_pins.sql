-- The pinned messages of a branch.
SELECT seq FROM pin WHERE owner = :owner AND branch = :branch ORDER BY seq

-- Places of an owner's branches with one of these hashes: where a branch ends first, then in the newest branch, then the last.
SELECT chain.hash, head.conversation, chain.branch, chain.size, head.next_seq, head.format
FROM json_each(:hashes) AS word
CROSS JOIN chain ON chain.owner = :owner AND chain.hash = unhex(word.value)
CROSS JOIN head ON head.owner = chain.owner AND head.id = chain.branch
ORDER BY head.next_seq = chain.size DESC, head.ordinal DESC, chain.size DESC
LIMIT :limit

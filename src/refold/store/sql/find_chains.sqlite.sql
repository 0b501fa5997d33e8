-- Places of an owner's branches with one of these hashes: where a branch ends first, then in the newest branch, then the last.
SELECT chain.hash, branch.conversation, chain.branch, chain.size, branch.next_seq, branch.format
FROM json_each(:hashes) AS word
CROSS JOIN chain ON chain.owner = :owner AND chain.hash = unhex(word.value)
CROSS JOIN branch ON branch.owner = chain.owner AND branch.id = chain.branch
ORDER BY branch.next_seq = chain.size DESC, branch.ordinal DESC, chain.size DESC
LIMIT :limit

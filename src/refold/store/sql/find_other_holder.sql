-- Whether another branch of the same format holds a history, message for message.
SELECT 1
FROM chain
JOIN branch ON branch.owner = chain.owner AND branch.id = chain.branch
WHERE chain.owner = :owner AND chain.hash = :hash AND chain.size = :size
AND chain.branch <> :branch AND branch.format = :format
LIMIT 1

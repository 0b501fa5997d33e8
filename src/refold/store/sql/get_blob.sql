-- What a conversation came in with, by its hash.
SELECT body FROM blob WHERE owner = :owner AND conversation = :conversation AND digest = :digest

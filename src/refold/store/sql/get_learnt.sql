-- What was learnt about a model.
SELECT value FROM learnt WHERE owner = :owner AND topic = :topic AND key = :key

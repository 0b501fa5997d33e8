-- What was answered to a call.
SELECT body FROM reply WHERE owner = :owner AND call = :call

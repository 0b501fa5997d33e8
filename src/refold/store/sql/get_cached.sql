-- A summary that was paid for already.
SELECT body FROM cache WHERE owner = :owner AND key = :key AND length(body) > 0

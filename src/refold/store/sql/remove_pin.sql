-- Take a pin away.
DELETE FROM pin WHERE owner = :owner AND branch = :branch AND seq = :seq

-- Say of a branch which changes its base had when it was forked, where that was before now.
UPDATE branch SET base_number = :base_number WHERE owner = :owner AND id = :id

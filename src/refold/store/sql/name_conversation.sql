-- Give a conversation a title, where it has none.
UPDATE conversation SET title = :title, folded = :folded WHERE owner = :owner AND id = :id AND title = ''

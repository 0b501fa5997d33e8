-- Whether there is a list of migrations.
SELECT count(*) > 0 FROM sqlite_schema WHERE name = 'migration'

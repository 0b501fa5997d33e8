-- Whether there is a list of migrations.
SELECT to_regclass('refold.migration') IS NOT NULL

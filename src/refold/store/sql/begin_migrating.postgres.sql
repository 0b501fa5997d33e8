-- Make the list of migrations, where there is none, and keep others away until the transaction ends.
SELECT pg_advisory_xact_lock(7235419);
CREATE SCHEMA IF NOT EXISTS refold;
CREATE TABLE IF NOT EXISTS migration (name text PRIMARY KEY)

-- Keys that may also see the operations' settings of a gateway. Those that were made before may not.
ALTER TABLE api_key ADD COLUMN admin INTEGER NOT NULL DEFAULT 0;

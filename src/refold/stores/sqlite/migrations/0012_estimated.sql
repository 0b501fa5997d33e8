-- Whether the usage of a call is an estimate, because the provider reported none. Before now such calls were noted without any.
ALTER TABLE call ADD COLUMN is_estimated INTEGER NOT NULL DEFAULT 0;

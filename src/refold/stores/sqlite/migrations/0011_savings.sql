-- What a call did not send, and what that saved in dollars. Of calls that were made before, neither is known.
ALTER TABLE call ADD COLUMN unsent INTEGER NOT NULL DEFAULT 0;
ALTER TABLE call ADD COLUMN saved REAL NOT NULL DEFAULT 0;

-- How many rows this connection has changed, whoever their owner is.
SELECT total_changes()

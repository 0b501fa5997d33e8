"""The store in a PostgreSQL database: its driver with a connection pool, its own queries and migrations."""

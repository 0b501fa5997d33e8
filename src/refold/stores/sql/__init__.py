"""The transactions that SQLite and PostgreSQL share, the queries they run by name, and the store made of them."""

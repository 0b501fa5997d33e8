"""The store in an SQLite file: its driver with one writer per file, its own queries, migrations, backup and maintenance."""

"""Several processes on one PostgreSQL: the parts of a cluster as programs, and clients that talk through it."""

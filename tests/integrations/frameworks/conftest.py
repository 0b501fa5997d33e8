"""These sessions need frameworks that the environment of `make test` does not have: `make test-integrations` runs them, each in an
environment of its own and without this file.
"""

collect_ignore_glob = ["test_*.py"]

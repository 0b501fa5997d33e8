"""What goes wrong with a server, done by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import psycopg
import pytest

from refold.model.errors import ConfigError, StoreError
from refold.stores.postgres.store import Patience, PostgresStore

SHORT = Patience(connections=2, wait_s=0.5, statement_s=5.0, lock_s=5.0)


@asynccontextmanager
async def opened(url: str, patience: Patience | None = None) -> AsyncIterator[PostgresStore]:
    store = await PostgresStore.open(url, patience)
    try:
        yield store
    finally:
        await store.close()


@contextmanager
def by_hand(url: str) -> Iterator[psycopg.Connection]:
    """A connection of somebody else."""
    with psycopg.connect(url, options="-c search_path=refold") as connection:
        yield connection


def lock_branch(connection: psycopg.Connection) -> None:
    connection.execute("SELECT 1 FROM branch FOR UPDATE")


async def waiting_backend(url: str) -> int:
    """The process on the server that waits for a lock."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        while True:
            found = await connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
                "AND application_name = 'refold' AND wait_event_type = 'Lock'"
            )
            if row := await found.fetchone():
                return row[0]


def kill(url: str, which: str = "application_name = 'refold'") -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            f"WHERE datname = current_database() AND {which}".encode()
        )


def backends(url: str) -> list[str]:
    """What the store's connections are doing."""
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT state FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'refold'"
        )
        return [state for (state,) in found]


async def refused(url: str, patience: Patience = SHORT) -> StoreError | ConfigError:
    with pytest.raises((StoreError, ConfigError)) as error:
        await PostgresStore.open(url, patience)
    assert error.value.hint
    assert "secret" not in str(error.value)
    return error.value

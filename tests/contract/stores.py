"""The stores that one suite runs over: `store` is each of them in turn, `store_set` all of them side by side."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest

from refold.ports.store import Store
from refold.stores.memory import MemoryStore
from refold.stores.postgres.store import PostgresStore
from refold.stores.sqlite.store import SqliteStore
from tests.contract.postgres import empty, get_server, make_database

KINDS = ["memory", "sqlite", "postgres"]


_URL = pytest.StashKey[str]()


@pytest.fixture(scope="session")
def postgres_url(pytestconfig: pytest.Config) -> str:
    """The one database of a run for stores; whoever is done with it leaves it empty."""
    if _URL not in pytestconfig.stash:
        pytestconfig.stash[_URL] = make_database(get_server(pytestconfig), "stores")
    return pytestconfig.stash[_URL]


class StoreSet:
    """Opens one store of each kind, empty, as often as asked."""

    def __init__(self, folder: Path, postgres_url: str) -> None:
        self._folder, self._url, self._numbers = folder, postgres_url, count()

    async def open(self) -> list[Store]:
        empty(self._url)
        path = self._folder / f"{next(self._numbers)}.db"
        return [MemoryStore(), await SqliteStore.open(path), await PostgresStore.open(self._url)]

    async def close(self, stores: list[Store]) -> None:
        for store in stores:
            await store.close()


@asynccontextmanager
async def opened(store: Store) -> AsyncIterator[Store]:
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture(params=KINDS)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    if request.param == "memory":
        made: Store = MemoryStore()
    elif request.param == "sqlite":
        made = await SqliteStore.open(tmp_path / "store.db")
    else:
        made = await PostgresStore.open(request.getfixturevalue("postgres_url"))
    async with opened(made):
        yield made
    if request.param == "postgres":
        empty(request.getfixturevalue("postgres_url"))


@pytest.fixture
def store_set(tmp_path: Path, postgres_url: str) -> Iterator[StoreSet]:
    yield StoreSet(tmp_path, postgres_url)
    empty(postgres_url)

"""A database is brought to the schema of the program once, whole or not at all, and one of a newer program is left alone."""

from __future__ import annotations

import asyncio

import apsw
import pytest

from refold.model.errors import StoreError
from refold.stores.sql import queries
from refold.stores.sqlite.store import SqliteDriver, SqliteStore
from tests.contract.talks import ANNA, begin, read, say

KNOWN = list(queries.migrations("sqlite"))


def tables(path) -> set[str]:
    connection = apsw.Connection(str(path))
    found = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    connection.close()
    return found


@pytest.fixture
def newer(monkeypatch):
    """A program with more migrations than this one: give their scripts by name."""

    def pretend(**scripts):
        more = dict(queries.migrations("sqlite")) | scripts
        loaded = queries.load("sqlite") | {f"migrations/{name}": text for name, text in more.items()}
        monkeypatch.setattr(queries, "migrations", lambda _: more)
        monkeypatch.setattr("refold.stores.sqlite.writer.load", lambda _: loaded)

    return pretend


def test_what_is_missing_comes_in_order(newer):
    newer(**{"9001_b": "", "9002_c": ""})

    assert queries.missing_migrations("sqlite", []) == [*KNOWN, "9001_b", "9002_c"]
    assert queries.missing_migrations("sqlite", KNOWN) == ["9001_b", "9002_c"]
    assert queries.missing_migrations("sqlite", [*KNOWN, "9001_b", "9002_c"]) == []


def test_a_schema_of_a_newer_program_is_refused_with_its_name():
    with pytest.raises(StoreError) as refused:
        queries.missing_migrations("sqlite", [*KNOWN, "9001_later"])

    assert "9001_later" in str(refused.value)
    assert "upgrade" in refused.value.hint


async def test_a_new_file_gets_every_migration_and_an_old_one_none(tmp_path):
    driver = await asyncio.to_thread(SqliteDriver, tmp_path / "a.db")

    assert await driver.write(queries.upgrade_tables, "sqlite") == KNOWN
    assert await driver.write(queries.upgrade_tables, "sqlite") == []
    assert await driver.read(queries.applied_migrations) == KNOWN
    await driver.close()


async def test_an_older_file_is_upgraded_and_keeps_what_it_holds(tmp_path, newer):
    store = await SqliteStore.open(tmp_path / "a.db")
    await say(store, await begin(store), "storm")
    await store.close()
    newer(**{"9001_more": "CREATE TABLE more (owner TEXT)"})
    store = await SqliteStore.open(tmp_path / "a.db")

    assert await read(store, await store.head(ANNA, "talk")) == ["storm"]
    assert await store._file.read(queries.applied_migrations) == [*KNOWN, "9001_more"]
    await store.close()
    assert "more" in tables(tmp_path / "a.db")


async def test_a_migration_that_fails_leaves_everything_as_it_was(tmp_path, newer):
    store = await SqliteStore.open(tmp_path / "a.db")
    await say(store, await begin(store), "storm")
    await store.close()
    before = tables(tmp_path / "a.db")
    newer(
        **{
            "9001_good": "CREATE TABLE good (owner TEXT)",
            "9002_bad": "CREATE TABLE half (x); CREATE NONSENSE",
        }
    )
    with pytest.raises(StoreError):
        await SqliteStore.open(tmp_path / "a.db")

    assert tables(tmp_path / "a.db") == before


async def test_a_file_of_a_newer_program_is_not_touched(tmp_path, newer, monkeypatch):
    path = tmp_path / "a.db"
    with monkeypatch.context():
        newer(**{"9001_later": "CREATE TABLE later (owner TEXT)"})
        store = await SqliteStore.open(path)
        await begin(store)
        await store.close()
        monkeypatch.undo()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="9001_later"):
        await SqliteStore.open(path)

    assert path.read_bytes() == before


async def test_many_who_open_a_new_file_at_once_find_it_made_once(tmp_path):
    stores = await asyncio.gather(*(SqliteStore.open(tmp_path / "a.db") for _ in range(8)))

    assert await stores[0]._file.read(queries.applied_migrations) == KNOWN
    await asyncio.gather(*(store.close() for store in stores))

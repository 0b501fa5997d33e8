"""`/readyz` says whether the gateway can serve: not where its store is unreachable, removed, or of another version."""

from __future__ import annotations

import aiohttp
import apsw
import psycopg
import pytest

from refold.stores.postgres.store import Patience, PostgresStore
from refold.stores.sqlite import store as sqlite_store
from refold.stores.sqlite.store import SqliteStore
from tests.contract.postgres import get_server, make_database
from tests.gateway.conftest import served
from tests.stores.postgres.trouble import kill

READY = 200, {"status": "ready"}
UNREACHABLE = 503, {"status": "the store cannot be reached"}
OTHER_TABLES = 503, {"status": "the store lacks tables of this version"}


async def readiness(gate) -> tuple[int, dict]:
    async with aiohttp.ClientSession() as session, session.get(f"{gate.url}/readyz") as response:
        return response.status, await response.json()


async def test_a_file_that_was_removed_or_replaced(tmp_path, upstream):
    path = tmp_path / "talks.db"
    store = await SqliteStore.open(path)
    async with served(upstream, store=store) as gate:
        assert await readiness(gate) == READY
        path.rename(tmp_path / "elsewhere.db")
        gone = 503, {"status": "the file of the store was removed or replaced"}
        assert await readiness(gate) == gone
        path.write_bytes(b"")
        assert await readiness(gate) == gone
        (tmp_path / "elsewhere.db").rename(path)
        assert await readiness(gate) == READY
    await store.close()


async def test_a_file_that_another_program_locks(tmp_path, upstream, monkeypatch):
    monkeypatch.setattr(sqlite_store, "LOCKED_S", 0.05)
    store = await SqliteStore.open(tmp_path / "talks.db")
    async with served(upstream, store=store) as gate:
        other = apsw.Connection(str(tmp_path / "talks.db"))
        other.execute("BEGIN IMMEDIATE")
        locked = 503, {"status": "the file of the store is locked"}
        assert await readiness(gate) == locked
        other.execute("ROLLBACK")
        while await readiness(gate) == locked:
            pass
        assert await readiness(gate) == READY
        other.close()
    await store.close()


@pytest.fixture
def database(pytestconfig) -> str:
    return make_database(get_server(pytestconfig), "readiness")


async def test_the_tables_of_another_version(upstream, database):
    store = await PostgresStore.open(database)
    async with served(upstream, store=store) as gate:
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(
                "INSERT INTO refold.migration SELECT '9999_newer' FROM refold.migration LIMIT 1"
            )
            assert await readiness(gate) == READY  # a newer gateway has begun to replace this one
            connection.execute("DELETE FROM refold.migration WHERE name LIKE '00%' AND name > '0010'")
            assert await readiness(gate) == OTHER_TABLES  # an older backup was restored
            connection.execute("DROP SCHEMA refold CASCADE")
            assert await readiness(gate) == OTHER_TABLES
    await store.close()


async def test_a_server_that_is_away(pytestconfig, tmp_path, upstream, database):
    folder = tmp_path / "socket"
    folder.symlink_to(get_server(pytestconfig).get_postmaster_info().socket_dir)
    store = await PostgresStore.open(
        f"postgresql://postgres@/readiness?host={folder}", Patience(connections=1, wait_s=0.2)
    )
    async with served(upstream, store=store) as gate:
        assert await readiness(gate) == READY
        folder.unlink()
        kill(database)
        assert await readiness(gate) == UNREACHABLE
        folder.symlink_to(get_server(pytestconfig).get_postmaster_info().socket_dir)
        while await readiness(gate) == UNREACHABLE:
            pass
        assert await readiness(gate) == READY
    await store.close()

"""A database that was made before there were vectors keeps what it holds, and takes vectors from then on."""

from __future__ import annotations

import apsw
import psycopg
import pytest
from psycopg import sql

from refold.engine.engine import Engine
from refold.stores.postgres.store import PostgresStore
from refold.stores.sql import queries
from refold.stores.sqlite.store import SqliteStore
from tests.contract.postgres import get_server, make_database
from tests.embedder import Subjects

FIRST = "0001_conversations"
SUMMARY = b'{"text": "They spoke about a boat.", "first": 0, "last": 1, "tokens": 6}'
ROWS = {
    "owner": {"owner": "local", "at": 1.0},
    "conversation": {
        "owner": "local", "id": "old", "title": "", "folded": "old", "at": 1.0, "updated_at": 2.0,
    },
    "branch": {
        "owner": "local", "id": "b", "conversation": "old", "base": "", "base_seq": 0, "base_number": 0,
        "next_seq": 1, "epoch": 1, "revision": 0, "session": "s1", "format": "chat", "model": "", "notes": b"",
    },
    "summary": {
        "owner": "local", "id": "c0", "branch": "b", "number": 0, "body": SUMMARY, "carry": b"", "at": 2.0,
    },
}  # fmt: skip
SESSION = {
    "owner": "local", "conversation": "old", "branch": "b", "parent": "", "carries": "none",
    "state": "live", "target": "", "at": 1.0,
}  # fmt: skip
SESSIONS = (
    {**SESSION, "id": "s0", "first": 0, "last": 1, "kind": "root", "summary": "c0", "tokens": 9, "closed_at": 2.0},
    {**SESSION, "id": "s1", "first": 1, "last": None, "kind": "new", "summary": "", "tokens": 0, "closed_at": None},
)  # fmt: skip


def rows():
    yield from ROWS.items()
    yield from (("session", row) for row in SESSIONS)


def old_sqlite(path) -> None:
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", "wal")
    connection.execute(queries.load("sqlite")["begin_migrating"])
    connection.execute(queries.migrations("sqlite")[FIRST])
    connection.execute(queries.load("sqlite")["add_migration"], {"name": FIRST})
    for table, row in rows():
        names = ", ".join(row)
        connection.execute(f"INSERT INTO {table} ({names}) VALUES (:{names.replace(', ', ', :')})", row)
    connection.close()


def old_postgres(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS refold CASCADE")
        connection.execute("CREATE SCHEMA refold")
        connection.execute("SET search_path TO refold")
        connection.execute(queries.load("postgres")["begin_migrating"])
        connection.execute(queries.migrations("postgres")[FIRST])
        connection.execute(queries.load("postgres")["add_migration"], {"name": FIRST})
        for table, row in rows():
            names = sql.SQL(", ").join(map(sql.Identifier, row))
            values = sql.SQL(", ").join(map(sql.Placeholder, row))
            connection.execute(
                sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(sql.Identifier(table), names, values), row
            )


@pytest.fixture(params=["sqlite", "postgres"])
async def store(request, tmp_path, pytestconfig):
    if request.param == "sqlite":
        old_sqlite(tmp_path / "old.db")
        made = await SqliteStore.open(tmp_path / "old.db")
    else:
        url = make_database(get_server(pytestconfig), "older")
        old_postgres(url)
        made = await PostgresStore.open(url)
    yield made
    await made.close()


async def test_what_was_closed_before_there_were_vectors_is_found_by_meaning_afterwards(store):
    made = Engine(store, embedder=Subjects())
    assert [one.id for one in await made.sessions("old")] == ["s0", "s1"]
    assert await made.find_sessions("vessel") == []

    assert await made.sweep() == 1
    assert [(name, one.id) for name, one in await made.find_sessions("vessel")] == [("old", "s0")]
    await made.delete("old")
    assert await store.embeddings("local", ["s0"]) == []

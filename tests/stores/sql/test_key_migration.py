"""Keys that were made before there were admin keys: they still open what is their owner's, and nothing more."""

from __future__ import annotations

import asyncio
import json

import apsw
import psycopg
import pytest

from refold.cli.main import run
from refold.gateway.auth import mint
from refold.stores.sql import queries
from refold.stores.sql.queries import SqlDialect
from refold.stores.url import open_store
from tests.contract.postgres import get_server, make_database

BEFORE = {"sqlite": "0010_admin_keys", "postgres": "0008_admin_keys"}
KEY, KEPT = mint("anna", name="laptop", at=1.0)
OWNER = "INSERT INTO owner (owner, at) VALUES ('anna', 1)"
ROW = f"INSERT INTO api_key (owner, id, digest, name, at) VALUES ('anna', '{KEPT.id}', {{}}, 'laptop', 1)"


def older(dialect: SqlDialect) -> list[tuple[str, str]]:
    return [(name, text) for name, text in queries.migrations(dialect).items() if name < BEFORE[dialect]]


def old_sqlite(path) -> str:
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", "wal")
    connection.execute(queries.load("sqlite")["begin_migrating"])
    for name, script in older("sqlite"):
        connection.execute(script)
        connection.execute(queries.load("sqlite")["add_migration"], {"name": name})
    connection.execute(OWNER)
    connection.execute(ROW.format("?"), (KEPT.digest,))
    connection.close()
    return f"sqlite:///{path}"


def old_postgres(url: str) -> str:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA refold")
        connection.execute("SET search_path TO refold")
        connection.execute(queries.load("postgres")["begin_migrating"])
        for name, script in older("postgres"):
            connection.execute(script)
            connection.execute(queries.load("postgres")["add_migration"], {"name": name})
        connection.execute(OWNER)
        connection.execute(ROW.format("%s"), (KEPT.digest,))
    return url


@pytest.fixture(params=["sqlite", "postgres"])
def url(request, tmp_path, pytestconfig) -> str:
    if request.param == "sqlite":
        return old_sqlite(tmp_path / "older.db")
    return old_postgres(make_database(get_server(pytestconfig), "older_keys"))


def test_keys_of_an_earlier_program_are_no_admin_keys(url, capsys):
    assert run(["db", "upgrade", "--store", url]) == 0
    capsys.readouterr()

    def listed() -> dict[str, bool]:
        assert run(["keys", "list", "--owner", "anna", "--store", url, "--json"]) == 0
        return {one["name"]: one["admin"] for one in json.loads(capsys.readouterr().out)["keys"]}

    assert listed() == {"laptop": False}
    assert run(["keys", "create", "ops", "--admin", "--owner", "anna", "--store", url]) == 0
    capsys.readouterr()
    assert listed() == {"laptop": False, "ops": True}
    assert asyncio.run(found(url)) == KEPT


async def found(url: str):
    store = await open_store(url)
    try:
        return await store.find_key_owner(KEPT.id)
    finally:
        await store.close()

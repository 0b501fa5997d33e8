"""Opening a PostgreSQL store: whatever the server does, a clear error or none."""

from __future__ import annotations

import asyncio
import os
import shutil

import psycopg
import pytest

from refold.model.errors import ConfigError
from refold.stores.postgres.store import PostgresStore
from tests.contract.talks import begin, read, say
from tests.stores.postgres.trouble import by_hand, opened, refused


async def test_a_missing_server_is_named(tmp_path):
    error = await refused(f"postgresql://anna:secret@/talks?host={tmp_path}")

    assert "cannot be reached" in error.message
    assert f"talks on {tmp_path}" in error.location
    assert str(tmp_path) not in str(error)
    assert "server runs" in error.hint


async def test_a_port_where_nobody_listens_is_a_missing_server():
    assert "cannot be reached" in (await refused("postgresql://anna:secret@127.0.0.1:1/talks")).message


async def test_a_name_that_no_server_has_is_a_missing_server():
    assert "cannot be reached" in (await refused("postgresql://anna:secret@server.invalid/talks")).message


RULES = "local all guarded scram-sha-256\nlocal all banned reject\n"


@pytest.fixture
def guarded(server) -> str:
    """The folder of the server's socket, where one user needs a password and another may not enter.

    The rules stay: they are about two roles that no other test has. The file is replaced in one step, since a server that is
    reading it while it is written would keep the first rules only, and refuse everybody else.
    """
    rules = server.pgdata / "pg_hba.conf"
    before = rules.read_text()
    if not before.startswith(RULES):
        with psycopg.connect(server.get_uri(), autocommit=True) as connection:
            connection.execute("CREATE ROLE guarded LOGIN PASSWORD 'right'")
            connection.execute("CREATE ROLE banned LOGIN")
            changed = rules.with_suffix(".new")
            changed.touch()
            shutil.copystat(rules, changed)
            os.chown(changed, rules.stat().st_uid, rules.stat().st_gid)
            changed.write_text(RULES + before)
            changed.replace(rules)
            connection.execute("SELECT pg_reload_conf()")
        _wait_until_refused(server, "banned")
    return str(server.get_postmaster_info().socket_dir)


def _wait_until_refused(server, user: str) -> None:
    """The server reads its rules some time after it was told to."""
    while True:
        try:
            psycopg.connect(server.get_uri(), user=user).close()
        except psycopg.OperationalError:
            return


@pytest.mark.parametrize(
    ("user", "database", "reason", "hint"),
    [
        ("guarded:secret", "postgres", "refuses the password", "password"),
        ("guarded", "postgres", "asks for a password", ".pgpass"),
        ("nobody:secret", "postgres", "does not know the user", "CREATE ROLE"),
        ("banned:secret", "postgres", "lets no such user in", "pg_hba.conf"),
        ("postgres:secret", "nothing", "no such database", "CREATE DATABASE"),
    ],
)
async def test_whom_the_server_refuses_is_told_why(guarded, user, database, reason, hint):
    error = await refused(f"postgresql://{user}@/{database}?host={guarded}")

    assert reason in error.message
    assert hint in error.hint
    assert error.location == f"{database} on {guarded}"


async def test_a_user_without_a_connection_left_is_told_that(server, guarded):
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS counted")
        connection.execute("CREATE ROLE counted LOGIN CONNECTION LIMIT 0")

    error = await refused(f"postgresql://counted@/postgres?host={guarded}")

    assert "no connection left" in error.message
    assert "limit of the user" in error.hint


@pytest.mark.parametrize(
    "url", ["postgresql://anna:secret@[/talks", "postgresql://anna:secret@host/talks?no=1"]
)
async def test_a_url_that_cannot_be_read_is_not_repeated(url):
    error = await refused(url)

    assert isinstance(error, ConfigError)
    assert "cannot be read" in error.message


@pytest.mark.parametrize(
    "password", ["pl@nted", "pl/nted", "12/planted", "pl?anted=1", "%zzplanted", "pl anted", "pl:anted@x/y"]
)
async def test_a_password_that_is_not_escaped_is_never_taken_for_a_host(password):
    error = await refused(f"postgresql://anna:{password}@127.0.0.1:1/talks")

    told = f"{error.located} {error.hint} {error!r}"
    assert not [part for part in ("planted", "pl@", "nted", "12/") if part in told]


async def test_a_schema_of_a_newer_program_is_left_alone(url):
    async with opened(url) as store:
        await begin(store)
    with by_hand(url) as connection:
        connection.execute("INSERT INTO migration (name) VALUES ('9999_later')")

    error = await refused(url)

    assert "9999_later" in error.message
    with by_hand(url) as connection:
        assert connection.execute("SELECT count(*) FROM branch").fetchone() == (1,)


async def test_a_database_that_cannot_hold_every_language_is_refused(server):
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS latin")
        connection.execute(
            "CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
        )

    assert "UTF8" in (await refused(server.get_uri("latin"))).hint


async def test_many_who_open_an_empty_database_at_once_make_its_tables_once(url):
    stores = await asyncio.gather(*(PostgresStore.open(url) for _ in range(5)))

    assert [await store.owners() for store in stores] == [[]] * 5
    for store in stores:
        await store.close()


async def test_whoever_may_not_make_tables_can_use_those_that_are_there(server, url):
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS guest")
        connection.execute("CREATE ROLE guest LOGIN")
    guest = url.replace("postgres:@", "guest:@")
    assert "schema refold" in (await refused(guest)).hint

    async with opened(url):
        pass
    with by_hand(url) as connection:
        connection.execute("GRANT USAGE ON SCHEMA refold TO guest")
        connection.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA refold TO guest")
    async with opened(guest) as store:
        assert await read(store, await say(store, await begin(store), "hello")) == ["hello"]


async def test_other_tables_of_the_same_name_are_left_alone(url):
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE public.message (id int)")
        connection.execute("CREATE TABLE public.migration (id int)")

    async with opened(url) as store:
        assert await read(store, await say(store, await begin(store), "hello")) == ["hello"]

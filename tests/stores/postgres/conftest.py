"""A real PostgreSQL, with one database that every test finds empty."""

from __future__ import annotations

from collections.abc import AsyncIterator

import psycopg
import pytest

from refold.stores.postgres.store import PostgresStore
from tests.contract.postgres import get_server, make_database
from tests.stores.postgres.trouble import opened


@pytest.fixture
def server(pytestconfig):
    return get_server(pytestconfig)


@pytest.fixture(scope="module")
def database(pytestconfig) -> str:
    return make_database(get_server(pytestconfig), "trouble")


@pytest.fixture
def url(database) -> str:
    """An empty database; emptying one is much quicker than making one."""
    with psycopg.connect(database) as connection:
        connection.execute("DROP SCHEMA IF EXISTS refold CASCADE")
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    return database


@pytest.fixture
async def store(url) -> AsyncIterator[PostgresStore]:
    async with opened(url) as made:
        yield made

"""The least that a program could do to keep the same bytes as durably: one insert into one table, and no thought.

Each is given the place of a database and what to keep, and gives an act that keeps it once. `slow_down` makes a quick disk as slow as
another one, for all of them.
"""

import time
from contextlib import asynccontextmanager
from pathlib import Path


@asynccontextmanager
async def _bare_sqlite(path: Path, body: bytes):
    import apsw

    db, number = apsw.Connection(str(path.with_name("bare.db"))), 0
    for pragma in ("journal_mode=wal", "synchronous=full"):
        db.execute(f"pragma {pragma}")
    db.execute("create table message (id integer primary key, branch text, seq int, body blob)")

    async def insert() -> None:
        nonlocal number
        number += 1
        db.execute("begin immediate")
        db.execute("insert into message (branch, seq, body) values (?, ?, ?)", ("append", number, body))
        db.execute("commit")

    yield insert
    db.close()


@asynccontextmanager
async def _awaited_sqlite(path: Path, body: bytes):
    """The same by apsw's own face for event loops."""
    import apsw

    db, number = await apsw.Connection.as_async(str(path.with_name("awaited.db"))), 0
    for pragma in ("journal_mode=wal", "synchronous=full"):
        await db.execute(f"pragma {pragma}")
    await db.execute("create table message (id integer primary key, branch text, seq int, body blob)")

    async def insert() -> None:
        nonlocal number
        number += 1
        async with db:
            await db.execute(
                "insert into message (branch, seq, body) values (?, ?, ?)", ("append", number, body)
            )

    yield insert
    await db.aclose()


@asynccontextmanager
async def _bare_postgres(uri: str, body: bytes):
    import psycopg

    async with await psycopg.AsyncConnection.connect(uri) as db:
        await db.execute(
            "create table if not exists bare (id bigserial primary key, branch text, seq bigint, body bytea)"
        )
        await db.commit()
        number = 0

        async def insert() -> None:
            nonlocal number
            number += 1
            await db.execute(
                "insert into bare (branch, seq, body) values (%s, %s, %s)", ("append", number, body)
            )
            await db.commit()

        yield insert


BARE = {
    "sqlite": {"bare_ms": _bare_sqlite, "awaited_ms": _awaited_sqlite},
    "postgres": {"bare_ms": _bare_postgres},
}


def slow_down(flush_ms: float) -> None:
    """Let every trip to the disk take longer, for every connection to SQLite from now on."""
    import apsw

    usual = apsw.vfs_names()[0]

    class SlowFile(apsw.VFSFile):
        def xSync(self, flags: int) -> None:  # noqa: N802 - SQLite's name for it
            super().xSync(flags)
            time.sleep(flush_ms / 1_000)

    class Slow(apsw.VFS):
        def __init__(self) -> None:
            super().__init__("slow", usual, makedefault=True)

        def xOpen(self, name, flags) -> SlowFile:  # noqa: N802
            return SlowFile(usual, name, flags)

    SLOW.append(Slow())


SLOW: list = []
"""Held, since it is gone when nobody does."""

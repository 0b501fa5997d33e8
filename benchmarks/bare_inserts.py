"""Bare inserts as a lower bound: the same bytes stored as durably, with one insert into one table.

Each function takes the location of a database and the bytes, and returns an act that stores them once.
`slow_down` makes every commit as slow as on a slower disk, for all of them.
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
    """The same with apsw's own async interface."""
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
    """Delay every flush to the disk, for every SQLite connection from now on."""
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
"""A reference that keeps the object alive."""

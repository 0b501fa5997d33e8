"""The SQLite driver and the store over it.

One idea: all writes of a process to one file stand in one queue, first come, first served, whichever store they come from, so
no two of them ever fight for the lock, and none starves. Each is one visit to the writer's thread, in which its whole
transaction runs. Those that wait together are brought to the disk together, each whole or not at all, and nobody is told of
success before that. Reads have connections and threads of their own and wait for nobody.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import apsw

from refold.model.errors import StoreError
from refold.ports.store import Hit
from refold.store import migrate
from refold.store.lane import J, Lane, Told, attempt
from refold.store.sqlite_commit import commit_all, run
from refold.store.sqlite_copy import copy_to, find_faults
from refold.store.sqlite_errors import in_our_words
from refold.store.sqlite_file import empty_log, open_reader, open_writer, prepare
from refold.store.sqlstore import SqlStore
from refold.store.transactions import Dialect, P, T, Transaction

READERS = 4
"""Threads that read: a long search leaves others free, and an idle one costs next to nothing."""
MOST_TOGETHER = 64
"""Transactions that go to the disk together: they take about as long as the disk itself does."""
MERGED_PAGES = 200
"""Pages of the index that are written anew at a time: some milliseconds, so that nobody waits long for their turn."""


Begin: TypeAlias = Callable[[], Transaction[Any]]
Read: TypeAlias = Callable[[apsw.Connection], Any]


class Writer:
    """The one queue of a process for one file, and the connection behind it."""

    def __init__(self, path: Path, key: tuple[int, int]) -> None:
        self.key, self.stores = key, 0
        # Opened here and not in the thread: what is wrong with the file is said to whoever opens it.
        self.connection = open_writer(path)
        self.lane: Lane[apsw.Connection, Begin] = Lane(
            lambda: self.connection, apsw.Connection.close, commit_all, threads=1, most=MOST_TOGETHER
        )


_writers: Final[dict[tuple[int, int], Writer]] = {}
_writers_lock: Final = threading.Lock()


def _join(path: Path) -> Writer:
    """The queue of a file: the one that is there, or a new one."""
    prepare(path)
    with _writers_lock:
        status = path.stat()
        key = (status.st_dev, status.st_ino)
        writer = _writers.get(key) or Writer(path, key)
        _writers[key] = writer
        writer.stores += 1
        return writer


def _leave(writer: Writer) -> None:
    with _writers_lock:
        writer.stores -= 1
        if not writer.stores:
            del _writers[writer.key]
            writer.lane.close()


class SqliteDriver:
    """Runs transactions on one file."""

    dialect: Dialect = "sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().absolute()
        self._writer = _join(self.path)
        self._readers: Lane[apsw.Connection, Read] = Lane(
            partial(open_reader, self.path), apsw.Connection.close, _read_one, threads=READERS, most=1
        )
        self._is_closed = False

    async def read(self, begin: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.look(lambda connection: run(connection, begin(*args, **kwargs)))

    async def write(self, begin: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        transaction: Begin = partial(begin, *args, **kwargs)
        return await self._visit(self._writer.lane, transaction)  # type: ignore[no-any-return]

    async def look(self, job: Callable[[apsw.Connection], T]) -> T:
        """Do something with a connection that only reads."""
        return await self._visit(self._readers, job)  # type: ignore[no-any-return]

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            await asyncio.to_thread(self._close)

    async def _visit(self, lane: Lane[apsw.Connection, J], job: J) -> Any:
        if self._is_closed:
            raise StoreError("The store is closed.", hint="open it again")
        try:
            return await lane.visit(job)
        except (apsw.Error, UnicodeEncodeError) as error:
            raise in_our_words(error, self.path) from error

    def _close(self) -> None:
        self._readers.close()
        _leave(self._writer)


def _read_one(connection: apsw.Connection, jobs: Sequence[Read]) -> list[Told]:
    return [attempt(partial(job, connection)) for job in jobs]


class SqliteStore(SqlStore):
    """Conversations in one file."""

    def __init__(self, driver: SqliteDriver) -> None:
        super().__init__(driver)
        self._file = driver

    @classmethod
    async def open(cls, path: Path) -> SqliteStore:
        """Open a file, or begin one in a folder that is there.

        Raises:
            StoreError: it cannot be opened, is not ours, or was written by a newer program; nothing was changed.
        """
        driver = await asyncio.to_thread(SqliteDriver, path)
        try:
            if not await driver.read(migrate.is_current, "sqlite"):
                await driver.write(migrate.upgrade, "sqlite")
        except BaseException:
            await driver.close()
            raise
        return cls(driver)

    async def search(self, owner: str, query: str, *, conversation: str = "", limit: int = 20) -> list[Hit]:
        if await self._file.read(_is_behind):
            await self._file.write(_catch_up)
        return await super().search(owner, query, conversation=conversation, limit=limit)

    async def delete(self, owner: str, conversation: str = "") -> int:
        deleted = await super().delete(owner, conversation)
        await self._wipe()
        return deleted

    async def expire(self, owner: str, before: float, keep: Sequence[str] = ()) -> int:
        deleted = await super().expire(owner, before, keep)
        if deleted:  # it is asked every hour, and the whole index would be written anew for nothing
            await self._wipe()
        return deleted

    async def backup(self, path: Path) -> None:
        """Write a copy of the whole database, as it is at one moment, while others go on writing.

        Raises:
            StoreError: there is a file of that name, or it cannot be written.
        """
        await self._file.look(partial(copy_to, path))

    async def check(self) -> list[str]:
        """What is wrong with the file: its structure, its references, and messages that are no longer what they were."""
        return await self._file.look(lambda _: find_faults(self._file.path))

    async def _wipe(self) -> None:
        """Bring what was deleted out of the index of words and out of the log, in steps that let others write between."""
        pages = -MERGED_PAGES
        while await self._file.write(_merge, pages):
            pages = MERGED_PAGES
        await self._file.look(lambda _: empty_log(self._file.path))


def _is_behind() -> Transaction[bool]:
    return bool((yield "has_unindexed", {}))


def _catch_up() -> Transaction[None]:
    yield "index_words", {}


def _merge(pages: int) -> Transaction[bool]:
    """Write some pages of the index anew, without what was deleted; is there more to do?"""
    before = yield "count_changes", {}
    yield "merge_words", {"pages": pages}
    after = yield "count_changes", {}
    # As SQLite documents it: fewer than two changes say that nothing was left to merge.
    return bool(after[0][0] - before[0][0] >= 2)

"""The SQLite driver and the store over it.

One idea: a file has one writer in a process, whichever stores are open on it, and reads have connections and threads of their
own and wait for nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import apsw

from refold.model.errors import StoreError
from refold.ports.store import Batch, Head, Hit
from refold.store import committing, migrate
from refold.store.lane import Lane, Told, attempt
from refold.store.sqlite_append import append, plain
from refold.store.sqlite_commit import run, run_at_once
from refold.store.sqlite_copy import copy_to, find_faults
from refold.store.sqlite_errors import in_our_words
from refold.store.sqlite_file import as_said, empty_log, open_reader
from refold.store.sqlite_writer import Begin, join, leave
from refold.store.sqlstore import SqlStore
from refold.store.transactions import Dialect, P, T, Transaction

READERS = 4
"""Threads that read: a long search leaves others free, and an idle one costs next to nothing."""
MERGED_PAGES = 200
"""Pages of the index that are written anew at a time: some milliseconds, so that nobody waits long for their turn."""
WORDS_TOGETHER = 64
"""Messages that the index takes up at a time: it costs as much for one as for some dozens."""
MOST_WORDS, MOST_BYTES = 512, 262_144
"""Messages that it takes up in one transaction, and bytes: some tens of milliseconds, in which others wait to write."""
SMALL_BYTES = 32_768
"""What a commit may hold to be small: copying it takes less time than the disk does."""

Read: TypeAlias = Callable[[apsw.Connection], Any]


class SqliteDriver:
    """Runs transactions on one file."""

    dialect: Dialect = "sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().absolute()
        self._writer = join(self.path)
        self._readers: Lane[apsw.Connection, Read] = Lane(
            partial(open_reader, self.path), apsw.Connection.close, _read_one, threads=READERS, most=1
        )
        self._is_closed = False

    async def read(self, begin: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.look(lambda connection: run(connection, begin(*args, **kwargs)))

    async def read_at_once(self, begin: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.look(lambda connection: run_at_once(connection, begin(*args, **kwargs)))

    async def write(self, begin: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        transaction: Begin = partial(begin, *args, **kwargs)
        return await self._visit(self._writer.write(transaction))

    async def write_small(self, begin: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Write what takes no longer than the disk does: on the spot, where that holds up nobody."""
        transaction: Begin = partial(begin, *args, **kwargs)
        told = None if self._is_closed else self._writer.write_here(transaction)
        if told is None:
            return await self._visit(self._writer.write(transaction))
        return self._result(told)  # type: ignore[no-any-return]

    async def look(self, job: Callable[[apsw.Connection], T]) -> T:
        """Do something with a connection that only reads."""
        return await self._visit(self._readers.visit(job))

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            await asyncio.to_thread(self._close)

    async def _visit(self, visit: Coroutine[Any, Any, T]) -> T:
        if self._is_closed:
            visit.close()
            raise StoreError("The store is closed.", hint="open it again")
        try:
            return await visit
        except (apsw.Error, UnicodeEncodeError) as error:
            raise in_our_words(error, self.path) from error

    def _result(self, told: Told) -> Any:
        if told.error is None:
            return told.result
        if isinstance(told.error, (apsw.Error, UnicodeEncodeError)):
            raise in_our_words(told.error, self.path) from told.error
        raise told.error

    def _close(self) -> None:
        self._readers.close()
        leave(self._writer)


def _read_one(connection: apsw.Connection, jobs: Sequence[Read]) -> list[Told]:
    return [attempt(partial(job, connection)) for job in jobs]


class SqliteStore(SqlStore):
    """Conversations in one file."""

    def __init__(self, driver: SqliteDriver) -> None:
        super().__init__(driver)
        self._file = driver
        self._said = WORDS_TOGETHER - 1  # the first message looks for what earlier programs left
        self._indexing: asyncio.Task[None] | None = None

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

    async def _commit(self, seen: Head, batch: Batch) -> Head:
        write = self._file.write_small if _is_small(batch) else self._file.write
        if (asked := plain(seen, batch)) is not None:
            head = await write(append, seen, asked)
        else:
            head = await write(committing.commit, seen, batch, as_said)
        self._said += len(batch.messages)
        if self._said >= WORDS_TOGETHER and self._indexing is None:
            self._said = 0
            self._indexing = asyncio.create_task(self._index())
        return head

    async def close(self) -> None:
        if self._indexing is not None:
            await asyncio.wait({self._indexing})
        await super().close()

    async def search(
        self, owner: str, query: str, *, conversation: str = "", branch: Head | None = None, limit: int = 20
    ) -> list[Hit]:
        if await self._file.read(_is_behind, 0):
            await self._catch_up()
        return await super().search(owner, query, conversation=conversation, branch=branch, limit=limit)

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

    async def _index(self) -> None:
        """Have the index take up what waits. Where it cannot now, a search will see to it, and say why."""
        try:
            with suppress(StoreError):
                if await self._file.read(_is_behind, WORDS_TOGETHER - 1):
                    await self._catch_up()
        finally:
            self._indexing = None

    async def _catch_up(self) -> None:
        while await self._file.write(_index_some):
            pass

    async def _wipe(self) -> None:
        """Bring what was deleted out of the index of words and out of the log, in steps that let others write between."""
        pages = -MERGED_PAGES
        while await self._file.write(_merge, pages):
            pages = MERGED_PAGES
        await self._file.look(lambda _: empty_log(self._file.path))


def _is_small(batch: Batch) -> bool:
    """Whether a commit is messages and notes as they are said, and no more work than that."""
    if batch.changes or batch.embeddings or batch.undoes:
        return False
    said = sum(len(one.body) + len(one.text) for one in batch.messages)
    beside = sum(len(call.reply) + len(call.receipt) for call in batch.calls) + sum(map(len, batch.blobs))
    return said + beside + len(batch.notes or b"") <= SMALL_BYTES


def _is_behind(by: int) -> Transaction[bool]:
    """Whether more than so many texts wait for the index."""
    return bool((yield "has_unindexed", {"more_than": by}))


def _index_some() -> Transaction[bool]:
    """Take up some of what waits; is there more?"""
    yield "index_words", {"limit": MOST_WORDS, "bytes": MOST_BYTES}
    return (yield from _is_behind(0))


def _merge(pages: int) -> Transaction[bool]:
    """Write some pages of the index anew, without what was deleted; is there more to do?"""
    before = yield "count_changes", {}
    yield "merge_words", {"pages": pages}
    after = yield "count_changes", {}
    # As SQLite documents it: fewer than two changes say that nothing was left to merge.
    return bool(after[0][0] - before[0][0] >= 2)

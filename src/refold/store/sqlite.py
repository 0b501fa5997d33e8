"""The SQLite driver and the store over it.

One idea: a file has one writer in a process, whichever stores are open on it, and reads have connections and threads of their
own and wait for nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, TypeAlias

import apsw
from msgspec import structs

from refold.model.errors import StoreError
from refold.ports.store import Batch, Head, Hit
from refold.store import committing, migrate, rows
from refold.store import sqlite_upkeep as upkeep
from refold.store.lane import Ended, Lane, Told, attempt
from refold.store.queries import load
from refold.store.sqlite_append import Asked, append, plain
from refold.store.sqlite_commit import Job, run, run_at_once
from refold.store.sqlite_copy import copy_to, find_faults
from refold.store.sqlite_errors import in_our_words
from refold.store.sqlite_file import PATIENCE_S, open_reader, wipe
from refold.store.sqlite_writer import Script, join, leave
from refold.store.sqlstore import SqlStore, committed
from refold.store.transactions import Dialect, P, T, Transaction

_log = logging.getLogger("refold")

READERS = 4
"""Threads that read: a long search leaves others free, and an idle one costs next to nothing."""
MERGED_PAGES = 200
"""Pages of the index that are written anew at a time: some milliseconds, so that nobody waits long for their turn."""
WORDS_TOGETHER = 256
"""Messages after which the index takes up what is new: it costs as much for one as for some dozens."""
SMALL_BYTES = 32_768
"""What a commit may hold to be small: copying it takes less time than the disk does."""
PATIENCE_MS = 5_000
"""How long a deletion waits for others to let the file be cleared."""
MOST_NOTED = 1_000
"""Sessions of which it is remembered when they were used: more are not in use within a second."""
MOST_WIPED = 64_000_000
"""The largest file, in bytes, that is written anew whenever something is deleted: it takes less than a second."""

Read: TypeAlias = Callable[[apsw.Connection], Any]


class SqliteDriver:
    """Runs transactions on one file."""

    dialect: Dialect = "sqlite"

    def __init__(self, path: Path, patience_s: float = PATIENCE_S) -> None:
        self.path = path.expanduser().absolute()
        self._writer = join(self.path, patience_s)
        self._readers: Lane[apsw.Connection, Read] = Lane(
            partial(open_reader, self.path), apsw.Connection.close, _read_one, threads=READERS, most=1
        )
        self._is_closed = False
        self.here: Callable[[Job | Script, str], Any] = self._writer.write_here
        """Do something small in a transaction on the spot; None, and nothing is done, where that would hold up anybody."""

    async def read(self, begin: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.look(lambda connection: run(connection, begin(*args, **kwargs)))

    async def read_at_once(self, begin: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.look(lambda connection: run_at_once(connection, begin(*args, **kwargs)))

    async def write(self, begin: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.do(lambda cursor: run(cursor, begin(*args, **kwargs)))

    async def do(self, job: Callable[[apsw.Cursor], T], visitor: str = "", *, is_small: bool = False) -> T:
        """Do something in a transaction that writes: what is small on the spot, where that holds up nobody. Who has done much there
        makes room for others before going on.
        """
        try:
            if is_small:
                if self._writer.makes_room():
                    await asyncio.sleep(0)
                if (done := self.here(job, visitor)) is not None:
                    return done  # type: ignore[no-any-return]
            if self._is_closed:
                raise closed()
            return await self._writer.write(job, visitor)  # type: ignore[no-any-return]
        except (apsw.Error, UnicodeEncodeError, Ended) as error:
            raise self._told(error) from error

    async def look(self, job: Callable[[apsw.Connection], T]) -> T:
        """Do something with a connection that only reads."""
        if self._is_closed:
            raise closed()
        try:
            return await self._readers.visit(job)  # type: ignore[no-any-return]
        except (apsw.Error, UnicodeEncodeError, Ended) as error:
            raise self._told(error) from error

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed, self.here = True, _nowhere
            await asyncio.to_thread(self._close)

    def _told(self, error: apsw.Error | UnicodeEncodeError | Ended) -> StoreError:
        # Who was on the way to a thread or a connection while the store was closed finds neither.
        if self._is_closed or isinstance(error, Ended):
            return closed()
        return in_our_words(error, self.path)

    def _close(self) -> None:
        self._readers.close()
        leave(self._writer)


def closed() -> StoreError:
    return StoreError("The store is closed.", hint="open it again")


def _nowhere(_: Job | Script, __: str) -> None:
    raise closed()


def _read_one(connection: apsw.Connection, jobs: Sequence[Read]) -> list[Told]:
    return [attempt(partial(job, connection)) for job in jobs]


class SqliteStore(SqlStore):
    """Conversations in one file."""

    def __init__(self, driver: SqliteDriver) -> None:
        super().__init__(driver)
        self._file, self._statements = driver, load("sqlite")
        # The first message looks for what earlier programs left, which is taken up if it is enough.
        self._said = self._left = WORDS_TOGETHER - 1
        self._indexing: asyncio.Task[None] | None = None
        self._noted: dict[tuple[str, str], float] = {}
        """When the conversation of a session was last used, as it was noted."""

    @classmethod
    async def open(cls, path: Path, *, patience_s: float = PATIENCE_S) -> SqliteStore:
        """Open a file, or begin one in a folder that is there; a write waits `patience_s` for another program that writes.

        Raises:
            StoreError: it cannot be opened, is not ours, or was written by a newer program; nothing was changed.
        """
        driver = await asyncio.to_thread(SqliteDriver, path, patience_s)
        try:
            if not await driver.read(migrate.is_current, "sqlite"):
                await driver.write(migrate.upgrade, "sqlite")
        except BaseException:
            await driver.close()
            raise
        return cls(driver)

    async def commit(self, seen: Head, batch: Batch) -> Head:
        is_small, kept = _is_small(batch), None
        asked = plain(seen, batch) if is_small else None
        # The time in the database never goes back: within a second of what is noted there is nothing but the message to write.
        if asked is not None and batch.at < self._noted.get((seen.owner, seen.session), -inf) + 1:
            try:  # noqa: SIM105 - making an object for it takes longer than the rest
                kept = self._file.here((self._statements["append_message"], asked), seen.branch)
            except (apsw.Error, UnicodeEncodeError):
                pass  # nothing was kept: the long way comes upon the same, and says what it is
        if kept is None:
            head = await self._take_in(seen, batch, asked, is_small=is_small)
        else:
            head = structs.replace(seen, next_seq=seen.next_seq + 1)
        self._said += len(batch.messages)
        if self._said >= WORDS_TOGETHER and self._indexing is None:
            self._indexing = asyncio.create_task(self._index(more_than=self._left))
            self._said = self._left = 0
        return committed(head)

    async def _take_in(self, seen: Head, batch: Batch, asked: Asked | None, *, is_small: bool) -> Head:
        if asked is None:
            job: Callable[[apsw.Cursor], tuple[Head, bool]] = partial(_take_whole, seen, batch)
        else:
            job = partial(append, seen, asked, batch.at)
        head, is_noted = await self._file.do(job, seen.branch, is_small=is_small)
        if is_noted:
            if len(self._noted) >= MOST_NOTED:
                self._noted.clear()
            self._noted[seen.owner, seen.session] = batch.at
        return head

    async def close(self) -> None:
        indexing = self._indexing
        if indexing is not None and indexing.get_loop() is asyncio.get_running_loop():
            await asyncio.wait({indexing})
        await super().close()

    async def search(
        self, owner: str, query: str, *, conversation: str = "", branch: Head | None = None, limit: int = 20
    ) -> list[Hit]:
        if await self._file.read(upkeep.is_behind, 0):
            await self._catch_up()
        return await super().search(owner, query, conversation=conversation, branch=branch, limit=limit)

    async def delete(self, owner: str, conversation: str = "") -> int:
        deleted = await self._write(upkeep.delete, owner, conversation)
        if deleted or not conversation:  # an owner has more than conversations
            await self._wipe()
        return deleted

    async def expire(
        self, owner: str, before: float, keep: Sequence[str] = (), limit: int | None = None
    ) -> int:
        deleted = await self._write(upkeep.expire, owner, before, keep, limit)
        if deleted:  # it is asked every hour, and the whole index would be written anew for nothing
            await self._wipe()
        return deleted

    async def backup(self, path: Path) -> None:
        """Write a copy of the whole database, as it is at one moment, while others go on writing.

        Raises:
            StoreError: there is a file of that name, or it cannot be written.
        """
        await self._file.look(partial(copy_to, path))

    async def vacuum(self) -> tuple[int, int]:
        """Write the file anew, however large it is, without what its pages still hold of things deleted.

        Returns its size before and after, in bytes. Whoever writes has to wait meanwhile.

        Raises:
            StoreError: others are in the way, or there is no room for it.
        """
        before = self._file.path.stat().st_size
        if error := await self._clear(inf, PATIENCE_MS):
            raise in_our_words(error, self._file.path)
        return before, self._file.path.stat().st_size

    async def check(self) -> list[str]:
        """What is wrong with the file: its structure, its references, and messages that are no longer what they were."""
        return await self._file.look(lambda _: find_faults(self._file.path))

    async def _index(self, more_than: int) -> None:
        """Have the index take up what waits, and end what a deletion left. Where it cannot now, a search will see to the one, and the
        next time to the other.
        """
        try:
            with suppress(StoreError):
                if await self._file.read(upkeep.is_behind, more_than):
                    await self._catch_up()
                if await self._file.read(upkeep.last_deletion):
                    await self._clear(MOST_WIPED, 0)
        finally:
            self._indexing = None

    async def _catch_up(self) -> None:
        while await self._file.write(upkeep.index_some):
            pass

    async def _wipe(self) -> None:
        """Bring what was deleted out of memory and out of the file."""
        self._noted.clear()
        if failed := await self._clear(MOST_WIPED, PATIENCE_MS):
            _log.warning(
                "it is deleted, and some of it is still in the file (%s): the next program that deletes or says something clears it",
                type(failed).__name__,
            )

    async def _clear(self, most_bytes: float, patience_ms: int) -> apsw.Error | None:
        """Bring what was deleted out of the index of words, in steps that let others write between, and out of the file and its log.

        It was noted together with the deletion, so whoever is stopped in the middle has left it to the next.
        """
        last, pages = await self._file.read(upkeep.last_deletion), -MERGED_PAGES
        while await self._file.write(upkeep.merge, pages):
            pages = MERGED_PAGES
        failed = await self._file.look(lambda _: wipe(self._file.path, most_bytes, patience_ms))
        if last and failed is None:
            await self._file.write(upkeep.forget_deletions, last)
        return failed


def _take_whole(seen: Head, batch: Batch, cursor: apsw.Cursor) -> tuple[Head, bool]:
    return run(cursor, committing.commit(seen, batch, rows.of_message)), False


def _is_small(batch: Batch) -> bool:
    """Whether a commit is messages and notes as they are said, and no more work than that."""
    if batch.changes or batch.embeddings or batch.undoes:
        return False
    said = sum(len(one.body) for one in batch.messages)
    beside = sum(len(call.reply) + len(call.receipt) for call in batch.calls) + sum(map(len, batch.blobs))
    return said + beside + len(batch.notes or b"") <= SMALL_BYTES

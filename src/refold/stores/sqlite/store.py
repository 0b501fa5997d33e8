"""The SQLite store and its driver.

A file has one writer per process, for all stores that are open on it. Reads have their own connections and threads and never wait
for the writer; a lookup of a few rows runs in the event loop while such lookups are quick. A batch of a single message is appended by one script: it checks the row of the branch without writing it, and passes
values by position, which is much faster than by name.

The index of words and the removal of deleted data delay no commit. The transaction that leaves such work records it, so that any
later program can finish it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

import apsw
from msgspec import Struct, structs

from refold.core.search.query import MAX_QUERY, spaced, words_by_piece
from refold.model.errors import StoreError
from refold.ports.records import Batch, Head, NewMessages, SearchHit, Session, SessionHit
from refold.stores.search import said, scope
from refold.stores.sql import conversations, queries, rows
from refold.stores.sql.commit import Spell, commit, committed, is_one_message, out_of_order, reach, refuse
from refold.stores.sql.queries import P, QueryParameters, SqlDialect, T, TableRow, Tables, Transaction, load
from refold.stores.sql.store import SqlStore
from refold.stores.sqlite.file import PATIENCE_S, copy_to, find_faults, open_reader, store_error, wipe
from refold.stores.sqlite.writer import (
    QUICK_S,
    Job,
    JobOutcome,
    SqlScript,
    WorkerPool,
    WorkersStopped,
    attempt,
    join,
    leave,
    run,
    run_at_once,
)

_log = logging.getLogger("refold")

LOCKED_S = 2.0
"""Time without a write after which a store counts as locked: so long the gateway waits for it before it answers without storing."""
READERS = 4
"""Reader threads: during a long search the others are free, and an idle thread costs almost nothing."""
MERGED_PAGES = 200
"""Pages of the index that are rewritten in one step: some milliseconds, so that other writers do not wait long."""
MOST_WORDS, MOST_BYTES = 128, 262_144
"""Messages, and bytes, that one transaction indexes: other writers wait for some milliseconds."""
PART_SIZE = 524_288
"""Characters of the words of a long message that one transaction indexes: other writers wait for 15 to 30 milliseconds. Smaller parts
take more time together."""
PART_OVERLAP = MAX_QUERY
"""Words of the next part that a part ends with: no phrase of a query is longer."""
WORDS_TOGETHER = 256
"""Number of new messages after which they are indexed: a few dozen take as long as one."""
RESTS = 4.0
"""How many times as long as it worked the background index rests after each transaction: requests come first, and 2,000 messages a
second are still indexed."""
CLOSING_S = 1.0
"""How long a store that is closed goes on with the index. What waits then is indexed by the next program."""
SMALL_BYTES = 32_768
"""Largest size of a small commit: copying it takes less time than the flush to the disk."""
PATIENCE_MS = 5_000
"""Time that a deletion waits for other programs before the file can be cleared."""
MOST_NOTED = 1_000
"""Sessions whose last use is kept in memory: no more are in use within one second."""
MOST_WIPED = 64_000_000
"""The largest file, in bytes, that is rewritten after every deletion: that takes less than a second."""

Read: TypeAlias = Callable[[apsw.Connection], Any]


class SqliteDriver:
    """Runs transactions on one file."""

    dialect: SqlDialect = "sqlite"

    def __init__(self, path: Path, patience_s: float = PATIENCE_S) -> None:
        self.path = path.expanduser().absolute()
        self._writer = join(self.path, patience_s)
        self._readers: WorkerPool[apsw.Connection, Read] = WorkerPool(
            partial(open_reader, self.path), apsw.Connection.close, _read_one, threads=READERS, most=1
        )
        self._is_closed = False
        # A second connection for lookups in the event loop, which must not wait for a lock.
        self._beside, self._turn, self._looked_s = open_reader(self.path), threading.Lock(), 0.0
        self._beside.set_busy_timeout(0)
        self.here: Callable[[Job | SqlScript, str], Any] = self._writer.write_here
        """Run a small transaction in the event loop; None, without any effect, if that would delay another caller."""

    @property
    def is_gone(self) -> bool:
        """Whether the path names no file any more, or another one: what is written is lost when the program ends."""
        try:
            status = self.path.stat()
        except OSError:
            return True
        return (status.st_dev, status.st_ino) != self._writer.key

    async def read(self, begin: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.look(lambda connection: run(connection, begin(*args, **kwargs)))

    async def read_at_once(self, begin: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.look(lambda connection: run_at_once(connection, begin(*args, **kwargs)))

    async def look_up(self, begin: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Read a few rows by their keys. A round trip to a thread takes several times as long as such a read, unless it has to wait
        for the disk: it runs in the event loop if the last one was quick.
        """
        is_quick = self._looked_s <= QUICK_S and self._readers.is_free and not self._is_closed
        # The writer's connection has the pages that it wrote last; another one reads them again from the file.
        turns = ((self._writer.turn, self._writer.connection), (self._turn, self._beside)) if is_quick else ()
        for turn, connection in turns:
            if not turn.acquire(False):
                continue
            try:
                return self._timed(begin(*args, **kwargs), connection)
            except apsw.BusyError:
                break  # the file is being recovered after a crash: a thread waits for it
            except (apsw.Error, UnicodeEncodeError) as error:
                raise self._told(error) from error
            finally:
                turn.release()
        return await self.look(lambda connection: self._timed(begin(*args, **kwargs), connection))

    def _timed(self, transaction: Transaction[T], connection: apsw.Connection) -> T:
        start = perf_counter()
        try:
            return run(connection, transaction)
        finally:
            self._looked_s = perf_counter() - start

    async def write(self, begin: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.do(lambda cursor: run(cursor, begin(*args, **kwargs)))

    async def do(self, job: Callable[[apsw.Cursor], T], visitor: str = "", *, is_small: bool = False) -> T:
        """Run a job in a write transaction. A small one runs in the event loop if that delays no other caller; after many such
        writes in a row, other tasks run first.
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
        except (apsw.Error, UnicodeEncodeError, WorkersStopped) as error:
            raise self._told(error) from error

    async def takes_writes(self) -> bool:
        """Whether a write transaction, an empty one, comes to its end within `LOCKED_S`."""
        try:
            async with asyncio.timeout(LOCKED_S):
                await self._writer.write(_write_nothing)
        except (TimeoutError, apsw.BusyError):
            return False
        except (apsw.Error, WorkersStopped) as error:
            raise self._told(error) from error
        return True

    async def look(self, job: Callable[[apsw.Connection], T]) -> T:
        """Run a job with a read-only connection."""
        if self._is_closed:
            raise closed()
        try:
            return await self._readers.submit(job)  # type: ignore[no-any-return]
        except (apsw.Error, UnicodeEncodeError, WorkersStopped) as error:
            raise self._told(error) from error

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed, self.here = True, _nowhere
            await asyncio.to_thread(self._close)

    def _told(self, error: apsw.Error | UnicodeEncodeError | WorkersStopped) -> StoreError:
        # The store may be closed while a caller is on its way to a thread or a connection.
        if self._is_closed or isinstance(error, WorkersStopped):
            return closed()
        return store_error(error, self.path)

    def _close(self) -> None:
        self._readers.close()
        with self._turn:
            self._beside.close()
        leave(self._writer)


def closed() -> StoreError:
    return StoreError("the store is closed", hint="open it again")


def _write_nothing(_: apsw.Cursor) -> None:
    """A transaction that takes the lock of the file and gives it back."""


def _nowhere(_: Job | SqlScript, __: str) -> None:
    raise closed()


def _read_one(connection: apsw.Connection, jobs: Sequence[Read]) -> list[JobOutcome]:
    return [attempt(partial(job, connection)) for job in jobs]


class SqliteStore(SqlStore):
    """Conversations in one file."""

    def __init__(self, driver: SqliteDriver, *, is_behind: bool = False) -> None:
        super().__init__(driver)
        self._file, self._statements = driver, load("sqlite")
        # The first message also checks for messages that earlier programs left without an index.
        self._said, self._left = WORDS_TOGETHER - 1, 0 if is_behind else WORDS_TOGETHER - 1
        self._indexing: asyncio.Task[None] | None = None
        self._ending, self._index_until = asyncio.Event(), inf
        self._noted: dict[tuple[str, str], float] = {}
        """The recorded time of last use of each session's conversation."""

    @classmethod
    async def open(
        cls, path: Path, *, patience_s: float = PATIENCE_S, tables: Tables = "upgraded"
    ) -> SqliteStore:
        """Open a file, or create one in an existing folder. A write waits up to `patience_s` for a write of another program.
        With `tables="checked"`, a file of an earlier version is refused.

        Raises:
            StoreError: the file cannot be opened, belongs to another program, or was written by a newer Refold; it was not changed.
        """
        driver = await asyncio.to_thread(SqliteDriver, path, patience_s)
        try:
            if tables == "checked":
                await driver.read(queries.check_tables, "sqlite")
            elif tables == "upgraded" and not await driver.read(queries.has_current_tables, "sqlite"):
                await driver.write(queries.upgrade_tables, "sqlite")
            is_behind = False
            with suppress(StoreError):  # a file that is damaged there is opened, and read as far as that goes
                is_behind = tables == "upgraded" and await driver.read(_is_behind, 0)
        except BaseException:
            await driver.close()
            raise
        return cls(driver, is_behind=is_behind)

    async def fault(self) -> str:
        if self._file.is_gone:
            return "the file of the store was removed or replaced"
        return await super().fault() or (
            "" if await self._file.takes_writes() else "the file of the store is locked"
        )

    async def create(self, head: Head, session: Session, *, title: str = "", at: float = 0.0) -> Head:
        job = partial(_create, head, session, title, at)
        return await self._file.do(job, head.branch, is_small=True)

    async def commit(self, seen: Head, batch: Batch) -> Head:
        is_small, kept = _is_small(batch), None
        asked = append_values(seen, batch) if is_small else None
        # The time in the database never decreases. Within a second of the recorded time only the message is written.
        if asked is not None and batch.at < self._noted.get((seen.owner, seen.session), -inf) + 1:
            try:  # noqa: SIM105 - making an object for it takes longer than the rest
                kept = self._file.here((self._statements["append_message"], asked), seen.branch)
            except (apsw.Error, UnicodeEncodeError):
                pass  # nothing was stored: the general path meets the same error, and explains it
        if kept is None:
            head = await self._take_in(seen, batch, asked, is_small=is_small)
        else:
            head = structs.replace(seen, next_seq=seen.next_seq + 1)
        self._said += len(batch.messages)
        if self._said >= WORDS_TOGETHER and self._indexing is None:
            self._indexing = asyncio.create_task(self._index(more_than=self._left))
            self._said = self._left = 0
        return committed(head)

    async def _take_in(self, seen: Head, batch: Batch, asked: AppendValues | None, *, is_small: bool) -> Head:
        if asked is None:
            if isinstance(batch.messages, NewMessages):
                spell = await self._spelt(seen, batch.messages)
                batch = structs.replace(batch, messages=batch.messages.uncopied())
            else:
                spell = rows.of_message
            job: Callable[[apsw.Cursor], tuple[Head, bool]] = partial(_take_whole, seen, batch, spell)
        else:
            job = partial(append, seen, asked, batch.at)
        head, is_noted = await self._file.do(job, seen.branch, is_small=is_small)
        if is_noted:
            if len(self._noted) >= MOST_NOTED:
                self._noted.clear()
            self._noted[seen.owner, seen.session] = batch.at
        return head

    async def _spelt(self, seen: Head, messages: NewMessages) -> Spell:
        """The parameters of a large batch's messages, with views of their bytes: made, with all checksums, before the transaction, for
        which other writers wait.
        """
        spelt = await self._file.look(
            lambda _: {message.seq: rows.of_message(seen, message) for message in messages.uncopied()}
        )
        return lambda _, message: spelt[message.seq]

    async def close(self) -> None:
        indexing = self._indexing
        self._index_until = perf_counter() + CLOSING_S
        self._ending.set()
        if indexing is not None and indexing.get_loop() is asyncio.get_running_loop():
            await asyncio.wait({indexing})
        await super().close()

    async def search(
        self, owner: str, query: str, *, conversation: str = "", branch: Head | None = None, limit: int = 20
    ) -> list[SearchHit]:
        if await self._file.read(_is_behind, 0):
            await self._catch_up()
        return await super().search(owner, query, conversation=conversation, branch=branch, limit=limit)

    async def search_sessions(
        self, owner: str, query: str, *, conversation: str = "", limit: int = 20
    ) -> list[SessionHit]:
        if await self._file.read(_is_behind, 0):
            await self._catch_up()
        return await super().search_sessions(owner, query, conversation=conversation, limit=limit)

    async def delete(self, owner: str, conversation: str = "") -> int:
        deleted = await self._write(_delete, owner, conversation)
        if deleted or not conversation:  # an owner also has other rows
            await self._wipe()
        return deleted

    async def expire(
        self, owner: str, before: float, keep: Sequence[str] = (), limit: int | None = None
    ) -> int:
        deleted = await self._write(_expire, owner, before, keep, limit)
        if deleted:  # runs every hour: without a deletion the index would be rewritten in vain
            await self._wipe()
        return deleted

    async def backup(self, path: Path) -> None:
        """Write a copy of the database, a consistent snapshot, while other programs continue to write.

        Raises:
            StoreError: a file of that name exists, or the copy cannot be written.
        """
        await self._file.look(partial(copy_to, path))

    async def vacuum(self) -> tuple[int, int]:
        """Rewrite the file, of any size, without the remains of deleted data in its pages.

        Returns its size before and after, in bytes. Other writers wait in the meantime.

        Raises:
            StoreError: another program uses the file, or the disk is full.
        """
        before = self._file.path.stat().st_size
        if error := await self._clear(inf, PATIENCE_MS):
            raise store_error(error, self._file.path)
        return before, self._file.path.stat().st_size

    async def check(self) -> list[str]:
        """The faults of the file: in its structure, in its references, and messages with changed bytes."""
        return await self._file.look(lambda _: find_faults(self._file.path))

    async def _index(self, more_than: int) -> None:
        """Index the waiting messages, and complete unfinished deletions. After an error, the next search indexes the messages, and
        the next call completes the deletions.
        """
        try:
            with suppress(StoreError):
                if await self._file.read(_is_behind, more_than):
                    await self._catch_up(rests=RESTS)
                if await self._file.read(_last_deletion):
                    await self._clear(MOST_WIPED, 0)
        finally:
            self._indexing = None

    async def _catch_up(self, rests: float = 0.0) -> None:
        """Index all waiting messages. The rests between the transactions end when the store is closed."""
        is_behind = True
        while is_behind and perf_counter() < self._index_until:
            start = perf_counter()
            spelt, long = await self._file.read_at_once(_spell_some)
            is_behind = await self._file.write(_index, spelt)
            del spelt  # it may have megabytes
            if is_behind and rests:
                await self._rest(rests * (perf_counter() - start))
            if long is not None:
                await self._index_long(long, rests)
                del long

    async def _index_long(self, long: _LongMessage, rests: float) -> None:
        """Index the words of a long message, a part in each transaction. Parts that another program has indexed meanwhile are skipped."""
        start, end = perf_counter(), long.start
        part = await self._file.look(lambda _: next(long.parts, None))
        while perf_counter() < self._index_until:
            following = await self._file.look(lambda _: next(long.parts, None))
            if part is None or part.first == end:
                indexed = await self._file.write(_index_part, long, part, is_last=following is None)
                if indexed is None:
                    return  # another program was faster, or the message was deleted
                end = indexed
            if following is None or following.first > end:
                return  # all is indexed, or another version of the program has divided it differently
            part = following
            if rests:
                await self._rest(rests * (perf_counter() - start))
            start = perf_counter()

    async def _rest(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ending.wait()

    async def _wipe(self) -> None:
        """Remove deleted data from memory and from the file."""
        self._noted.clear()
        if failed := await self._clear(MOST_WIPED, PATIENCE_MS):
            _log.warning(
                "it is deleted, and some of it is still in the file (%s): the next program that deletes or adds messages removes it",
                type(failed).__name__,
            )

    async def _clear(self, most_bytes: float, patience_ms: int) -> apsw.Error | None:
        """Remove deleted data from the index of words, from the file and from its log. Other writers can write between the steps.

        The task is recorded in the transaction of the deletion, so another program can complete it after a crash.
        """
        last, pages = await self._file.read(_last_deletion), -MERGED_PAGES
        while await self._file.write(_merge, pages):
            pages = MERGED_PAGES
        failed = await self._file.look(lambda _: wipe(self._file.path, most_bytes, patience_ms))
        if last and failed is None:
            await self._file.write(_forget_deletions, last)
        return failed


def _create(head: Head, session: Session, title: str, at: float, cursor: apsw.Cursor) -> Head:
    return run(cursor, conversations.create(head, session, title=title, at=at))


def _take_whole(seen: Head, batch: Batch, spell: Spell, cursor: apsw.Cursor) -> tuple[Head, bool]:
    return run(cursor, commit(seen, batch, spell)), False


def _is_small(batch: Batch) -> bool:
    """True if a batch has only messages, queued or not, notes and calls, of few bytes."""
    if batch.changes or batch.embeddings or batch.undoes:
        return False
    beside = sum(len(call.reply) + len(call.receipt) for call in batch.calls) + sum(map(len, batch.blobs))
    return batch.text_size + beside + len(batch.notes or b"") <= SMALL_BYTES


AppendValues: TypeAlias = tuple[object, ...]


def append_values(seen: Head, batch: Batch) -> AppendValues | None:
    """The values for the script that appends a message; None if the batch is more than one message, or needs a lookup."""
    if batch.notes is not None or batch.model is not None or not is_one_message(seen, batch):
        return None
    message = batch.messages[0]
    if message.seq != seen.next_seq:
        raise out_of_order()
    return (
        message.seq, seen.owner, seen.branch, seen.conversation, seen.epoch, seen.revision, seen.session,
        message.role, message.format, message.tokens, message.is_findable, message.body, rows.digest_of(message.body),
        message.shown, None if message.shown is None else rows.digest_of(message.shown), message.key, message.at,
        message.seq, message.is_findable,
    )  # fmt: skip


def append(seen: Head, asked: AppendValues, at: float, cursor: apsw.Cursor) -> tuple[Head, bool]:
    """Run the script, and record the time of the conversation's last use. Returns whether this is a new second."""
    try:
        cursor.execute(load("sqlite")["append_message"], asked)
    except apsw.ConstraintError:
        run(cursor, refuse(seen))
    place = {"at": at, "owner": seen.owner, "conversation": seen.conversation}
    is_noted = cursor.execute(load("sqlite")["touch_conversation"], place).fetchall()
    reach("append.before_commit")
    return structs.replace(seen, next_seq=seen.next_seq + 1), bool(is_noted)


# The transactions of the index of words and of the removal of deleted data


def _is_behind(by: int) -> Transaction[bool]:
    """True if more than this number of messages wait for the index."""
    return bool((yield "has_unindexed", {"more_than": by}))


_SpeltWords: TypeAlias = dict[tuple[int, bytes], str]
"""The words of messages, by their id and checksum: the id of a deleted message may be given again."""


class _WordPart(Struct, frozen=True):
    """Consecutive words of a long message, which are one row of the index."""

    first: int
    size: int
    """Its own words: those after them are repeated in the next part."""
    words: str


class _LongMessage(Struct):
    """A message of which some words wait for the index."""

    id: int
    digest: bytes
    start: int
    parts: Iterator[_WordPart]
    """From `start` on. They hold the text of the message."""


def _spell_some() -> Transaction[tuple[_SpeltWords, _LongMessage | None]]:
    """Split some of the waiting messages into words. This is most of the work, and no writer waits for it. A long message is the last
    one, and is split later, part by part.
    """
    spelt: _SpeltWords = {}
    for _, _, which, wire, digest, is_new in (yield from _unindexed()):
        if not is_new:
            continue
        found = yield "get_unindexed_body", {"id": which}
        # Popped, so that the bytes are freed before their words are split: they may be megabytes.
        text = said(wire, found.pop()[0])
        if len(text) <= PART_SIZE:
            spelt[which, digest] = spaced(text)
            continue
        end = yield "get_word_end", {"id": which, "digest": digest}
        start = end[0][0] if end else 0
        parts = _divide(text, start)
        del text
        few = list(islice(parts, 2))
        if start or len(few) > 1:
            return spelt, _LongMessage(which, digest, start, chain(few, parts))
        spelt[which, digest] = few[0].words if few else ""
    return spelt, None


def _divide(text: str, start: int) -> Iterator[_WordPart]:
    """Divide the words of a text, from a number on, into parts of about `PART_SIZE` characters."""
    # Words are held as a text, which takes a tenth of the memory of a list.
    own, size, length, skipped = list[str](), 0, 0, start
    full, repeated = _WordPart(start, 0, ""), list[str]()
    for words in words_by_piece(text):
        few, skipped = words[skipped:], max(0, skipped - len(words))
        if full.size:
            repeated += few[: PART_OVERLAP - len(repeated)]
            if len(repeated) == PART_OVERLAP:
                yield _end_with(full, repeated)
                full, repeated = _WordPart(start, 0, ""), []
        if few:
            own.append(" ".join(few))
            size, length = size + len(few), length + len(own[-1])
        if length >= PART_SIZE and not full.size:
            full = _WordPart(start, size, " ".join(own))
            own, start, size, length = [], start + size, 0, 0
    if full.size:
        yield _end_with(full, repeated)
    if size:
        yield _WordPart(start, size, " ".join(own))


def _end_with(part: _WordPart, repeated: list[str]) -> _WordPart:
    return _WordPart(part.first, part.size, " ".join([part.words, *repeated]))


def _index(spelt: _SpeltWords) -> Transaction[bool]:
    """Index waiting messages, each branch up to the first that was not split. Returns True if there are more."""
    new, newest, later = list[QueryParameters](), dict[int, QueryParameters](), set[int]()
    for owner, conversation, which, _, digest, is_new in (yield from _unindexed()):
        if which >> 32 in later or (is_new and (which, digest) not in spelt):
            later.add(which >> 32)
            continue
        if is_new and (words := spelt[which, digest]):
            new.append({"id": which, "scope": scope(owner, conversation), "words": words})
        newest[which >> 32] = {"id": which}
    yield "index_words", new
    yield "note_indexed", list(newest.values())
    return (yield from _is_behind(0))


def _index_part(long: _LongMessage, part: _WordPart | None, *, is_last: bool) -> Transaction[int | None]:
    """Index a part of a long message if it is the next one. Returns how many words are indexed then; None if the message is gone, or
    all its words are indexed.
    """
    found = yield "get_word_end", {"id": long.id, "digest": long.digest}
    if not found:
        return None
    # Read with each part: another conversation may have the id now, and begin with the same message.
    end: int
    end, owner, conversation = found[0]
    if part is not None and part.first == end:
        row = {
            "id": long.id,
            "first": part.first,
            "size": part.size,
            "scope": scope(owner, conversation),
            "words": part.words,
        }
        yield "index_part", row
        end += part.size
    elif part is not None:
        return end
    if is_last:
        yield "note_parts", {"id": long.id}
    return end


def _unindexed() -> Transaction[list[TableRow]]:
    return (yield "list_unindexed", {"limit": MOST_WORDS, "bytes": MOST_BYTES})


def _merge(pages: int) -> Transaction[bool]:
    """Rewrite some pages of the index without deleted words. Returns True if there is more to do."""
    before = yield "count_changes", {}
    yield "merge_words", {"pages": pages}
    after = yield "count_changes", {}
    # As SQLite documents it: fewer than two changes say that nothing was left to merge.
    return bool(after[0][0] - before[0][0] >= 2)


def _delete(owner: str, conversation: str) -> Transaction[int]:
    """Delete conversations, and record that the file still has to be cleared of their data."""
    deleted = yield from conversations.delete(owner, conversation)
    if deleted or not conversation:
        yield "note_deletion", {}
    return deleted


def _expire(
    owner: str, before: float, keep: Sequence[str] = (), limit: int | None = None
) -> Transaction[int]:
    """Delete conversations that were not used for long, and record it in the same way."""
    deleted = yield from conversations.expire(owner, before, keep, limit)
    if deleted:
        yield "note_deletion", {}
    return deleted


def _last_deletion() -> Transaction[int]:
    """The number of the last recorded deletion; 0 if the file is clear."""
    return (yield "last_deletion", {})[0][0] or 0


def _forget_deletions(number: int) -> Transaction[None]:
    """Record that the file is clear of all deletions up to this number."""
    yield "forget_deletions", {"number": number}

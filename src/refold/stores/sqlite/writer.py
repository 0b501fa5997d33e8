"""The threads that work on an SQLite file: workers with one queue, and the one writer of a process for one file."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar
from weakref import WeakSet

import apsw

from refold.model.errors import StoreError
from refold.stores.sql.commit import reach
from refold.stores.sql.queries import QueryParameters, QueryStep, T, TableRow, Transaction, load
from refold.stores.sqlite.file import copy_log, open_writer, patiently, prepare

# Worker threads with one queue, each with its own connection. Jobs run in the order of their
# submission. A job runs in one thread from beginning to end, and its outcome is delivered to the
# event loop that submitted it. A thread may take several waiting jobs and run them together. A job
# that is cancelled before it begins is skipped; one that has begun is finished.

R = TypeVar("R")
C = TypeVar("C")
J = TypeVar("J")


class WorkersStopped(Exception):
    """The pool was closed before the job began."""


class JobOutcome(NamedTuple):
    """The outcome of a job: a result, or an error."""

    result: Any = None
    error: BaseException | None = None


class _QueuedJob(NamedTuple, Generic[J]):
    job: J
    loop: asyncio.AbstractEventLoop
    outcome: asyncio.Future[Any]


Work: TypeAlias = Callable[[C, Sequence[J]], Sequence[JobOutcome]]


def attempt(job: Callable[[], R]) -> JobOutcome:
    """Run a job and catch its error."""
    try:
        return JobOutcome(job())
    except BaseException as error:  # noqa: BLE001 - the caller gets it
        return JobOutcome(error=error)


_pools: WeakSet[WorkerPool[Any, Any]] = WeakSet()


def _end_all() -> None:
    """A forked process has none of the threads: callers get an error instead of waiting."""
    for pool in _pools:
        pool.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_end_all)


class WorkerPool(Generic[C, J]):
    """A queue and its threads. Each thread calls `connect` before its first job and `leave` when it ends.

    `work` gets up to `most` waiting jobs, and returns the outcome of each.
    """

    def __init__(
        self,
        connect: Callable[[], C],
        leave: Callable[[C], None],
        work: Work[C, J],
        *,
        threads: int,
        most: int,
    ) -> None:
        self._connect, self._leave, self._work, self._most = connect, leave, work, most
        self._entries: SimpleQueue[_QueuedJob[J] | None] = SimpleQueue()
        self._is_closed, self._door = False, threading.Lock()
        _pools.add(self)
        # Daemons: a program that forgets to close a store must still be able to end.
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    @property
    def is_free(self) -> bool:
        """Whether no job waits and the pool is open; a job may be running."""
        return self._entries.empty() and not self._is_closed

    async def submit(self, job: J) -> Any:
        """
        Raises:
            WorkersStopped: the threads have ended.
        """
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Any] = loop.create_future()
        with self._door:
            if self._is_closed:
                raise WorkersStopped
            self._entries.put(_QueuedJob(job, loop, outcome))
        return await outcome

    def abandon(self) -> None:
        """Close without the threads, which do not exist in this process."""
        self._is_closed, self._door = True, threading.Lock()

    def close(self) -> None:
        """Finish the jobs in the queue, and end the threads."""
        with self._door:
            self._is_closed = True
            for _ in self._threads:
                self._entries.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        connection: C | None = None
        is_open = True
        while is_open:
            entries, is_open = self._take()
            if not entries:
                continue
            made = attempt(lambda current=connection: current or self._connect())  # type: ignore[misc]
            connection = made.result
            told = (
                [made] * len(entries) if made.error else self._work(made.result, [one.job for one in entries])
            )
            _tell(entries, told)
            del entries, made, told  # until the next job, they would hold the rows of this one
        if connection is not None:
            self._leave(connection)

    def _take(self) -> tuple[list[_QueuedJob[J]], bool]:
        """Wait for a job, and take the other waiting jobs with it. The flag is True while the pool is open."""
        taken = list[_QueuedJob[J]]()
        entry = self._entries.get()
        while entry is not None:
            if not entry.outcome.cancelled():
                taken.append(entry)
            if len(taken) >= self._most:
                return taken, True
            try:
                entry = self._entries.get_nowait()
            except Empty:
                return taken, True
        return taken, False


def _tell(entries: Sequence[_QueuedJob[Any]], told: Sequence[JobOutcome]) -> None:
    """Deliver outcomes to their event loops, in one call per loop, because each call wakes the loop."""
    waiting: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], JobOutcome]]] = {}
    for entry, one in zip(entries, told, strict=True):
        waiting.setdefault(entry.loop, []).append((entry.outcome, one))
    for loop, outcomes in waiting.items():
        # The loop was closed in the meantime, and no task waits.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_settle, outcomes)


def _settle(outcomes: Sequence[tuple[asyncio.Future[Any], JobOutcome]]) -> None:
    for outcome, told in outcomes:
        if outcome.cancelled():
            continue
        if told.error is None:
            outcome.set_result(told.result)
        else:
            outcome.set_exception(told.error)


# The one writer of a process for one SQLite file, and the transactions on its connection. All
# writes of all stores of the process are in one queue, in the order of their submission: no two of
# them compete for the file's lock, and none starves. A write is one job of the writer's thread,
# which runs its whole transaction. Flushing a commit to the disk takes longer than the rest, and no
# longer for many transactions than for one. So transactions that wait at the same time run one
# after the other, each behind its own savepoint, and share one commit; no caller gets its result
# before that commit. If a transaction fails, only its own work is rolled back. If SQLite rolls
# everything back, as on a full disk, each transaction is run again by itself. A round trip to a
# thread takes longer than a fast disk. So a small write runs directly in the event loop if no other
# caller has written just before and the disk is fast. With other callers, a slow disk or another
# program that writes, the queue is used. The pages of a large commit are copied from the log into the
# file by a thread of its own, with its own connection: the next writes do not wait for that.

MOST_TOGETHER = 64
"""Transactions that share one commit: together they take about as long as the flush."""
QUICK_S = 0.001
"""A write runs in the event loop only if the last one took less than this: no longer than other steps of a loop."""
ALONE_S = 0.001
"""A write runs in the event loop only if no other caller wrote for this long: more frequent callers share a commit."""
MOST_IN_A_ROW = 16
"""Writes in the event loop in a row before other tasks run: some milliseconds."""

LOG_PAGES, MOST_COPIED, MOST_LOG = 1_000, 2_000, 100_000
"""Pages of a log that is copied into the file; the most new ones that a commit copies itself, which takes some milliseconds; and the
size of a log, 400 MB, from which on commits copy it whatever that takes."""

HURRIED_S = 0.05
"""Busy timeout after a write that timed out, until one succeeds: the next writes do not each wait the full timeout behind a
program that is stuck."""

SqlScript: TypeAlias = tuple[str, tuple[object, ...]]
"""Statements, and their values by position."""


class FileWriter:
    """The queue of a file, and its connection."""

    def __init__(self, path: Path, key: tuple[int, int], patience_s: float) -> None:
        self.key, self.stores, self.process = key, 0, os.getpid()
        self.patience_s, self._is_blocked = patience_s, False
        self._patience = patiently(lambda: HURRIED_S if self._is_blocked else self.patience_s)
        self._thread = threading.get_ident()
        # Opened here and not in the thread: errors go to the caller that opens the store.
        self.connection = open_writer(path, self._wait)
        self.connection.set_wal_hook(self._note_log)
        self._path, self._copied, self._asked, self._copying = path, 0, 0, threading.Thread()
        self.cursor = self.connection.cursor()
        """Reused, because creating a cursor takes longer than many statements; replaced after an error."""
        self.turn = threading.Lock()
        """Held while the connection is used."""
        self.workers: WorkerPool[apsw.Connection, Job] = WorkerPool(
            lambda: self.connection, self._close, self._work, threads=1, most=MOST_TOGETHER
        )
        self._took_s, self._came_at, self._visitor, self._in_a_row = inf, -inf, "", 0

    async def write(self, job: Job, visitor: str = "") -> Any:
        """Run a job in a transaction in the writer's thread, and return when it is on the disk. A visitor (a branch) runs one job at a time."""
        self._visitor, self._came_at, self._in_a_row = visitor, perf_counter(), 0
        return await self.workers.submit(job)

    def makes_room(self) -> bool:
        """True if other tasks of the event loop must run now; resets the count."""
        is_much = self._in_a_row >= MOST_IN_A_ROW
        if is_much:
            self._in_a_row = 0
        return is_much

    def write_here(self, job: Job | SqlScript, visitor: str) -> Any:
        """Run a job in a transaction in the event loop; None, without any effect, if that would delay another caller.

        Every message takes this path. With a fast disk, each additional function call is a hundredth of the time.
        """
        now = perf_counter()
        if (
            self._took_s > QUICK_S
            or self._in_a_row >= MOST_IN_A_ROW
            or (visitor != self._visitor and now - self._came_at <= ALONE_S)
            or not self.workers.is_free
            or not self.turn.acquire(False)
        ):
            return None
        cursor = self.cursor
        try:
            cursor.execute("BEGIN IMMEDIATE")
            result = cursor.execute(*job) if isinstance(job, tuple) else job(cursor)
            reach("here.before_commit")
            cursor.execute("COMMIT")
        except BaseException as error:
            self.cursor = self.connection.cursor()
            roll_back(self.connection)
            if isinstance(error, apsw.BusyError):
                return None  # another program writes, which takes longer than a quick disk does: the thread waits for it
            raise
        finally:
            self.turn.release()
        self._visitor, self._came_at, self._in_a_row = visitor, perf_counter(), self._in_a_row + 1
        self._took_s = self._came_at - now
        return result

    def _work(self, _: apsw.Connection, jobs: Sequence[Job]) -> list[JobOutcome]:
        self._thread = threading.get_ident()
        with self.turn:
            start = perf_counter()
            told = commit_all(self.cursor, jobs)
            self._is_blocked = any(isinstance(one.error, apsw.BusyError) for one in told)
            if any(one.error for one in told):
                self.cursor = self.connection.cursor()
            self._took_s = perf_counter() - start
        return told

    def _note_log(self, connection: apsw.Connection, _: str, pages: int) -> int:
        """Copy a long log into the file. SQLite calls it after each commit, with the number of pages in the log. A log that is copied
        whole begins anew with the next commit, unless somebody reads it.
        """
        with suppress(
            Exception
        ):  # the commit is on the disk: an error here would be told as its failure. A later one copies more
            self._copy_if_long(connection, pages)
        return apsw.SQLITE_OK

    def _copy_if_long(self, connection: apsw.Connection, pages: int) -> None:
        if pages < max(LOG_PAGES, self._copied):
            self._copied = self._asked = 0
        if pages < LOG_PAGES:
            return
        if pages - self._copied <= MOST_COPIED or pages >= MOST_LOG:
            copied = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)[1]
            self._copied = self._asked = 0 if copied == pages else copied
        elif pages - self._asked >= LOG_PAGES and not self._copying.is_alive():
            copying = threading.Thread(target=self._copy_log, daemon=True)
            copying.start()
            self._asked, self._copying = pages, copying

    def _copy_log(self) -> None:
        with suppress(Exception):  # as above
            self._copied = copy_log(self._path)

    def _close(self, connection: apsw.Connection) -> None:
        if self._copying.is_alive():
            self._copying.join()
        with self.turn:
            connection.close()

    def _wait(self, times: int) -> bool:
        """Wait for the write of another program, only in the writer's thread: in an event loop it would block all tasks."""
        return threading.get_ident() == self._thread and self._patience(times)


_writers: Final[dict[tuple[int, int], FileWriter]] = {}
_writers_lock: Final = threading.Lock()


def join(path: Path, patience_s: float) -> FileWriter:
    """The writer of a file: the existing one, or a new one. It waits for other programs for the shortest patience of its users.

    Raises:
        StoreError: the file cannot be opened, or was open when this process was forked.
    """
    prepare(path)
    with _writers_lock:
        status = path.stat()
        key = (status.st_dev, status.st_ino)
        writer = _writers.get(key) or FileWriter(path, key, patience_s)
        if writer.process != os.getpid():
            # SQLite would take the locks of the parent process for its own, and writes would be lost.
            raise StoreError(
                "the database was open when this process was forked",
                hint="open it after forking only, or start processes by spawn",
                location=str(path),
            )
        _writers[key] = writer
        writer.stores += 1
        writer.patience_s = min(writer.patience_s, patience_s)
        return writer


def leave(writer: FileWriter) -> None:
    if writer.process != os.getpid():
        return
    with _writers_lock:
        writer.stores -= 1
        if not writer.stores:
            del _writers[writer.key]
            writer.workers.close()


SqlHandle: TypeAlias = apsw.Connection | apsw.Cursor
"""The cursor that runs the statements. It is reused, because creating one for every statement takes time."""
Job: TypeAlias = Callable[[apsw.Cursor], Any]
"""The work inside a transaction."""


def run(handle: SqlHandle, transaction: Transaction[T]) -> T:
    """Run a transaction to its end: execute the queries it yields, and send it the rows."""
    try:
        step = next(transaction)
        while True:
            step = transaction.send(_ask(handle, step))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def run_at_once(connection: apsw.Connection, transaction: Transaction[T]) -> T:
    """Run a transaction that reads, on one snapshot of the file."""
    connection.execute("BEGIN")
    try:
        return run(connection, transaction)
    finally:
        connection.execute("ROLLBACK")


def commit(cursor: apsw.Cursor, job: Callable[[apsw.Cursor], T]) -> T:
    """Run a job and commit it. The commit is on the disk before the outcome is returned."""
    cursor.execute("BEGIN IMMEDIATE")
    try:
        result = job(cursor)
        cursor.execute("COMMIT")
    except BaseException:
        roll_back(cursor.connection)  # the cursor itself may be in the middle of a script
        raise
    return result


def roll_back(connection: apsw.Connection) -> None:
    # A full disk makes SQLite roll back by itself, and then there is nothing left to roll back.
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def commit_all(cursor: apsw.Cursor, jobs: Sequence[Job]) -> list[JobOutcome]:
    """Run jobs in their order, each as a whole or not at all, with one commit. The outcomes are returned after it."""
    if len(jobs) > 1:
        together = attempt(partial(commit, cursor, partial(_do_all, jobs=jobs)))
        if together.error is None:
            return list(together.result)
        if isinstance(together.error, apsw.BusyError):
            return [together] * len(jobs)
    return [attempt(partial(commit, cursor, job)) for job in jobs]


def _do_all(cursor: apsw.Cursor, jobs: Sequence[Job]) -> list[JobOutcome]:
    return [_do_apart(cursor, job) for job in jobs]


def _do_apart(cursor: apsw.Cursor, job: Job) -> JobOutcome:
    """Run one of several jobs behind a savepoint; if it fails, its work is rolled back."""
    cursor.execute("SAVEPOINT apart")
    told = attempt(partial(job, cursor))
    if told.error is not None:
        # Raises if everything was rolled back already: then there is no savepoint.
        cursor.execute("ROLLBACK TO apart")
    cursor.execute("RELEASE apart")
    return told


def _ask(handle: SqlHandle, step: QueryStep) -> list[TableRow]:
    name, parameters = step
    statement = load("sqlite")[name]
    keeps = name not in _CONTENT or not _is_large(parameters, _CONTENT[name])
    if isinstance(parameters, dict):  # several times as fast as a check for Mapping
        return handle.execute(statement, parameters, can_cache=keeps).fetchall()
    return list(handle.executemany(statement, parameters, can_cache=keeps))


_CONTENT = {
    "add_message": ("body", "shown"),
    "install_compaction": ("edits", "shown"),
    "put_summary": ("body", "carry"),
    "add_blob": ("body",),
    "add_reply": ("body",),
    "index_words": ("words",),
    "index_part": ("words",),
}
"""The parameters of a query that may be large."""
_LARGE = 256 * 1024


def _is_large(parameters: QueryParameters | Sequence[QueryParameters], names: Sequence[str]) -> bool:
    """True if a statement with these parameters must not be kept for its next use: it would keep their bytes until then."""
    for row in [parameters] if isinstance(parameters, dict) else parameters:
        for name in names:
            if len(row[name] or b"") > _LARGE:  # type: ignore[arg-type,index]
                return True
    return False

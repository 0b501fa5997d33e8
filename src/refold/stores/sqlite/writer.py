"""The one writer of a process for one SQLite file, and how transactions run on its connection.

All writes stand in one queue, first come, first served, from all stores of the process: no two of them compete for the file's lock,
and none starves. A write is one job for the writer's thread, in which its whole transaction runs. Bringing a commit to the disk takes
longer than the rest and no longer for many, so transactions that wait at the same time run one after the other, each behind its own
savepoint, and share one commit; no caller is told of success before it. A transaction that fails takes back only its own work; where
SQLite rolls everything back, as on a full disk, each is run again by itself.

A round trip to a thread takes longer than a quick disk does. So a small write is made directly in the event loop while no other
caller is near and the disk is quick. With other callers, a slow disk or another program that writes, the queue is used.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any, Final, TypeAlias

import apsw

from refold.model.errors import StoreError
from refold.stores.failpoints import reach
from refold.stores.sql.queries import Row, Step, T, Transaction, load
from refold.stores.sqlite.file import open_writer, patiently, prepare
from refold.stores.sqlite.worker import JobOutcome, WorkerPool, attempt

MOST_TOGETHER = 64
"""Transactions that go to the disk together: they take about as long as the disk itself does."""
QUICK_S = 0.001
"""A write is made in the event loop only if the last one took less than this: no longer than other steps of a loop."""
ALONE_S = 0.001
"""A write is made in the event loop only if no other caller wrote for this long: callers that come more often share a commit."""
MOST_IN_A_ROW = 16
"""Writes in the event loop before other tasks have their turn: some milliseconds."""

HURRIED_S = 0.05
"""Busy timeout after a write that timed out, until one succeeds: the next writes do not each wait the full timeout behind a
program that is stuck."""

Script: TypeAlias = tuple[str, tuple[object, ...]]
"""Statements, and the values that they ask for in their order."""


class FileWriter:
    """The queue of a file, and the connection behind it."""

    def __init__(self, path: Path, key: tuple[int, int], patience_s: float) -> None:
        self.key, self.stores, self.process = key, 0, os.getpid()
        self.patience_s, self._is_blocked = patience_s, False
        self._patience = patiently(lambda: HURRIED_S if self._is_blocked else self.patience_s)
        self._thread = threading.get_ident()
        # Opened here and not in the thread: errors go to the caller that opens the store.
        self.connection = open_writer(path, self._wait)
        self.cursor = self.connection.cursor()
        """Kept, since making one takes longer than many a statement; after an error there is another."""
        self._turn = threading.Lock()
        self.workers: WorkerPool[apsw.Connection, Job] = WorkerPool(
            lambda: self.connection, self._close, self._work, threads=1, most=MOST_TOGETHER
        )
        self._took_s, self._came_at, self._visitor, self._in_a_row = inf, -inf, "", 0

    async def write(self, job: Job, visitor: str = "") -> Any:
        """Run a job in a transaction in the writer's thread, and return when it is on the disk. A visitor (a branch) runs one job at a time."""
        self._visitor, self._came_at, self._in_a_row = visitor, perf_counter(), 0
        return await self.workers.submit(job)

    def makes_room(self) -> bool:
        """Whether other tasks of the event loop must have their turn now; resets the count."""
        is_much = self._in_a_row >= MOST_IN_A_ROW
        if is_much:
            self._in_a_row = 0
        return is_much

    def write_here(self, job: Job | Script, visitor: str) -> Any:
        """Run a job in a transaction in the event loop; None, and nothing is done, where that would delay another caller.

        Every message takes this path, and the disk is quick: each additional call takes a hundredth of the time.
        """
        now = perf_counter()
        if (
            self._took_s > QUICK_S
            or self._in_a_row >= MOST_IN_A_ROW
            or (visitor != self._visitor and now - self._came_at <= ALONE_S)
            or not self.workers.is_free
            or not self._turn.acquire(False)
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
            self._turn.release()
        self._visitor, self._came_at, self._in_a_row = visitor, perf_counter(), self._in_a_row + 1
        self._took_s = self._came_at - now
        return result

    def _work(self, _: apsw.Connection, jobs: Sequence[Job]) -> list[JobOutcome]:
        self._thread = threading.get_ident()
        with self._turn:
            start = perf_counter()
            told = commit_all(self.cursor, jobs)
            self._is_blocked = any(isinstance(one.error, apsw.BusyError) for one in told)
            if any(one.error for one in told):
                self.cursor = self.connection.cursor()
            self._took_s = perf_counter() - start
        return told

    def _close(self, connection: apsw.Connection) -> None:
        with self._turn:
            connection.close()

    def _wait(self, times: int) -> bool:
        """Wait for another program that writes, in the writer's own thread: elsewhere an event loop would wait with us."""
        return threading.get_ident() == self._thread and self._patience(times)


_writers: Final[dict[tuple[int, int], FileWriter]] = {}
_writers_lock: Final = threading.Lock()


def join(path: Path, patience_s: float) -> FileWriter:
    """The writer of a file: the one that is there, or a new one; it waits for other programs as long as the least patient of
    those who use it.

    Raises:
        StoreError: it cannot be opened, or was open when this process was forked.
    """
    prepare(path)
    with _writers_lock:
        status = path.stat()
        key = (status.st_dev, status.st_ino)
        writer = _writers.get(key) or FileWriter(path, key, patience_s)
        if writer.process != os.getpid():
            # SQLite takes the locks of the process before for its own, and they are not: what is written would be lost.
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


Handle: TypeAlias = apsw.Connection | apsw.Cursor
"""What statements are given to. A cursor that is kept saves making one for every statement."""
Job: TypeAlias = Callable[[apsw.Cursor], Any]
"""What is done inside of a transaction."""


def run(handle: Handle, transaction: Transaction[T]) -> T:
    """Give a transaction the rows it asks for, to its end."""
    try:
        step = next(transaction)
        while True:
            step = transaction.send(_ask(handle, step))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def run_at_once(connection: apsw.Connection, transaction: Transaction[T]) -> T:
    """Likewise, with the file as it is at one moment."""
    connection.execute("BEGIN")
    try:
        return run(connection, transaction)
    finally:
        connection.execute("ROLLBACK")


def commit(cursor: apsw.Cursor, job: Callable[[apsw.Cursor], T]) -> T:
    """Do a job; what came of it is on the disk."""
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
    """Do jobs in their order, each whole or not at all; what is told here is on the disk."""
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
    """Do one of several; what it did is taken back if it fails."""
    cursor.execute("SAVEPOINT apart")
    told = attempt(partial(job, cursor))
    if told.error is not None:
        # Raises where everything was rolled back already: then there is no savepoint to go back to.
        cursor.execute("ROLLBACK TO apart")
    cursor.execute("RELEASE apart")
    return told


def _ask(handle: Handle, step: Step) -> list[Row]:
    name, parameters = step
    statement = load("sqlite")[name]
    if isinstance(parameters, dict):  # several times as quick as to ask for a mapping
        return handle.execute(statement, parameters).fetchall()
    return [row for each in parameters for row in handle.execute(statement, each)]

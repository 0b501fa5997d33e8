"""The one writer of a process for one file.

One idea: all writes stand in one queue, first come, first served, whichever store they come from, so no two of them ever fight
for the lock, and none starves. Each is one visit to the writer's thread, in which its whole transaction runs. Those that wait
together are brought to the disk together, each whole or not at all, and nobody is told of success before that.

The way to a thread and back takes longer than a quick disk does. So a small write that nobody else is near is made on the spot,
in the event loop, as long as the disk is quick: it holds up nobody, for less time than most other steps take. Where others come
as well, or the disk or another program takes its time, the queue is better, and it is taken.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any, Final, TypeAlias

import apsw

from refold.model.errors import StoreError
from refold.store.failpoints import reach
from refold.store.lane import Lane, Told
from refold.store.sqlite_commit import Job, commit_all, roll_back
from refold.store.sqlite_file import open_writer, patiently, prepare

MOST_TOGETHER = 64
"""Transactions that go to the disk together: they take about as long as the disk itself does."""
QUICK_S = 0.001
"""How long the last trip to the disk may have taken for the next to be made on the spot: no longer than other steps of a loop."""
ALONE_S = 0.001
"""For how long nobody else was here: those who come more often than that do better together."""
MOST_IN_A_ROW = 16
"""Writes on the spot before the others in the event loop have their turn: some milliseconds."""

HURRIED_S = 0.05
"""How long a write waits for another program after one before it waited in vain, until one gets through: the next ones do not
queue up behind a program that is stuck, each with the whole patience."""

Script: TypeAlias = tuple[str, tuple[object, ...]]
"""Statements, and the values that they ask for in their order."""


class Writer:
    """The queue of a file, and the connection behind it."""

    def __init__(self, path: Path, key: tuple[int, int], patience_s: float) -> None:
        self.key, self.stores, self.process = key, 0, os.getpid()
        self.patience_s, self._is_blocked = patience_s, False
        self._patience = patiently(lambda: HURRIED_S if self._is_blocked else self.patience_s)
        self._thread = threading.get_ident()
        # Opened here and not in the thread: what is wrong with the file is said to whoever opens it.
        self.connection = open_writer(path, self._wait)
        self.cursor = self.connection.cursor()
        """Kept, since making one takes longer than many a statement; after an error there is another."""
        self._turn = threading.Lock()
        self.lane: Lane[apsw.Connection, Job] = Lane(
            lambda: self.connection, self._close, self._work, threads=1, most=MOST_TOGETHER
        )
        self._took_s, self._came_at, self._visitor, self._in_a_row = inf, -inf, "", 0

    async def write(self, job: Job, visitor: str = "") -> Any:
        """Do a job in a transaction, and return when it is on the disk. One visitor does one thing after the other."""
        self._visitor, self._came_at, self._in_a_row = visitor, perf_counter(), 0
        return await self.lane.visit(job)

    def makes_room(self) -> bool:
        """Whether so much was written on the spot that others must have their turn; from now on it counts anew."""
        is_much = self._in_a_row >= MOST_IN_A_ROW
        if is_much:
            self._in_a_row = 0
        return is_much

    def write_here(self, job: Job | Script, visitor: str) -> Any:
        """Likewise, on the spot; None, and nothing is done, where that would hold up anybody.

        Every message takes this way, and the disk is quick: each call more than needed takes a hundredth of the time.
        """
        now = perf_counter()
        if (
            self._took_s > QUICK_S
            or self._in_a_row >= MOST_IN_A_ROW
            or (visitor != self._visitor and now - self._came_at <= ALONE_S)
            or not self.lane.is_free
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

    def _work(self, _: apsw.Connection, jobs: Sequence[Job]) -> list[Told]:
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


_writers: Final[dict[tuple[int, int], Writer]] = {}
_writers_lock: Final = threading.Lock()


def join(path: Path, patience_s: float) -> Writer:
    """The writer of a file: the one that is there, or a new one; it waits for other programs as long as the least patient of
    those who use it.

    Raises:
        StoreError: it cannot be opened, or was open when this process was forked.
    """
    prepare(path)
    with _writers_lock:
        status = path.stat()
        key = (status.st_dev, status.st_ino)
        writer = _writers.get(key) or Writer(path, key, patience_s)
        if writer.process != os.getpid():
            # SQLite takes the locks of the process before for its own, and they are not: what is written would be lost.
            raise StoreError(
                "The database was open when this process was forked",
                hint="open it after forking only, or start processes by spawn",
                location=str(path),
            )
        _writers[key] = writer
        writer.stores += 1
        writer.patience_s = min(writer.patience_s, patience_s)
        return writer


def leave(writer: Writer) -> None:
    if writer.process != os.getpid():
        return
    with _writers_lock:
        writer.stores -= 1
        if not writer.stores:
            del _writers[writer.key]
            writer.lane.close()

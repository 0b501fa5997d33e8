"""The one writer of a process for one file.

One idea: all writes stand in one queue, first come, first served, whichever store they come from, so no two of them ever fight
for the lock, and none starves. Each is one visit to the writer's thread, in which its whole transaction runs. Those that wait
together are brought to the disk together, each whole or not at all, and nobody is told of success before that.

The way to a thread and back takes longer than a quick disk does. So a small write that nobody else is near is made on the spot,
in the event loop, as long as the disk is quick: it holds up nobody, for less time than most other steps take. Where others come
as well, or the disk or another program takes its time, the queue is better, and it is taken.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any, Final, TypeAlias

import apsw

from refold.store.lane import Lane, Told
from refold.store.sqlite_commit import commit_all, commit_one
from refold.store.sqlite_file import open_writer, patiently, prepare
from refold.store.transactions import Transaction

MOST_TOGETHER = 64
"""Transactions that go to the disk together: they take about as long as the disk itself does."""
QUICK_S = 0.001
"""How long the last trip to the disk may have taken for the next to be made on the spot: no longer than other steps of a loop."""
ALONE_S = 0.001
"""For how long nobody else was here: those who come more often than that do better together."""
MOST_IN_A_ROW = 16
"""Writes on the spot before the others in the event loop have their turn: some milliseconds."""

Begin: TypeAlias = Callable[[], Transaction[Any]]


class Writer:
    """The queue of a file, and the connection behind it."""

    def __init__(self, path: Path, key: tuple[int, int]) -> None:
        self.key, self.stores = key, 0
        self._patience, self._is_patient = patiently(), True
        # Opened here and not in the thread: what is wrong with the file is said to whoever opens it.
        self.connection = open_writer(path, self._wait)
        self._turn = threading.Lock()
        self.lane: Lane[apsw.Connection, Begin] = Lane(
            lambda: self.connection, apsw.Connection.close, self._work, threads=1, most=MOST_TOGETHER
        )
        self._took_s, self._came_at, self._visitor, self._in_a_row = inf, -inf, 0, 0

    async def write(self, begin: Begin) -> Any:
        """Run a transaction, and return when it is on the disk."""
        self._visitor, self._came_at, self._in_a_row = id(asyncio.current_task()), perf_counter(), 0
        return await self.lane.visit(begin)

    def write_here(self, begin: Begin) -> Told | None:
        """Run a transaction on the spot; None, and nothing is done, where that would hold up anybody."""
        visitor, now = id(asyncio.current_task()), perf_counter()
        is_alone = visitor == self._visitor or now - self._came_at > ALONE_S
        if (
            not is_alone
            or self._took_s > QUICK_S
            or self._in_a_row >= MOST_IN_A_ROW
            or not self.lane.is_empty
        ):
            return None
        if not self._turn.acquire(blocking=False):
            return None
        try:
            self._is_patient = False
            told = commit_one(self.connection, begin)
        finally:
            self._is_patient = True
            self._turn.release()
        if isinstance(told.error, apsw.BusyError):
            return None
        self._visitor, self._came_at, self._in_a_row = visitor, perf_counter(), self._in_a_row + 1
        self._took_s = self._came_at - now
        return told

    def _work(self, _: apsw.Connection, begins: Sequence[Begin]) -> list[Told]:
        with self._turn:
            start = perf_counter()
            told = commit_all(self.connection, begins)
            self._took_s = perf_counter() - start
        return told

    def _wait(self, times: int) -> bool:
        """Wait for another program that writes, unless the event loop would wait with us."""
        return self._is_patient and self._patience(times)


_writers: Final[dict[tuple[int, int], Writer]] = {}
_writers_lock: Final = threading.Lock()


def join(path: Path) -> Writer:
    """The writer of a file: the one that is there, or a new one."""
    prepare(path)
    with _writers_lock:
        status = path.stat()
        key = (status.st_dev, status.st_ino)
        writer = _writers.get(key) or Writer(path, key)
        _writers[key] = writer
        writer.stores += 1
        return writer


def leave(writer: Writer) -> None:
    with _writers_lock:
        writer.stores -= 1
        if not writer.stores:
            del _writers[writer.key]
            writer.lane.close()

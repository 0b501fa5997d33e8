"""Worker threads with one queue, each with its own connection.

Jobs run in the order of their submission. A job runs in one thread from beginning to end, and its outcome is delivered to the event
loop that submitted it. A thread may take several waiting jobs and run them together. A job that is cancelled before it begins is
skipped; one that has begun is finished.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar
from weakref import WeakSet

T = TypeVar("T")
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


def attempt(job: Callable[[], T]) -> JobOutcome:
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

"""Threads that work through one queue, each with a connection of its own.

One idea: a job is one visit. It waits its turn, first come, first served, runs in a thread from beginning to end, and what came
of it is told to the event loop that asked, whichever one that is. A thread may take what waits together and do it at once. A
job whose asker went away before its turn came is left out; one that has begun is finished.
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


class Ended(Exception):
    """A lane was closed before a job came to it."""


class Told(NamedTuple):
    """What came of a job: a result, or an error."""

    result: Any = None
    error: BaseException | None = None


class _Entry(NamedTuple, Generic[J]):
    job: J
    loop: asyncio.AbstractEventLoop
    outcome: asyncio.Future[Any]


Work: TypeAlias = Callable[[C, Sequence[J]], Sequence[Told]]


def attempt(job: Callable[[], T]) -> Told:
    """Do a job, and say what came of it."""
    try:
        return Told(job())
    except BaseException as error:  # noqa: BLE001 - whoever asked is told
        return Told(error=error)


_lanes: WeakSet[Lane[Any, Any]] = WeakSet()


def _end_all() -> None:
    """In a process that was forked none of the threads is there: whoever comes is told so, and waits for nobody."""
    for lane in _lanes:
        lane.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_end_all)


class Lane(Generic[C, J]):
    """A queue and its threads. `connect` is called in each of them when it has its first job, `leave` when it ends.

    `work` is given up to `most` jobs that wait, and says what came of each.
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
        self._entries: SimpleQueue[_Entry[J] | None] = SimpleQueue()
        self._is_closed, self._door = False, threading.Lock()
        _lanes.add(self)
        # Daemons: a program that forgets to close a store must still be able to end.
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    @property
    def is_free(self) -> bool:
        """Whether no job waits, and one that came would be done; one may be under way."""
        return self._entries.empty() and not self._is_closed

    async def visit(self, job: J) -> Any:
        """
        Raises:
            Ended: nobody is there any more to do the job.
        """
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Any] = loop.create_future()
        with self._door:
            if self._is_closed:
                raise Ended
            self._entries.put(_Entry(job, loop, outcome))
        return await outcome

    def abandon(self) -> None:
        """End without a word to the threads, which are not there."""
        self._is_closed, self._door = True, threading.Lock()

    def close(self) -> None:
        """Finish what is in the queue, and end."""
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

    def _take(self) -> tuple[list[_Entry[J]], bool]:
        """Wait for a job, and take those with it that wait already; is there more to come?"""
        taken = list[_Entry[J]]()
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


def _tell(entries: Sequence[_Entry[Any]], told: Sequence[Told]) -> None:
    """Tell all who wait what came of their jobs; those in one loop together, since each call wakes it up."""
    waiting: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Told]]] = {}
    for entry, one in zip(entries, told, strict=True):
        waiting.setdefault(entry.loop, []).append((entry.outcome, one))
    for loop, outcomes in waiting.items():
        # A loop that was closed meanwhile: nobody is there to be told.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_settle, outcomes)


def _settle(outcomes: Sequence[tuple[asyncio.Future[Any], Told]]) -> None:
    for outcome, told in outcomes:
        if outcome.cancelled():
            continue
        if told.error is None:
            outcome.set_result(told.result)
        else:
            outcome.set_exception(told.error)

"""Work on text outside of the event loop.

Parsing, counting, hashing, redacting and searching take time in proportion to the text. `run_text_work` calls a function in the
event loop where it reads little text, and in a thread where it reads more than `MAX_LOOP_BYTES`, so that one large text delays
nobody else. Every part of Refold that works on text of unknown size goes through it: the library's async face, the gateway, and
what runs in the background.

A function that runs in a thread must own what it changes: either nothing (it reads frozen values, `run_text_work`), or the state of
a conversation whose lock its caller holds until the function has returned (`run_text_act`).

The threads are daemons and not those of asyncio's default executor, which `asyncio.run` and the interpreter join at exit: a program
that is told to end does not wait for text. `abandon_text_work` stops waiting for what has not ended by then; nothing is stored of it.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar
from weakref import WeakSet

T = TypeVar("T")

MAX_LOOP_BYTES = 64 * 1024
"""Bytes (or characters, where a text is at hand) that are worked on in the event loop. The slowest work, looking for secrets and for
rules, takes about 0.25 s for a megabyte of prose, which is 15 ms for this much, as long as a dozen small requests take. Text full of
names of secrets takes about 1.5 s for a megabyte, which is 100 ms for this much."""
THREADS = 4
"""Large texts that are worked on at the same time. They share one interpreter lock with the event loop, which gets its turn after each
of them: more threads would not make any of them faster, and with fewer one text of 60 MB would hold up all that are just above the bound."""


class _Job(NamedTuple):
    work: Callable[[], Any]
    outcome: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


class _Workers:
    """A queue of jobs and the threads that work through it, started with the first job."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        for number in range(THREADS):
            threading.Thread(target=self._run, name=f"refold-text-{number}", daemon=True).start()

    def put(self, job: _Job) -> None:
        self._jobs.put(job)

    def _run(self) -> None:
        while True:
            _do(self._jobs.get())


def _do(job: _Job) -> None:
    """Do one job, and tell the event loop that waits for it. What nobody waits for any more is not begun."""
    if job.outcome.cancelled():
        return
    result, error = None, None  # type: tuple[Any, BaseException | None]
    _at_work.add(threading.get_ident())
    try:
        result = job.work()
    except BaseException as raised:  # noqa: BLE001  # whoever waits is told
        error = raised
    finally:
        _at_work.discard(threading.get_ident())
    with suppress(RuntimeError):  # the event loop was closed meanwhile: nobody waits
        job.loop.call_soon_threadsafe(_tell, job.outcome, result, error)
    error = None  # its traceback holds this frame, and with it the text


def _tell(outcome: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if outcome.done():
        return
    if error is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(result)


_workers: _Workers | None = None
_at_work: set[int] = set()
"""Threads that are doing a job."""
_under_way: set[asyncio.Future[Any]] = set()
"""Outcomes that somebody waits for."""
_ending: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
"""Event loops in which nobody waits for text work any more."""


def _forget_workers() -> None:
    """A forked process has none of its parent's threads: it starts its own."""
    global _workers  # noqa: PLW0603
    _workers = None
    _under_way.clear()
    _at_work.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_workers)


def is_long(size: int) -> bool:
    """Is text of this size worked on in a thread?"""
    return size > MAX_LOOP_BYTES


async def run_text_work(size: int, function: Callable[..., T], *args: Any) -> T:
    """The result of a function that reads `size` bytes or characters of text and changes nothing, called in a thread where that is
    much. Who is cancelled stops waiting; a function that has begun goes on in its thread.
    """
    if not is_long(size):
        return function(*args)
    outcome = _begin(function, args)
    try:
        return await outcome
    finally:
        _under_way.discard(outcome)


async def run_text_act(size: int, function: Callable[..., T], *args: Any) -> T:
    """Likewise, for a function that changes something: who is cancelled waits until it has ended, and is cancelled then. So the lock
    that the caller holds is held for as long as the thread is at work.
    """
    if not is_long(size):
        return function(*args)
    outcome, cancelled = _begin(function, args), None
    try:
        while not outcome.done():
            try:
                await asyncio.wait({outcome})
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is None:
            return outcome.result()
        if not outcome.cancelled():
            outcome.exception()  # it is of no interest any more, and asyncio would tell of it
        raise cancelled
    finally:
        _under_way.discard(outcome)
        cancelled = None


def _begin(function: Callable[..., T], args: tuple[Any, ...]) -> asyncio.Future[T]:
    """Put a call into the queue of the threads; it sees the context variables of the caller."""
    global _workers  # noqa: PLW0603
    if _workers is None:
        _workers = _Workers()
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()
    if loop in _ending:
        outcome.cancel()
        return outcome
    _under_way.add(outcome)
    _workers.put(_Job(partial(copy_context().run, function, *args), outcome, loop))
    return outcome


def abandon_text_work() -> None:
    """Cancel everybody in the running event loop who waits for text work or asks for more of it, because the program ends. The threads
    are not stopped: what they work on must not be used any more.
    """
    loop = asyncio.get_running_loop()
    _ending.add(loop)
    for outcome in [one for one in _under_way if one.get_loop() is loop]:
        outcome.cancel()


def is_text_worked_on() -> bool:
    """Is any thread at work? A program that ends then should do so by `os._exit`: the interpreter stops daemon threads wherever they
    are when it is torn down, and code that is not Python may not survive that.
    """
    return bool(_at_work)

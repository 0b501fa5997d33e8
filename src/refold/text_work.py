"""Work on text outside of the event loop.

Parsing, counting, hashing, redacting and searching take time in proportion to the text. `run_text_work` calls
a function in the event loop if it reads little text, and in a thread if it reads more than `MAX_LOOP_BYTES`,
so that one large text does not delay other requests. Every part of Refold that works on text of unknown size
uses it: the library's async classes, the gateway, and background jobs.

A function that runs in a thread must own the values it changes: either it changes none (it reads frozen
values, `run_text_work`), or it changes the state of a conversation whose lock its caller holds until the
function has returned (`run_text_act`).

Work that also calls code of plugins, which may take long without reading much, is `is_apart`: it runs in a thread of
its own, so that nobody's text waits for it.

The threads are daemons and not those of asyncio's default executor, which `asyncio.run` and the interpreter
join at exit: a program that ends does not wait for text. `abandon_text_work` cancels the waiters of
unfinished work; its results are not stored.
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
"""Bytes (or characters of a `str`) that are processed in the event loop. The slowest work, the search for
secrets and for rules, takes about 0.25 s for a megabyte of prose, which is 15 ms for this much, as long as a
dozen small requests take. Text full of names of secrets takes about 1.5 s for a megabyte, which is 100 ms for
this much."""
THREADS = 4
"""Large texts that are processed at the same time. They share one interpreter lock with the event loop, which
gets its turn after each of them: more threads would not make any of them faster, and with fewer one text of
60 MB would delay all that are just above the bound."""


class _Job(NamedTuple):
    work: Callable[[], Any]
    outcome: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


class _Workers:
    """A queue of jobs and the threads that process it, started with the first job."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        for number in range(THREADS):
            threading.Thread(target=self._run, name=f"refold-text-{number}", daemon=True).start()

    def put(self, job: _Job) -> None:
        self._jobs.put(job)

    def _run(self) -> None:
        while True:
            _run_job(self._jobs.get())


def _run_job(job: _Job) -> None:
    """Run one job, and pass its result to the event loop that waits for it. A job whose waiter was cancelled
    is not begun.
    """
    if job.outcome.cancelled():
        return
    result, error = None, None  # type: tuple[Any, BaseException | None]
    _at_work.add(threading.get_ident())
    try:
        result = job.work()
    except BaseException as raised:  # noqa: BLE001  # passed on to the waiter
        error = raised
    finally:
        _at_work.discard(threading.get_ident())
    with suppress(RuntimeError):  # the event loop was closed: there is no waiter
        job.loop.call_soon_threadsafe(_set_outcome, job.outcome, result, error)
    error = None  # its traceback holds this frame, and with it the text


def _set_outcome(outcome: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if outcome.done():
        return
    if error is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(result)


_workers: _Workers | None = None
_at_work: set[int] = set()
"""Ids of the threads that are running a job."""
_under_way: set[asyncio.Future[Any]] = set()
"""Futures of the jobs that a caller waits for."""
_ending: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
"""Event loops in which text work was abandoned."""


def _forget_workers() -> None:
    """Drop the workers in a forked process, which has none of its parent's threads: it starts its own."""
    global _workers  # noqa: PLW0603
    _workers = None
    _under_way.clear()
    _at_work.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_workers)


def is_long(size: int) -> bool:
    """Whether text of this size is processed in a thread."""
    return size > MAX_LOOP_BYTES


async def run_text_work(size: int, function: Callable[..., T], *args: Any, is_apart: bool = False) -> T:
    """Call a function that reads `size` bytes or characters of text and changes nothing, in a thread if that
    is much, or in one of its own if it `is_apart`. A cancelled caller stops waiting; a function that has begun goes on in its thread.
    """
    if not is_apart and not is_long(size):
        return function(*args)
    outcome = _begin(function, args, is_apart=is_apart)
    try:
        return await outcome
    finally:
        _under_way.discard(outcome)


async def run_text_act(size: int, function: Callable[..., T], *args: Any, is_apart: bool = False) -> T:
    """Call a function that changes a state, in a thread if it reads much text, or in one of its own if it `is_apart`. A cancelled
    caller waits until the function has ended, and is cancelled then, so that the caller's lock is held for as long as the thread
    works.
    """
    if not is_apart and not is_long(size):
        return function(*args)
    outcome, cancelled = _begin(function, args, is_apart=is_apart), None
    try:
        while not outcome.done():
            try:
                await asyncio.wait({outcome})
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is None:
            return outcome.result()
        if not outcome.cancelled():
            outcome.exception()  # retrieved, so that asyncio does not log it
        raise cancelled
    finally:
        _under_way.discard(outcome)
        cancelled = None


async def call_in_thread(function: Callable[[], T]) -> T:
    """Call a function of the user, which may block for as long as it likes, in a daemon thread of its own: the
    threads above stay free, and a program that ends does not wait for it. A cancelled caller stops waiting.
    """

    def call() -> T:
        try:
            return function()
        except StopIteration as error:  # a future takes none
            raise RuntimeError("the function raised StopIteration") from error

    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()
    job = _Job(partial(copy_context().run, call), outcome, loop)
    threading.Thread(target=_run_job, args=(job,), name="refold-function", daemon=True).start()
    return await outcome


def _begin(function: Callable[..., T], args: tuple[Any, ...], *, is_apart: bool) -> asyncio.Future[T]:
    """Queue a call for the threads, or start one for it; it runs with the context variables of the caller."""
    global _workers  # noqa: PLW0603
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()
    if loop in _ending:
        outcome.cancel()
        return outcome
    _under_way.add(outcome)
    job = _Job(partial(copy_context().run, function, *args), outcome, loop)
    if is_apart:
        threading.Thread(target=_run_job, args=(job,), name="refold-apart", daemon=True).start()
        return outcome
    if _workers is None:
        _workers = _Workers()
    _workers.put(job)
    return outcome


def abandon_text_work() -> None:
    """Cancel every waiter of text work in the running event loop, now and from now on, because the program
    ends. The threads are not stopped: the values that they work on must not be used any more.
    """
    loop = asyncio.get_running_loop()
    _ending.add(loop)
    for outcome in [one for one in _under_way if one.get_loop() is loop]:
        outcome.cancel()


def is_text_worked_on() -> bool:
    """Whether a thread is running a job. A program that ends then should do so by `os._exit`: the interpreter
    stops daemon threads at any point when it is torn down, and native code may crash.
    """
    return bool(_at_work)
